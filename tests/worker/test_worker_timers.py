"""Waits and timeouts, on a clock that jumps.

Under trio alone: only there can every timer of the code under test be set to a clock of the test's own.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio.testing

from tests.worker.loop_rig import Counter, journal_of, results, worker_of
from worker.errors import Overloaded, RateLimited
from worker.history import History
from worker.records import Retry
from worker.results import Failed, Finished
from worker.retry import RetryPolicy
from worker.testing import ScriptedModel, call, fail, hang, reply, say

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def timed(*args: Any, **more: Any) -> Any:
    worker = worker_of(*args, **more)
    worker.sender.clock = worker.caller.clock = anyio.current_time
    return worker


async def test_an_overload_storm_is_waited_out_with_growing_waits_each_on_record() -> None:
    """B104: twelve refusals, then an answer."""
    policy = RetryPolicy(max_attempts=13, chance=lambda: 1.0)
    with ScriptedModel([*[fail(Overloaded("busy"))] * 12, say("ok")]) as model:
        worker = timed(model, retry=policy)
        began = anyio.current_time()
        assert await worker.ask("go") == Finished("ok")
    waits = [r.wait for r in journal_of(worker).of(Retry)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30]
    assert anyio.current_time() - began == pytest.approx(sum(waits))


async def test_a_storm_that_does_not_end_stops_at_its_horizon_and_says_so() -> None:
    """B104, the variant."""
    model = ScriptedModel([fail(Overloaded("busy"))], strict=False)
    worker = timed(model, retry=RetryPolicy(max_attempts=1_000, max_seconds=300.0, chance=lambda: 1.0))
    began = anyio.current_time()
    outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert "of at most 300 s" in outcome.message
    assert anyio.current_time() - began <= 300.0


async def test_the_provider_is_waited_for_as_long_as_it_asks() -> None:
    """B103."""
    with ScriptedModel([fail(RateLimited("slow", retry_after=7.0)), say("ok")]) as model:
        worker = timed(model)
        began = anyio.current_time()
        await worker.ask("go")
    assert anyio.current_time() - began == pytest.approx(7.0)
    assert [r.wait for r in journal_of(worker).of(Retry)] == [7.0]


async def test_a_provider_that_asks_for_more_than_the_longest_wait_is_not_waited_for() -> None:
    model = ScriptedModel([fail(RateLimited("quota resets", retry_after=3_600.0))])
    began = anyio.current_time()
    outcome = await timed(model).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.details["retryable"] is True
    assert anyio.current_time() == began


async def test_a_wait_for_a_retry_can_be_cancelled_and_leaves_nothing_half_done() -> None:
    model = ScriptedModel([fail(Overloaded("busy", retry_after=60.0)), say("ok")])
    worker = timed(model)
    with anyio.move_on_after(5) as scope:
        await worker.ask("go")
    assert scope.cancelled_caught
    assert [i.type for i in worker.history.view] == ["user"]
    assert await worker.run() == Finished("ok")
    assert [i.type for i in model.requests[1].items] == ["user"]


async def test_a_request_that_hangs_can_be_cancelled_and_nothing_of_it_is_kept() -> None:
    """B106: cancel works while waiting."""
    model = ScriptedModel([hang(), say("ok")])
    worker = timed(model)
    with anyio.move_on_after(60):
        await worker.ask("go")
    assert anyio.current_time() >= 60
    assert [i.type for i in worker.history.view] == ["user"]
    assert await worker.run() == Finished("ok")


async def test_a_tool_is_stopped_at_its_timeout_and_the_model_is_told() -> None:
    async def body(n: int) -> str:
        await anyio.sleep(1_000)
        return "never"

    act = Counter(body=body, policy={"timeout": 2.5})
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = timed(model, [act.tool])
        began = anyio.current_time()
        assert await worker.ask("go") == Finished("ok")
    assert anyio.current_time() - began == pytest.approx(2.5)
    (result,) = results(worker)
    assert (result.status, result.summary) == ("error", "act timed out after 2.5 s and was stopped")


async def test_a_timeout_of_one_read_leaves_its_siblings_alone() -> None:
    """B018."""

    async def body(n: int) -> str:
        await anyio.sleep(100 if n == 2 else 1)
        return f"did {n}"

    look = Counter("look", body=body, policy={"effect": "read", "timeout": 10})
    with ScriptedModel([reply(*(call("look", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = timed(model, [look.tool])
        began = anyio.current_time()
        await worker.ask("go")
    assert [r.status for r in results(worker)] == ["ok", "error", "ok"]
    assert anyio.current_time() - began == pytest.approx(10)


async def test_a_failing_sibling_does_not_cut_slower_ones_short() -> None:
    """B018: c2 raises after 10 ms, c1 and c3 succeed after 200 ms."""

    async def body(n: int) -> str:
        await anyio.sleep(0.01 if n == 2 else 0.2)
        if n == 2:
            raise ValueError("early")
        return f"did {n}"

    look = Counter("look", body=body, policy={"effect": "read"})
    with ScriptedModel([reply(*(call("look", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = timed(model, [look.tool])
        await worker.ask("go")
    assert [r.summary for r in results(worker)] == [
        "did 1",
        "act failed: ValueError: early".replace("act", "look"),
        "did 3",
    ]


async def test_a_tools_own_timeout_error_is_told_as_its_own() -> None:
    async def body(n: int) -> str:
        with anyio.fail_after(1):
            await anyio.sleep(5)
        return "never"

    act = Counter(body=body, policy={"timeout": 100})
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = timed(model, [act.tool])
        await worker.ask("go")
    assert results(worker)[0].summary == "act failed: TimeoutError"


async def test_a_run_cancelled_in_the_middle_of_a_tool_takes_the_tools_time_and_no_more() -> None:
    cleaned: list[float] = []

    async def body(n: int) -> str:
        try:
            await anyio.sleep(1_000)
        finally:
            cleaned.append(anyio.current_time())
        return "never"

    act = Counter(body=body)
    worker = timed(ScriptedModel([call("act", n=1)]), [act.tool])
    with anyio.move_on_after(3):
        await worker.ask("go")
    assert cleaned == [anyio.current_time()], "what the tool holds is given back before the call returns"
    assert [c.started for c in worker.history.unresolved] == [True]
    assert isinstance(worker.history, History)
