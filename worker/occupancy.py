"""Occupancy: the tokens of the *next* request as it would be sent.

One number, with its provenance, for every decision.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from worker.estimate import MARGINS, Provenance

OPAQUE_SHARE = 0.8
"""With opaque items in the view, occupancy is never below this share of the full estimate: reports may leave them out
(B050)."""

NEAR = 0.1
"""How near a threshold (as a share of it) an estimate that is not trusted is counted instead."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was last told of a request: `reported` input tokens for the first `covers` items of the view, then `echoed`
    output. `source` is who told it: the provider's report, its count, or a tokenizer.

    Items from `newer` on are estimated; `raw` is the estimate of those before, when this was told, `said` that of the ones behind
    `covers` among them. `removed` is the estimate of what edits took out since (below 0: put in), `cleared`
    what the provider itself left out of what it was sent.
    """

    model: str
    reported: int
    echoed: int
    covers: int
    newer: int
    removed: int = 0
    estimated: int = 0
    source: Provenance = "usage"
    cleared: int = 0
    raw: int = 0
    said: int = 0

    def since(self, total: int) -> int:
        """The raw estimate of the items from `newer` on, of a view with this total."""
        return total - self.raw + self.removed

    @property
    def left(self) -> float:
        """What share of the request was left once the provider had cleared it."""
        return self.reported / (self.reported + self.cleared) if self.cleared > 0 and self.reported else 1.0


class Occupancy(BaseModel):
    """Tokens of the next request. `overhead` is the part of them that no compaction can lower (system prompt, schemas;
    estimated, so never above what was reported of the whole), `pending` the raw estimate of queued input.

    `known` are the tokens that a report or a count vouches for. `barred` says that the model's estimates were too low
    too often: automatic decisions then rest on `known` alone.
    """

    model_config = ConfigDict(frozen=True)

    tokens: int
    provenance: Provenance
    overhead: int
    pending: int = 0
    known: int = 0
    barred: bool = False

    @property
    def margin(self) -> int:
        """How many tokens the number may be too low. The heuristic's margin is in the number already."""
        return 0 if self.provenance == "heuristic" else int(self.tokens * MARGINS[self.provenance])

    @property
    def upper(self) -> int:
        """The number with its margin: what the request may have at most."""
        return self.tokens + self.margin

    @property
    def decides(self) -> int:
        """The number that a trigger may act on."""
        return min(self.known, self.tokens) if self.barred else self.tokens

    def __str__(self) -> str:
        margin = f" with a margin of {self.margin:,}" if self.margin else ""
        return f"{self.tokens:,} tokens{margin}"

    def fits(self, ceiling: int) -> bool:
        """Whether a request of this size may be sent: at most the ceiling, with its margin."""
        return self.upper <= ceiling

    def without(self, tokens: int) -> Occupancy:
        """The number after an edit that takes so many tokens out of what a report or a count covers."""
        adjusted = self.provenance in ("usage", "provider count")
        changes = {"tokens": max(self.tokens - tokens, 0), "known": max(self.known - tokens, 0)}
        return self.model_copy(update={**changes, "provenance": "usage-adjusted" if adjusted else self.provenance})

    def near(self, threshold: int) -> bool:
        """Whether a better count could turn a decision at this threshold."""
        if self.barred:
            return self.tokens >= threshold * (1 - NEAR) and self.decides <= threshold
        return abs(self.tokens - threshold) <= self.tokens * MARGINS[self.provenance]
