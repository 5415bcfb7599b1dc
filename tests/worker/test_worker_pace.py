"""What is decided about a pace: pure, on a clock of the test's own, against a provider with windows."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.pace import SPREAD_MOST, SPREAD_SHARE, Pace, Refusal, Ticket
from worker.rates import Reading


def pace(**more: Any) -> Pace:
    return Pace(**{"chance": lambda: 0.5, **more})


def take(state: Pace, now: float = 0.0, tokens: int = 10) -> Ticket:
    return state.take(state.need(tokens, 10), now)


def at(state: Pace, now: float = 0.0, tokens: int = 10) -> float:
    return max(state.verdict(state.need(tokens, 10), now).at, now)


def why(state: Pace, now: float = 0.0, tokens: int = 10) -> Any:
    return state.verdict(state.need(tokens, 10), now).reason


# -- limits ---------------------------------------------------------------------------------------------------------


def test_where_nothing_is_known_nothing_waits() -> None:
    state = pace()
    for _ in range(1_000):
        assert at(state) == 0.0
        take(state)


def test_what_is_in_flight_is_taken_off_what_remains_and_the_rest_waits_for_the_reset() -> None:
    state = pace()
    first, *others = [take(state) for _ in range(4)]
    state.heard(first, [Reading("requests", 5, 10, 2.0)], 0.0)
    assert at(state) == 0.0, "five remain, and three of them are on their way"
    take(state)
    take(state)
    assert (at(state), why(state)) == (2.0, "requests")
    for each in others:
        state.end(each)
    assert at(state) == 2.0, "what ended without a word is used all the same"


def test_a_figure_that_is_older_than_another_one_does_not_raise_what_remains() -> None:
    state = pace()
    first, second = take(state), take(state)
    state.heard(second, [Reading("requests", 0, 2, 1.0)], 0.0)
    state.heard(first, [Reading("requests", 1, 2, 0.5)], 0.0)
    assert at(state) == 1.0


def test_a_figure_that_comes_late_does_not_take_off_twice_what_it_holds_already() -> None:
    state = pace()
    slow, second, third = [take(state) for _ in range(3)]
    for ticket, remaining in ((second, 9), (third, 8), (slow, 7)):
        state.heard(ticket, [Reading("requests", remaining, 10, 1.0)], 0.0)
        state.end(ticket)
    assert [limit[1] for limit in state.known(0.0)] == [7]


def test_a_later_figure_counts_whatever_was_thought() -> None:
    state = pace()
    state.heard(take(state), [Reading("requests", 0, 2, 100.0)], 0.0)
    state.heard(take(state), [Reading("requests", 50, 100, 1.0)], 1.0)
    assert at(state, 1.0) == 1.0


def test_tokens_are_reserved_by_the_estimate_and_corrected_by_what_the_provider_counts() -> None:
    state = pace()
    first = take(state, tokens=600)
    state.heard(first, [Reading("input_tokens", 900, 1_000, 60.0)], 0.0)
    assert at(state, tokens=800) == 0.0, "600 were estimated, the provider counted 100"
    take(state, tokens=800)
    assert (at(state, tokens=200), why(state, tokens=200)) == (60.0, "input_tokens")


def test_output_is_reserved_until_the_reply_is_whole_and_then_what_was_reported_counts() -> None:
    state = pace()
    first = take(state)
    state.heard(first, [Reading("output_tokens", 100, 100, 30.0)], 0.0)
    state.answered(first, 95)
    state.end(first)
    assert (at(state, 1.0), why(state, 1.0)) == (30.0, "output_tokens")


def test_a_request_that_is_larger_than_the_limit_goes_when_the_limit_is_whole() -> None:
    state = pace()
    state.end(first := take(state))
    state.heard(first, [Reading("tokens", 100, 1_000, 5.0)], 0.0)
    assert at(state, tokens=50_000) == 5.0
    assert at(state, 5.0, tokens=50_000) == 5.0


def test_after_the_reset_a_limit_lets_no_more_through_than_its_whole_until_an_answer_tells() -> None:
    state = pace()
    state.heard(first := take(state), [Reading("requests", 0, 3, 1.0)], 0.0)
    state.end(first)
    gone = []
    while at(state, 1.5) == 1.5:
        gone.append(take(state, 1.5))
    assert len(gone) == 3 and at(state, 1.5) == math.inf
    for each in gone:
        state.end(each)
    assert at(state, 1.5) == 1.5, "nothing is on its way that could tell: one has to ask"


def test_a_limit_that_no_answer_confirms_after_its_reset_is_forgotten() -> None:
    state = pace()
    state.heard(first := take(state), [Reading("requests", 0, 1, 1.0)], 0.0)
    state.end(first)
    assert at(state, 1.0) == 1.0
    state.heard(take(state, 1.0), [], 1.1)
    assert at(state, 1.1) == 1.1 and not state.known(1.1)


def test_a_reset_beyond_the_horizon_holds_nobody_back() -> None:
    state = pace(horizon=300.0)
    state.heard(take(state), [Reading("requests", 0, 10, 1e9)], 0.0)
    assert at(state) == 0.0


# -- refusals -------------------------------------------------------------------------------------------------------


def test_a_refusal_holds_all_until_it_ends_and_then_spreads_them() -> None:
    """B104: nobody storms at the moment when the provider said that it would listen again."""
    state = pace()
    gone = [take(state) for _ in range(8)]
    state.refused(gone[0], "rate_limited", 10.0, 0.0)
    for each in gone:
        state.end(each)
    assert (at(state, 1.0), why(state, 1.0)) == (10.0, "rate_limited")
    now, starts = 10.0, list[float]()
    for waiting in reversed(range(8)):
        now = at(state, now)
        state.end(state.take(state.need(10, 10), now, waiting))
        starts.append(now)
    assert starts[0] == 10.0 and starts == sorted(starts)
    assert 10.5 < starts[-1] <= 10.0 + 10.0 * SPREAD_SHARE
    assert len(set(starts)) == 8


def test_a_lone_request_goes_at_the_very_end_of_a_refusal_and_the_next_one_at_once() -> None:
    """B103."""
    state = pace()
    state.refused(first := take(state), "rate_limited", 7.0, 0.0)
    state.end(first)
    assert at(state, 0.0) == 7.0
    state.end(take(state, 7.0))
    assert at(state, 7.01) == 7.01


def test_a_refusal_that_ends_sooner_does_not_shorten_one_that_stands() -> None:
    state = pace()
    first, second = take(state), take(state)
    state.refused(first, "overloaded", 30.0, 0.0)
    state.refused(second, "rate_limited", 1.0, 0.0)
    for each in (first, second):
        state.end(each)
    assert (at(state), why(state)) == (30.0, "overloaded")


def test_refusals_without_figures_halve_what_may_be_in_flight_once_for_a_burst() -> None:
    state = pace()
    gone = [take(state) for _ in range(20)]
    for each in gone:
        state.refused(each, "rate_limited", None, 0.0)
        state.end(each)
    assert state.most == 10
    again = [take(state) for _ in range(10)]
    assert (at(state), why(state)) == (math.inf, "in_flight")
    state.refused(again[0], "rate_limited", None, 1.0)
    assert state.most == 5


def test_a_row_of_answers_lets_one_more_in() -> None:
    state = pace()
    gone = [take(state) for _ in range(4)]
    state.refused(gone[0], "overloaded", None, 0.0)
    for each in gone:
        state.end(each)
    for most in (2, 3, 4):
        assert state.most == most
        for _ in range(most):
            state.answered(each := take(state), 1)
            state.end(each)


def test_there_is_always_room_for_one() -> None:
    state = pace()
    for _ in range(5):
        state.refused(each := take(state), "overloaded", None, 0.0)
        state.end(each)
    assert state.most == 1 and at(state) == 0.0


def test_a_refusal_that_a_known_limit_explains_leaves_the_number_in_flight_alone() -> None:
    """B105: load is another matter than the rate."""
    state = pace()
    gone = [take(state) for _ in range(4)]
    state.heard(gone[0], [Reading("requests", 0, 4, 1.0)], 0.0)
    state.refused(gone[0], "rate_limited", 1.0, 0.0)
    assert state.most is None
    state.heard(gone[1], [Reading("requests", 0, 4, 1.0)], 0.0)
    state.refused(gone[1], "overloaded", 1.0, 0.0)
    assert state.most == 2


# -- whatever happens -----------------------------------------------------------------------------------------------

READINGS = st.builds(
    Reading,
    st.sampled_from(["requests", "tokens", "input_tokens", "output_tokens"]),
    st.integers(0, 10**12),
    st.none() | st.integers(1, 10**12),
    st.none() | st.floats(0, 1e12),
)
STEP = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 10**7)),
    st.tuples(st.just("heard"), st.lists(READINGS, max_size=3)),
    st.tuples(st.just("refused"), st.none() | st.floats(0, 120)),
    st.tuples(st.sampled_from(["answered", "end", "give_back"]), st.integers(0, 10**6)),
    st.tuples(st.just("later"), st.floats(0, 400)),
)


@given(st.lists(STEP, max_size=60), st.floats(0, 0.999))
def test_whatever_a_provider_says_nothing_stays_reserved_and_nobody_waits_beyond_the_horizon(
    steps: list[Any], chance: float
) -> None:
    now, gone = 0.0, list[Ticket]()
    state = Pace(horizon=300.0, chance=lambda: chance)
    for name, value in steps:
        match name:
            case "later":
                now += value
            case "take":
                gone.append(state.take(state.need(value, 1_000), now))
            case "heard" if gone:
                state.heard(gone[0], value, now)
            case "refused" if gone:
                state.refused(gone[0], "overloaded", value, now)
                state.end(gone.pop(0))
            case "answered" if gone:
                state.answered(gone[0], value)
                state.end(gone.pop(0))
            case "end" if gone:
                state.end(gone.pop(0))
            case "give_back" if gone and not gone[-1].counted:
                state.give_back(gone.pop())
            case _:
                pass
        assert state.in_flight == len(gone)
        when = at(state, now)
        assert when <= now + 300.0 or (when == math.inf and gone)
    for each in gone:
        state.end(each)
    assert state.in_flight == 0 and state._held == [0, 0, 0, 0]
    assert at(state, now) <= now + 300.0
    assert at(state, now + 300.0) == now + 300.0


@dataclass
class Simulated:
    """A provider with fixed windows, and workers that keep to a pace. Each request takes three spans: to the provider, back
    with the headers, and to its end."""

    limit: int
    window: float
    spans: list[tuple[float, float, float]]
    told: bool
    state: Pace = field(default_factory=lambda: Pace(chance=lambda: 0.5))
    now: float = 0.0
    first_heard: float = math.inf
    refused_late: int = 0
    done: int = 0
    _seen: dict[int, int] = field(default_factory=dict)
    _events: list[Any] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)

    def at(self, when: float, act: Any, *args: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), act, args))

    def run(self) -> None:
        queue = list(range(len(self.spans)))
        self.queue = queue
        for _ in range(20_000):
            while queue:
                when = self.state.verdict(need := self.state.need(10, 10), self.now).at
                if when > self.now:
                    if when < math.inf:
                        self.at(when, lambda: None)
                    break
                who = queue.pop(0)
                ticket = self.state.take(need, self.now, len(queue))
                self.at(self.now + self.spans[who][0], self.arrive, who, ticket, self.now)
            if not self._events:
                return
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)
        raise AssertionError("it never ends")

    def arrive(self, who: int, ticket: Ticket, sent: float) -> None:
        number = int(self.now // self.window)
        reset = (number + 1) * self.window - self.now
        seen = self._seen.get(number, 0)
        if seen >= self.limit:
            self.refused_late += sent >= self.first_heard
            self.at(self.now + self.spans[who][1], self.refuse, who, ticket, reset)
            return
        self._seen[number] = seen + 1
        left = Reading("requests", self.limit - seen - 1, self.limit, reset)
        self.at(self.now + self.spans[who][1], self.hear, who, ticket, left)

    def hear(self, who: int, ticket: Ticket, reading: Reading) -> None:
        self.first_heard = min(self.first_heard, self.now)
        self.state.heard(ticket, [reading] if self.told else [], self.now)
        self.at(self.now + self.spans[who][2], self.finish, ticket)

    def finish(self, ticket: Ticket) -> None:
        self.done += 1
        self.state.answered(ticket, 1)
        self.state.end(ticket)

    def refuse(self, who: int, ticket: Ticket, reset: float) -> None:
        why: Refusal = "rate_limited"
        self.first_heard = min(self.first_heard, self.now)
        self.state.heard(ticket, [Reading("requests", 0, self.limit, reset)] if self.told else [], self.now)
        self.state.refused(ticket, why, reset, self.now)
        self.state.end(ticket)
        self.queue.append(who)


SPANS = st.lists(st.tuples(*[st.floats(0.001, 1.2)] * 3), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 12), spans=SPANS)
def test_a_provider_that_tells_its_limit_refuses_nothing_beyond_the_first_burst_and_all_finish(
    limit: int, spans: list[Any]
) -> None:
    run = Simulated(limit, 1.0, spans, told=True)
    run.run()
    assert run.done == len(spans)
    assert run.refused_late == 0


@settings(max_examples=100, deadline=None)
@given(limit=st.integers(1, 12), spans=SPANS)
def test_with_a_provider_that_only_refuses_all_finish_too(limit: int, spans: list[Any]) -> None:
    """B104."""
    run = Simulated(limit, 1.0, spans, told=False)
    run.run()
    assert run.done == len(spans)
    assert run.state.in_flight == 0


@pytest.mark.parametrize(("hold", "most"), [(1.0, 0.1), (20.0, 2.0), (120.0, SPREAD_MOST)])
def test_the_spread_after_a_refusal_grows_with_it_and_is_bounded(hold: float, most: float) -> None:
    state = pace(chance=lambda: 0.999)
    gone = [take(state) for _ in range(30)]
    state.refused(gone[0], "rate_limited", hold, 0.0)
    for each in gone:
        state.end(each)
    now = hold
    for waiting in reversed(range(30)):
        now = at(state, now)
        state.end(state.take(state.need(10, 10), now, waiting))
    assert now <= hold + most + 1e-9
