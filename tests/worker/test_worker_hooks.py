"""Mistakes with interceptors are named before anything runs, in the words of their author."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from worker.errors import ConfigError
from worker.hooks import HOOKS, checked
from worker.interceptor import CONTINUE, Decision, Interceptor, RequestContext
from worker.items import ToolOutput
from worker.results import Failed
from worker.simple import make_worker
from worker.testing import ScriptedModel, call, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


class Guard(Interceptor):
    async def before_request(self, ctx: RequestContext) -> Decision:
        return CONTINUE


class NoGuard:
    async def before_request(self, ctx: RequestContext) -> Decision:
        return CONTINUE


def made(hook: str, function: Any) -> Interceptor:
    """An interceptor `Mine` with this method."""
    return type("Mine", (Interceptor,), {hook: function})()


def refusal(given: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_worker(ScriptedModel([], strict=False), interceptors=given)
    return str(raised.value)


@pytest.mark.parametrize(
    "given, said",
    [
        ([Guard], "Guard is a class: give an object of it, Guard()"),
        (Guard(), "interceptors=[...] is a list: write [Guard(...)]"),
        (Guard, "interceptors=[...] is a list of interceptors, not type"),
        ("guard", "is a list of interceptors, not str ('guard')"),
        (None, "is a list of interceptors, not NoneType"),
        ([NoGuard()], "is no interceptor: derive its class from worker.Interceptor"),
        ([NoGuard], "the class NoGuard is not derived from worker.Interceptor"),
    ],
)
def test_what_is_no_list_of_interceptors_is_named(given: Any, said: str) -> None:
    assert said in refusal(given)


async def _asynchronous(self: Any, *given: Any) -> Any: ...


def _plain(self: Any, *given: Any) -> Any: ...


async def _generator(self: Any, ctx: Any) -> AsyncIterator[Any]:
    yield CONTINUE


@pytest.mark.parametrize("hook", HOOKS)
def test_a_method_that_is_async_where_it_must_not_be_or_the_reverse_is_named(hook: str) -> None:
    waits = hook.startswith(("before", "after"))
    wrong, right = (_plain, _asynchronous) if waits else (_asynchronous, _plain)
    assert f"interceptors=[...]: Mine.{hook} must {'' if waits else 'not '}be async" in refusal([made(hook, wrong)])
    assert checked([made(hook, right)])


@pytest.mark.parametrize("hook", HOOKS)
def test_a_method_with_other_arguments_is_named_with_those_it_must_take(hook: str) -> None:
    async def waits(self: Any, one: Any, two: Any, three: Any) -> Any: ...

    def plain(self: Any, one: Any, two: Any, three: Any) -> Any: ...

    function = waits if hook.startswith(("before", "after")) else plain
    assert f"{hook} takes other arguments: write 'def {hook}(self" in refusal([made(hook, function)])


def test_a_yield_statement_in_the_place_of_a_returned_yield_is_named() -> None:
    assert "before_request contains a `yield`" in refusal([made("before_request", _generator)])


async def test_a_decorated_method_is_taken_as_it_is() -> None:
    def counted(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(function)
        def wrapper(*given: Any) -> Awaitable[Any]:
            seen.append(1)
            return function(*given)

        return wrapper

    async def before_request(self: Any, ctx: Any) -> Decision:
        return CONTINUE

    seen: list[int] = []
    model = ScriptedModel([say("ok")])
    await make_worker(model, interceptors=[made("before_request", counted(before_request))]).ask("go")
    assert seen == [1]


async def test_an_after_tool_that_forgot_its_answer_is_named() -> None:
    @tool
    async def fetch() -> str:
        """Fetches."""
        return "page"

    async def after_tool(self: Any, ctx: Any, output: ToolOutput) -> Any:
        assert output.summary

    model = ScriptedModel([call("fetch")])
    outcome = await make_worker(model, [fetch], interceptors=[made("after_tool", after_tool)]).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.message == "interceptor Mine: TypeError: after_tool returned None: it must return a ToolOutput"
