"""Waiting for a turn: the order, the clock, cancellation, several loops, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio.testing

from tests.worker.loop_rig import journal_of, worker_of
from worker.errors import ModelError, Overloaded, ProviderDown, RateLimited
from worker.items import AssistantItem
from worker.models.base import Emit, Reply, Request
from worker.pacing import KEPT, Account, Paces, Turn, Waits, paces, use_paces
from worker.records import Paced, Retry
from worker.results import Failed, Finished
from worker.retry import RetryPolicy
from worker.testing import FunctionModel, make_reply

pytestmark = pytest.mark.anyio
ONE, OTHER = Account("p:one", "http://a", "k"), Account("p:one", "http://a", "another key")


@pytest.fixture
def anyio_backend() -> Any:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def told(remaining: int, limit: int = 10, reset: str = "10s") -> dict[str, str]:
    return {
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-reset-requests": reset,
    }


@contextmanager
def ending(turn: Turn) -> Iterator[Turn]:
    try:
        yield turn
    finally:
        turn.end()


def timed(**more: Any) -> Paces:
    return Paces(clock=anyio.current_time, wall=lambda: 0.0, **{"chance": lambda: 0.5, **more})


async def heard(shared: Paces, *args: Any, **more: Any) -> Turn:
    turn = await shared.turn(ONE)
    turn.heard(told(*args, **more))
    return turn


async def test_a_request_without_an_account_never_waits() -> None:
    turn = await timed().turn(None)
    turn.heard(told(0))
    turn.failed(RateLimited("x"), 60.0)


async def test_those_that_wait_go_in_the_order_in_which_they_came() -> None:
    shared, order = timed(), list[tuple[float, int]]()
    (await heard(shared, 0, 3)).end()

    async def one(number: int) -> None:
        with ending(await shared.turn(ONE)) as turn:
            order.append((anyio.current_time() - began, number))
            await anyio.sleep(1)
            turn.heard(told(2 - number % 3, 3))

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(one, number)
            await anyio.sleep(0.001)
    went = [(round(when), number) for when, number in order]
    assert sorted(went) == [(10, 0), (10, 1), (10, 2), (21, 3), (21, 4), (21, 5), (32, 6), (32, 7), (32, 8)]


async def test_a_wait_that_is_cancelled_leaves_no_place_and_no_reservation() -> None:
    shared = timed()
    (await heard(shared, 0, 1)).end()
    with anyio.move_on_after(3) as scope:
        await shared.turn(ONE)
    assert scope.cancelled_caught
    (view,) = shared.view()
    assert (view.in_flight, view.waiting) == (0, 0)
    began = anyio.current_time()
    await shared.turn(ONE)
    assert anyio.current_time() - began == pytest.approx(7.0)


async def test_one_that_is_cancelled_in_the_moment_of_its_turn_gives_it_to_the_next() -> None:
    shared, went = timed(), list[int]()
    first = await shared.turn(ONE)
    first.failed(Overloaded("busy"), 0.0)
    holder = await shared.turn(ONE)

    async def one(number: int, scope: anyio.CancelScope) -> None:
        with scope, ending(await shared.turn(ONE)):
            went.append(number)

    async with anyio.create_task_group() as group:
        scopes = [anyio.CancelScope() for _ in range(3)]
        for number, scope in enumerate(scopes):
            group.start_soon(one, number, scope)
            await anyio.sleep(0.1)
        scopes[0].cancel()
        holder.end()
    assert went == [1, 2]
    assert shared.view()[0].in_flight == 0


async def test_a_refusal_of_one_holds_all_of_its_account_and_nobody_else() -> None:
    """B104."""
    shared, waits = timed(), list[Waits]()
    (await shared.turn(ONE)).failed(RateLimited("slow", retry_after=20.0), 20.0)
    began = anyio.current_time()
    await shared.turn(OTHER)
    assert anyio.current_time() == began
    assert shared.view()[0].held == 20.0
    turn = await shared.turn(ONE, tell=waits.append)
    assert turn.waited == anyio.current_time() - began == 20.0
    assert waits == [Waits("rate_limited", 20.0, 1)]


async def test_other_failures_hold_nobody() -> None:
    shared = timed()
    (await shared.turn(ONE)).failed(ProviderDown("gone"), 60.0)
    began = anyio.current_time()
    await shared.turn(ONE)
    assert anyio.current_time() == began


async def test_a_wait_is_told_once_and_only_where_it_is_longer_than_a_second() -> None:
    shared, waits = timed(), list[Waits]()
    (await heard(shared, 0, 1, reset="900ms")).end()
    first = await shared.turn(ONE, tell=waits.append)
    assert waits == []
    first.failed(Overloaded("busy"), 0.0)
    holder = await shared.turn(ONE)
    async with anyio.create_task_group() as group:
        group.start_soon(shared.turn, ONE, 0, 0, waits.append)
        await anyio.sleep(50)
        holder.end()
    assert waits == [Waits("in_flight", 0.0, 1)]


async def test_what_is_known_may_be_wrong_but_within_each_horizon_somebody_asks() -> None:
    shared = timed(horizon=30.0)
    (await shared.turn(ONE)).failed(Overloaded("busy"), 0.0)
    hanging = await shared.turn(ONE)
    began = anyio.current_time()
    await shared.turn(ONE)
    assert anyio.current_time() - began == 30.0
    hanging.end()


async def test_better_news_wake_the_one_that_waits() -> None:
    shared = timed()
    other = await shared.turn(ONE)
    (await heard(shared, 0, reset="100s")).end()
    async with anyio.create_task_group() as group:
        group.start_soon(shared.turn, ONE)
        await anyio.sleep(5)
        other.heard(told(8, reset="2s"))
        other.end()
        heard_at = anyio.current_time()
    assert anyio.current_time() == heard_at


async def test_a_view_tells_what_is_known_in_flight_and_waiting() -> None:
    shared = timed()
    turn = await heard(shared, 1, 5)
    await shared.turn(ONE)
    async with anyio.create_task_group() as group:
        group.start_soon(shared.turn, ONE)
        await anyio.sleep(1)
        (view,) = shared.view()
        group.cancel_scope.cancel()
    assert (view.model, view.in_flight, view.waiting, view.most, view.reason) == ("p:one", 2, 1, None, "requests")
    (limit,) = view.limits
    assert (limit.kind, limit.remaining, limit.limit, limit.resets_in) == ("requests", 0, 5, 9.0)
    assert "another key" not in repr(OTHER) and OTHER != ONE
    turn.end()


async def test_accounts_of_which_nothing_matters_any_more_are_forgotten() -> None:
    shared = timed()
    kept = await shared.turn(ONE)
    for number in range(3 * KEPT):
        (await shared.turn(Account(f"p:{number}", ""))).end()
    assert len(shared.view()) <= KEPT + 1
    assert any(view.in_flight == 1 for view in shared.view())
    kept.end()


async def test_paces_can_be_replaced_for_a_part_of_the_process() -> None:
    assert paces() is paces()
    with use_paces(Paces()) as mine:
        assert paces() is mine
    assert paces() is not mine


# -- in a worker ----------------------------------------------------------------------------------------------------


class Limited(FunctionModel):
    """A model of an account: tells headers and refuses as it is made to."""

    account = ONE

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        super().__init__("p:one", lambda _: make_reply(AssistantItem(text="ok")))

    async def send(self, request: Request, emit: Emit) -> Reply:
        step = self.steps.pop(0) if self.steps else None
        assert request.heard is not None
        request.heard(step if isinstance(step, dict) else {})
        if isinstance(step, ModelError):
            raise step
        return await super().send(request, emit)


def clocked(model: Any, **more: Any) -> Any:
    worker = worker_of(model, **more)
    worker.sender.clock = worker.caller.clock = anyio.current_time
    return worker


async def test_a_worker_keeps_to_what_another_one_was_told_and_it_is_on_record() -> None:
    with use_paces(timed()):
        first, second = clocked(Limited(told(0, 5))), clocked(Limited())
        assert await first.ask("go") == Finished("ok")
        began = anyio.current_time()
        assert await second.ask("go") == Finished("ok")
    assert anyio.current_time() - began == pytest.approx(10.0)
    assert journal_of(second).of(Paced) == [Paced(model="p:one", reason="requests", wait=10.0, waiting=1)]
    assert journal_of(second).of(Retry) == []


async def test_a_refusal_is_waited_for_by_its_worker_as_told_and_by_the_others_too() -> None:
    """B103, B104: one finds out, all wait."""
    with use_paces(timed()):
        models = [Limited(RateLimited("slow", retry_after=7.0)), *(Limited() for _ in range(3))]
        workers = [clocked(model) for model in models]
        began, ends = anyio.current_time(), list[float]()

        async def one(worker: Any) -> None:
            assert await worker.ask("go") == Finished("ok")
            ends.append(anyio.current_time() - began)

        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(one, worker)
                await anyio.sleep(0.001)
    assert all(7.0 <= end <= 7.71 for end in ends)
    assert [len(journal_of(worker).of(Retry)) for worker in workers] == [1, 0, 0, 0]
    assert [journal_of(worker).of(Paced)[0].reason for worker in workers[1:]] == ["rate_limited"] * 3


async def test_a_storm_that_does_not_end_ends_each_run_within_its_tries_and_resumable() -> None:
    """B104, the variant, for many workers of one account."""
    with use_paces(timed()):
        policy = RetryPolicy(max_attempts=1_000, max_seconds=100.0, chance=lambda: 1.0)
        workers = [clocked(Limited(*[Overloaded("busy")] * 500), retry=policy) for _ in range(5)]
        began, ends = anyio.current_time(), list[float]()

        async def one(worker: Any) -> None:
            outcome = await worker.ask("go")
            assert isinstance(outcome, Failed) and outcome.kind == "overloaded" and outcome.details["retryable"]
            ends.append(anyio.current_time() - began)

        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(one, worker)
    assert len(ends) == 5 and max(ends) < 400.0


async def test_waiting_while_others_are_answered_takes_nothing_of_the_patience_for_retries() -> None:
    with use_paces(timed()) as shared:
        busy = await shared.turn(ONE)
        worker = clocked(Limited(Overloaded("busy")), retry=RetryPolicy(max_seconds=20.0, chance=lambda: 0.0))
        async with anyio.create_task_group() as group:

            async def others() -> None:
                for _ in range(4):
                    await anyio.sleep(10)
                busy.answered(1)

            group.start_soon(others)
            assert await worker.ask("go") == Finished("ok")
    assert anyio.current_time() >= 40.0


async def test_a_run_that_is_cancelled_while_it_waits_leaves_nothing_and_goes_on_later() -> None:
    with use_paces(timed()) as shared:
        (await shared.turn(ONE)).failed(Overloaded("busy"), 60.0)
        worker = clocked(Limited())
        with anyio.move_on_after(5) as scope:
            await worker.ask("go")
        assert scope.cancelled_caught
        assert (shared.view()[0].in_flight, shared.view()[0].waiting) == (0, 0)
        assert await worker.run() == Finished("ok")


# -- several loops --------------------------------------------------------------------------------------------------


def test_loops_in_several_threads_share_a_pace_and_wake_each_other() -> None:
    """The first is held by a request in flight in another thread's loop, of another backend."""
    shared, went = Paces(), list[str]()
    entered = threading.Event()

    async def refuse() -> None:
        (await shared.turn(ONE)).failed(Overloaded("busy"), 0.0)

    anyio.run(refuse)

    async def many(name: str) -> None:
        async def one() -> None:
            with ending(await shared.turn(ONE)) as turn:
                assert shared.view()[0].in_flight <= (shared.view()[0].most or 0)
                await anyio.sleep(0)
                turn.answered(1)
            went.append(name)

        holding = await shared.turn(ONE) if name == "trio" else None
        if holding is not None:
            entered.set()
            with anyio.fail_after(10):
                while shared.view()[0].waiting < 20:
                    await anyio.sleep(0.001)
            holding.end()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(one)

    thread = threading.Thread(target=lambda: anyio.run(many, "trio", backend="trio"))
    thread.start()
    assert entered.wait(10)
    anyio.run(many, "asyncio", backend="asyncio")
    thread.join(10)
    assert sorted(went) == ["asyncio"] * 20 + ["trio"] * 20
    assert (shared.view()[0].in_flight, shared.view()[0].waiting) == (0, 0)
