"""Instructions, the user's words and work under way outlive every compaction (cases B021 to B029, B073)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod.log import entries as e
from pod.log import inbox
from pod.log.files import Files
from pod.log.folder import PodFolder
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    contexts,
    filler,
    manifest,
    results,
    summariser,
    summary,
    texts,
    users,
    words,
)  # fmt: skip
from worker.builtin.process_table import look_at
from worker.errors import ContextOverflow
from worker.items import ContextItem, UserItem
from worker.models.base import Request
from worker.records import Admitted, Input, ReplyRecord
from worker.testing import call, fail, say
from worker.tools import tool

pytestmark = pytest.mark.anyio

MARK = "S1-MARKER: never touch the folder vendor"


def messages(request: Any) -> list[dict[str, Any]]:
    """What is sent, as JSON values."""
    return json.loads(b"[" + request.messages + b"]")


async def test_b021_the_system_prompt_is_the_same_bytes_through_three_compactions(rig: Rig) -> None:
    """B021: it is never summarised: the compact worker's material does not hold it."""
    agent, worker = Agent(caller(24)), summariser()
    made = manifest(worker={"system_prompt": f"You fetch pages.\n{MARK}"}, compaction=compacting(9_000))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker) as pod:
        (await pod.run("go")).raise_for_status()
    assert len(rig.segments()) >= 4
    assert len({r.system for r in agent.requests}) == 1 and MARK in agent.requests[0].system
    assert all(MARK not in texts(r) for r in worker.requests)
    assert all(MARK not in str(i) for start in rig.starts() for i in start.items)


async def test_b022_the_current_request_crosses_whole_once_and_as_user_words(rig: Rig) -> None:
    """B022: do A, then B, then C: after the yield the message stands in the user role, once, every byte of it."""
    task = "Do ALPHA-1, then BRAVO-2, then CHARLIE-3.\n\tKeep «quotes», tabs\tand blanks  as they are."
    agent = Agent(caller(16))
    async with rig.open(
        agent, manifest(compaction=compacting(9_000)), tools=[Counted(1_200).tool], compact_model=summariser()
    ) as pod:
        (await pod.run(task)).raise_for_status()
    assert len(rig.segments()) >= 3
    for request in agent.requests:
        assert words(request).count(task) == 1
        holders = [m for m in messages(request) if "CHARLIE-3" in str(m.get("content", ""))]
        assert [m["role"] for m in holders] == ["user"]


async def test_b023_recovery_after_an_overflow_rebuilds_what_the_normal_path_builds(rig: Rig) -> None:
    """B023: the same history compacted by the request threshold and after an overflow gives the same request."""
    rig.file("AGENTS.md", "Always answer in French.")
    tasks = {"tools": {"enable": ["tasks", "read_file"]}}
    rig.file("a.txt", "alpha\n" * 20)

    def play(request: Request, n: int) -> Any:
        if n == 1:
            return call("tasks", add=["one", "two"])
        if n == 2:
            return call("read_file", path="a.txt")
        return call("fetch", n=n) if n <= 9 else say("done")

    yielded = 0
    built: list[list[tuple[str, str]]] = []
    for name, section in (("a", compacting(9_000)), ("b", compacting(None, threshold=9_000))):
        agent = Agent(play)

        def refusing(request: Request, n: int, agent: Agent = agent, name: str = name, at: int = yielded) -> Any:
            if name == "b" and len(rig.segments("b")) == 1 and n == at:
                agent.served -= 1
                return fail(ContextOverflow("too long", limit=190_000, status=400))
            return play(request, n)

        agent.play = refusing
        made = manifest(**tasks, compaction=section)
        async with rig.open(agent, made, name, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
            found = await pod.run("go on")
            assert found.status == "finished", found.error
            tag = pod.state.start.tag
        assert len(rig.segments(name)) == 2
        first = next(r for r in agent.requests if contexts(r, "summary"))
        built.append(
            [
                (i.type, getattr(i, "kind", ""), str(getattr(i, "text", "")))
                for i in first.items
                if i.type != "tool_result"
            ]
        )
        built[-1].append((first.system.replace(tag, "TAG"),))
        if name == "a":
            yielded = next(n for n, r in enumerate(agent.requests, 1) if r is first)
    import re

    def untimed(rows: list[tuple[str, ...]]) -> list[str]:
        return [re.sub(r"\d{4}-\d\d-\d\dT[0-9:.Z+]+", "TIME", str(row)) for row in rows]

    assert untimed(built[0]) == untimed(built[1])
    assert any("Always answer in French" in str(row) for row in built[1])


async def test_b024_files_come_back_once_and_references_say_whether_they_changed(rig: Rig) -> None:
    """B024: b is marked, a named, c was only touched; c changes meanwhile. No path stands there twice."""
    for name in "abc":
        rig.file(f"{name}.txt", "".join(f"{name} line {n}\n" for n in range(1, 31)))
    reads = {1: "a.txt", 2: "b.txt", 3: "c.txt"}

    def play(request: Request, n: int) -> Any:
        return call("read_file", path=reads[n]) if n in reads else call("fetch", n=n) if n <= 8 else say("done")

    def write(request: Request) -> str:
        rig.file("c.txt", "changed\n")
        return summary()

    marked = [
        call("add_reference", path="a.txt", reason="the plan"),
        call("mark_read_required", path="b.txt", offset=2, limit=5),
    ]
    agent = Agent(play)
    made = manifest(tools={"enable": ["read_file"]}, compaction=compacting(None, retained_tokens=1_000))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser(write, first=marked)) as pod:
        await pod.run("read them")
        assert await pod.compact()
        await pod.run("and now")
    last = agent.requests[-1]
    auto = contexts(last, "auto_read")
    assert auto == ["[Auto-read file: b.txt:2-6]\n" + "".join(f"b line {n}\n" for n in range(2, 7))]
    (listed,) = contexts(last, "references")
    lines = listed.splitlines()
    assert lines[0] == "[Referenced files - read before compaction, contents not included]"
    assert "- a.txt (the plan; unchanged since it was read)" in lines
    assert "- c.txt (touched recently; changed since it was read)" in lines
    assert listed.count("a.txt") == listed.count("c.txt") == 1 and "b.txt" not in listed


async def test_default_references_are_the_five_files_touched_last(rig: Rig) -> None:
    """Seven files are read; without any mark the five most recent are named, newest state of each checked."""
    for n in range(7):
        rig.file(f"f{n}.txt", f"{n}\n" * 3)

    def play(request: Request, n: int) -> Any:
        return call("read_file", path=f"f{n - 1}.txt") if n <= 7 else call("fetch", n=n) if n <= 12 else say("done")

    agent = Agent(play)
    made = manifest(tools={"enable": ["read_file"]}, compaction=compacting(None, retained_tokens=800))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        await pod.run("read them")
        assert await pod.compact()
        await pod.run("and now")
    (listed,) = contexts(agent.requests[-1], "references")
    assert [f"f{n}.txt" in listed for n in range(7)] == [False, False, True, True, True, True, True]


async def test_the_new_segment_has_its_parts_in_order(rig: Rig) -> None:
    """User words, summary, auto-reads, references, pins, tail, state; the lineage names the old segment and the run."""
    rig.file("a.txt", "alpha\n" * 10)
    rig.file("b.txt", "beta\n" * 10)

    def play(request: Request, n: int) -> Any:
        steps: dict[int, Any] = {
            1: call("tasks", add=["first thing"]),
            2: call("read_file", path="a.txt"),
            3: call("read_file", path="b.txt"),
            4: call("fetch", n=1),
        }
        return steps.get(n) or (call("fetch", n=n) if n <= 10 else say("done"))

    agent = Agent(play)
    worker = summariser(first=[call("mark_read_required", path="a.txt")])
    made = manifest(tools={"enable": ["tasks", "read_file", "context"]}, compaction=compacting(9_500))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker) as pod:
        running = pod.running

        class Pinning:
            done = False

        def pinned(event: Any) -> None:
            if event.type == "tool.completed" and event.name == "fetch" and not Pinning.done:
                Pinning.done = True
                view = pod.state.history.view
                read = next(i for i in view if i.type == "tool_result" and "b.txt" in i.summary)
                running.session.put(e.Pin(item=read.id))

        running.bus.observers.append(pinned)
        (await pod.run("the task")).raise_for_status()
    old, new = rig.starts()[0], rig.starts()[1]
    kinds = [getattr(i, "kind", None) or i.type for i in new.items]
    order = ["user_words", "summary", "auto_read", "references", "pin", "tool_call", "state"]
    places = [kinds.index(kind) for kind in order]
    assert places == sorted(places), kinds
    assert all(not isinstance(i, UserItem) or i.id for i in new.items)
    assert new.session == old.session and new.segment != old.segment
    assert new.lineage.kind_ == "compacted_from" and new.lineage.segment == old.segment
    assert new.lineage.run == rig.of(e.RunStarted)[0].run
    state = next(i.text for i in new.items if isinstance(i, ContextItem) and i.kind == "state")
    assert "first thing" in state and "[pending] t1" in state
    assert rig.folder().pointer().segment == rig.starts()[-1].segment


async def test_the_tail_is_cut_by_tokens_and_not_by_turns(rig: Rig) -> None:
    """One long turn of many calls: about retained_tokens of its end stay, whatever the length of the turn."""
    for retained, least in ((1_500, 1), (4_500, 3)):
        name = f"t{retained}"
        made = manifest(compaction=compacting(20_000, retained_tokens=retained))
        async with rig.open(
            Agent(caller(20)), made, name, tools=[Counted(1_200).tool], compact_model=summariser()
        ) as pod:
            (await pod.run("one long turn")).raise_for_status()
        kept = [i for i in rig.starts(name)[1].items if i.type == "tool_result"]
        assert len(kept) == least and kept[-1].content and "begins" in kept[-1].content


async def test_b025_background_jobs_are_listed_by_code_and_still_answer(rig: Rig) -> None:
    """B025: a job runs on through a compaction; its id and pid stand in the state item, and `jobs` knows it."""

    def play(request: Request, n: int) -> Any:
        if n == 1:
            return call("shell", command="sleep 300", background=True)
        if n == 9:
            return call("jobs", action="list")
        return call("fetch", n=n) if n <= 8 else say("done")

    agent = Agent(play)
    rules = [{"tool": "shell", "action": "allow"}, {"tool": "jobs", "action": "allow"}]
    made = manifest(
        tools={"enable": ["shell"]}, permissions={"rules": rules}, compaction=compacting(8_000, retained_tokens=1_500)
    )
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        (await pod.run("start it")).raise_for_status()
        job = pod.running.services.processes.list()[0]
        assert job.id == "p1" and job.status == "running"
    state = contexts(agent.requests[-1], "state")[-1]
    assert f"p1: sleep 300 (pid {job.pid}, running)" in state
    answer = results(agent.requests[-1], "jobs")[-1].text()
    assert "p1" in answer and "running" in answer
    assert look_at(job.pid) is None, "closing the pod ends its jobs"


async def test_b026_the_run_goes_on_by_itself_and_nothing_is_put_into_the_users_mouth(rig: Rig) -> None:
    """B026: after the compaction the next request leaves without input; the only user message is the user's."""
    agent = Agent(caller(14))
    async with rig.open(
        agent, manifest(compaction=compacting(9_000)), tools=[Counted(1_200).tool], compact_model=summariser()
    ) as pod:
        result = (await pod.run("only these words")).raise_for_status()
    assert result.text == "done" and result.compactions >= 1
    assert len(rig.of(Input)) == 1 and rig.of(e.RunEndedEntry)[-1].status == "finished"
    assert all(set(words(r)) == {"only these words"} for r in agent.requests)


class Sending(Agent):
    """A compact worker's model that sends messages to the pod while it works."""

    pod: Any = None
    sent = False
    fails = False

    async def send(self, request: Request, emit: Any) -> Any:
        if not self.sent:
            self.sent = True
            await self.pod.send("M1 while compacting")
            await self.pod.send("M2 while compacting")
        if self.fails:
            raise ContextOverflow("never")
        return await super().send(request, emit)


@pytest.mark.parametrize("variant", ["succeeds", "fails", "at the start event"])
async def test_b027_messages_that_arrive_while_compacting_reach_the_model_once_in_order(rig: Rig, variant: str) -> None:
    """B027: stored on arrival, not lost in the switch, not cancelling it; also where the compaction fails."""
    good = summariser()
    worker = Sending(good.play, name="offline:sending")
    worker.fails = variant == "fails"
    worker.sent = variant == "at the start event"
    agent = Agent(lambda r, n: call("fetch", n=n) if n <= 8 else say(f"answer {n}"))
    made = manifest(compaction=compacting(9_000))

    def at_start(event: Any) -> None:
        if variant == "at the start event" and event.type == "compaction.started":
            for text in ("M1 while compacting", "M2 while compacting"):
                inbox.post(PodFolder(rig.home, "p"), inbox.Command(kind="send", args={"text": text}))

    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker, observers=[at_start]) as pod:
        worker.pod = pod
        (await pod.run("go")).raise_for_status()
    arrived = [r.item.text for r in rig.of(Input)]
    assert arrived == ["go", "M1 while compacting", "M2 while compacting"]
    assert len(rig.segments()) >= 2
    last = words(agent.requests[-1])
    assert [w for w in last if w.startswith("M")] == ["M1 while compacting", "M2 while compacting"]
    for request in agent.requests:
        assert words(request).count("M1 while compacting") <= 1
    admitted = [i for r in rig.of(Admitted) for i in r.ids]
    assert len(admitted) == len(set(admitted)) == 3


async def test_b028_the_message_that_triggers_a_compaction_is_the_last_of_the_next_request(rig: Rig) -> None:
    """B028: byte-equal, the last user item of the first request after the compaction between runs."""
    text = "  and now «this» exactly\n\n"
    agent = Agent(caller(8))
    made = manifest(compaction=compacting(None, threshold=6_000))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        await pod.run("first")
        before = len(agent.requests)
        assert not rig.of(e.CompactionStarted)
        (await pod.run(text)).raise_for_status()
    assert len(rig.segments()) == 2
    first = agent.requests[before]
    assert users(first) == [text] and isinstance(first.items[-1], UserItem)
    assert messages(first)[-1]["content"].endswith(text)


async def test_b029_a_message_that_came_during_a_compaction_by_hand_needs_no_other_one(rig: Rig) -> None:
    """B029: `resume` answers it without input; a later message comes after it."""
    good = summariser()
    worker = Sending(good.play, name="offline:sending")
    agent = Agent(caller(6))
    async with rig.open(
        agent, manifest(compaction=compacting(None)), tools=[Counted(1_200).tool], compact_model=worker
    ) as pod:
        worker.pod = pod
        await pod.run("go")
        assert await pod.compact()
        assert [i.text for i in pod.state.queued] == ["M1 while compacting", "M2 while compacting"]
        (await pod.resume()).raise_for_status()
        assert users(agent.requests[-1]) == ["M1 while compacting", "M2 while compacting"]
        await pod.run("M3 later")
    assert users(agent.requests[-1]) == ["M1 while compacting", "M2 while compacting", "M3 later"]


async def test_a_run_and_a_compaction_by_hand_never_run_side_by_side(rig: Rig) -> None:
    """B029: while one is under way the other is refused with a reason; the message is not stored twice."""
    from pod import UsageProblem

    entered, leave = anyio.Event(), anyio.Event()

    class Waiting(Agent):
        async def send(self, request: Request, emit: Any) -> Any:
            entered.set()
            await leave.wait()
            return await super().send(request, emit)

    worker = Waiting(summariser().play, name="offline:waiting")
    agent = Agent(caller(6))
    async with rig.open(
        agent, manifest(compaction=compacting(None)), tools=[Counted(1_200).tool], compact_model=worker
    ) as pod:
        await pod.run("go")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pod.compact)
            await entered.wait()
            with pytest.raises(UsageProblem, match="under way"):
                await pod.run("too early")
            leave.set()
        assert not [r for r in rig.of(Input) if r.item.text == "too early"]
        assert (await pod.run("now")).status == "finished"


class Barrier(Files):
    """Runs something right before a file takes its place."""

    def __init__(self, ending: str, act: Any) -> None:
        self.ending, self.act = ending, act

    def rename(self, source: Path, target: Path) -> None:
        if target.name.endswith(self.ending) and self.act is not None:
            act, self.act = self.act, None
            act(target)
        super().rename(source, target)


@pytest.mark.parametrize("moment", ["before the segment's file", "before the pointer"])
async def test_b073_a_message_at_the_moment_of_the_switch_is_in_exactly_one_place_and_replayed(
    rig: Rig, moment: str
) -> None:
    """B073: it arrives after the tail was read and before the pointer moves."""
    made = manifest(compaction=compacting(None))
    async with rig.open(Agent(caller(6)), made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        await pod.run("go")

    def act(target: Path) -> None:
        inbox.post(PodFolder(rig.home, "p"), inbox.Command(id="late-1", kind="send", args={"text": "late"}))

    files = Barrier("pod.json" if moment == "before the pointer" else ".jsonl", act)
    agent = Agent(caller(0))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser(), files=files) as pod:
        assert await pod.compact()
        assert files.act is None
        assert (await pod.resume()).status == "finished"
    assert users(agent.requests[-1]) == ["late"]
    assert [r.inbox for r in rig.of(Input) if r.item.text == "late"] == ["late-1"]
    async with rig.open(
        Agent(lambda r, n: say("ok")), made, tools=[Counted(1_200).tool], compact_model=summariser()
    ) as pod:
        assert not pod.state.queued and not list(rig.folder().inbox.glob("*.json"))


async def test_b073_a_message_written_between_the_plan_and_the_commit_crosses_with_the_segment(rig: Rig) -> None:
    """B073: the new segment holds it as pending input, once."""
    made = manifest(compaction=compacting(None))
    async with rig.open(Agent(caller(6)), made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        await pod.run("go")
        switch = pod.running.session.switch

        async def late(start: e.SegmentStarted, *records: Any) -> None:
            await pod.send("between")
            await switch(start, *records)

        pod.running.session.switch = late  # type: ignore[method-assign]
        assert await pod.compact()
        assert [i.text for i in pod.state.queued] == ["between"]
    assert [i.text for i in rig.starts()[1].pending_inputs] == ["between"]


async def test_older_user_words_are_counted_where_they_do_not_fit(rig: Rig) -> None:
    """The first input and the current one stay whole; others newest first within a budget, the gap is counted."""
    agent = Agent(lambda r, n: say(f"ok {n}"))
    made = manifest(compaction=compacting(None, user_words_tokens=700, retained_tokens=400, retained_floor_tokens=100))
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        for n in range(12):
            await pod.run(f"message {n}: " + filler(220, f"m{n}"))
        assert await pod.compact()
        await pod.run("the newest")
    request = agent.requests[-1]
    shown = [w.split(":")[0] for w in words(request)]
    assert shown[0] == "message 0" and shown[-1] == "the newest" and "message 11" in shown
    (gap,) = [i.text for i in request.items if isinstance(i, ContextItem) and i.source == "count"]
    assert gap.startswith(f"{12 - (len(shown) - 1)} earlier user messages are not shown")


@tool
async def noop() -> str:
    """Nothing."""
    return "nothing"


async def test_the_task_list_crosses_as_data_whatever_the_summary_says(rig: Rig) -> None:
    """B034: the state item is right where the summary is wrong; the compact worker is shown the list; the tool goes on with it."""

    def play(request: Request, n: int) -> Any:
        steps: dict[int, Any] = {
            1: call("tasks", add=["write the parser", "test the parser"]),
            2: call("tasks", update=[{"id": "t1", "status": "done"}]),
        }
        return steps.get(n) or (call("fetch", n=n) if n <= 8 else call("tasks") if n == 9 else say("done"))

    agent, worker = Agent(play), summariser(summary(Active_Task="### [T9] Wrong\n- nothing is done"))
    made = manifest(tools={"enable": ["tasks"]}, compaction=compacting(8_000, retained_tokens=1_200))
    async with rig.open(agent, made, tools=[Counted(1_200).tool, noop], compact_model=worker) as pod:
        (await pod.run("go")).raise_for_status()
    assert "write the parser" in texts(worker.requests[0])
    state = contexts(agent.requests[-1], "state")[-1]
    assert "[done] t1 write the parser" in state and "this list is right" in state
    assert "t2 [pending] test the parser" in results(agent.requests[-1], "tasks")[-1].text()
    assert any(isinstance(r, ReplyRecord) for r in rig.log())
