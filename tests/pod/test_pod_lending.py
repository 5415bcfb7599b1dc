"""What a program lends a pod and is told of it: its own object, a scope around a run, how it stands."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pod.log import entries as e
from tests.pod.pod_rig import Agent, Rig, results
from worker.interceptor import CONTINUE, Answer, CallContext, Decision, Interceptor, RequestContext, ToolDecision
from worker.items import ToolOutput
from worker.models.base import Request
from worker.testing import call, say

pytestmark = pytest.mark.anyio


async def test_deps_reach_interceptors_before_requests_and_before_calls(rig: Rig) -> None:
    book = {"ann": "4711"}
    found: list[Any] = []

    class Looks(Interceptor):
        async def before_request(self, ctx: RequestContext) -> Decision:
            found.append(ctx.deps)
            return CONTINUE

        async def before_tool(self, ctx: CallContext) -> ToolDecision:
            found.append(ctx.deps)
            return Answer(ToolOutput(summary=ctx.deps[ctx.arguments["name"]]))

    def lookup(name: str) -> str:
        """Looks a name up."""
        raise AssertionError("it was answered before it ran")

    agent = Agent(lambda r, n: call("lookup", name="ann") if n == 1 else say("done"))
    async with rig.open(agent, tools=[lookup], interceptors=[Looks()], deps=book) as pod:
        await pod.run("go")
    assert len(found) == 3 and all(each is book for each in found)
    assert results(agent.requests[-1])[0].text() == "4711"


@pytest.mark.parametrize("when", ["model", "tool"])
async def test_a_scope_around_a_run_cancels_it_on_record_and_it_goes_on(rig: Rig, when: str) -> None:
    """Whatever is under way ends; the scope is the caller's own, as with everything in anyio."""
    scope, over = anyio.CancelScope(), [False]

    async def slow() -> str:
        """Takes for ever."""
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    class Cancelling(Agent):
        async def send(self, request: Request, emit: Any) -> Any:
            if when == "model" and not over[0]:
                scope.cancel()
                await anyio.sleep_forever()
            return await super().send(request, emit)

    agent = Cancelling(lambda r, n: call("slow") if when == "tool" and not over[0] else say("done"))
    async with rig.open(agent, tools=[slow]) as pod:
        with scope:
            await pod.run("go")
        assert scope.cancelled_caught and not pod.running.busy
        assert rig.of(e.RunEndedEntry)[-1].status == "cancelled"
        over[0] = True
        again = await (pod.run("go") if when == "model" else pod.resume())
    assert again.text == "done"


async def test_a_pod_that_is_opened_again_tells_its_last_result_and_whether_it_can_go_on(rig: Rig) -> None:
    steps = iter([call("look"), say("done"), call("look")])
    agent = Agent(lambda r, n: next(steps))

    def look() -> str:
        """Looks."""
        return "seen"

    async with rig.open(agent, tools=[look]) as pod:
        assert pod.last_result is None and not pod.resumable
        first = await pod.run("go")
        assert pod.last_result is not None and not pod.resumable
    async with rig.open(agent, tools=[look]) as pod:
        assert pod.last_result is not None and pod.last_result.model_dump() == first.model_dump()
        async with pod.start("go on") as run:
            async for event in run:
                if event.type == "run.started":
                    assert pod.last_result is None, "one is under way"
                if event.type == "tool.started":
                    await run.interrupt("after_tools")
        assert pod.resumable and pod.last_result is not None and pod.last_result.status == "cancelled"


async def test_what_a_program_prints_is_short_and_says_how_it_stands(rig: Rig) -> None:
    pod = rig.open(Agent(lambda r, n: say("done")))
    assert repr(pod) == f"<pod 'p' in {rig.home}: not entered>"
    async with pod:
        assert repr(pod).endswith(": open>")
        run = pod.start("go")
        assert repr(run) == "<run of 'p': not begun>"
        async with run:
            assert repr(run) == "<run of 'p': under way>"
            result = await run.wait()
        assert repr(run) == "<run of 'p': ended>"
    assert repr(pod).endswith(": closed>")
    assert repr(result).startswith("FinishedResult(pod='p', ") and "text='done'" in repr(result)
    assert "denials" not in repr(result), "what is as ever is left out"
