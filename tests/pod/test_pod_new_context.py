"""Promises of the tool `new_context`: it says what will truly happen, and an interrupt ends what it asked for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pod import operations
from pod.context.policy import RungFailed
from pod.context.rungs import RolloverRung
from pod.log import entries as e
from tests.pod.pod_rig import Agent, Counted, Rig, compacting, manifest, results, texts
from tests.pod.test_pod_rollover import rolling
from worker.models.base import Request
from worker.testing import call, say

pytestmark = pytest.mark.anyio

ROOM: dict[str, Any] = {"at": 50_000, "warn": 40_000}
DENIED = {"rules": [{"tool": "session_history", "action": "deny"}]}


def asking(steps: int = 2) -> Agent:
    """Fetches some pages, asks for a new window, says what it was told."""
    return Agent(
        lambda request, n: call("fetch", n=n) if n <= steps else call("new_context") if n == steps + 1 else say("end")
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (manifest(context={"policy": "off"}, tools={"enable": ["new_context"]}), "the context policy here is 'off'"),
        (manifest(context={"policy": "warn"}, tools={"enable": ["new_context"]}), "the context policy here is 'warn'"),
        (rolling(**ROOM, tools={"enable": ["new_context"]}, permissions=DENIED), "session_history is denied"),
        (manifest(context={"policy": "rollover"}, tools={"enable": ["new_context"]}), "nothing to compact"),
    ],
    ids=["off", "warn", "denied", "little"],
)
async def test_no_window_is_promised_where_none_would_begin(rig: Rig, made: Any, said: str) -> None:
    agent = asking()
    async with rig.open(agent, made, tools=[Counted(3_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    [answer] = results(agent.requests[-1], "new_context")
    assert answer.status == "error" and said in answer.text() and "begins" not in answer.text()
    assert len(rig.starts()) == 1 and not rig.of(e.CompactionStarted)


async def test_no_window_is_promised_that_would_hold_nearly_the_same(rig: Rig) -> None:
    """One small old result could go, and a new window must be a tenth smaller."""
    tool = Counted(150)

    def play(request: Request, n: int) -> Any:
        tool.tokens = 150 if n == 1 else 900
        return call("fetch", n=n) if n <= 3 else call("new_context") if n == 4 else say("end")

    agent = Agent(play)
    async with rig.open(agent, rolling(**ROOM, tools={"enable": ["new_context"]}), tools=[tool.tool]) as pod:
        assert pod.running.compactor.parts.config.retained_tokens == 2_000
        await pod.run("go")
    [answer] = results(agent.requests[-1], "new_context")
    assert answer.status == "error" and "too few would go" in answer.text() and not rig.of(e.CompactionStarted)


async def test_no_window_is_promised_while_the_rungs_that_would_make_it_rest(rig: Rig) -> None:
    made = manifest(compaction=compacting(50_000), tools={"enable": ["new_context"]})
    agent = asking()
    async with rig.open(agent, made, tools=[Counted(3_000).tool]) as pod:
        pod.running.session.put(e.Breaker(failures=3, open_until=9e9))
        await pod.run("go")
    [answer] = results(agent.requests[-1], "new_context")
    assert answer.status == "error" and "they rest until 2255-" in answer.text() and "UTC" in answer.text()


async def test_an_agent_whose_window_does_not_begin_after_all_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was promised can still fail: then the next request says so."""

    async def fails(*_: Any) -> Any:
        raise RungFailed("the store was full")

    monkeypatch.setattr(RolloverRung, "attempt", fails)
    agent = asking()
    async with rig.open(agent, rolling(**ROOM, tools={"enable": ["new_context"]}), tools=[Counted(3_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    assert "begins before your next step" in results(agent.requests[-1], "new_context")[0].text()
    assert "No new window has begun: rollover: the store was full." in texts(agent.requests[-1])
    assert len(agent.requests) == 4 and len(rig.of(e.CompactionStarted)) == 1


async def test_a_fork_of_a_full_window_may_ask_for_a_new_one_at_once(rig: Rig) -> None:
    plays = [call("fetch", n=1), call("fetch", n=2), say("first")]
    async with rig.open(Agent(lambda request, n: plays[n - 1]), rolling(**ROOM), tools=[Counted(3_000).tool]) as pod:
        await pod.run("go")
    operations.fork(rig.home, "p", "q")
    agent = asking(0)
    made = rolling(**ROOM, tools={"enable": ["new_context"]})
    async with rig.open(agent, made, "q", tools=[Counted(3_000).tool]) as pod:
        await pod.run("something else")
    assert [s.lineage.kind_ for s in rig.starts("q")][-1] == "rolled_over_from"


async def interrupted(rig: Rig, mode: str) -> None:
    """A run that is interrupted when the agent has just asked for a new window."""
    made = rolling(**ROOM, tools={"enable": ["new_context"]})

    def follow(event: Any) -> None:
        if event.type == "tool.completed" and event.name == "new_context":
            if mode == "now":
                scope.cancel()
            else:
                pod.running.orders.stop = "interrupt"

    with anyio.CancelScope() as scope:
        async with rig.open(asking(), made, tools=[Counted(3_000).tool], observers=[follow]) as pod:
            await pod.run("go")
    assert rig.of(e.RunEndedEntry)[-1].status == "cancelled" and not rig.of(e.CompactionStarted)


@pytest.mark.parametrize("mode", ["now", "after_tools"])
@pytest.mark.parametrize("then", ["run", "resume"])
async def test_an_interrupt_supersedes_the_window_that_the_agent_asked_for(rig: Rig, mode: str, then: str) -> None:
    await interrupted(rig, mode)
    agent = Agent(lambda request, n: say("x"))
    made = rolling(**ROOM, tools={"enable": ["new_context"]})
    async with rig.open(agent, made, tools=[Counted(3_000).tool]) as pod:
        result = await (pod.run("other task") if then == "run" else pod.resume())
    assert result.status == "finished" and not rig.of(e.CompactionStarted) and len(rig.starts()) == 1
    assert len(results(agent.requests[0], "fetch")) == 2


async def test_a_window_that_the_agent_asked_for_begins_when_a_limit_is_lifted(rig: Rig) -> None:
    """Nobody stopped the run: what it asked for still holds."""
    tools = {"enable": ["new_context"]}
    agent = asking()
    async with rig.open(
        agent, rolling(**ROOM, tools=tools, worker={"max_requests": 3}), tools=[Counted(3_000).tool]
    ) as pod:
        assert (await pod.run("go")).status == "limit"
    async with rig.open(agent, rolling(**ROOM, tools=tools), tools=[Counted(3_000).tool]) as pod:
        assert (await pod.resume()).status == "finished"
    assert [r.trigger for r in rig.of(e.CompactionStarted)] == ["agent"]
