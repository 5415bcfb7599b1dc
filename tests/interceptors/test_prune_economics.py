"""Whether a prune pays: the break-even of the prefix cache (facts, providers 6.2), and the interceptor that follows it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interceptors.economics import Economy, Growth, Runs, before_trigger, best_start, tails
from interceptors.prune import Moment, Prune, PruneSettings, demand
from worker.interceptor import Continue, Edit
from worker.items import ToolResultItem, make_call
from worker.models.base import Capabilities, Price, Usage
from worker.records import Pruned

pytestmark = pytest.mark.anyio

PAGE = "some words of a page\n" * 500
"""About 2,500 tokens."""

CLAUDE = Price(input=1.0, output=5.0, cache_read=0.1, cache_write=1.25, source="test")

prices = st.floats(0.01, 20).flatmap(lambda write: st.tuples(st.floats(0, write), st.just(write)))
requests = st.integers(1, 300)
tokens = st.integers(0, 1_000_000)


# -- the formula -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "write", "shares"),
    [
        (0.10, 1.25, (92, 70, 53, 37, 19, 10)),
        (0.025, 1.25, (98, 91, 83, 71, 49, 33)),
        (0.10, 2.0, (95, 79, 66, 49, 28, 16)),
        (0.50, 1.0, (50, 17, 9, 5, 2, 1)),
    ],
)
def test_the_break_even_is_that_of_the_table(read: float, write: float, shares: tuple[int, ...]) -> None:
    found = [100 * Economy(read, write, r).break_even(1) for r in (1, 5, 10, 20, 50, 100)]
    assert found == pytest.approx(shares, abs=0.55)


@given(prices, requests, st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 200_000))
def test_a_prune_pays_exactly_where_keeping_would_cost_more(
    rates: tuple[float, float], r: int, before: int, tail: int, saved: int
) -> None:
    read, write = rates
    saved = min(saved, tail)
    kept = r * read * (before + tail)
    pruned = read * before + write * (tail - saved) + (r - 1) * read * (before + tail - saved)
    economy = Economy(read, write, r)
    assert economy.gain(saved, tail) * 1e6 == pytest.approx(kept - pruned, rel=1e-6, abs=1e-3)
    if abs(kept - pruned) > 1:
        assert (saved > economy.break_even(tail)) is (kept > pruned)


@given(prices, requests, requests, tokens, tokens)
def test_more_requests_lower_the_break_even_and_a_longer_tail_raises_it(
    rates: tuple[float, float], r: int, more: int, tail: int, longer: int
) -> None:
    at = Economy(*rates, r).break_even(tail)
    assert Economy(*rates, r + more).break_even(tail) <= at <= Economy(*rates, r).break_even(tail + longer)


@given(prices, st.floats(0, 10), requests, tokens)
def test_dearer_writing_raises_the_break_even_and_dearer_reading_lowers_it(
    rates: tuple[float, float], more: float, r: int, tail: int
) -> None:
    read, write = rates
    at = Economy(read, write, r).break_even(tail)
    assert Economy(read, write + more, r).break_even(tail) >= at * (1 - 1e-9)
    assert Economy(min(read + more, write), write, r).break_even(tail) <= at * (1 + 1e-9)


@given(prices, requests, tokens)
def test_nothing_must_be_saved_where_nothing_is_lost(rates: tuple[float, float], r: int, tail: int) -> None:
    """A cold cache, a provider without a cache price, a model that is free."""
    read, write = rates
    assert Economy(read, write, r, cold=True).break_even(tail) == 0
    assert Economy(write, write, r).break_even(tail) == 0
    assert Economy(0, 0, r).break_even(tail) == 0


def test_a_prune_that_only_puts_off_a_compaction_never_pays() -> None:
    assert Economy(0.1, 1.25, -20).break_even(1_000) == math.inf
    assert Economy(0.1, 1.25, -20, cold=True).break_even(1_000) == math.inf


@given(
    st.lists(st.tuples(st.integers(0, 4_000), st.booleans()), min_size=1, max_size=20), prices, requests,
    st.integers(0, 5_000), st.booleans(),
)  # fmt: skip
def test_the_best_start_is_the_best_of_all(
    made: list[tuple[int, bool]], rates: tuple[float, float], r: int, exceed: int, whole: bool
) -> None:
    sizes = [size for size, _ in made]
    places = [at for at, (_, old) in enumerate(made) if old]
    gains = [sizes[at] // 2 for at in places]
    behind, economy = tails(sizes), Economy(*rates, r, whole=whole)
    assert behind == [sum(sizes[at:]) for at in range(len(sizes))]
    worth = {
        n: economy.gain(sum(gains[n:]), behind[0 if whole else places[n]])
        for n in range(len(places))
        if sum(gains[n:]) > exceed
    }
    best = best_start(places, gains, behind, 0, economy, exceed)
    assert best < 0 or not economy.hopeless(sum(sizes[at] for at in places), 0)
    if best < 0:
        assert all(value <= 0 for value in worth.values())
    else:
        assert worth[best] == pytest.approx(max(worth.values()))


def test_a_prune_waits_until_what_is_read_meanwhile_costs_what_the_prune_costs() -> None:
    """Kept 10,000 at 1.15 more, growth 3,000 a request, reading at 0.1: the lot is sqrt(2 * 3,000 * 11,500 / 0.1)."""
    economy = Economy(0.1, 1.25, 100, step=3_000)
    lot = math.sqrt(2 * 3_000 * 10_000 * 1.15 / 0.1)
    assert not economy.ripe(int(lot) - 10, 10_000) and economy.ripe(int(lot) + 10, 10_000)
    assert Economy(0.1, 1.25, 100, step=3_000, cold=True).ripe(1, 10_000), "a free moment is not waited for"


# -- what is expected --------------------------------------------------------------------------------------------


def test_a_run_is_expected_to_last_as_the_others_did_and_then_a_quarter_of_what_it_went_beyond() -> None:
    assert Runs().ahead == 1
    assert Runs(done=40).ahead == 11
    assert Runs(done=4_000).ahead == 21
    assert Runs(ended=4, requests=80, done=5).ahead == 16
    assert Runs(ended=4, requests=80, done=20).ahead == 1
    assert Runs(ended=4, requests=80, done=60).ahead == 11


def test_growth_is_what_came_in_each_request_whatever_was_pruned() -> None:
    growth = Growth().replied(10_000).replied(13_000)
    assert growth.step is None, "too little was seen"
    assert growth.replied(16_000).step == 3_000
    assert growth.saved(5_000).replied(11_000).step == 3_000


@given(st.integers(0, 140_000), st.integers(0, 140_000))
def test_the_nearer_the_trigger_the_fewer_requests_count(one: int, other: int) -> None:
    growth = Growth(first=20_000, newest=50_000, replies=11)
    less, more = sorted((one, other))
    assert before_trigger(growth, less, 150_000, CLAUDE) >= before_trigger(growth, more, 150_000, CLAUDE)


def test_only_early_in_a_window_is_a_prune_worth_putting_the_compaction_off() -> None:
    """B161: a smaller request is no cheaper session."""
    growth = Growth(first=20_000, newest=50_000, replies=11)
    assert before_trigger(growth, 30_000, 150_000, CLAUDE) > 15
    assert before_trigger(growth, 140_000, 150_000, CLAUDE) < 0
    assert before_trigger(Growth(), 140_000, 150_000, CLAUDE) == 0, "nothing is known yet"


def test_without_prices_auto_stays_with_floor_and_protected_tokens() -> None:
    for price in (None, Price(0, 0, 0, 0, "a local server")):
        asked = demand(Moment(50_000, 100_000, price=price, runs=Runs(done=500)), PruneSettings())
        assert asked is not None
        assert (asked.exceed, asked.economy) == (8_000, None)


def test_a_fixed_number_is_kept_whatever_it_costs() -> None:
    asked = demand(Moment(50_000, 100_000, price=CLAUDE, runs=Runs(done=1)), PruneSettings(min_savings=500))
    assert asked is not None
    assert (asked.exceed, asked.economy) == (500, None)


# -- the interceptor ---------------------------------------------------------------------------------------------


def priced(**more: Any) -> Capabilities:
    return Capabilities(window=200_000, window_source="table", max_output=8_192, price=CLAUDE, **more)


def fill(r: Any, pages: int) -> None:
    r.user()
    for _ in range(pages):
        r.turn("fetch", PAGE)


async def test_auto_prunes_only_where_the_requests_to_come_pay_for_it(rig: Any) -> None:
    for done, pruned in ((2, False), (60, True)):
        prune = Prune(PruneSettings())
        r = rig([prune], capabilities=priced())
        fill(r, 10)
        r.count(requests=done)
        assert isinstance(await r.ask(prune), Edit if pruned else Continue)
    record = r.records[-1]
    assert isinstance(record, Pruned)
    assert record.requests == 16.0 and not record.cold
    assert record.tokens_saved > record.min_savings >= 4_096
    stays = record.tail_tokens - record.tokens_saved
    expected = (stays * 1.15 - record.tokens_saved * 0.1) / 1e6
    assert record.expected_usd == pytest.approx(expected, abs=1e-8)


async def test_auto_takes_the_runs_of_the_session_for_a_measure(rig: Any) -> None:
    for ended, pruned in (((3, 30), False), ((3, 300), True)):
        prune = Prune(PruneSettings(), runs=lambda ended=ended: ended)
        r = rig([prune], capabilities=priced())
        fill(r, 10)
        assert isinstance(await r.ask(prune), Edit if pruned else Continue)


async def test_a_cold_cache_needs_the_floor_only(rig: Any) -> None:
    times: list[float] = [0.0]
    prune = Prune(PruneSettings(), last_reply=lambda: times[0])
    r = rig([prune], capabilities=priced())
    fill(r, 7)
    r.count(requests=1)
    assert isinstance(await r.ask(prune), Continue)
    times[0] = r.wall - 3_600
    assert isinstance(await r.ask(prune), Edit)
    record = r.records[-1]
    assert record.cold and record.reason == "cold_cache"
    assert record.expected_usd == pytest.approx(-record.tokens_saved * 1.25 / 1e6, abs=1e-8)


async def test_a_cache_with_markers_loses_the_whole_view(rig: Any) -> None:
    """A long stretch before the first old result is kept by a prefix cache; one with markers writes it anew."""
    for markers in (False, True):
        prune = Prune(PruneSettings())
        r = rig([prune], capabilities=priced(cache_markers=markers))
        r.user("words that stay " * 12_000)
        fill(r, 10)
        r.count(requests=60)
        assert isinstance(await r.ask(prune), Continue if markers else Edit)


async def test_above_the_trigger_the_cheaper_step_is_taken_and_above_the_ceiling_the_one_that_fits(rig: Any) -> None:
    prune = Prune(PruneSettings(), trigger=lambda budget: 20_000)
    r = rig([prune], capabilities=priced())
    fill(r, 10)
    r.count(requests=60)
    assert isinstance(await r.ask(prune, tokens=28_000), Continue), "compaction is the better step"
    must = Prune(PruneSettings())
    r = rig([must], capabilities=priced())
    fill(r, 10)
    assert isinstance(await r.ask(must, tokens=200_000), Edit)
    assert r.records[-1].reason == "ceiling"


async def test_a_restart_decides_the_same(rig: Any) -> None:
    """The growth is a fold of the records."""
    live, again = (Prune(PruneSettings(), trigger=lambda budget: 150_000) for _ in range(2))
    r, copy = (rig([prune], capabilities=priced()) for prune in (live, again))
    r.user()
    for n in range(16):
        call = make_call(f"c{n}", "fetch", "{}")
        r.reply(call, usage=Usage(input_tokens=500 + n * 2_500))
        r.result(call, PAGE)
    for record in r.records:
        copy.ledger.fold(record)
    first, second = await live.before_request(r.ctx()), await again.before_request(copy.ctx())
    assert isinstance(first, Edit) and isinstance(second, Edit)
    assert first.record == second.record


async def test_pruned_results_are_only_those_that_pay(rig: Any) -> None:
    """The first old result stands before a long stretch that stays: it is left alone, and the later ones go."""
    prune = Prune(PruneSettings())
    r = rig([prune], capabilities=priced())
    r.user()
    first = r.turn("fetch", PAGE)
    r.say("words that stay " * 12_000)
    fill(r, 10)
    r.count(requests=60)
    assert isinstance(await r.ask(prune), Edit)
    kept = r.history.view[r.history.index[first.id]]
    assert isinstance(kept, ToolResultItem) and kept.content == PAGE
    assert r.records[-1].first_changed > r.history.index[first.id]


async def test_b162_a_small_oldest_result_does_not_stop_the_search_for_one_that_pays(rig: Any) -> None:
    """B162 with `auto` and prices: the oldest result has 100 characters, the next one 400 KB; the large one goes."""
    prune = Prune(PruneSettings())
    r = rig([prune], capabilities=priced())
    r.user()
    small = r.turn("fetch", "x" * 100)
    large = r.turn("fetch", "some words of a page\n" * 20_000)
    for _ in range(4):
        r.turn("fetch", PAGE)
    r.count(requests=4)
    assert isinstance(await r.ask(prune), Edit)
    pruned = {item.id for item in r.records[-1].items}
    assert large.id in pruned and small.id not in pruned
    assert len(r.history.view) == 1 + 2 * 6, "no message is dropped"


async def test_b163_a_protected_result_stays_though_its_prune_would_pay(rig: Any) -> None:
    """B163 with `auto` and prices: above the trigger, with a cold cache, the protected tail is as it was."""
    prune = Prune(PruneSettings(), trigger=lambda budget: 40_000, last_reply=lambda: 1.0)
    r = rig([prune], capabilities=priced())
    fill(r, 18)
    protected = r.history.view[-6:]
    r.count(requests=300)
    assert isinstance(await r.ask(prune, tokens=44_000), Edit)
    assert r.records[-1].reason == "trigger" and r.records[-1].cold
    assert r.history.view[-6:] == protected
