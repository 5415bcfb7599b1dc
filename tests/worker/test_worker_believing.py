"""A model's own figures decide only where they can be true: counts before a request, reports after it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.loop_rig import journal_of, window, worker_of
from worker.admission import next_inputs, waiting
from worker.believing import STEADY, Known, band, judge
from worker.codes import USAGE_DOUBTED
from worker.history import History
from worker.items import AssistantItem, UserItem
from worker.models.anthropic_stream import messages_usage
from worker.models.base import Price, Request, Usage
from worker.models.openai_chat import chat_usage
from worker.models.openai_stream import responses_usage
from worker.models.reported import checked
from worker.records import Admitted, Input, ReplyRecord, TokensCounted, Warned, Withdrawn
from worker.results import Failed, Finished
from worker.testing import ScriptedModel, reply, say

pytestmark = pytest.mark.anyio

PRICE = Price(input=1.0, output=1.0, cache_read=0.1, cache_write=1.25, source="test")


class Counting(ScriptedModel):
    """Counts what it is told to."""

    answer: Any = None
    asked = 0

    async def count(self, request: Request) -> Any:
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Unwritable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ANSWERS: dict[str, Any] = {
    "one": 1, "zero": 0, "below 0": -5, "far above": 10**12, "unwritable": 10**6_000, "none": None, "a part": 12.5,
    "no whole": 9_000.0, "no number": float("nan"), "text": "many", "yes": True, "list": [1], "object": object(),
    "error without text": Unwritable(),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
async def test_a_count_that_cannot_be_true_is_no_count_and_the_estimate_stands(answer: Any) -> None:
    """Some 8,700 tokens by the estimate, a ceiling of 7,875: not sent, whatever the model says, with one warning."""
    caps = replace(window(10_500), counting="provider")
    model = Counting([say("one")] * 3, capabilities=caps, strict=False)
    model.answer = answer
    worker = worker_of(model)
    for _ in range(2):
        outcome = await worker.ask("word " * 6_700)
        assert isinstance(outcome, Failed) and outcome.kind == "over_budget"
    assert model.asked == 1 and not model.requests
    assert not journal_of(worker).of(TokensCounted)
    [warned] = journal_of(worker).of(Warned)
    assert warned.code == "count_failed" and "the estimate stands" in warned.message


@pytest.mark.parametrize(("share", "believed"), [(0.5, False), (0.7, True), (2.5, True), (3.5, False)])
async def test_a_count_is_believed_between_three_fifths_and_three_times_the_estimate(
    share: float, believed: bool
) -> None:
    caps = replace(window(10_500), counting="provider")
    model = Counting([say("one")], capabilities=caps, strict=False)
    worker = worker_of(model)
    worker.ledger.put(Input(item=UserItem(text="word " * 6_700)))
    await worker.admit()
    model.answer = int(worker.sender.occupancy().tokens * share)
    await worker.sender.measure()
    assert model.asked == 1 and bool(journal_of(worker).of(TokensCounted)) is believed


@pytest.mark.parametrize(
    ("usage", "counted", "named"),
    [
        (Usage(input_tokens=10**8), None, "input_tokens is 100,000,000"),
        (Usage(input_tokens=-4), None, "input_tokens is -4"),
        (Usage(input_tokens=10**6_000), None, "input_tokens is 1,000,000,000,000,000"),
        (Usage(input_tokens=50, output_tokens=10**8), 50, "output_tokens is 100,000,000"),
        (Usage(input_tokens=50, cached_tokens=-1), 50, "cached_tokens is -1"),
        (Usage(input_tokens=50, cached_tokens=60), 50, "cached_tokens is 60"),
        (Usage(input_tokens=50, output_tokens=9, reasoning_tokens=10), 50, "reasoning_tokens is 10"),
    ],
    ids=["far above", "negative", "unwritable", "output", "cached", "more cached", "more reasoning"],
)
async def test_a_figure_that_cannot_be_true_is_named_and_counts_as_none(
    usage: Usage, counted: int | None, named: str
) -> None:
    caps = replace(window(20_000), price=PRICE)
    with ScriptedModel([reply(say("one"), usage=usage)] * 2 + [say("two")], capabilities=caps, strict=False) as model:
        worker = worker_of(model)
        for _ in range(2):
            assert isinstance(await worker.ask("go"), Finished)
        assert isinstance(await worker.ask("and on"), Finished)
    first = journal_of(worker).of(ReplyRecord)[0]
    assert first.usage.input_tokens == counted and first.doubted is not None and first.model_dump_json()
    assert first.doubt is not None and named in first.doubt
    assert first.booked is not None and (first.booked.input_tokens or 0) >= (counted or first.estimate)
    assert first.booked.cached_tokens == 0 and first.booked.output_tokens >= first.booked.reasoning_tokens
    assert first.cost_usd is not None and 0 < first.cost_usd < 0.01, "reckoned from what can be true"
    [warned] = journal_of(worker).of(Warned)
    assert warned.code == USAGE_DOUBTED and named in warned.message
    assert worker.history.occupancy(model.name, 0).tokens < 1_000


@pytest.mark.parametrize(
    ("reported", "whole", "believed"),
    [
        (19_900, 700, False),
        (230, 700, True),
        (7_000, 7_000, True),
        (11_200, 7_000, True),
        (21_000, 7_000, False),
        (2_310, 7_000, False),
        (700, 7_000, False),
    ],
)
def test_a_first_report_is_believed_within_a_factor_of_two_and_what_a_provider_adds(
    reported: int, whole: int, believed: bool
) -> None:
    verdict = judge(reported, whole, band(whole), None, 20_000)
    assert verdict.believed is believed and (verdict.trail is None) is believed


def run_of(reports: list[tuple[int, int]], ceiling: int = 200_000) -> list[bool]:
    """Reports and the raw estimates of their requests, one after another, each held against the last that was believed."""
    trail, known, found = None, None, list[bool]()
    for reported, whole in reports:
        newer = None if known is None else Known(known[0], whole - known[1])
        verdict = judge(reported, whole, band(whole, known=newer), trail, ceiling)
        trail = verdict.trail
        if verdict.believed:
            known = (reported, whole)
        found.append(verdict.believed)
    return found


GROWTHS = st.lists(st.integers(300, 4_000), min_size=4, max_size=20)


def wholes(first: int, growths: list[int]) -> list[int]:
    return [first + sum(growths[:n]) for n in range(len(growths) + 1)]


# From 2,000 tokens on: below, `SLACK` is so much of a request that a third of it may be its framing.
@given(st.integers(2_000, 20_000), GROWTHS, st.floats(0.02, 0.34))
def test_reports_of_a_third_and_less_are_never_believed_however_often(
    first: int, growths: list[int], share: float
) -> None:
    assert not any(run_of([(int(w * share), w) for w in wholes(first, growths)]))


@given(st.integers(1_500, 20_000), GROWTHS, st.integers(0, 1_000))
def test_reports_that_leave_out_what_was_cached_are_never_believed_behind_a_whole_one(
    first: int, growths: list[int], least: int
) -> None:
    """The first request reads nothing from the cache; each later one reports what is new alone."""
    sizes = wholes(first + sum(growths) + 4_000, growths)
    fresh = [min(b - a, least + 500) for a, b in pairwise(sizes)]
    assert run_of([(sizes[0], sizes[0]), *zip(fresh, sizes[1:], strict=True)]) == [True] + [False] * len(fresh)


@given(st.integers(0, 20_000), GROWTHS, st.floats(0.6, 1.9))
def test_a_tokenizer_of_its_own_is_believed_at_once_and_always(first: int, growths: list[int], ratio: float) -> None:
    assert all(run_of([(int(w * ratio), w) for w in wholes(first, growths)]))


@given(st.integers(0, 20_000), st.lists(st.integers(600, 4_000), min_size=4, max_size=20), st.integers(5_000, 40_000))
def test_what_a_provider_adds_to_each_request_is_believed_once_the_reports_grow_as_the_estimates(
    first: int, growths: list[int], hidden: int
) -> None:
    found = run_of([(w + hidden, w) for w in wholes(first, growths)])
    assert all(found[STEADY - 1 :]), "after three that agree with each other"


@given(st.integers(4_000, 20_000), GROWTHS, st.integers(1, 3), st.floats(3.0, 30.0))
def test_one_report_that_is_far_too_high_is_passed_over_and_the_next_is_believed(
    first: int, growths: list[int], at: int, factor: float
) -> None:
    sizes = wholes(first, growths)
    found = run_of([(int(w * (factor if n == at else 1)), w) for n, w in enumerate(sizes)])
    assert found == [n != at for n in range(len(sizes))]


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-(10**5), 10**6))
def test_a_band_always_holds_what_was_estimated_without_an_edit(
    whole: int, newer: int, unsure: int, removed: int
) -> None:
    assert band(whole, unsure=unsure).holds(whole)
    assert band(whole + newer, known=Known(whole, newer)).holds(whole + newer)
    edges = band(whole + newer, unsure=unsure, known=Known(whole, newer, removed))
    assert edges.low >= edges.least and edges.high >= 0


FIGURES = st.one_of(st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(-(10**20), 10**20))


@given(FIGURES, FIGURES, FIGURES, FIGURES, FIGURES, st.integers(0, 5_000))
def test_whatever_stands_in_a_report_its_figures_then_agree_and_each_wrong_one_is_named(
    a: Any, b: Any, c: Any, d: Any, e: Any, most: int
) -> None:
    details = {"cached_tokens": b, "cache_write_tokens": c}
    for read in (
        chat_usage({"prompt_tokens": a, "prompt_tokens_details": details, "completion_tokens": d,
                    "completion_tokens_details": {"reasoning_tokens": e}}),
        responses_usage({"input_tokens": a, "input_tokens_details": details, "output_tokens": d,
                         "output_tokens_details": {"reasoning_tokens": e}}),
        messages_usage({"input_tokens": a, "cache_read_input_tokens": b, "cache_creation_input_tokens": c,
                        "output_tokens": d, "output_tokens_details": {"thinking_tokens": e}}),
    ):  # fmt: skip
        found = checked(read, most)
        assert 0 <= found.reasoning_tokens <= found.output_tokens <= (most * 1.1 or 10**9)
        assert found.cached_tokens + found.cache_write_tokens <= (found.input_tokens or 0)
        wrong = isinstance(a, str | bool) or (isinstance(a, float) and not a.is_integer()) or (a or 0) < 0
        assert not wrong or found.faults
        assert checked(found, most) == found, "what was checked passes as it is"


def queued(*sizes: int) -> History:
    history = History(family="o200k")
    for n, tokens in enumerate(sizes):
        history.apply(Input(item=UserItem(id=f"i{n}", text="word " * tokens)))
    return history


def test_the_first_queued_input_goes_always_and_further_ones_while_they_have_half_of_the_room() -> None:
    def ids(history: History, standing: int, most: int) -> list[str]:
        return [item.id for item in next_inputs(history, standing, most)]

    assert ids(queued(100, 100, 100), 0, 1_000) == ["i0", "i1", "i2"]
    assert ids(queued(200, 200, 200, 10), 0, 1_000) == ["i0", "i1"], "in order: a small one does not overtake"
    assert ids(queued(200, 200, 200), 400, 1_000) == ["i0"]
    assert ids(queued(5_000, 10), 0, 1_000) == ["i0"] and ids(queued(), 0, 1_000) == []


def test_nothing_joins_an_input_that_waits_for_its_reply_beyond_that() -> None:
    history = queued(200, 200, 200)
    history.apply(Admitted(ids=("i0",)))
    assert [item.id for item in next_inputs(history, 0, 1_000)] == ["i1"]
    history.apply(Admitted(ids=("i1",)))
    assert next_inputs(history, 0, 1_000) == (), "the rest waits for the request after this one"
    history.apply(ReplyRecord(items=(AssistantItem(text="ok"),), model="m"))
    assert [item.id for item in next_inputs(history, 0, 1_000)] == ["i2"]


def test_an_input_without_a_reply_can_be_taken_out_from_between_others() -> None:
    history = queued(10, 300, 20)
    history.apply(Admitted(ids=("i0", "i1", "i2")))
    history.apply(TokensCounted(model="m", tokens=400, provenance="provider count"))
    history.apply(Withdrawn(ids=("i1",)))
    assert [item.id for item in history.view] == ["i0", "i2"] and waiting(history) == [0, 1]
    assert history.total == sum(history.tokens) and history.index == {"i0": 0, "i2": 1}
    assert history.baseline is None and history.changes == [~1]
    history.apply(ReplyRecord(items=(AssistantItem(text="ok"),), model="m"))
    history.apply(Withdrawn(ids=("i0",)))
    assert [item.id for item in history.view][:2] == ["i0", "i2"], "what was answered stays"
