"""The doctor: what it finds, what it puts aside, and that a repaired pod goes on."""

from __future__ import annotations

import json
import random
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from log.logs import assert_paired, batch, call, create, kinds, lines_of, reopen, reply, result, say, started

from pod.errors import LogDamaged, PodBusy, PodNotFound
from pod.log import entries as e
from pod.log.doctor import examine, repair
from pod.log.findings import Finding
from pod.log.items import SegmentItems
from pod.log.lines import now, render
from pod.log.segment import entries
from pod.reading import SessionReader
from pod.session import Session
from pod.testing import RecordingFiles, replay_prefixes
from worker.items import ContextItem, ToolResultItem, UserItem
from worker.records import ToolResult, ToolStarted
from worker.stand_ins import LOST
from worker.testing.strict import check_items

SUMMARY = (ContextItem(kind="summary", text="what was"),)


def pod(home: Path) -> Session:
    """A pod with two batches and the words between them; closed."""
    session = create(home)
    say(session, "one")
    batch(session, "c1")
    say(session, "two")
    batch(session, "c2")
    reply(session, "done")
    session.close()
    return session


def snapshot(home: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(home)): (p.read_bytes() if p.is_file() else b"", stat.S_IMODE(p.stat().st_mode))
        for p in sorted(home.rglob("*"))
    }


def damage(path: Path, *numbers: int) -> list[bytes]:
    """Spoils the lines of these numbers (1-based) in the middle; the lines as they were."""
    lines = path.read_bytes().splitlines(keepends=True)
    spoilt = list(lines)
    for n in numbers:
        half = len(lines[n - 1]) // 2
        spoilt[n - 1] = lines[n - 1][:half] + b"\xff" + lines[n - 1][half + 1 :]
    path.write_bytes(b"".join(spoilt))
    return lines


def findings(home: Path) -> list[Finding]:
    (report,) = examine(home, "a").pods
    return list(report.findings)


def line_of(path: Path, kind: str, nth: int = 0) -> int:
    return [n for n, line in enumerate(lines_of(path), 1) if line.kind == kind][nth]


# -- examining ------------------------------------------------------------------------------------------------------


def test_a_whole_pod_has_nothing_to_report(tmp_path: Path) -> None:
    session = pod(tmp_path)
    anyio.run(_switch, tmp_path)
    (report,) = examine(tmp_path).pods
    assert report.ok and report.findings == () and not report.busy
    assert [(s.state, s.whole) for s in report.segments] == [("active", True), ("earlier", True)]
    assert report.segments[1].id == session.pointer.segment
    assert report.segments[1].entries == len(lines_of(session.writer.path))


async def _switch(home: Path, kind: e.LineageKind = "compacted_from") -> None:
    session = reopen(home)
    await session.switch(started(session, kind, items=SUMMARY))
    await session.sync()
    session.close()


def test_everything_that_is_wrong_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    session = pod(tmp_path)
    folder = session.folder
    path = session.writer.path
    lines = damage(path, 4)
    path.write_bytes(path.read_bytes() + b'{"torn')
    path.chmod(0o640)
    orphan = folder.segment_path("0190-orphan")
    shutil.copy(path, orphan)
    (folder.path / ".pod.json.x.tmp").write_bytes(b"{")
    (blob,) = (folder.path / "blobs").iterdir()
    blob.write_text("altered")
    before = snapshot(tmp_path)
    report = examine(tmp_path, "a")
    assert not report.ok and snapshot(tmp_path) == before
    found = {f.code: f for f in report.pods[0].findings}
    assert set(found) == {"damage", "torn_tail", "orphan_segment", "stale_temporary", "blob_altered", "mode"}
    assert (found["damage"].path, found["damage"].line) == (path, 4)
    assert found["damage"].offset == len(b"".join(lines[:3])) and found["damage"].length == len(lines[3])
    assert found["damage"].repairable and "1 entries are lost" in found["damage"].text
    assert (found["torn_tail"].offset, found["torn_tail"].length) == (len(b"".join(lines)), 6)
    assert found["orphan_segment"].path == orphan and "0640" in found["mode"].text
    blob.unlink()
    assert "blob_missing" in {f.code for f in findings(tmp_path)}
    json.loads(report.model_dump_json())


def test_a_busy_pod_names_its_writer_and_is_not_repaired(tmp_path: Path) -> None:
    session = create(tmp_path)
    (report,) = examine(tmp_path).pods
    assert report.busy and report.owner["pid"] and report.ok
    with pytest.raises(PodBusy):
        repair(tmp_path, "a")
    session.close()


def test_a_pod_without_a_pointer_or_without_its_segment_is_found(tmp_path: Path) -> None:
    session = pod(tmp_path)
    session.writer.path.rename(session.writer.path.with_suffix(".away"))
    assert [f.code for f in findings(tmp_path)] == ["segment_missing"]
    session.writer.path.with_suffix(".away").rename(session.writer.path)
    session.folder.pointer_path.unlink()
    (report,) = examine(tmp_path).pods
    assert report.name == "a" and [f.code for f in report.findings] == ["pointer"] and not report.ok
    with pytest.raises(PodNotFound):
        repair(tmp_path, "none")


# -- repairing ------------------------------------------------------------------------------------------------------


def test_a_repaired_pod_opens_and_the_damage_is_kept_aside(tmp_path: Path) -> None:
    session = pod(tmp_path)
    path = session.writer.path
    n = line_of(path, "admitted", 1)
    lines = damage(path, n)
    spoilt = path.read_bytes().splitlines(keepends=True)[n - 1]
    with pytest.raises(LogDamaged):
        reopen(tmp_path)
    done = repair(tmp_path, "a")
    (put_aside,) = done.quarantined
    offset = len(b"".join(lines[: n - 1]))
    assert (put_aside.offset, put_aside.length, put_aside.numbers) == (offset, len(spoilt), 1)
    kept = session.folder.path / "quarantine" / (put_aside.kept_as or "")
    assert kept.read_bytes() == spoilt and f".{offset}." in kept.name
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    after = path.read_bytes().splitlines(keepends=True)
    assert after[: n - 1] == lines[: n - 1] and after[n:] == lines[n:], "only the damage is replaced, no number changes"
    record = e.record_of(lines_of(path)[n - 1])
    assert isinstance(record, e.Repaired) and record.offset == offset and record.kept_as == put_aside.kept_as
    assert done.after.ok and done.after.findings == ()
    again = reopen(tmp_path)
    assert [i.text for i in again.state.history.queue.values()] == ["two"], (
        "its place in the view is lost, its words are not"
    )
    again.close()


def test_repairing_again_changes_nothing(tmp_path: Path) -> None:
    session = pod(tmp_path)
    damage(session.writer.path, 5, 6, 9)
    repair(tmp_path, "a")
    before = snapshot(tmp_path)
    done = repair(tmp_path, "a")
    after = snapshot(tmp_path)
    after["pods/a/lock"] = before["pods/a/lock"]
    assert after == before and done.quarantined == () and done.removed == ()


def view_after(home: Path) -> Session:
    session = reopen(home)
    history = session.state.history
    for open_call in list(history.open.values()):
        session.put(ToolResult(item=result(open_call.item.call_id, "closed at resume"), ran=False))
    say(session, "go on")
    assert_paired(history.view)
    check_items(history.view)
    session.close()
    return session


def test_a_call_whose_result_was_lost_is_closed_in_its_place(tmp_path: Path) -> None:
    """The result of the first batch is gone: the call gets one that says so, behind its reply, on every load."""
    session = pod(tmp_path)
    path = session.writer.path
    damage(path, line_of(path, "tool_result", 0))
    repair(tmp_path, "a")
    view = view_after(tmp_path).state.history.view
    lost = [i for i in view if isinstance(i, ToolResultItem) and i.id.startswith(LOST)]
    assert [i.status for i in lost] == ["interrupted"] and "lost from the damaged log" in lost[0].summary
    at = view.index(lost[0])
    assert view[at - 1].type == "tool_call" and isinstance(view[at + 1], UserItem)
    again = reopen(tmp_path)
    assert again.state.history.view == view
    again.close()
    items = SegmentItems(path, [i.id for i in view])
    assert items.read(0, items.count) == list(view)


def test_the_results_of_a_lost_reply_are_dropped(tmp_path: Path) -> None:
    session = pod(tmp_path)
    path = session.writer.path
    damage(path, line_of(path, "reply", 0))
    repair(tmp_path, "a")
    view = view_after(tmp_path).state.history.view
    assert [i.call_id for i in view if isinstance(i, ToolResultItem)] == ["c2"]


def test_one_lost_result_of_several_is_closed_and_the_others_stand(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    reply(session, "three at once", call("a"), call("b"), call("c"))
    for label in "abc":
        session.put(ToolStarted(call_id=label))
    for label in "cba":
        session.put(ToolResult(item=result(label, f"read {label}")))
    reply(session, "done")
    session.close()
    damage(session.writer.path, line_of(session.writer.path, "tool_result", 1))
    repair(tmp_path, "a")
    view = view_after(tmp_path).state.history.view
    results = [i for i in view if isinstance(i, ToolResultItem)]
    assert [(i.call_id, i.status) for i in results] == [("a", "ok"), ("b", "interrupted"), ("c", "ok")]


def test_a_result_lost_at_the_end_leaves_an_open_call_for_the_resume(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    batch(session, "c1")
    session.close()
    path = session.writer.path
    damage(path, line_of(path, "tool_result"))
    repair(tmp_path, "a")
    again = reopen(tmp_path)
    assert [c.started for c in again.state.history.unresolved] == [True]
    again.close()


def test_context_that_comes_while_a_call_is_open_waits_for_its_result(tmp_path: Path) -> None:
    from worker.records import ContextAdded

    session = create(tmp_path)
    say(session, "one")
    reply(session, "I call.", call("a"))
    session.put(ContextAdded(items=(ContextItem(kind="notice", text="by the way"),)))
    session.put(ToolResult(item=result("a")))
    assert [i.type for i in session.state.history.view] == ["user", "assistant", "tool_call", "tool_result", "context"]
    session.close()


def test_whatever_is_damaged_a_repaired_pod_is_valid_for_a_provider(tmp_path: Path) -> None:
    """Every entry but the first, alone, and forty random sets."""
    master = tmp_path / "master"
    session = pod(master)
    count = len(lines_of(session.writer.path))
    chosen: list[Sequence[int]] = [(n,) for n in range(2, count + 1)]
    numbers = random.Random(7)
    chosen += [sorted(numbers.sample(range(2, count + 1), numbers.randint(2, 6))) for _ in range(40)]
    for index, lines in enumerate(chosen):
        home = tmp_path / f"home{index}"
        shutil.copytree(master, home)
        path = home / session.writer.path.relative_to(master)
        before = damage(path, *lines)
        done = repair(home, "a")
        assert done.after.ok, (lines, done.after.findings)
        first = lines[0] - 1
        assert path.read_bytes().startswith(b"".join(before[:first]))
        view_after(home)
        assert lines_of(path)[-1].seq > count
        shutil.rmtree(home)


def test_garbage_between_entries_costs_no_number_and_is_recorded_at_the_end(tmp_path: Path) -> None:
    session = pod(tmp_path)
    path = session.writer.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[3:]]))
    (put_aside,) = repair(tmp_path, "a").quarantined
    assert put_aside.numbers == 0
    after = path.read_bytes().splitlines(keepends=True)
    assert after[:-1] == lines and kinds(path)[-1] == "repaired"
    reopen(tmp_path).close()


def test_entries_that_are_missing_without_a_trace_are_named(tmp_path: Path) -> None:
    session = pod(tmp_path)
    path = session.writer.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[5:]]))
    (finding,) = findings(tmp_path)
    assert finding.code == "damage" and "entries 4 to 5 are missing" in finding.text and finding.length == 0
    (put_aside,) = repair(tmp_path, "a").quarantined
    assert (put_aside.numbers, put_aside.kept_as) == (2, None)
    record = e.record_of(lines_of(path)[3])
    assert isinstance(record, e.Repaired) and record.numbers == 2
    assert [line.seq for line in lines_of(path)] == [1, 2, 3, 4, *range(6, len(lines) + 1)]
    view_after(tmp_path)


def test_a_torn_tail_is_put_aside_whole(tmp_path: Path) -> None:
    session = pod(tmp_path)
    path = session.writer.path
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 100_000)
    (put_aside,) = repair(tmp_path, "a").quarantined
    assert (session.folder.path / "quarantine" / str(put_aside.kept_as)).read_bytes() == b"x" * 100_000
    assert path.read_bytes().startswith(whole) and kinds(path)[-1] == "repaired"
    again = reopen(tmp_path)
    assert kinds(path).count("repaired") == 1
    again.close()


def test_an_entry_whose_body_does_not_read_is_put_aside(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.writer.write("input", b'{"item":7}')
    say(session, "one")
    session.close()
    assert findings(tmp_path)[0].line == 3
    repair(tmp_path, "a")
    view_after(tmp_path)


def test_damage_in_an_earlier_segment_does_not_stop_a_run_and_is_repaired_there(tmp_path: Path) -> None:
    session = pod(tmp_path)
    old = session.writer.path
    old.chmod(0o640)
    anyio.run(_switch, tmp_path)
    damage(old, 4)
    old.write_bytes(old.read_bytes() + b"rubbish\n")
    reopen(tmp_path).close()
    assert examine(tmp_path).ok and {f.severity for f in findings(tmp_path)} == {"warning"}
    done = repair(tmp_path, "a")
    assert [q.numbers for q in done.quarantined] == [1, 0]
    lines_of(old)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640, "what the operator widened stays"
    active = reopen(tmp_path)
    (record,) = [e.record_of(line) for line in lines_of(active.writer.path) if line.kind == "repaired"]
    assert isinstance(record, e.Repaired) and record.segment == session.pointer.segment and record.text == ""
    active.close()
    seqs = [line.seq for line in SessionReader(active.folder).lines()]
    assert seqs == list(range(1, seqs[-1] + 1))
    before = old.read_bytes()
    assert repair(tmp_path, "a").quarantined == () and old.read_bytes() == before


def test_a_lost_beginning_is_said_and_left(tmp_path: Path) -> None:
    """Nothing can stand in for what a segment starts from, and nothing before it may be guessed (the privacy floor)."""
    session = pod(tmp_path)
    damage(session.writer.path, 1)
    before = session.writer.path.read_bytes()
    report = examine(tmp_path, "a")
    assert {f.code: f.repairable for f in report.pods[0].findings} == {"beginning_lost": False, "damage": False}
    done = repair(tmp_path, "a")
    assert not done.after.ok and done.quarantined == () and session.writer.path.read_bytes() == before


def test_left_over_temporaries_go_and_a_sender_at_work_is_left_alone(tmp_path: Path) -> None:
    session = pod(tmp_path)
    folder = session.folder
    folder.inbox.mkdir()
    (folder.path / ".pod.json.x.tmp").write_bytes(b"{")
    (folder.inbox / ".y.json.x.tmp").write_bytes(b"{")
    done = repair(tmp_path, "a")
    assert [p.name for p in done.removed] == [".pod.json.x.tmp"] and (folder.inbox / ".y.json.x.tmp").exists()


def test_a_repair_that_dies_at_any_operation_loses_nothing_and_can_be_done_again(tmp_path: Path) -> None:
    """A power cut after every operation: the damaged bytes are in the log or in quarantine, a second repair ends it."""
    home = tmp_path / "home"
    session = pod(home)
    anyio.run(_switch, home)
    old = session.writer.path
    lines = damage(old, 4)
    spoilt = old.read_bytes().splitlines(keepends=True)[3]
    old.write_bytes(old.read_bytes() + b"rubbish\n")
    files = RecordingFiles(home)
    repair(home, "a", files=files)
    relative = old.relative_to(home)
    for state in replay_prefixes(files, tmp_path / "states"):
        quarantined = [p.read_bytes() for p in state.glob("pods/a/quarantine/*.bad")]
        assert spoilt in (state / relative).read_bytes() or spoilt in quarantined
        done = repair(state, "a")
        assert done.after.ok and {f.code for f in done.after.findings} <= {"stale_temporary"}
        assert (state / relative).read_bytes().startswith(b"".join(lines[:3]))
        assert repair(state, "a").quarantined == ()
        active = state / "pods" / "a" / reopen(state).writer.path.name
        assert kinds(active).count("repaired") == 1
    assert len(files.ops) > 15


@pytest.mark.parametrize("last", [True, False])
def test_an_entry_that_a_run_refuses_is_damage_also_at_the_end_and_is_told_in_one_line(
    last: bool, tmp_path: Path
) -> None:
    """It was written to its end, so no run cuts it off as a torn tail; the doctor must not say that one would."""
    session = pod(tmp_path)
    path = session.writer.path
    lines = path.read_bytes().splitlines(keepends=True)
    seq = len(lines) + 1
    bad = render(seq, "run_ended", b'{"result":5}', now())[1]
    path.write_bytes(
        b"".join([*lines, bad, *([] if last else [render(seq + 1, "lease", _lease_body(path), now())[1]])])
    )
    with pytest.raises(LogDamaged) as refused:
        reopen(tmp_path)
    assert "\n" not in str(refused.value) and "pydantic" not in str(refused.value)
    (report,) = examine(tmp_path, "a").pods
    (found,) = [f for f in report.findings if f.line == seq]
    assert (found.code, found.severity, found.repairable) == ("damage", "error", True)
    assert not report.ok
    repair(tmp_path, "a")
    reopen(tmp_path).close()


def _lease_body(path: Path) -> bytes:
    return next(line.body for line in entries(path) if line.kind == "lease")
