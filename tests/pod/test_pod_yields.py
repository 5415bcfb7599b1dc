"""An interceptor of the user's own that asks for a compaction is followed where that can do something, and loops never."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker.errors import ModelError, Overloaded
from worker.interceptor import CONTINUE, Decision, Interceptor, RequestContext, Yield
from worker.records import Warned
from worker.testing import fail, say

pytestmark = pytest.mark.anyio


class Insists(Interceptor):
    """Wants a compaction before each request."""

    def __init__(self, detail: Mapping[str, Any]) -> None:
        self.detail = dict(detail)
        self.asked = 0

    async def before_request(self, ctx: RequestContext) -> Decision:
        self.asked += 1
        return Yield("compact", {**self.detail, "n": self.asked})


class NewWords(Insists):
    """Names another trigger each time, none of which there is."""

    async def before_request(self, ctx: RequestContext) -> Decision:
        self.asked += 1
        return Yield("compact", {"trigger": f"mine-{self.asked}"})


class AfterErrors(Interceptor):
    """Wants a compaction for each failed request."""

    async def after_error(self, ctx: RequestContext, error: ModelError) -> Decision:
        return Yield("compact")


def passed_over(rig: Rig) -> list[str]:
    return [r.message for r in rig.of(Warned) if r.code == "yield.passed_over"]


@pytest.mark.parametrize("policy", ["compact", "rollover", "checkpoint", "warn", "off"])
@pytest.mark.parametrize("kind, trigger", [(Insists, None), (Insists, "hand"), (Insists, "agent"), (NewWords, None)])
async def test_a_yield_with_nothing_to_compact_is_followed_once_and_the_request_goes(
    rig: Rig, policy: str, kind: type[Insists], trigger: str | None
) -> None:
    insists = kind({} if trigger is None else {"trigger": trigger})
    agent = Agent(lambda request, n: say("done"))
    made = manifest(context={"policy": policy}, compaction=compacting())
    async with rig.open(agent, made, interceptors=[insists], compact_model=summariser()) as pod:
        result = await pod.run("hello")
    assert result.status == "finished" and len(agent.requests) == 1
    assert len(rig.of(e.YieldedEntry)) == 1
    assert len(passed_over(rig)) == 1 and insists.name in passed_over(rig)[0]


@pytest.mark.parametrize("policy", ["compact", "rollover"])
@pytest.mark.parametrize("detail", [{}, {"trigger": "hand"}])
async def test_a_new_segment_is_not_compacted_again_before_its_first_request(
    rig: Rig, detail: dict[str, str], policy: str
) -> None:
    fetch, agent, worker = Counted(1_500), Agent(caller(12)), summariser()
    made = manifest(context={"policy": policy}, compaction=compacting(20_000))
    async with rig.open(agent, made, tools=[fetch.tool], interceptors=[Insists(detail)], compact_model=worker) as pod:
        result = await pod.run("fetch twelve")
    assert result.status == "finished", result
    assert fetch.calls == list(range(1, 13)) and len(rig.segments()) > 1
    assert {r.rung for r in rig.of(e.CompactionCompleted)} == {policy}, "no rung below was taken for want of work"
    assert len(passed_over(rig)) == len(rig.segments()), "said once in each segment"


async def test_a_failed_request_is_compacted_for_once_and_then_fails(rig: Rig) -> None:
    agent = Agent(lambda request, n: fail(Overloaded("busy")))
    async with rig.open(agent, manifest(compaction=compacting()), interceptors=[AfterErrors()]) as pod:
        result = await pod.run("hello")
    assert (result.status, result.error_kind) == ("failed", "overloaded")
    assert len(agent.requests) == 2


async def test_a_restart_keeps_that_a_compaction_came_to_nothing(rig: Rig) -> None:
    class Leaves(Insists):
        """Asks once, then ends the stretch."""

        async def before_request(self, ctx: RequestContext) -> Decision:
            self.asked += 1
            return Yield("compact") if self.asked == 1 else Yield("later")

    made, agent = manifest(compaction=compacting()), Agent(lambda request, n: say("done"))
    async with rig.open(agent, made, interceptors=[Leaves({})]) as pod:
        assert (await pod.run("hello")).status == "yielded"
    insists = Insists({})
    async with rig.open(agent, made, interceptors=[insists]) as pod:
        assert (await pod.resume()).status == "finished"
    assert [r.reason for r in rig.of(e.YieldedEntry)] == ["compact", "later"]


class OnlyOnce(Interceptor):
    """Wants one compaction at the third request."""

    async def before_request(self, ctx: RequestContext) -> Decision:
        due = ctx.history.counters.requests == 8 and not ctx.history.counters.compactions
        return Yield("compact") if due else CONTINUE


async def test_a_yield_that_can_do_something_is_followed(rig: Rig) -> None:
    fetch, agent = Counted(1_500), Agent(caller(10))
    made = manifest(compaction=compacting(40_000))
    async with rig.open(agent, made, tools=[fetch.tool], interceptors=[OnlyOnce()], compact_model=summariser()) as pod:
        (await pod.run("fetch ten")).raise_for_status()
    assert len(rig.segments()) == 2 and not passed_over(rig)
