"""What a session has learned of each model's token counts: by how much estimates are off, and whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from worker.accuracy import Accuracy
from worker.estimate import HEURISTIC_FACTOR

LEARN_FROM = 500
"""Calibration learns only from at least this many estimated tokens (facts, providers 5.4)."""

LOWEST, HIGHEST = 0.7, 2.5
"""The bounds of a factor."""

CONTRADICTED = 0.05
"""The share of an exact count by which what was known and estimated must be off, to be contradicted by it."""

WEIGHT = 0.3
"""What a report counts in the mean."""

MODELS = 16
"""Models that are remembered; the one unused for longest is forgotten."""

_T = TypeVar("_T")


class Calibration(BaseModel):
    """True tokens over estimated tokens, as an exponential mean per model, and the accuracy of the estimates."""

    model_config = ConfigDict(frozen=True)

    factors: dict[str, float] = {}
    accuracies: dict[str, Accuracy] = {}

    def factor(self, model: str) -> float:
        """What the estimate of a part of a request is multiplied by; 1 where nothing was learned."""
        return self.factors.get(model, 1.0)

    def whole(self, model: str) -> float:
        """What the estimate of a whole request is multiplied by, where it is the only source: the heuristic's margin is
        in it."""
        return max(HEURISTIC_FACTOR, self.factor(model))

    def accuracy(self, model: str) -> Accuracy:
        """How well this model's requests were estimated."""
        return self.accuracies.get(model, Accuracy())

    def barred(self, model: str) -> bool:
        """Whether automatic decisions must not rest on estimates for this model."""
        return self.accuracy(model).barred

    def learn(self, model: str, estimated: int, true: int) -> Calibration:
        """With what a report tells: a part of a request was estimated (raw) and has `true` tokens.

        A barred model is corrected at once, upwards; otherwise one report moves the mean a little.
        """
        if estimated < LEARN_FROM or true <= 0:
            return self
        ratio, old = _bounded(true / estimated), self.factors.get(model)
        new = ratio if old is None else (1 - WEIGHT) * old + WEIGHT * ratio
        return self._with_factor(model, max(new, ratio) if self.barred(model) else new)

    def correct(self, model: str, estimated: int, exact: int, known: int = 0, whole: int = 0) -> Calibration:
        """With an exact count of a request of which `known` tokens were known and the rest was estimated (raw).

        The rest's ratio stands in the place of the mean, and a bar ends. Where that rest alone would be beyond the
        bounds, the count contradicts what was thought known: then the ratio of all of it counts, as far as its raw
        estimate (`whole`) is known and it is within the bounds; else it says nothing of the estimator.
        """
        found, true = self, exact - known
        if estimated >= LEARN_FROM and true > 0 and (not known or LOWEST <= true / estimated <= HIGHEST):
            found = self._with_factor(model, _bounded(true / estimated))
        elif abs(true - estimated * self.factor(model)) > exact * CONTRADICTED and (
            whole >= LEARN_FROM and LOWEST <= exact / whole <= HIGHEST
        ):
            found = self._with_factor(model, exact / whole)
        if model not in found.accuracies:
            return found
        return found._with_accuracy(model, found.accuracy(model).put_right())

    def compare(
        self, model: str, estimate: int, reported: int, buffer: int, *, first: bool, tested: bool
    ) -> Calibration:
        """With an estimate and the report of the same request; see `Accuracy.compare`."""
        accuracy = self.accuracy(model).compare(estimate, reported, buffer, first=first, tested=tested)
        return self._with_accuracy(model, accuracy)

    def doubt(self, model: str, estimate: int, reported: int) -> Calibration:
        """With a report that was not believed: it is counted, and teaches nothing."""
        return self._with_accuracy(model, self.accuracy(model).doubt(estimate, reported))

    def told(self, model: str) -> Calibration:
        """After the bar of this model was put on record."""
        return self._with_accuracy(model, self.accuracy(model).model_copy(update={"told": True}))

    def _with_factor(self, model: str, factor: float) -> Calibration:
        factors = _newest(self.factors, model, round(factor, 4))
        return Calibration(factors=factors, accuracies=self.accuracies)

    def _with_accuracy(self, model: str, accuracy: Accuracy) -> Calibration:
        return Calibration(factors=self.factors, accuracies=_newest(self.accuracies, model, accuracy))


def _bounded(ratio: float) -> float:
    return min(max(ratio, LOWEST), HIGHEST)


def _newest(values: Mapping[str, _T], key: str, value: _T) -> dict[str, _T]:
    """With this value as the newest, and the oldest left out above the bound."""
    kept = {name: each for name, each in values.items() if name != key}
    kept[key] = value
    return kept if len(kept) <= MODELS else dict(list(kept.items())[-MODELS:])
