"""Tools that raise what no one expects: it costs the call, never the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.worker.loop_rig import Counter, results, worker_of
from worker.interceptor import CallContext, Interceptor, ToolDecision
from worker.results import Failed, Finished
from worker.testing import ScriptedModel, call, reply, say
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Worse(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text either")


class Base(BaseException):
    pass


RAISED: dict[str, Callable[[], BaseException]] = {
    "an error whose text raises": Unspeakable,
    "an error whose text ends the program": Worse,
    "a base exception": lambda: Base("odd"),
    "a generator's end": GeneratorExit,
    "a group of base exceptions": lambda: BaseExceptionGroup("many", [Base("a"), ValueError("b")]),
    "a group in a group": lambda: BaseExceptionGroup("g", [BaseExceptionGroup("h", [Base("a")])]),
    "a group with an unspeakable one": lambda: ExceptionGroup("g", [Unspeakable()]),
}


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_tool_raises_is_the_result_of_that_call_alone(what: str, effect: str) -> None:
    async def body(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        if n == 2:
            raise RAISED[what]()
        return f"did {n}"

    act = Counter(body=body, policy={"effect": effect})
    with ScriptedModel([reply(*(call("act", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("ok")
    found = results(worker)
    assert [r.status for r in found] == ["ok", "error", "ok"]
    assert found[1].summary.startswith("act failed")


@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_tool_raises_in_a_thread_is_the_result_of_that_call(what: str) -> None:
    @tool
    def act() -> str:
        """Acts."""
        raise RAISED[what]()

    with ScriptedModel([reply(call("act")), say("ok")]) as model:
        worker = worker_of(model, [act])
        assert await worker.ask("go") == Finished("ok")
    assert results(worker)[0].status == "error"


@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_check_of_arguments_raises_costs_one_call(what: str) -> None:
    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        raise RAISED[what]()

    strange = Tool("strange", "", {"type": "object", "properties": {}}, lambda a, c: "x", validate=check)
    with ScriptedModel([reply(call("strange")), say("ok")]) as model:
        worker = worker_of(model, [strange])
        assert await worker.ask("go") == Finished("ok")
    assert "could not be checked" in results(worker)[0].summary


async def test_an_interceptors_error_without_a_readable_text_ends_the_run_as_failed() -> None:
    class Strange(Interceptor):
        async def before_tool(self, ctx: CallContext) -> ToolDecision:
            raise Unspeakable

    with ScriptedModel([reply(call("act", n=1))]) as model:
        outcome = await worker_of(model, [Counter().tool], [Strange()]).ask("go")
    assert isinstance(outcome, Failed)
    assert "Unspeakable" in outcome.message


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_users_interrupt_goes_through(wrapped: bool) -> None:
    def body(n: int) -> str:
        raise BaseExceptionGroup("g", [KeyboardInterrupt()]) if wrapped else KeyboardInterrupt()

    with ScriptedModel([reply(call("act", n=1))]) as model, pytest.raises(BaseException) as raised:
        await worker_of(model, [Counter(body=body).tool]).ask("go")
    error = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KeyboardInterrupt)


async def test_a_real_cancellation_goes_through_a_tools_own_task_group() -> None:
    async def body(n: int) -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 60)
            await anyio.sleep(60)
        return "never"

    with ScriptedModel([reply(call("act", n=1))]) as model:
        worker = worker_of(model, [Counter(body=body).tool])
        with anyio.move_on_after(0.1) as scope:
            await worker.ask("go")
    assert scope.cancelled_caught
    assert results(worker) == []
