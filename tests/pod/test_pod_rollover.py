"""Promises of the policy `rollover`: new windows without a summary, in which nothing is lost and nothing done twice."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pod import operations
from pod.cli.progress import Lines
from pod.context.notebook import NOTES, SLOT_BYTES
from pod.log import entries as e
from pod.session import Session, load
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
    size,
    texts,
    users,
    words,
)
from worker.errors import ContextOverflow
from worker.items import OrderItem
from worker.models.base import Request
from worker.records import Warned
from worker.testing import call, calls, fail, say

pytestmark = pytest.mark.anyio


def rolling(at: Any = 12_000, warn: Any = 9_000, **sections: Any) -> Any:
    policy = {"context": {"policy": "rollover"}, "rollover": {"at": at, "warn": warn}}
    return manifest(**policy, compaction={"retained_tokens": 2_000, "retained_floor_tokens": 500}, **sections)


def warnings(request: Any) -> list[str]:
    return [i.text for i in request.items if isinstance(i, OrderItem) and "a new window begins" in i.text]


async def test_windows_follow_each_other_without_a_model_and_without_a_call_made_twice(rig: Rig) -> None:
    tool, agent = Counted(1_000), Agent(caller(40))
    async with rig.open(agent, rolling(), tools=[tool.tool]) as pod:
        result = await pod.run("fetch forty pages")
    assert result.status == "finished" and tool.calls == list(range(1, 41))
    starts = rig.starts()
    assert len(starts) >= 4 and {s.lineage.kind_ for s in starts[1:]} == {"rolled_over_from"}
    assert len({s.lineage.compaction for s in starts[1:]}) == len(starts) - 1, "one id for each boundary"
    assert result.requests == 41, "no request was spent on a summary"
    for request in agent.requests[-3:]:
        assert words(request)[0] == "fetch forty pages"
        [lead_in] = contexts(request, "lead_in")
        assert starts[-2].segment in lead_in and "session_history" in lead_in and not contexts(request, "summary")


async def test_each_window_is_warned_of_its_end_once_and_in_time(rig: Rig) -> None:
    agent = Agent(caller(30))
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    windows = len(rig.starts())
    seen = [len(warnings(request)) for request in agent.requests]
    assert max(seen) == 1, "never two in one window"
    begun = sum(b > a for a, b in zip([0, *seen], seen, strict=False))
    assert windows - 1 <= begun <= windows
    assert all("session_history" in text for request in agent.requests for text in warnings(request))


async def test_a_window_that_ends_at_the_same_moment_is_not_warned(rig: Rig) -> None:
    """One result takes the window from below the warning to above the end."""
    agent = Agent(caller(8))
    async with rig.open(agent, rolling(at=8_000, warn=7_900), tools=[Counted(3_000).tool]) as pod:
        assert (await pod.run("fetch")).status == "finished"
    assert len(rig.starts()) > 2 and not any(warnings(request) for request in agent.requests)


async def test_a_warning_survives_a_restart_of_its_window(rig: Rig) -> None:
    agent = Agent(lambda request, n: call("fetch", n=n) if n % 9 else say("pause"))
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    assert warnings(agent.requests[-1]), "it was warned in the first run"
    async with rig.open(agent, rolling(at=30_000), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go on")
    assert len(warnings(agent.requests[-1])) == 1


@pytest.mark.parametrize("how", ["fork", "rewind"])
async def test_a_window_that_goes_on_in_a_fork_or_behind_a_rewind_is_not_warned_again(rig: Rig, how: str) -> None:
    """Also not where its end lies elsewhere now; the next window is."""
    agent = Agent(lambda request, n: call("fetch", n=n) if n % 9 else say("pause"))
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
        at = pod.state.last_seq
        assert len(warnings(agent.requests[-1])) == 1
        if how == "rewind":
            await pod.run("and this")
    name = "q" if how == "fork" else "p"
    if how == "fork":
        operations.fork(rig.home, "p", "q")
    else:
        await operations.rewind(rig.home, "p", at)
    before, more = len(agent.requests), Counted(1_000)
    async with rig.open(agent, rolling(at=14_000, warn=12_000), name, tools=[more.tool]) as pod:
        while len(rig.starts(name)) < 4:
            await pod.run("go on")
    seen = [len(warnings(request)) for request in agent.requests[before:]]
    assert seen[0] == 1 and max(seen) == 1 and 0 in seen and seen[-1] in (0, 1)
    assert sum(b > a for a, b in itertools.pairwise(seen)) >= 1, "the window after it is warned of its own end"


async def test_a_point_before_the_warning_is_warned_when_its_end_comes(rig: Rig) -> None:
    agent = Agent(lambda request, n: say("ok") if n == 1 else call("fetch", n=n) if n % 10 else say("pause"))
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("hello")
        at = pod.state.last_seq
        await pod.run("fetch")
        assert warnings(agent.requests[-1])
    await operations.rewind(rig.home, "p", at)
    before = len(agent.requests)
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    assert [len(warnings(request)) for request in agent.requests[before:]][:: len(agent.requests) - before - 1] == [
        0,
        1,
    ]


async def test_the_warning_of_an_old_window_does_not_stand_in_the_new_one(rig: Rig) -> None:
    """A warning late enough lies in the tail that crosses: it would speak of an end that has come."""
    agent = Agent(caller(40))
    async with rig.open(agent, rolling(at=12_000, warn=11_300), tools=[Counted(500).tool]) as pod:
        await pod.run("fetch")
    ends = [at for at, (a, b) in enumerate(itertools.pairwise(agent.requests)) if size(b) < size(a) / 2]
    assert len(ends) >= 2 and any(warnings(agent.requests[at]) for at in ends)
    assert not any(warnings(agent.requests[at + 1]) for at in ends)


async def test_the_triggers_of_compaction_end_a_window_too_and_the_lower_one_acts(rig: Rig) -> None:
    """It is warned of that end, also where `[rollover] warn` lies above it."""
    tool, agent = Counted(1_000), Agent(caller(20))
    made = manifest(
        context={"policy": "rollover"},
        compaction={"request_threshold": 9_000, "retained_tokens": 2_000, "retained_floor_tokens": 500},
    )
    async with rig.open(agent, made, tools=[tool.tool]) as pod:
        init = pod.init_event()
        assert (await pod.run("fetch")).status == "finished"
    assert list(init.triggers) == ["rollover.at", "request_threshold"]
    assert tool.calls == list(range(1, 21)) and len(rig.starts()) >= 3
    assert {r.detail["threshold"] for r in rig.of(e.YieldedEntry)} == {9_000}
    assert max(size(request) for request in agent.requests) < 9_500
    told = {text for request in agent.requests for text in warnings(request)}
    assert told and all("at 9,000" in text for text in told)


async def test_the_threshold_of_compaction_ends_a_window_between_runs(rig: Rig) -> None:
    agent = Agent(lambda request, n: call("fetch", n=n) if n < 7 else say("ok"))
    made = rolling()
    compaction = made.compaction.model_copy(update={"threshold": 6_000})
    async with rig.open(agent, made.model_copy(update={"compaction": compaction}), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
        assert len(rig.starts()) == 1
        await pod.run("and now?")
        assert pod.running.compactor.limits().lowest == 6_000
    assert [r.trigger for r in rig.of(e.CompactionStarted)] == ["threshold"]
    assert [s.lineage.kind_ for s in rig.starts()] == ["fresh", "rolled_over_from"]


async def test_a_window_that_is_too_small_names_the_trigger_that_ended_it(rig: Rig) -> None:
    made = rolling(at=30_000, warn=8_900)
    compaction = made.compaction.model_copy(update={"request_threshold": 9_000})
    async with rig.open(
        Agent(caller(4)), made.model_copy(update={"compaction": compaction}), tools=[Counted(5_000).tool]
    ) as pod:
        await pod.run("fetch " + filler(3_000))
    [warned] = [r for r in rig.of(Warned) if r.code == "small_window"]
    assert "above [compaction] request_threshold (9,000)" in warned.message
    assert warned.figures["key"] == "compaction.request_threshold" and warned.figures["at"] == 9_000


@pytest.mark.parametrize(
    ("sections", "trigger", "said"),
    [
        ({}, "rollover.at", "rolling over (rollover.at): "),
        ({"compaction": {"request_threshold": 9_000, "retained_tokens": 2_000}}, "request_threshold", "rolling over (request_threshold): "),
        ({"context": {"policy": "compact"}, "compaction": compacting(9_000)}, "request_threshold", "compacting (request_threshold): "),
    ],
)  # fmt: skip
async def test_what_ends_a_window_is_named_by_its_own_key_and_what_happens_by_its_policy(
    rig: Rig, sections: dict[str, Any], trigger: str, said: str
) -> None:
    rolls = {"context": {"policy": "rollover"}, "rollover": {"at": 12_000, "warn": 8_000}}
    made = manifest(**(rolls | sections if "context" not in sections else sections))
    async with rig.open(Agent(caller(20)), made, tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run("fetch")).status == "finished"
        events = [event async for event in pod.events()]
    assert {r.trigger for r in rig.of(e.CompactionStarted)} == {trigger}
    lines = Lines()
    begun = [lines.of(event) or "" for event in events if event.type == "compaction.started"]
    ended = [lines.of(event) or "" for event in events if event.type == "compaction.completed"]
    assert begun and all(line.startswith(said) for line in begun)
    if said.startswith("rolling"):
        assert all("summarise" not in line and line.endswith("stay behind") for line in begun)
        assert ended and all(line.startswith("rolled over: ") for line in ended)
    else:
        assert ended and all(line.startswith(("compacted by ", "rolled over: ")) for line in ended)


@pytest.mark.parametrize("length", [50, 30_000])
async def test_notes_stand_at_the_start_of_each_new_window(rig: Rig, length: int) -> None:
    rig.file(NOTES, "port is 8443\n" + filler(length)[:length])
    agent = Agent(caller(20))
    made = rolling(tools={"enable": ["append_file"]})
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    [notes] = contexts(agent.requests[-1], "notes")
    assert notes.startswith("port is 8443\n") and len(notes.encode()) <= SLOT_BYTES + 200
    assert ("bytes more; read_file" in notes) is (length > SLOT_BYTES)
    assert not contexts(agent.requests[0], "notes")
    assert NOTES in next(text for request in agent.requests for text in warnings(request))


async def test_notes_are_never_made_by_the_runtime_and_not_asked_for_where_they_cannot_be_written(rig: Rig) -> None:
    agent = Agent(caller(20))
    async with rig.open(agent, rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    assert not (rig.cwd / NOTES).exists() and not contexts(agent.requests[-1], "notes")
    assert not any(NOTES in texts(request) for request in agent.requests)


async def test_the_agent_asks_for_a_new_window_and_gets_it_before_its_next_step(rig: Rig) -> None:
    plays = [call("fetch", n=1), call("fetch", n=2), call("new_context"), call("new_context"), say("done")]
    agent = Agent(lambda request, n: plays[n - 1])
    made = rolling(at=50_000, warn=40_000, tools={"enable": ["new_context"]})
    async with rig.open(agent, made, tools=[Counted(3_000).tool]) as pod:
        assert (await pod.run("fetch")).status == "finished"
    assert [s.lineage.kind_ for s in rig.starts()] == ["fresh", "rolled_over_from"]
    assert rig.of(e.CompactionStarted)[0].trigger == "agent"
    assert not results(agent.requests[3], "fetch") and "begins before your next step" in texts(agent.requests[3])
    assert "only just begun" in results(agent.requests[4], "new_context")[-1].text()


async def test_without_access_to_the_history_no_window_ends(rig: Rig) -> None:
    """What stands in the window would be lost: the run ends and says which way out there is."""
    made = rolling(permissions={"rules": [{"tool": "session_history", "action": "deny"}]})
    tool = Counted(1_000)
    async with rig.open(Agent(caller(40)), made, tools=[tool.tool]) as pod:
        result = await pod.run("fetch")
    assert result.status == "limit" and "session_history is denied" in (result.error or "")
    assert len(rig.starts()) == 1 and len(tool.calls) < 40


async def test_an_overflow_is_answered_with_one_new_window(rig: Rig) -> None:
    def play(request: Request, number: int) -> Any:
        if number == 6:
            return fail(ContextOverflow("prompt is too long: 7000 tokens > 6000 maximum", limit=6_000, requested=7_000))
        return call("fetch", n=number) if number < 9 else say("done")

    tool = Counted(1_000)
    async with rig.open(Agent(play), rolling(at=50_000, warn=40_000), tools=[tool.tool]) as pod:
        assert (await pod.run("fetch")).status == "finished"
    assert [r.trigger for r in rig.of(e.CompactionStarted)] == ["overflow"] and len(rig.starts()) == 2
    assert sorted(set(tool.calls)) == sorted(tool.calls)


@pytest.mark.parametrize("policy", ["rollover", "compact", "warn"])
async def test_an_input_that_no_window_can_hold_is_refused_and_never_sent_again(rig: Rig, policy: str) -> None:
    """The session goes on with the next message; the log still has the refused one."""
    agent = Agent(lambda request, n: say(f"answer {n}"), window=20_000)
    sections = {
        "rollover": rolling(),
        "compact": manifest(compaction={"request_threshold": 12_000}),
        "warn": manifest(),
    }
    huge = filler(30_000, "huge")
    async with rig.open(agent, sections[policy]) as pod:
        await pod.run("hello")
        failed = await pod.run(huge)
        assert failed.status == "failed" and failed.error_kind in ("over_budget", "compact_thrash")
        assert not failed.resumable
        assert (await pod.run("and now?")).text == "answer 2"
    async with rig.open(agent, sections[policy]) as pod:
        assert (await pod.run("still there?")).text == "answer 3"
    assert users(agent.requests[-1])[-1] == "still there?" and not any("huge" in texts(r) for r in agent.requests)
    [rejected] = rig.of(e.InputRejected)
    assert any(r.item.id == rejected.id and r.item.text == huge for r in rig.log() if r.kind == "input")


async def test_old_window_and_new_one_give_the_same_carry(rig: Rig) -> None:
    async with rig.open(Agent(caller(15)), rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    old, new = rig.segments()[0], rig.starts()[1]
    carried = load(old, "o200k").carry().model_dump(exclude={"totals", "omitted_words", "last_status"})
    assert new.carry.model_dump(exclude={"totals", "omitted_words", "last_status"}) == carried
    assert Session.open(rig.home, "p").state.start.segment == rig.starts()[-1].segment


async def test_b004_windows_of_one_reply_go_on_and_the_run_is_warned_once_that_they_are_too_small(rig: Rig) -> None:
    """B004: a result that nearly fills the window makes a window of each step; each is made once, and the way out is named."""
    tool = Counted(5_000)
    async with rig.open(Agent(caller(5)), rolling(at=9_000, warn=8_900), tools=[tool.tool]) as pod:
        assert (await pod.run("fetch " + filler(3_000))).status == "finished" and tool.calls == [1, 2, 3, 4, 5]
        windows = len(rig.starts())
        [warned] = [r for r in rig.of(Warned) if r.code == "small_window"]
        assert (
            "[rollover] at (9,000)" in warned.message and warned.figures["tokens"] > 9_000 > warned.figures["overhead"]
        )
        agent = pod.running.worker.sender.model
        assert windows >= 4 and isinstance(agent, Agent)
        agent.play = lambda request, n: call("fetch", n=n) if n < 10 else say("done")
        assert (await pod.run("again")).status == "finished"
    assert [r.code for r in rig.of(Warned)].count("small_window") == 2, "once in each run"


async def test_windows_of_some_replies_are_not_called_too_small(rig: Rig) -> None:
    async with rig.open(Agent(caller(30)), rolling(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("fetch")
    assert len(rig.starts()) > 2 and not rig.of(Warned)


async def test_b001_overhead_above_the_end_of_a_window_is_one_named_failure(rig: Rig) -> None:
    """B001, for windows that roll over: no endless series of them."""
    made = rolling(at=20_000, warn=19_000, worker={"system_prompt": filler(22_000)})
    agent = Agent(caller(20))
    async with rig.open(agent, made, tools=[Counted(50).tool]) as pod:
        result = await pod.run("look around")
    assert (result.status, result.error_kind, result.exit_code) == ("failed", "compact_thrash", 1)
    assert "fixed overhead" in (result.error or "") and "lowest trigger 20,000" in (result.error or "")
    assert len(agent.requests) <= 2 and len(rig.of(e.CompactionStarted)) <= 1 and len(rig.starts()) == 1


async def test_b005_restarts_of_a_session_near_the_end_of_its_window_make_no_second_one(rig: Rig) -> None:
    """B005: ten turns, each in a process of its own; one of them passes the end."""
    agent = Agent(lambda request, n: call("fetch", n=n) if n < 10 else say("done"))
    for turn in range(10):
        async with rig.open(agent, rolling(at=13_500), tools=[Counted(1_200).tool]) as pod:
            assert (await pod.run(f"turn {turn} " + filler(200))).status == "finished"
    assert len(rig.starts()) == 2 and len(rig.of(e.CompactionStarted)) == 1


async def test_b008_results_that_no_window_can_hold_are_cut_and_not_what_stands_beside_them(rig: Rig) -> None:
    """B008 and B007, without a model: an unanswered batch of two large results crosses into the new window, cut."""

    def play(request: Request, n: int) -> Any:
        return calls([call("fetch", n=1), call("fetch", n=2)]) if n == 1 else say("done")

    agent, tool = Agent(play), Counted(14_000)
    async with rig.open(agent, rolling(), tools=[tool.tool]) as pod:
        assert (await pod.run("look")).status == "finished"
    cut = results(agent.requests[-1], "fetch")
    assert sorted(tool.calls) == [1, 2] and len(cut) == 2 and all(len(r.content or "") < 1_500 for r in cut)
    assert size(agent.requests[-1]) < 6_000 and len(rig.starts()) == 2
