"""What a session learns of a model's token counts: bounded, put right, and not acted on while it is too low too often."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.accuracy import JUDGED, MISSES, Accuracy, Errors
from worker.calibration import MODELS, Calibration
from worker.codes import ESTIMATE_BARRED
from worker.history import History
from worker.items import AssistantItem, UserItem
from worker.models.base import Usage
from worker.occupancy import Occupancy
from worker.records import Admitted, Input, ReplyRecord, TokensCounted, Warned, WindowLearned

M = "test:m"
BUFFER = 8_192


def compared(accuracy: Accuracy, *missed: bool, tested: bool = False) -> Accuracy:
    for miss in missed:
        accuracy = accuracy.compare(10_000, 10_000 + BUFFER + miss, BUFFER, first=False, tested=tested)
    return accuracy


def barred() -> Calibration:
    calibration = Calibration()
    for _ in range(MISSES):
        calibration = calibration.compare(M, 10_000, 30_000, BUFFER, first=False, tested=False)
    assert calibration.barred(M)
    return calibration


def history_with(words: int, reported: int) -> History:
    """A report, and behind it a text of so many words that no report covers yet."""
    history = History(family="o200k")
    for n, text in enumerate(("go", "word " * words)):
        item = UserItem(id=f"u{n}", text=text)
        history.apply(Input(item=item))
        history.apply(Admitted(ids=(item.id,)))
        if not n:
            reply = AssistantItem(id="a", text="ok")
            history.apply(ReplyRecord(items=(reply,), usage=Usage(input_tokens=reported), model=M, estimate=reported))
    return history


# -- the factor -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), st.integers(-(10**6), 10**7)), max_size=20))
def test_calibration_stays_in_its_bounds_whatever_is_reported(told: list[tuple[bool, int, int]]) -> None:
    calibration = Calibration()
    for exact, estimated, true in told:
        calibration = (calibration.correct if exact else calibration.learn)(M, estimated, true)
        assert 0.7 <= calibration.factor(M) <= 2.5
        assert calibration.whole(M) >= 1.15


@given(st.integers(0, 10**6), st.text(max_size=200), st.text(max_size=200), st.floats(0.7, 2.5))
def test_the_number_is_never_negative_and_never_falls_by_appended_text(
    reported: int, text: str, more: str, factor: float
) -> None:
    before, after = history_with(1, reported), history_with(1, reported)
    for history, words in ((before, text), (after, text + more)):
        history.calibration = Calibration(factors={M: factor})
        history.extend([UserItem(text=words)])
    for model in (M, "other:model"):
        assert 0 <= before.occupancy(model, 10).tokens <= after.occupancy(model, 10).tokens


def test_only_so_many_models_are_remembered_the_newest() -> None:
    calibration = Calibration()
    for n in range(3 * MODELS):
        calibration = calibration.learn(f"m{n}", 1_000, 1_000).compare(f"m{n}", 9, 9, 9, first=True, tested=False)
    assert list(calibration.factors) == list(calibration.accuracies) == [f"m{n}" for n in range(2 * MODELS, 3 * MODELS)]


# -- exact numbers --------------------------------------------------------------------------------------------------


def test_a_refusal_that_names_the_size_of_the_input_corrects_the_factor_at_once() -> None:
    """B055, with `N tokens > M maximum`."""
    history = history_with(4_000, 10_000)
    parts = history.parts(M, 0)
    exact = parts.known + 2 * parts.raw
    history.apply(WindowLearned(model=M, window=12_000, source="stated", counted=exact, parts=parts))
    assert history.calibration.factor(M) == 2.0
    assert history.occupancy(M, 0).tokens == exact, "the estimate is what the refusal named"


def test_a_refusal_that_contradicts_the_reports_themselves_teaches_nothing_of_the_estimator() -> None:
    history = history_with(4_000, 10_000)
    parts = history.parts(M, 0)
    history.apply(WindowLearned(model=M, window=12_000, source="stated", counted=900_000, parts=parts))
    assert history.calibration.factors == {}


def test_a_refusal_that_names_its_size_replaces_a_base_that_it_contradicts() -> None:
    """B055: 10,000 were reported of next to nothing, and of 4,600 more the request has 8,200 in truth."""
    history = history_with(4_000, 10_000)
    whole = history.total
    parts = history.parts(M, 0)
    history.apply(WindowLearned(model=M, window=8_000, source="stated", counted=8_200, parts=parts, whole=whole))
    number = history.occupancy(M, 0)
    assert (number.tokens, number.provenance) == (8_200, "provider count")
    assert history.calibration.factor(M) == pytest.approx(8_200 / whole, abs=0.001)
    assert history.windows[M].accepted == 0, "what was reported as accepted is refuted"


def test_a_size_that_no_tokenizer_could_give_leaves_the_base_alone() -> None:
    history = history_with(4_000, 10_000)
    before = history.occupancy(M, 0)
    parts, whole = history.parts(M, 0), history.total
    history.apply(WindowLearned(model=M, window=12_000, source="stated", counted=900_000, parts=parts, whole=whole))
    assert history.occupancy(M, 0) == before and history.calibration.factors == {}


def test_a_count_is_the_base_of_the_number_and_corrects_the_factor() -> None:
    history = history_with(4_000, 10_000)
    parts = history.parts(M, 0)
    counted = parts.known + int(1.5 * parts.raw)
    history.apply(TokensCounted(model=M, tokens=counted, provenance="provider count", parts=parts))
    number = history.occupancy(M, 0)
    assert (number.tokens, number.provenance, number.known) == (counted, "provider count", counted)
    assert number.margin == int(counted * 0.02)
    assert history.calibration.factor(M) == pytest.approx(1.5, abs=0.001)


def test_a_tokenizers_count_leaves_the_factor_and_the_bar_alone() -> None:
    history = history_with(4_000, 10_000)
    history.calibration = barred()
    history.apply(TokensCounted(model=M, tokens=9_000, provenance="tokenizer", parts=history.parts(M, 0)))
    assert history.occupancy(M, 0).decides == 0
    assert history.calibration == barred()


# -- the bar --------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=40))
def test_a_model_is_barred_exactly_where_three_of_the_last_ten_were_under_counted(missed: list[bool]) -> None:
    accuracy = Accuracy()
    for n, miss in enumerate(missed):
        accuracy = compared(accuracy, miss)
        assert accuracy.barred == (sum(missed[max(n + 1 - JUDGED, 0) : n + 1]) >= MISSES)


def test_an_under_count_within_the_buffer_is_none() -> None:
    assert not compared(Accuracy(), *[False] * JUDGED).barred
    assert compared(Accuracy(), *[True] * MISSES).barred


def test_a_good_estimate_of_a_large_growth_puts_a_barred_model_right() -> None:
    accuracy = compared(Accuracy(), *[True] * MISSES)
    assert compared(accuracy, False).barred, "it grew by next to nothing: no proof"
    assert not compared(accuracy, False, tested=True).barred
    assert compared(accuracy, True, tested=True).barred


def test_an_exact_count_puts_a_barred_model_right() -> None:
    assert not barred().correct(M, 10_000, 20_000).barred(M)
    assert not barred().correct(M, 10, 20).barred(M)


def test_a_barred_model_is_corrected_upwards_at_once() -> None:
    first = Calibration().learn(M, 1_000, 1_000)
    assert first.learn(M, 1_000, 2_000).factor(M) == 1.3
    blocked = Calibration(factors=first.factors, accuracies=barred().accuracies)
    assert blocked.learn(M, 1_000, 2_000).factor(M) == 2.0


def test_that_a_model_is_barred_is_told_once_and_again_only_after_it_was_put_right() -> None:
    history = History()
    history.calibration = barred()
    assert not history.calibration.accuracy(M).told
    history.apply(Warned(code=ESTIMATE_BARRED, message="", figures={"model": M}))
    told = history.calibration
    assert told.accuracy(M).told
    assert told.compare(M, 10_000, 30_000, BUFFER, first=False, tested=False).accuracy(M).told
    assert not told.correct(M, 0, 0).accuracy(M).told


def test_while_a_model_is_barred_only_what_was_reported_decides() -> None:
    number: dict[str, Any] = {"tokens": 90_000, "provenance": "usage", "overhead": 0, "known": 60_000}
    assert Occupancy(**number).decides == 90_000
    assert Occupancy(**number, barred=True).decides == 60_000
    assert Occupancy(**number, barred=True).tokens == 90_000, "the ceiling and the display keep the number"


def test_a_count_is_near_where_the_margin_could_turn_the_decision() -> None:
    number = Occupancy(tokens=100_000, provenance="usage", overhead=0)
    assert number.near(101_000) and number.near(99_000)
    assert not number.near(101_001) and not number.near(98_999)
    untrusted = Occupancy(tokens=100_000, provenance="usage", overhead=0, known=50_000, barred=True)
    assert untrusted.near(60_000) and untrusted.near(111_000)
    assert not untrusted.near(49_000), "the report alone is above it"


# -- errors ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1, max_size=30))
def test_errors_hold_number_mean_and_both_ends(pairs: list[tuple[int, int]]) -> None:
    errors = Errors()
    for estimate, reported in pairs:
        errors = errors.add(estimate, reported)
    shares = [estimate / reported - 1 for estimate, reported in pairs]
    assert errors.count == len(pairs)
    assert abs(errors.mean - sum(shares) / len(shares)) < 1e-3 + 1e-4 * max(map(abs, shares))
    assert abs(errors.highest - max(shares)) < 1e-3 * (1 + max(map(abs, shares)))
    assert abs(errors.lowest - min(shares)) < 1e-3 * (1 + max(map(abs, shares)))


def test_first_reports_of_a_stretch_are_compared_apart() -> None:
    history = history_with(1, 1_000)
    accuracy = history.calibration.accuracy(M)
    assert (accuracy.every.count, accuracy.first.count) == (1, 1)
    record = ReplyRecord(
        items=(AssistantItem(text="b"),), usage=Usage(input_tokens=2_000), model=M, estimate=1_000, provenance="usage"
    )
    history.apply(record)
    accuracy = history.calibration.accuracy(M)
    assert (accuracy.every.count, accuracy.every.lowest, accuracy.first.count) == (2, -0.5, 1)
