"""A model's own figures decide only where they can be true: counts before a request, reports after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.loop_rig import journal_of, window, worker_of
from worker.admission import next_inputs, waiting
from worker.believing import plausible
from worker.codes import USAGE_DOUBTED
from worker.history import History
from worker.items import AssistantItem, UserItem
from worker.models.base import Price, Request, Usage
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
    "usage",
    [
        Usage(input_tokens=10**9),
        Usage(input_tokens=-4),
        Usage(input_tokens=50, output_tokens=10**9),
        Usage(input_tokens=50, cached_tokens=-1),
        Usage(input_tokens=10**6_000),
    ],
    ids=["far above", "negative", "output", "cached", "unwritable"],
)
async def test_a_report_that_cannot_be_true_is_on_record_and_counts_as_none(usage: Usage) -> None:
    caps = replace(window(20_000), price=PRICE)
    with ScriptedModel([reply(say("one"), usage=usage)] * 2 + [say("two")], capabilities=caps, strict=False) as model:
        worker = worker_of(model)
        for _ in range(2):
            assert isinstance(await worker.ask("go"), Finished)
        assert isinstance(await worker.ask("and on"), Finished)
    first = journal_of(worker).of(ReplyRecord)[0]
    assert first.usage == Usage() and first.doubted is not None and first.model_dump_json()
    assert first.cost_usd is not None and 0 < first.cost_usd < 0.01, "reckoned from the estimate"
    [warned] = journal_of(worker).of(Warned)
    assert warned.code == USAGE_DOUBTED and "can't be true" in warned.message
    assert worker.history.occupancy(model.name, 0).tokens < 1_000


@pytest.mark.parametrize(
    ("reported", "window", "estimate", "believed"),
    [
        (19_900, 20_000, 500, True),
        (60_000, 32_768, 25_000, True),
        (100_000, 32_768, 25_000, False),
        (32_769, 32_768, 500, False),
    ],
)
def test_only_a_report_above_the_window_and_far_above_the_estimate_is_doubted(
    reported: int, window: int, estimate: int, believed: bool
) -> None:
    """The window of a model that nothing knows is a guess: a larger report is then believed where the estimate bears it out."""
    assert plausible(Usage(input_tokens=reported), estimate, window, 4_096) is believed


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
