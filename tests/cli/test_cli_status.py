"""What `pod ls` says of a pod whose session began anew somewhere, what `pod gc` may take, what long logs show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod import operations as op
from pod.cli.listing import status_of
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.peek import STATUSES, TAIL_MOST, Status, glance
from pod.session import Session
from pod.staging import new_stage, owned
from worker.ids import uuid7
from worker.items import AssistantItem, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Usage
from worker.records import Admitted, Input, ReplyRecord, ToolResult
from worker.testing.provider_server import Answer, Call, ProviderServer

pytestmark = pytest.mark.anyio


def made(home: Path, status: str | None, *, name: str = "a") -> None:
    """A pod with one run that ended so (None: it is open)."""
    blobs = {"system": "s", "schemas": "[]", "manifest": "{}", "cwd": str(home)}
    session = Session.create(home, name, blobs=blobs, manifest="m", durability="os")
    try:
        said = UserItem(text="do it")
        session.put(Input(item=said))
        session.put(e.RunStarted(run=uuid7()))
        session.put(Admitted(ids=(said.id,)))
        session.put(ReplyRecord(items=(AssistantItem(text="done"),), usage=Usage(), model="m:x", cost_usd=0.5))
        if status is not None:
            session.put(e.RunEndedEntry(run="r", status=status))
    finally:
        session.close()


def half_way(home: Path, name: str = "a") -> None:
    """A pod whose run is open behind the result of a call."""
    made(home, "finished", name=name)
    session = Session.open(home, name, durability="os")
    try:
        said = UserItem(text="and that")
        session.put(Input(item=said))
        session.put(e.RunStarted(run=uuid7()))
        session.put(Admitted(ids=(said.id,)))
        call = ToolCallItem(call_id="c1", name="t", arguments="{}")
        session.put(ReplyRecord(items=(call,), usage=Usage(), stop="tool_calls", model="m:x"))
        session.put(ToolResult(item=ToolResultItem(call_id="c1", name="t", status="ok", summary="s")))
    finally:
        session.close()


def looked(home: Path, name: str = "a") -> str:
    return glance(PodFolder(home, name)).status


@pytest.mark.parametrize("status", ["finished", "failed", "limit", "cancelled"])
def test_how_the_last_run_ended_is_known_in_forks_and_after_a_rewind(status: str, tmp_path: Path) -> None:
    made(tmp_path, status)
    op.fork(tmp_path, "a", "b")
    assert looked(tmp_path, "b") == status
    session = Session.open(tmp_path, "a", durability="os")
    last = session.state.last_seq
    session.put(e.RunStarted(run=uuid7()))
    session.close()
    anyio.run(op.rewind, tmp_path, "a", last, backend="trio")
    assert looked(tmp_path) == status


def test_a_fork_of_an_unfinished_run_is_not_taken_for_one_that_finished_and_a_cleared_pod_is_new(
    tmp_path: Path,
) -> None:
    half_way(tmp_path)
    assert looked(tmp_path) == "stopped short"
    op.fork(tmp_path, "a", "b")
    assert looked(tmp_path, "b") == "stopped short"
    anyio.run(op.clear, tmp_path, "a", backend="trio")
    assert looked(tmp_path) == "new"


def test_how_the_last_run_ended_is_known_in_a_segment_that_a_compaction_began(tmp_path: Path) -> None:
    made(tmp_path, "limit")
    session = Session.open(tmp_path, "a", durability="os")
    state = session.state
    start = e.SegmentStarted(
        session=state.start.session,
        segment=uuid7(),
        lineage=e.Lineage(kind="compacted_from", segment=state.start.segment, seq=state.last_seq),
        blobs=state.start.blobs,
        carry=state.carry(),
    )

    async def switch() -> None:
        await session.switch(start)
        session.put(e.CompactionCompleted(compaction="c", trigger="hand", rung="compact", before=9, after=1, limit=5))

    anyio.run(switch, backend="trio")
    session.close()
    look = glance(PodFolder(tmp_path, "a"))
    assert (look.status, look.requests, look.cost_usd) == ("limit", 1, 0.5)


def test_gc_takes_finished_pods_alone_and_others_that_ended_only_when_told_to(tmp_path: Path) -> None:
    for status in ("finished", "failed", "limit", "cancelled"):
        made(tmp_path, status, name=status)
    half_way(tmp_path, "open")
    op.fork(tmp_path, "finished", "forked")
    op.fork(tmp_path, "open", "of-open")
    made(tmp_path, "finished", name="cleared")
    anyio.run(op.clear, tmp_path, "cleared", backend="trio")
    later = 10_000_000_000.0

    def taken(*, all_ended: bool) -> set[str]:
        return {found.name for found in op.collect(tmp_path, 60, all_ended=all_ended, at=later) if found.removed}

    assert taken(all_ended=False) == {"finished", "forked"}
    assert taken(all_ended=True) == {"finished", "forked", "failed", "limit", "cancelled", "cleared"}
    (told,) = [found.reason for found in op.collect(tmp_path, 60, at=later) if found.name == "limit"]
    assert "--all-ended" in told


def test_the_figures_of_a_long_log_are_given_as_far_as_they_are_known(tmp_path: Path) -> None:
    made(tmp_path, "finished")
    session = Session.open(tmp_path, "a", durability="os")
    for n in range(8):
        session.put(
            ToolResult(item=ToolResultItem(call_id=f"x{n}", name="t", status="ok", summary="s", content="z" * 90_000))
        )
        session.put(ReplyRecord(items=(AssistantItem(text="."),), usage=Usage(), model="m:x", cost_usd=0.25))
    session.writer.sync_now()
    whole = glance(PodFolder(tmp_path, "a"))
    assert whole.size < TAIL_MOST
    assert (whole.requests, whole.cost_usd, whole.partial) == (9, 2.5, False)
    for n in range(8):
        session.put(
            ToolResult(item=ToolResultItem(call_id=f"y{n}", name="t", status="ok", summary="s", content="z" * 90_000))
        )
    session.put(ReplyRecord(items=(AssistantItem(text="."),), usage=Usage(), model="m:x", cost_usd=0.25))
    session.put(e.RunEndedEntry(run="r", status="finished"))
    session.close()
    long = glance(PodFolder(tmp_path, "a"))
    assert long.size > TAIL_MOST
    assert long.partial and long.requests is not None and 1 <= long.requests <= 10
    assert long.cost_usd is not None and 0 < long.cost_usd <= 2.75


def test_what_may_be_more_has_a_mark_in_the_list(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(rig.home, "finished")
    session = Session.open(rig.home, "a", durability="os")
    for n in range(15):
        session.put(
            ToolResult(item=ToolResultItem(call_id=f"y{n}", name="t", status="ok", summary="s", content="z" * 90_000))
        )
    session.put(ReplyRecord(items=(AssistantItem(text="."),), usage=Usage(), model="m:x", cost_usd=0.25))
    session.put(e.RunEndedEntry(run="r", status="finished"))
    session.close()
    shell = Shell(rig, capsys, monkeypatch)
    row = shell("ls").splitlines()[1].split()
    assert row[0] == "a" and "1+" in row and "$0.2500+" in row


def test_an_input_that_was_taken_up_in_the_run_is_not_queued(tmp_path: Path) -> None:
    made(tmp_path, None)
    session = Session.open(tmp_path, "a", durability="os")
    steered = UserItem(text="and this")
    session.put(Input(item=steered))
    session.writer.sync_now()
    assert glance(PodFolder(tmp_path, "a")).status == "running"
    session.put(Admitted(ids=(steered.id,)))
    session.close()
    assert looked(tmp_path) == "stopped short"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("fork", "forked from another pod, and has had no run of its own"),
        ("clear", "was cleared, and has had no run since"),
    ],
)
def test_resume_says_why_there_is_nothing_to_go_on_with(
    change: str, said: str, rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(rig, capsys, monkeypatch)
    with ProviderServer([Answer("one")]) as server:
        shell("run", rig.manifest(server), "x", "--name", "a", "-q", "--max-requests", "1")
        shell(*((change, "a", "b") if change == "fork" else (change, "a")))
        shell("resume", "b" if change == "fork" else "a", code=2)
    assert said in shell.err and "its last run finished" not in shell.err


def test_a_pod_whose_last_run_finished_says_so_when_resumed(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(rig, capsys, monkeypatch)
    with ProviderServer([Answer("one")]) as server:
        shell("run", rig.manifest(server), "x", "--name", "a", "-q")
        shell("resume", "a", code=2)
    assert "its last run finished" in shell.err


def test_a_waiting_pod_with_stored_input_says_both() -> None:
    from pod.peek import Glance

    assert status_of(Glance("a", "waiting", waiting=1)) == "waiting for a human, 1 in the inbox"


def test_every_status_has_a_meaning() -> None:
    assert set(get_args(Status)) == set(STATUSES)


@pytest.mark.parametrize("change", ["fork", "rewind"])
def test_a_resume_goes_on_with_the_task_of_a_point_inside_a_run(
    change: str, rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(rig, capsys, monkeypatch)
    with ProviderServer(
        [Answer(calls=[Call("list_files", {"path": "."})]), Answer("done"), Answer("once more")]
    ) as server:
        shell("run", rig.manifest(server, tools=["list_files"]), "x", "--name", "a", "-q")
        (inside,) = [event["seq"] for event in shell_lines(shell, "a") if event["type"] == "tool.completed"]
        name = "b" if change == "fork" else "a"
        shell(*(("fork", "a", "b", "--at", inside) if change == "fork" else ("rewind", "a", "--to", inside)))
        assert f"`pod resume {name}` goes on with it" in shell.err
        assert ("working folder stay as they are" in shell.err) == (change == "rewind")
        (look,) = [look for look in shell.json("ls") if look["name"] == name]
        assert (look["status"], look["model"]) == ("stopped short", "openai-chat:test-model")
        assert shell("resume", name, "-q") == "once more\n"
        assert [m["role"] for m in server.requests[-1].json["messages"][-2:]] == ["assistant", "tool"]
        shell("resume", name, code=2)
    assert "its last run finished" in shell.err


def shell_lines(shell: Shell, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shell("log", name, "--json").splitlines()]


async def test_a_segment_that_begins_with_an_open_question_is_left_to_the_one_before(tmp_path: Path) -> None:
    made(tmp_path, "finished")
    session = Session.open(tmp_path, "a", durability="os")
    state = session.state
    settled = state.last_seq
    asked = UserItem(text="and then?")
    session.put(Input(item=asked))
    session.put(Admitted(ids=(asked.id,)))
    start = e.SegmentStarted(
        session=state.start.session, segment=uuid7(), items=(asked,), blobs=state.start.blobs, carry=state.carry(),
        lineage=e.Lineage(kind="compacted_from", segment=state.start.segment, seq=state.last_seq),
    )  # fmt: skip
    await session.switch(start)
    session.close()
    done = op.fork(tmp_path, "a", "b")
    assert done.rounded and done.point == settled + 1 and done.items == 2


def test_gc_takes_what_a_killed_import_left_and_nothing_of_one_under_way(tmp_path: Path) -> None:
    under_way, killed, unlocked = (new_stage(tmp_path) for _ in range(3))
    for folder in (under_way, killed, unlocked):
        (folder / "pods" / "pod").mkdir(parents=True)
        (folder / "pods" / "pod" / "pod.json").write_bytes(b"x" * 100)
    with owned(killed):
        pass
    with owned(under_way):
        now = unlocked.stat().st_mtime
        dry = {found.name: (found.removed, found.size) for found in op.collect(tmp_path, 1e9, at=now)}
        assert dry == {killed.name: (True, 100), under_way.name: (False, 0), unlocked.name: (False, 0)}
        assert killed.exists()
        gone = [found.name for found in op.collect(tmp_path, 1e9, at=now + 3600, force=True) if found.removed]
    assert sorted(gone) == sorted([killed.name, unlocked.name])
    assert [folder.exists() for folder in (under_way, killed, unlocked)] == [True, False, False]
