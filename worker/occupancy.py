"""Occupancy: the tokens of the *next* request as it would be sent.

One number, with its provenance, for every decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from worker.estimate import MARGINS, Provenance
from worker.models.base import Usage

LEARN_FROM = 500
"""Calibration learns only from requests that grew by at least this many estimated tokens (facts, providers 5.4)."""

OPAQUE_SHARE = 0.8
"""With opaque items in the view, occupancy is never below this share of the full estimate: reports may leave them out
(B050)."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the provider last reported: `reported` input tokens for the first `covers` items of the view, then `echoed`
    output.

    Items from `newer` on are estimated. `removed` is the estimate of what edits took out since (below 0: put in).
    """

    model: str
    reported: int
    echoed: int
    covers: int
    newer: int
    removed: int = 0
    estimated: int = 0


class Calibration(BaseModel):
    """Reported growth over estimated growth, as an exponential mean, per model; bounded to 0.7 to 2.5."""

    model_config = ConfigDict(frozen=True)

    factors: dict[str, float] = {}

    def factor(self, model: str) -> float:
        """The factor of this model; 1 where nothing was learned."""
        return self.factors.get(model, 1.0)

    def learn(self, baseline: Baseline | None, usage: Usage, tokens: Sequence[int], model: str) -> Calibration:
        """What the report of a request teaches, compared with the one before it."""
        if baseline is None or usage.input_tokens is None or baseline.removed or baseline.model != model:
            return self
        estimated = sum(tokens[baseline.newer :])
        grown = usage.input_tokens - baseline.reported - baseline.echoed
        if estimated < LEARN_FROM or grown <= 0:
            return self
        ratio = min(max(grown / estimated, 0.7), 2.5)
        old = self.factors.get(model)
        new = ratio if old is None else 0.7 * old + 0.3 * ratio
        return Calibration(factors={**self.factors, model: round(new, 4)})


class Occupancy(BaseModel):
    """Tokens of the next request. `overhead` is the part that no compaction can lower (system prompt, schemas)."""

    model_config = ConfigDict(frozen=True)

    tokens: int
    provenance: Provenance
    overhead: int
    pending: int = 0

    @property
    def margin(self) -> int:
        """How many tokens the number may be too low."""
        return int(self.tokens * MARGINS[self.provenance])

    def fits(self, ceiling: int) -> bool:
        """Whether a request of this size may be sent: estimated at most the ceiling."""
        return self.tokens <= ceiling
