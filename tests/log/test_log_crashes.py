"""Crashes at every operation, by a power cut or a kill: the pod opens, and what was acknowledged is there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from log.logs import assert_paired, batch, create, kinds, lines_of, python, reopen, say, started

from pod.errors import PodNotFound, StoreError
from pod.log import entries as e
from pod.log.files import Files
from pod.log.inbox import Command, post, waiting
from pod.session import Session
from pod.testing import CRASHED, CrashingFiles, FailingFiles, Op, RecordingFiles, replay_prefixes
from worker.items import ContextItem, UserItem

pytestmark = pytest.mark.anyio

SUMMARY = (ContextItem(kind="summary", text="what was"),)


def seen(session: Session) -> list[str]:
    history = session.state.history
    return [i.text for i in (*history.view, *history.queue.values()) if isinstance(i, UserItem)]


async def life(home: Path, files: Files) -> None:
    """A pod's life in short. Each point `safe:TEXT` says that a message was acknowledged as durable."""
    session = create(home, files=files)
    files.point("made")
    say(session, "one")
    await session.sync()
    files.point("safe:one")
    batch(session, "c1")
    await session.sync()
    files.point("safe-result:c1")
    post(session.folder, Command(id="cmd", kind="send", args={"text": "two"}))
    files.point("safe:two")
    for path, command in list(waiting(session.folder)):
        assert command is not None
        say(session, command.args["text"], admit=False, inbox=command.id)
        await session.sync()
        files.unlink(path)
    session.put(e.CompactionStarted(compaction="k", trigger="manual", tokens=9))
    kept = tuple(i for i in session.state.history.view if isinstance(i, UserItem))
    await session.switch(started(session, items=(*SUMMARY, *kept)))
    session.put(e.CompactionCompleted(compaction="k", trigger="manual", rung="checkpoint", before=9, after=1, limit=5))
    await session.sync()
    files.point("switched")
    say(session, "three")
    await session.sync()
    files.point("safe:three")
    session.close()


def check_state(home: Path, done: list[Op]) -> str:
    """Opens a pod as a crash left it; the segment that was active."""
    told = [op.name for op in done if op.kind == "point"]
    if not (home / "pods" / "a" / "pod.json").exists():
        assert "made" not in told
        with pytest.raises(PodNotFound):
            reopen(home)
        create(home).close()
        return ""
    session = reopen(home)
    try:
        path = session.writer.path
        lines_of(path)
        texts = seen(session) + [
            c.args["text"] for _, c in waiting(session.folder) if c and c.id not in session.state.inbox
        ]
        for name in told:
            if name.startswith("safe:"):
                assert texts.count(name.removeprefix("safe:")) == 1, (name, texts)
        assert len(texts) == len(set(texts)), "nothing is doubled"
        compacted = session.state.start.lineage.kind_ == "compacted_from"
        if "safe-result:c1" in told and not compacted:
            assert [i.type for i in session.state.history.view].count("tool_result") == 1
        assert "switched" not in told or compacted
        assert session.state.compaction is None
        assert kinds(path).count("compaction_interrupted") <= 1
        if not session.state.history.open:
            assert_paired(session.state.history.view)
        say(session, "and on")
    finally:
        session.close()
    again = reopen(home)
    assert "and on" in seen(again)
    again.close()
    return again.pointer.segment


@pytest.mark.parametrize("lost", [True, False], ids=["power cut", "killed"])
async def test_after_any_number_of_operations_the_pod_opens_with_all_that_was_acknowledged(
    tmp_path: Path, lost: bool
) -> None:
    """I4, B078: the pointer names a segment that replays at every instant, and no acknowledged entry is missing."""
    home = tmp_path / "home"
    home.mkdir()
    files = RecordingFiles(home)
    await life(home, files)
    segments = [
        check_state(state, files.ops[:number])
        for number, state in enumerate(replay_prefixes(files, tmp_path / "states", lost=lost))
    ]
    assert len(set(segments)) == 3, "before the pod was made, its first and its second segment"
    assert len(segments) == len(files.ops) + 1 > 60


LIFE = """
import sys; from pathlib import Path
import anyio
from log.test_log_crashes import life
from pod.testing import CrashingFiles
at = sys.argv[2]
files = CrashingFiles(int(at) if at.isdigit() else at, sys.argv[3])
anyio.run(life, Path(sys.argv[1]), files)
"""


def crash(home: Path, at: object, when: str) -> subprocess.Popen[str]:
    home.mkdir()
    return python(LIFE, home, at, when)


@pytest.mark.parametrize("when", ["before", "after", "during"])
def test_a_process_that_dies_in_the_middle_leaves_a_pod_that_opens(tmp_path: Path, when: str) -> None:
    """Real processes, half-written writes among them; every operation is covered above."""
    first = {"before": 1, "after": 7, "during": 13}[when]
    for at in range(first, 80, 18):
        home = tmp_path / f"{at}"
        child = crash(home, at, when)
        _, errors = child.communicate(timeout=60)
        assert child.returncode in {0, CRASHED}, errors
        check_state(home, [])
        if child.returncode == 0:
            break


def test_a_process_can_be_made_to_die_at_a_named_point(tmp_path: Path) -> None:
    child = crash(tmp_path / "home", "switched", "before")
    child.communicate(timeout=60)
    assert child.returncode == CRASHED
    session = reopen(tmp_path / "home")
    assert session.state.start.lineage.kind_ == "compacted_from" and "three" not in seen(session)
    session.close()


def test_a_compaction_that_died_is_marked_once_and_another_can_run(tmp_path: Path) -> None:
    """B078: killed after the start record and before the pointer moves."""
    session = create(tmp_path)
    say(session, "one")
    session.put(e.CompactionStarted(compaction="k", trigger="manual", tokens=9))
    session.close()
    for _ in range(2):
        again = reopen(tmp_path)
        assert again.state.compaction is None
        again.close()
    assert kinds(session.writer.path).count("compaction_interrupted") == 1
    again = reopen(tmp_path)
    anyio.run(again.switch, started(again, items=SUMMARY))
    assert again.state.summary == "what was"
    again.close()


async def test_input_that_arrives_while_a_segment_is_made_is_in_exactly_one(tmp_path: Path) -> None:
    """B073: appended after the compaction read the tail and before the pointer moves."""
    session = create(tmp_path)
    say(session, "one")
    await session.sync()
    start = started(session, items=tuple(session.state.history.view))
    late = say(session, "late", admit=False, inbox="late-key")
    old = session.writer.path
    await session.switch(start)
    assert list(session.state.history.queue) == [late] and "late-key" in session.state.inbox
    session.close()
    assert kinds(old)[-1] == "input"
    again = reopen(tmp_path)
    assert list(again.state.history.queue) == [late] and "late-key" in again.state.inbox
    again.close()


class HalfCommit(Files):
    """The rename of the pointer works, the sync of its folder fails."""

    armed = False
    renamed = ""

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.renamed = target.name

    def sync_folder(self, path: Path) -> None:
        if self.armed and self.renamed == "pod.json":
            raise OSError(5, "Input/output error")
        super().sync_folder(path)


async def test_a_commit_whose_end_is_unknown_takes_nothing_more(tmp_path: Path) -> None:
    files = HalfCommit()
    session = create(tmp_path, files=files)
    say(session, "one")
    await session.sync()
    files.armed = True
    with pytest.raises(StoreError, match="pointer's sync"):
        await session.switch(started(session, items=tuple(session.state.history.view)))
    with pytest.raises(StoreError, match="pointer's sync"):
        say(session, "must not go into a log that nothing replays")
    session.close()
    again = reopen(tmp_path)
    assert again.state.start.lineage.kind_ == "compacted_from" and seen(again) == ["one"]
    again.close()


async def test_a_segment_that_cannot_be_written_leaves_the_old_one_active(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    await session.sync()
    session.folder.files = FailingFiles(1)
    with pytest.raises(OSError, match="No space"):
        await session.switch(started(session, items=SUMMARY))
    say(session, "two")
    await session.sync()
    session.close()
    again = reopen(tmp_path)
    assert seen(again) == ["one", "two"] and again.pointer.segment == session.pointer.segment
    assert len(list(session.folder.path.glob("*.jsonl"))) == 1 and not list(session.folder.path.glob(".*"))
    again.close()


# -- the file layers themselves -------------------------------------------------------------------------------------


def recorded(root: Path, tmp_path: Path, *, lost: bool = True) -> Iterator[dict[str, bytes]]:
    files = RecordingFiles(root)
    folder = root / "f"
    files.make_folder(folder)
    fd = files.open_append(folder / "x", create=True)
    files.write(fd, b"ab")
    files.sync(fd)
    files.sync_folder(folder)
    files.write(fd, b"cd")
    files.rename(folder / "x", folder / "y")
    files.sync_folder(folder)
    files.sync(fd)
    files.close(fd)
    files.truncate(folder / "y", 3)
    files.unlink(folder / "y")
    files.point("end")
    files.sync_folder(folder)
    names = [op.kind for op in files.ops]
    assert names == [
        "mkdir", "sync_folder", "create", "write", "sync", "sync_folder", "write", "rename", "sync_folder", "sync",
        "close", "truncate", "unlink", "point", "sync_folder",
    ]  # fmt: skip
    for state in replay_prefixes(files, tmp_path / "states", lost=lost):
        yield {str(p.relative_to(state)): p.read_bytes() for p in sorted(state.rglob("*")) if p.is_file()}


def test_a_power_cut_leaves_what_was_synced_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "old").write_bytes(b"old")
    states = list(recorded(tmp_path / "root", tmp_path))
    assert all(state.pop("old") == b"old" for state in states)
    none, ab, y = {}, {"f/x": b"ab"}, {"f/y": b"ab"}
    whole, cut = {"f/y": b"abcd"}, {"f/y": b"abc"}
    assert states == [*[none] * 6, *[ab] * 3, y, whole, whole, cut, cut, cut, none]


def test_a_kill_leaves_everything_that_was_done(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    states = list(recorded(tmp_path / "root", tmp_path, lost=False))
    assert states[3:6] == [{"f/x": b""}, {"f/x": b"ab"}, {"f/x": b"ab"}]
    assert states[7:9] == [{"f/x": b"abcd"}, {"f/y": b"abcd"}] and states[-1] == {}


def test_a_log_without_syncs_loses_its_end_in_a_power_cut(tmp_path: Path) -> None:
    """The harness can fail: with `durability = "os"` an acknowledged entry is not there."""
    home = tmp_path / "home"
    home.mkdir()
    files = RecordingFiles(home)
    session = create(home, files=files, durability="os")
    session.writer.write("warning", b'{"code":"c","message":"m"}')
    anyio.run(session.sync)
    session.close()
    *_, before_close = (
        "warning" in kinds(next(iter(state.glob("pods/a/*.jsonl"))))
        for state, _ in zip(replay_prefixes(files, tmp_path / "s"), files.ops[:-2], strict=False)
        if (state / "pods" / "a" / "pod.json").exists()
    )
    assert before_close is False


def test_crashing_files_count_operations_and_points(tmp_path: Path) -> None:
    files = CrashingFiles(100)
    files.make_folder(tmp_path)
    files.put(tmp_path / "x", b"x")
    files.point("here")
    assert files.count == 6 and (tmp_path / "x").read_bytes() == b"x"
