"""Fork, rewind, clear, remove, collect: what goes along, what stays, what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod import operations as op
from pod.errors import NotSettled, PodBusy, PodExists, PodNotFound, UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.log.items import items_of
from pod.log.segment import open_log
from pod.peek import glance
from pod.questions import answer, take_inbox
from pod.reading import SessionReader
from pod.session import Session, load
from worker.ids import uuid7
from worker.items import AssistantItem, FileRange, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Usage
from worker.records import Admitted, Input, Record, ReplyRecord, ToolResult, ToolStarted
from worker.text import sha256

pytestmark = pytest.mark.anyio

SECRET = "the secret of before"


class Story:
    """A pod with a short history: a question, a call, its result, an answer; then a second question that is open."""

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.file = work / "seen.txt"
        self.file.write_text("as it was")
        self.at: dict[str, int] = {}
        blobs = {"system": "be good", "schemas": "[]", "manifest": "{}", "cwd": str(work)}
        session = Session.create(home, "a", blobs=blobs, manifest="m", durability="os")
        try:
            self._tell(session)
            artifacts = session.folder.artifacts
            artifacts.mkdir()
            (artifacts / "c1-out.txt").write_text(SECRET)
        finally:
            session.close()

    def _tell(self, session: Session) -> None:
        def put(name: str, record: Record) -> None:
            session.put(record)
            self.at[name] = session.state.last_seq

        first = UserItem(text=SECRET)
        put("input", Input(item=first))
        put("run", e.RunStarted(run=uuid7()))
        put("admitted", Admitted(ids=(first.id,)))
        call = ToolCallItem(call_id="c1", name="read_file", arguments='{"path": "seen.txt"}')
        usage = Usage(input_tokens=100, output_tokens=10)
        put("call", ReplyRecord(items=(call,), usage=usage, stop="tool_calls", model="m:x", cost_usd=0.5))
        put("started", ToolStarted(call_id="c1"))
        ranged = FileRange(path=str(self.file), first=1, last=1, sha256=sha256("as it was"))
        result = ToolResultItem(
            call_id="c1", name="read_file", status="ok", summary="read", content="as it was", reads=ranged,
            artifact="c1-out.txt",
            state={"tasks": [{"id": "1", "text": "do it", "status": "pending"}], "processes": [{"id": "j1"}]},
        )  # fmt: skip
        put("result", ToolResult(item=result))
        said = AssistantItem(text="done")
        put("answer", ReplyRecord(items=(said,), usage=usage, model="m:x", cost_usd=0.25))
        put("ended", e.RunEndedEntry(run="r", status="finished"))
        later = UserItem(text="and then?")
        put("queued", Input(item=later))

    def folder(self, name: str = "a") -> PodFolder:
        return PodFolder(self.home, name)

    def state(self, name: str = "a") -> Any:
        folder = self.folder(name)
        return load(folder.segment_path(folder.pointer().segment))

    def bytes(self) -> dict[str, bytes]:
        root = self.folder().path
        return {str(p): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def story(tmp_path: Path) -> Story:
    work = tmp_path / "work"
    work.mkdir()
    return Story(tmp_path / "home", work)


# -- fork -----------------------------------------------------------------------------------------------------


def test_a_fork_begins_with_the_items_of_its_point_and_the_source_is_untouched(story: Story) -> None:
    before = story.bytes()
    done = op.fork(story.home, "a", "b")
    assert story.bytes() == before
    state = story.state("b")
    assert [item.type for item in state.history.view] == ["user", "tool_call", "tool_result", "assistant"]
    assert (state.start.lineage.kind_, state.start.lineage.segment) == ("forked_from", story.state().start.segment)
    assert state.start.session != story.state().start.session
    assert done.items == 4 and not done.rounded


def test_a_fork_takes_no_queued_input_no_questions_and_no_processes_and_counts_from_nothing(story: Story) -> None:
    """B159: what was spent is counted once, where it was spent."""
    done = op.fork(story.home, "a", "b")
    state = story.state("b")
    assert state.queued == [] and state.approvals == {} and state.run is None
    assert state.tool_state == {"tasks": [{"id": "1", "text": "do it", "status": "pending"}]}
    assert (state.totals.requests, state.totals.cost_usd, state.history.counters.requests) == (0, 0.0, 0)
    assert done.left_behind == ("1 message that no request had seen", "background processes")
    assert story.state().totals.requests == 2, "the source's own figures do not fall"


def test_a_fork_knows_a_file_only_where_it_is_unchanged(story: Story) -> None:
    op.fork(story.home, "a", "same")
    story.file.write_text("as it is now")
    op.fork(story.home, "a", "other")
    assert list(story.state("same").seen) == [str(story.file)]
    assert story.state("other").seen == {}


@pytest.mark.parametrize(
    ("asked", "settled"),
    [("call", "run"), ("started", "run"), ("result", "result"), ("admitted", "run"), ("answer", "answer")],
)
def test_a_point_inside_a_call_or_an_unanswered_question_is_rounded_down(
    asked: str, settled: str, story: Story
) -> None:
    done = op.fork(story.home, "a", "b", story.at[asked])
    assert done.point == story.at[settled]
    assert done.rounded == (asked != settled)
    view = story.state("b").history.view
    assert sum(i.type == "tool_call" for i in view) == sum(i.type == "tool_result" for i in view)


def test_a_fork_outlives_its_source_with_its_artifacts(story: Story) -> None:
    op.fork(story.home, "a", "b")
    op.remove(story.home, "a")
    assert not story.folder("a").path.exists()
    kept = story.folder("b").artifacts / "c1-out.txt"
    assert kept.read_text() == SECRET
    assert story.folder("b").blob(story.state("b").start.blobs["system"]) == "be good"


def test_a_fork_refuses_a_name_that_is_taken_and_a_point_that_is_not_there(story: Story) -> None:
    with pytest.raises(PodExists):
        op.fork(story.home, "a", "a")
    with pytest.raises(UsageProblem, match="there is no entry 999"):
        op.fork(story.home, "a", "b", 999)
    with pytest.raises(PodNotFound):
        op.fork(story.home, "nobody", "b")
    assert not story.folder("b").exists()


def test_a_pod_can_be_forked_while_another_process_writes_to_it(story: Story) -> None:
    session = Session.open(story.home, "a", durability="os")
    try:
        assert op.fork(story.home, "a", "b").items == 4
    finally:
        session.close()


# -- rewind ---------------------------------------------------------------------------------------------------


async def test_a_rewind_goes_back_and_what_came_after_is_no_longer_of_the_session(story: Story) -> None:
    """B159: what it cost stays spent."""
    totals = story.state().totals
    done = await op.rewind(story.home, "a", story.at["run"])
    state = story.state()
    assert [item.type for item in state.history.view] == []
    assert (state.start.lineage.kind_, state.start.lineage.seq) == ("rewound_from", story.at["run"])
    assert state.totals.requests == totals.requests and state.totals.cost_usd == totals.cost_usd
    assert state.totals.segments == totals.segments + 1
    assert "2 messages that no request had seen" in done.left_behind
    kinds = [line.kind for line in SessionReader(story.folder()).lines()]
    assert "reply" not in kinds and "tool_result" not in kinds


async def test_a_rewind_behind_a_rewind_finds_the_older_segment(story: Story) -> None:
    await op.rewind(story.home, "a", story.at["result"])
    await op.rewind(story.home, "a", story.at["run"])
    assert story.state().history.view == []
    assert story.state().start.session == story.folder().pointer().session
    with pytest.raises(UsageProblem):
        await op.rewind(story.home, "a", story.at["answer"])


async def test_a_rewind_to_where_the_pod_stands_is_refused_and_changes_nothing(story: Story) -> None:
    await op.rewind(story.home, "a", story.at["answer"])
    segment = story.folder().pointer().segment
    with pytest.raises(NotSettled):
        await op.rewind(story.home, "a", story.state().last_seq)
    assert story.folder().pointer().segment == segment


async def test_a_rewind_while_another_process_writes_is_refused(story: Story) -> None:
    session = Session.open(story.home, "a", durability="os")
    try:
        with pytest.raises(PodBusy):
            await op.rewind(story.home, "a", story.at["run"])
    finally:
        session.close()


# -- clear ----------------------------------------------------------------------------------------------------


async def test_clear_is_a_floor_that_nothing_crosses_but_totals(story: Story) -> None:
    totals = story.state().totals
    await op.clear(story.home, "a")
    state = story.state()
    assert state.history.view == [] and state.queued == []
    assert state.totals.requests == totals.requests and state.totals.cost_usd == totals.cost_usd
    carry = state.start.carry
    assert (carry.seen, carry.recent, carry.state, carry.pins, carry.summary, carry.first_input) == (
        {},
        (),
        {},
        (),
        None,
        None,
    )
    folder = story.folder()
    assert SECRET not in folder.segment_path(folder.pointer().segment).read_text()
    found = [
        item
        for line in SessionReader(folder).lines()
        for item in items_of(e.record_of(line) or e.Lease(generation=0, pid=0, host=""))
    ]
    assert found == [], "session_history stops at the floor"
    assert not (folder.artifacts / "c1-out.txt").exists()


async def test_neither_fork_nor_rewind_reach_behind_a_clear(story: Story) -> None:
    await op.clear(story.home, "a")
    with pytest.raises(UsageProblem, match="cleared"):
        op.fork(story.home, "a", "b", story.at["answer"])
    with pytest.raises(UsageProblem, match="cleared"):
        await op.rewind(story.home, "a", story.at["answer"])
    done = op.fork(story.home, "a", "b")
    assert done.items == 0
    assert all(SECRET not in p.read_text() for p in story.folder("b").path.rglob("*") if p.is_file())


async def test_a_message_taken_before_a_clear_does_not_come_back_after_it(story: Story) -> None:
    post(story.folder(), Command(id="k1", kind="send", args={"text": SECRET}))
    session = Session.open(story.home, "a", durability="os")
    take_inbox(session)
    session.close()
    await op.clear(story.home, "a")
    post(story.folder(), Command(id="k1", kind="send", args={"text": SECRET}))
    session = Session.open(story.home, "a", durability="os")
    try:
        take_inbox(session)
        assert session.state.queued == []
    finally:
        session.close()


# -- removing -------------------------------------------------------------------------------------------------


def test_remove_leaves_the_pods_that_lie_below(story: Story) -> None:
    op.fork(story.home, "a", "a/child")
    op.remove(story.home, "a")
    assert not story.folder("a").exists() and story.folder("a/child").exists()
    assert story.state("a/child").history.view
    op.remove(story.home, "a/child")
    assert not (story.home / "pods" / "a").exists()


def test_collect_removes_only_old_finished_pods_and_only_with_force(story: Story) -> None:
    op.fork(story.home, "a", "b")
    later = 10_000_000_000.0
    dry = {found.name: found for found in op.collect(story.home, 60, at=later)}
    assert not dry["a"].removed and "queued" in dry["a"].reason, "stored input keeps a pod"
    assert dry["b"].removed and story.folder("b").exists(), "a dry run removes nothing"
    assert not any(found.removed for found in op.collect(story.home, 1e12, force=True, at=later))
    assert [found.name for found in op.collect(story.home, 60, force=True, at=later) if found.removed] == ["b"]
    assert story.folder("a").exists() and not story.folder("b").exists()


def test_an_answer_needs_a_question(story: Story) -> None:
    session = Session.open(story.home, "a", durability="os")
    try:
        with pytest.raises(UsageProblem, match="no question"):
            answer(session, "x", approved=True)
    finally:
        session.close()


# -- looking --------------------------------------------------------------------------------------------------


def test_b072_a_look_reads_a_bounded_head_and_tail_of_a_log(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.open(story.home, "a", durability="os")
    for n in range(40):
        item = ToolResultItem(call_id=f"x{n}", name="t", status="ok", summary="s", content="z" * 100_000)
        session.put(ToolResult(item=item))
    session.put(e.RunEndedEntry(run="r", status="failed"))
    path = session.writer.path
    session.close()
    read = 0
    real = open_log

    def counted(opened: Path) -> Any:
        file = real(opened)
        if opened == path:
            nonlocal read
            inner, line = file.read, file.readline

            class Counted:
                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def read(self, size: int = -1) -> bytes:
                    nonlocal read
                    data: bytes = inner(size)
                    read += len(data)
                    return data

                def readline(self, size: int = -1) -> bytes:
                    nonlocal read
                    data: bytes = line(size)
                    read += len(data)
                    return data

            return Counted()
        return file

    monkeypatch.setattr("pod.peek.open_log", counted)
    monkeypatch.setattr("pod.log.bounded.open_log", counted)
    look = glance(story.folder())
    assert look.status == "failed" and look.size > 4_000_000
    assert 0 < read < 500_000


def test_a_look_at_a_broken_pod_says_what_is_wrong_instead_of_failing(story: Story) -> None:
    story.folder().pointer_path.write_text("{broken")
    look = glance(story.folder())
    assert look.status == "unreadable" and "pod.json" in look.problem


def test_b143_the_age_of_a_fresh_pod_is_near_zero_in_any_zone(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from pod.cli.text import age

    monkeypatch.setenv("TZ", "Asia/Bangkok")
    time.tzset()
    try:
        look = glance(story.folder())
        assert look.at.endswith("Z")
        assert age(look.at).endswith(" s ago")
    finally:
        monkeypatch.undo()
        time.tzset()
