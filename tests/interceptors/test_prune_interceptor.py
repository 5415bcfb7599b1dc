"""When a prune happens, and what goes on record of it."""

from __future__ import annotations

from typing import Any

import pytest

from interceptors.prune import Prune, PruneSettings
from interceptors.stubs import RENDERER
from worker.interceptor import Continue, Edit
from worker.items import ToolResultItem
from worker.models.base import Capabilities, Reply, Usage
from worker.records import Pruned, ToolsChanged

pytestmark = pytest.mark.anyio

PAGE = "some words of a page\n" * 500
"""About 2,500 tokens."""


def contents(history: Any) -> list[str | None]:
    return [item.content for item in history.view if isinstance(item, ToolResultItem)]


def fill(r: Any, pages: int) -> None:
    r.user()
    for _ in range(pages):
        r.turn("fetch", PAGE)


async def test_a_prune_is_an_edit_with_its_figures_on_record(rig: Any) -> None:
    prune = Prune(PruneSettings())
    r = rig([prune])
    fill(r, 10)
    before = r.history.occupancy("test:model", 0).tokens
    decision = await r.ask(prune)
    assert isinstance(decision, Edit)
    record = r.records[-1]
    assert isinstance(record, Pruned)
    assert {item.id for item in record.items} == set(decision.replacements)
    assert record.renderer == RENDERER
    assert record.tokens_before == before
    assert record.tokens_saved > record.min_savings == 8_000
    assert record.reason == "min_savings"
    assert record.first_changed == 2
    assert record.tail_tokens > record.tokens_saved
    assert r.history.counters.prunes == 1
    assert contents(r.history)[0] is None
    assert contents(r.history)[-1] == PAGE


async def test_what_is_pruned_stays_pruned_and_nothing_more_goes_until_it_pays(rig: Any) -> None:
    prune = Prune(PruneSettings())
    r = rig([prune])
    fill(r, 10)
    await r.ask(prune)
    pruned = [item for item in r.history.view if isinstance(item, ToolResultItem) and item.pruned]
    r.turn("fetch", PAGE)
    assert isinstance(await r.ask(prune), Continue)
    assert [item for item in r.history.view if item in pruned] == pruned


async def test_the_edge_does_not_move_at_each_request(rig: Any) -> None:
    """B161: 30 requests, each adds a 2000-token result; breaks of the prefix are at most freed / min_savings + 1."""
    prune = Prune(PruneSettings(min_savings=20_000))
    r = rig([prune])
    r.user()
    freed = breaks = 0
    shown: list[str] = []
    for _ in range(30):
        decision = await r.ask(prune)
        view = [item.model_dump_json() for item in r.history.view]
        if isinstance(decision, Edit):
            breaks += 1
            freed += r.records[-1].tokens_saved
        else:
            assert view[: len(shown)] == shown, "between prunes a request is a prefix of the next"
        shown = view
        r.turn("fetch", PAGE)
    assert breaks >= 1
    assert breaks <= freed / 20_000 + 1


async def test_pruning_can_be_switched_off(rig: Any) -> None:
    prune = Prune(PruneSettings(enabled=False))
    r = rig([prune])
    fill(r, 20)
    assert isinstance(await r.ask(prune), Continue)


async def test_nothing_is_pruned_at_the_start_of_a_segment(rig: Any) -> None:
    """What a new segment begins with was never answered by the model."""
    source = rig()
    fill(source, 10)
    prune = Prune(PruneSettings())
    r = rig([prune])
    r.history.extend(source.history.view)
    assert isinstance(await r.ask(prune), Continue)


async def test_a_restart_prunes_the_same(rig: Any) -> None:
    settings = PruneSettings()
    live = rig([Prune(settings)])
    fill(live, 10)
    await live.ask(live.interceptors[0])
    live.turn("fetch", PAGE)
    again = rig([Prune(settings)])
    for record in live.records:
        again.ledger.fold(record)
    assert again.history.view == live.history.view
    assert again.history.tokens == live.history.tokens
    assert isinstance(await again.ask(again.interceptors[0]), Continue)


async def test_above_the_trigger_it_prunes_only_where_that_reaches_sixty_percent(rig: Any) -> None:
    prune = Prune(PruneSettings(), trigger=lambda budget: 20_000)
    r = rig([prune])
    fill(r, 10)
    assert isinstance(await r.ask(prune, tokens=60_000), Continue), "compaction is the better step"
    decision = await r.ask(prune, tokens=28_000)
    assert isinstance(decision, Edit)
    assert 28_000 - r.records[-1].tokens_saved <= 12_000
    assert r.records[-1].reason == "trigger"


async def test_a_cold_cache_is_a_free_moment(rig: Any) -> None:
    prune = Prune(PruneSettings(min_savings=50_000, min_savings_floor=1_000))
    r = rig([prune])
    fill(r, 10)
    await prune.after_request(r.ctx(), Reply(items=(), usage=Usage(), stop="end"))
    r.wall += 299
    assert isinstance(await r.ask(prune), Continue)
    r.wall += 2
    assert isinstance(await r.ask(prune), Edit)
    assert r.records[-1].reason == "cold_cache"


async def test_a_cold_cache_is_seen_after_a_restart(rig: Any) -> None:
    times: list[float | None] = [None]
    prune = Prune(PruneSettings(min_savings=50_000, min_savings_floor=1_000), last_reply=lambda: times[0])
    r = rig([prune])
    fill(r, 10)
    assert isinstance(await r.ask(prune), Continue), "an unknown time is no free moment"
    times[0] = r.wall - 3600
    assert isinstance(await r.ask(prune), Edit)


async def test_another_model_and_other_schemas_are_free_moments(rig: Any) -> None:
    for reason in ("model_changed", "tools_changed"):
        prune = Prune(PruneSettings(min_savings=50_000, min_savings_floor=1_000))
        r = rig([prune])
        fill(r, 10)
        if reason == "tools_changed":
            r.ledger.put(ToolsChanged(system="s", tools="t"))
            decision = await r.ask(prune)
        else:
            decision = await r.ask(prune, model="test:other")
        assert isinstance(decision, Edit)
        assert r.records[-1].reason == reason


async def test_bound_reasoning_waits_for_a_free_moment(rig: Any) -> None:
    prune = Prune(PruneSettings(prune_arguments=True))
    r = rig([prune], capabilities=Capabilities(window=200_000, history_binding="thinking_prefix"))
    fill(r, 10)
    assert isinstance(await r.ask(prune), Continue)
    assert isinstance(await r.ask(prune, model="test:other"), Edit)


async def test_arguments_of_bound_histories_are_never_pruned(rig: Any) -> None:
    arguments = '{"path": "a", "content": "' + "words of a file " * 4000 + '"}'
    for binding, gone in (("none", True), ("thinking_prefix", False)):
        prune = Prune(PruneSettings(prune_arguments=True))
        r = rig([prune], capabilities=Capabilities(window=200_000, history_binding=binding))
        r.user()
        r.turn("write_file", None, arguments)
        fill(r, 10)
        await r.ask(prune, model="test:other")
        assert (len(r.history.view[1].arguments) < 500) is gone


async def test_pinned_items_are_asked_for_at_each_request(rig: Any) -> None:
    pins: set[str] = set()
    prune = Prune(PruneSettings(pinned=lambda: frozenset(pins)))
    r = rig([prune])
    fill(r, 10)
    pins.update(item.id for item in r.history.view)
    assert isinstance(await r.ask(prune), Continue)
    pins.clear()
    assert isinstance(await r.ask(prune), Edit)


async def test_a_file_read_again_and_again_is_kept_once(rig: Any) -> None:
    prune = Prune(PruneSettings())
    r = rig([prune])
    r.user()
    other = r.turn("fetch", PAGE * 2)
    for _ in range(9):
        r.read("a.py", PAGE)
    await r.ask(prune)
    assert r.records[-1].reason == "min_savings, superseded reads only"
    assert r.history.view[r.history.index[other.id]].content == PAGE * 2
