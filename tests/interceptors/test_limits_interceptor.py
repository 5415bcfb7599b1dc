"""Limits of a run: exact, with their figures, through restarts and segments."""

from __future__ import annotations

from typing import Any

import pytest

from interceptors.limits import Ahead, Limits, LimitSettings, Spent, near, reached, refused_call, reserve
from worker.history import Counters
from worker.interceptor import Continue, Note, Stop
from worker.models.base import Capabilities, Price
from worker.records import Warned
from worker.results import Failed, LimitReached

pytestmark = pytest.mark.anyio

PRICE = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75, source="test")


def limits(**values: Any) -> LimitSettings:
    return LimitSettings(**values)


def outcome(settings: LimitSettings, spent: Spent, ahead: Ahead | None = None) -> Any:
    return reached(settings, spent, ahead or Ahead())


async def test_exactly_so_many_requests_are_made() -> None:
    """B128: a limit of two requests lets two through and stops the third, as a limit and not as an end."""
    settings = limits(max_requests=2)
    assert outcome(settings, Spent(requests=1)) is None
    found = outcome(settings, Spent(requests=2))
    assert isinstance(found, LimitReached)
    assert found.limit == "max_requests"
    assert found.figures == {"used": 2, "limit": 2}


async def test_without_limits_nothing_ends_a_run() -> None:
    assert outcome(limits(), Spent(10**6, 10.0**6, 10**12, 10.0**9, 10**6, 10**6), Ahead(10**9, None)) is None


async def test_a_cost_is_reserved_before_the_request() -> None:
    ahead = reserve(100_000, 8_000, [PRICE])
    assert ahead.cost_usd == pytest.approx(0.1 * 3.75 + 0.008 * 15)
    settings = limits(max_cost_usd=1.0)
    assert outcome(settings, Spent(cost_usd=0.5), ahead) is None
    found = outcome(settings, Spent(cost_usd=0.51), ahead)
    assert isinstance(found, LimitReached)
    assert found.limit == "max_cost_usd"
    assert found.figures["used"] == 0.51
    assert found.figures["reserved"] == pytest.approx(0.495)


async def test_the_dearest_fallback_model_is_reserved_for() -> None:
    dear = Price(input=30.0, output=150.0, cache_read=3.0, cache_write=30.0, source="test")
    assert reserve(1_000, 0, [PRICE, dear]).cost_usd == pytest.approx(0.03)


async def test_an_unknown_price_with_a_cost_limit_is_a_failure() -> None:
    settings = limits(max_cost_usd=1.0)
    for spent, ahead in ((Spent(), reserve(1, 1, [PRICE, None])), (Spent(unpriced=1), reserve(1, 1, [PRICE]))):
        found = outcome(settings, spent, ahead)
        assert isinstance(found, Failed)
        assert found.kind == "unknown_price"
        assert "max_cost_usd" in found.message


async def test_tokens_count_the_request_that_would_be_made() -> None:
    settings = limits(max_total_tokens=100_000)
    assert outcome(settings, Spent(tokens=60_000), Ahead(40_000)) is None
    found = outcome(settings, Spent(tokens=60_000), Ahead(40_001))
    assert isinstance(found, LimitReached)
    assert found.limit == "max_total_tokens"


async def test_calls_beyond_the_limit_are_refused_and_then_the_run_ends() -> None:
    settings = limits(max_tool_calls=3)
    counters = Counters(tool_calls=4)
    batch = ["a", "b", "c"]
    assert [refused_call(settings, counters, batch, call) is None for call in batch] == [True, True, False]
    assert "max_tool_calls" in str(refused_call(settings, counters, batch, "c"))
    assert outcome(settings, Spent(tool_calls=3)) is None, "the model may still answer after the last call"
    assert isinstance(outcome(settings, Spent(tool_calls=4)), LimitReached)


async def test_wall_time_is_what_the_pod_says_that_the_run_was_driven(rig: Any) -> None:
    r = rig()
    r.wall = 5_000.0
    known = Limits(limits(max_wall_seconds=60), driven=lambda now: now - 4_941.0)
    assert isinstance(await r.ask(known), Continue | Note)
    r.wall = 5_001.0
    decision = await r.ask(known)
    assert isinstance(decision, Stop)
    assert isinstance(decision.outcome, LimitReached)
    assert decision.outcome.limit == "max_wall_seconds"


async def test_wall_time_crosses_a_segment_and_ends_with_the_run(rig: Any) -> None:
    r = rig()
    first = Limits(limits(max_wall_seconds=60))
    assert isinstance(await r.ask(first), Continue)
    state = first.carry()
    assert state is not None
    second = Limits(limits(max_wall_seconds=60))
    second.restore(state)
    r.wall += 60
    assert isinstance(await r.ask(second), Stop)
    second.begin_run()
    assert isinstance(await r.ask(second), Continue)


async def test_a_clock_that_goes_back_ends_nothing(rig: Any) -> None:
    r = rig()
    assert isinstance(await r.ask(Limits(limits(max_wall_seconds=60), driven=lambda now: -500)), Continue)


async def test_each_limit_is_warned_of_once_at_eighty_percent() -> None:
    settings = limits(max_requests=10, max_tool_calls=10)
    assert near(settings, Spent(requests=7), frozenset()) is None
    found = near(settings, Spent(requests=8, tool_calls=9), frozenset())
    assert found is not None
    assert found.figures == {"limit": "max_requests", "used": 8, "max": 10}
    other = near(settings, Spent(requests=8, tool_calls=9), frozenset({"max_requests"}))
    assert other is not None
    assert other.figures["limit"] == "max_tool_calls"


async def test_warnings_are_not_repeated_after_a_restart_or_in_a_new_segment(rig: Any) -> None:
    guard = Limits(limits(max_requests=10))
    r = rig([guard])
    r.count(requests=8)
    decision = await r.ask(guard)
    assert isinstance(decision, Note)
    assert isinstance(decision.record, Warned)
    assert isinstance(await r.ask(guard), Continue)
    restarted, carried = Limits(limits(max_requests=10)), Limits(limits(max_requests=10))
    for record in r.records:
        restarted.observe(record)
    carried.restore(guard.carry() or {})
    for each in (restarted, carried):
        assert isinstance(await r.ask(each), Continue)
    guard.begin_run()
    assert isinstance(await r.ask(guard), Note)


async def test_compact_workers_count_for_cost_and_tokens_but_not_for_requests(rig: Any) -> None:
    r = rig(capabilities=Capabilities(window=200_000, price=PRICE))
    r.count(worker_cost_usd=2.0, worker_tokens=90_000, worker_requests=50)
    cost = await r.ask(Limits(limits(max_cost_usd=2.0)))
    assert isinstance(cost, Stop)
    tokens = await r.ask(Limits(limits(max_total_tokens=90_000)), tokens=1)
    assert isinstance(tokens, Stop)
    assert isinstance(await r.ask(Limits(limits(max_requests=1))), Continue)
