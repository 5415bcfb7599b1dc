"""The decision what to prune, on plain values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interceptors.prune import (
    LEAST_GAIN,
    Moment,
    PruneSettings,
    demand,
    plan_prune,
    protected_from,
    superseded_reads,
)
from interceptors.stubs import render_stub
from worker.estimate import MARGINS, Provenance, estimate_item
from worker.items import (
    AssistantItem,
    ContextItem,
    FileRange,
    Image,
    Item,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
    make_call,
)
from worker.occupancy import Occupancy

SMALL = PruneSettings(protected_tokens=100, min_savings=0)
TAIL = UserItem(text="plain words " * 200)
"""More than the protected tokens of `SMALL`, so that all before it is behind the tail."""


def read(path: str, first: int, last: int, sha: str, content: str | None = "x " * 600, **more: Any) -> ToolResultItem:
    return ToolResultItem(
        call_id=f"{path}{first}", name="read_file", status="ok", summary=f"read_file {path}", content=content,
        reads=FileRange(path=path, first=first, last=last, sha256=sha), **more,
    )  # type: ignore[arg-type]  # fmt: skip


def output(content: str | None, **more: Any) -> ToolResultItem:
    return ToolResultItem(call_id="c", name="t", status="ok", summary="t done", content=content, **more)  # type: ignore[arg-type]


def write(path: str) -> ToolResultItem:
    return ToolResultItem(
        call_id="w",
        name="write_file",
        status="ok",
        summary="wrote",
        writes=FileRange(path=path, first=0, last=0, sha256="n"),
    )


def plan(view: list[Item], settings: PruneSettings = SMALL, newest: int | None = None, **more: Any):
    tokens = [estimate_item(item) for item in view]
    return plan_prune(view, tokens, len(view) if newest is None else newest, settings, **more)  # type: ignore[arg-type]


def test_the_item_that_crosses_the_protected_tokens_stays_protected() -> None:
    assert protected_from([50, 50, 50, 50], 4, 100)[0] == 1
    assert protected_from([50, 50, 50, 51], 4, 100)[0] == 2
    assert protected_from([50, 50, 50, 50], 4, 0)[0] == 3
    assert protected_from([50, 50], 2, 1000)[0] == 0


def test_the_newest_batch_is_protected_whole() -> None:
    assert protected_from([500] * 6, 2, 100) == (2, 2)


def test_what_the_model_has_not_answered_is_protected() -> None:
    assert protected_from([500] * 6, 5, 100, unanswered=3) == (3, 3)


def test_a_protected_result_stays_unchanged() -> None:
    """B163: a 3000-token result inside the protected 8000 tokens is not touched, whatever the threshold."""
    old, fresh = output("old words " * 9000), output("fresh words " * 1500)
    view: list[Item] = [old, AssistantItem(text="said words " * 3000), fresh, UserItem(text="y")]
    found = plan(view, PruneSettings(protected_tokens=8000, min_savings=1000))
    assert found is not None
    assert set(found.replacements) == {old.id}


def test_content_that_is_hardly_larger_than_its_stub_stays() -> None:
    words = output("words " * 68, id="01a22bb2-0841-7b7e-93ce-08ea6af5c2b0")
    stub = estimate_item(render_stub(words))
    assert stub < estimate_item(words) < stub + LEAST_GAIN
    assert plan([words, TAIL]) is None


def test_small_and_short_results_do_not_end_the_search() -> None:
    """B162: the oldest result has 100 characters, the next one 400 KB; the large one goes, nothing else."""
    tiny, large = output("x" * 100), output("word " * 80_000)
    view: list[Item] = [UserItem(text="a"), tiny, large, TAIL]
    found = plan(view)
    assert found is not None
    assert set(found.replacements) == {large.id}
    assert found.first_changed == 2


def test_content_that_is_gone_already_is_passed_over() -> None:
    assert plan([output(None), output(None, pruned=True), TAIL]) is None


def test_results_that_their_tool_calls_state_stay() -> None:
    assert plan([output("x " * 3000, prunable=False), TAIL]) is None


def test_pinned_items_are_never_pruned() -> None:
    pinned, other = output("x " * 3000), output("y " * 3000)
    found = plan([pinned, other, TAIL], pinned=frozenset({pinned.id}))
    assert found is not None
    assert set(found.replacements) == {other.id}


def test_pictures_count_as_content() -> None:
    shot = output(None, images=(Image(media_type="image/png", data="A"),))
    found = plan([shot, TAIL])
    assert found is not None
    assert found.tokens_saved > 1000


def test_an_auto_read_file_is_a_candidate_and_other_context_is_not() -> None:
    file = ContextItem(kind="auto_read", text="x " * 2000, path="a.py")
    summary = ContextItem(kind="summary", text="y " * 2000)
    found = plan([file, summary, TAIL])
    assert found is not None
    assert set(found.replacements) == {file.id}


def test_nothing_is_pruned_for_less_than_the_minimum() -> None:
    view: list[Item] = [output("x " * 3000), TAIL]
    saved = plan(view).tokens_saved  # type: ignore[union-attr]
    assert plan(view, PruneSettings(protected_tokens=100, min_savings=saved)) is None
    assert plan(view, PruneSettings(protected_tokens=100, min_savings=saved - 1)) is not None


def test_a_read_is_superseded_by_a_later_one_of_the_same_lines_of_the_unchanged_file() -> None:
    assert superseded_reads([read("a", 5, 9, "1"), read("a", 1, 9, "1")]) == {0}
    assert superseded_reads([read("a", 5, 9, "1"), read("a", 6, 9, "1")]) == set()
    assert superseded_reads([read("a", 5, 9, "1"), read("a", 1, 9, "2")]) == set()
    assert superseded_reads([read("a", 5, 9, "1"), read("b", 1, 9, "1")]) == set()


def test_a_later_read_that_does_not_show_its_lines_supersedes_nothing() -> None:
    assert superseded_reads([read("a", 1, 9, "1"), read("a", 1, 9, "1", content=None, pruned=True)]) == set()
    assert superseded_reads([read("a", 1, 9, "1"), read("a", 1, 9, "1", artifact="big.txt")]) == set()


def test_a_read_is_superseded_by_a_later_write() -> None:
    assert superseded_reads([read("a", 1, 9, "1"), write("a"), read("a", 1, 9, "2")]) == {0}
    assert superseded_reads([ContextItem(kind="auto_read", text="x", path="a"), write("a")]) == {0}
    assert superseded_reads([write("a"), read("a", 1, 9, "2")]) == set()


def test_superseded_reads_go_alone_where_they_save_enough() -> None:
    stale, other, again = read("a", 1, 9, "1"), output("y " * 3000), read("a", 1, 9, "1")
    view: list[Item] = [stale, other, again, TAIL]
    found = plan(view, exceed=100)
    assert found is not None
    assert found.superseded
    assert set(found.replacements) == {stale.id}
    more = plan(view, exceed=found.tokens_saved)
    assert more is not None
    assert not more.superseded
    assert set(more.replacements) == {stale.id, other.id, again.id}


def test_superseded_reads_of_the_protected_tail_go_only_where_that_is_wanted() -> None:
    stale, again = read("a", 1, 9, "1"), read("a", 1, 9, "1")
    view: list[Item] = [UserItem(text="u"), stale, make_call("n", "t", "{}"), again]
    wide = PruneSettings(protected_tokens=100_000, min_savings=0)
    tail = PruneSettings(protected_tokens=100_000, min_savings=0, supersede_in_tail=True)
    assert plan(view, wide, newest=2) is None
    found = plan(view, tail, newest=2)
    assert found is not None
    assert set(found.replacements) == {stale.id}
    assert plan(view, tail, newest=1) is None, "the newest batch is never touched"


def test_arguments_are_pruned_only_where_that_is_allowed() -> None:
    call = make_call("c", "write_file", '{"path": "a", "content": "' + "words " * 2000 + '"}')
    view: list[Item] = [call, output(None), TAIL]
    assert plan(view) is None
    found = plan(view, arguments=True)
    assert found is not None
    assert set(found.replacements) == {call.id}


def test_auto_savings_are_the_larger_of_floor_and_protected_tokens() -> None:
    assert PruneSettings().savings == 8_000
    assert PruneSettings(protected_tokens=1_000).savings == 4_096
    assert PruneSettings(min_savings=20_000).savings == 20_000


def test_an_ordinary_moment_asks_for_the_savings_and_a_free_one_for_the_floor() -> None:
    settings = PruneSettings()
    asked = demand(Moment(occupancy=50_000, available=100_000, trigger=80_000), settings)
    free = demand(Moment(occupancy=50_000, available=100_000, trigger=80_000, free="cold_cache"), settings)
    assert asked is not None
    assert (asked.exceed, asked.reason) == (8_000, "min_savings")
    assert free is not None
    assert (free.exceed, free.reason) == (4_096, "cold_cache")


def test_above_the_trigger_a_prune_must_lead_to_sixty_percent_of_it() -> None:
    found = demand(Moment(occupancy=90_000, available=100_000, trigger=80_000), PruneSettings())
    assert found is not None
    assert found.exceed + 1 == 90_000 - 48_000
    assert found.reason == "trigger"
    halved = demand(Moment(occupancy=90_000, available=100_000, trigger=80_000, factor=0.5), PruneSettings())
    assert halved is not None
    assert halved.exceed + 1 == 2 * (90_000 - 48_000), "what the estimate counts twice must be twice as much"


def test_above_the_ceiling_without_a_trigger_a_prune_must_make_it_fit() -> None:
    found = demand(Moment(occupancy=101_000, available=100_000), PruneSettings())
    assert found is not None
    assert (found.exceed + 1, found.reason) == (1_000, "ceiling")


@pytest.mark.parametrize("provenance", MARGINS)
def test_what_the_ceiling_refuses_for_its_margin_is_pruned_until_it_fits_with_it(provenance: Provenance) -> None:
    occupancy = Occupancy(tokens=100_000, provenance=provenance, overhead=0)
    available = occupancy.upper - 1
    found = demand(Moment(occupancy.tokens, available, occupancy.without(0).margin), PruneSettings())
    assert found is not None and found.reason == "ceiling"
    assert not occupancy.fits(available) and occupancy.without(found.exceed + 1).fits(available)


def test_bound_reasoning_is_left_alone_but_at_a_free_moment_or_above_the_ceiling() -> None:
    settings = PruneSettings()
    assert demand(Moment(50_000, 100_000, bound=True), settings) is None
    assert demand(Moment(90_000, 100_000, trigger=80_000, bound=True), settings) is None
    assert demand(Moment(50_000, 100_000, free="cold_cache", bound=True), settings) is not None
    assert demand(Moment(101_000, 100_000, bound=True), settings) is not None


# -- any view ----------------------------------------------------------------------------------------------------

PIECES = ("plain words ", "日本語。", "x = 1\n", "an error was found\n", "\x00\u200b ", "")


def texts(most: int) -> st.SearchStrategy[str]:
    """A piece again and again, so that a large text costs two draws."""
    return st.tuples(st.sampled_from(PIECES), st.integers(0, most)).map(lambda drawn: drawn[0] * drawn[1])


ranges = st.builds(
    FileRange,
    path=st.sampled_from("ab"),
    first=st.integers(1, 3),
    last=st.integers(3, 5),
    sha256=st.sampled_from("12"),
)


@st.composite
def views(draw: st.DrawFn) -> tuple[list[Item], int, int]:
    """A valid view of user items, replies, calls and results; and the places of batch and unanswered."""
    view: list[Item] = [UserItem(text="start")]
    newest = 0
    for turn in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            view.append(UserItem(text=draw(texts(40)) or "u"))
        if draw(st.booleans()):
            view.append(
                ContextItem(
                    kind=draw(st.sampled_from(["auto_read", "summary"])), text=draw(texts(200)) or "c", path="a"
                )
            )
        newest = len(view)
        if draw(st.booleans()):
            view.append(ReasoningItem(provider="p", model="m", payload='{"x":1}'))
        view.append(AssistantItem(text=draw(texts(40)) or "a"))
        calls = [
            make_call(f"c{turn}_{n}", "t", json.dumps({"x": f"{n}", "text": draw(texts(100))}))
            for n in range(draw(st.integers(0, 3)))
        ]
        view.extend(calls)
        for call in calls:
            view.append(draw(results(call)))
    waiting = draw(st.integers(0, 2))
    unanswered = len(view) if waiting else 0
    view += [UserItem(text=f"waiting {n}") for n in range(waiting)]
    return view, newest, unanswered


@st.composite
def results(draw: st.DrawFn, call: ToolCallItem) -> ToolResultItem:
    return ToolResultItem(
        call_id=call.call_id,
        name="t",
        status=draw(st.sampled_from(["ok", "error", "denied"])),
        summary=draw(texts(40)) or "s",
        content=draw(st.one_of(st.none(), texts(300))),
        prunable=draw(st.booleans()),
        reads=draw(st.one_of(st.none(), ranges)),
        writes=draw(st.one_of(st.none(), ranges)),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(views(), st.integers(0, 2000), st.integers(0, 200), st.booleans(), st.booleans())
def test_a_pruned_view_keeps_pairs_order_and_summaries_never_grows_and_is_stable(
    made: tuple[list[Item], int, int], protected: int, least: int, in_tail: bool, arguments: bool
) -> None:
    view, newest, unanswered = made
    settings = PruneSettings(protected_tokens=protected, min_savings=least, supersede_in_tail=in_tail)
    tokens = [estimate_item(item) for item in view]
    more = {"unanswered": unanswered, "arguments": arguments}
    found = plan_prune(view, tokens, newest, settings, **more)  # type: ignore[arg-type]
    if found is None:
        return
    after = [found.replacements.get(item.id, item) for item in view]
    assert [(i.id, i.type, getattr(i, "call_id", "")) for i in after] == [
        (i.id, i.type, getattr(i, "call_id", "")) for i in view
    ]
    for old, new in zip(view, after, strict=True):
        assert estimate_item(new) <= estimate_item(old)
        if isinstance(old, ToolResultItem):
            assert isinstance(new, ToolResultItem)
            assert new.summary.startswith(old.summary[:199])
            assert new.status == old.status
    never = min(newest, unanswered or newest)
    assert after[never:] == view[never:]
    new_tokens = [estimate_item(item) for item in after]
    assert sum(tokens) - sum(new_tokens) == found.tokens_saved > least
    again = plan_prune(after, new_tokens, newest, settings, **more)  # type: ignore[arg-type]
    if found.superseded:
        assert again is None or not set(again.replacements) & set(found.replacements)
    else:
        assert again is None
