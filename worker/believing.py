"""What is believed of a model's own figures: a count or a report that can't be true decides nothing.

A report is held against what was estimated of the very same request, in both directions. Pure, and as fast for a long
history as for a short one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from worker.estimate import MARGINS, Provenance
from worker.models.reported import shown

FAR = 3.0
"""How many times the estimate a figure may be at most, whatever else speaks for it."""

LEAST_COUNT, MOST_COUNT = 0.6, FAR
"""The shares of the estimate between which a count is believed. The estimator is within 0.72 and 1.3 of single kinds of
text, and newer tokenizers give up to 1.9 times as many tokens (facts, providers 5.3 and 0.4)."""

SPREAD = 2.0
"""How far a report may be from the calibrated estimate of what nothing vouches for, as a factor either way."""

LOWEST, HIGHEST = 0.5, FAR
"""The shares of the plain estimate beyond which no calibration takes that range. The estimate for an unknown model is that
of the tokenizer that gives the most tokens: the truth may be little more than half of it (facts, providers 5.2)."""

HIDDEN = 2_048
"""Tokens that a provider may add to a request by itself (a template, a prompt for tools)."""

SLACK = 256
"""Tokens by which a report may be lower than the range: what a small request has of framing."""

TOLERATED = 5
"""How many times the margin of its provenance a number that was vouched for may be wrong by."""

STEADY = 3
"""Reports in a row that must grow as the estimates do, before a deviation is taken for the truth."""

GROWN = 500
"""Tokens (estimated) that they must have grown by."""

ALIKE = 1.6
"""How far the ratio of the growth may be from the ratio of the whole, as a factor either way, in reports that are too low: a
tokenizer that gives fewer tokens does so for both, a report that leaves something out does not."""

REFUSED_MOST = 10.0
"""How many times the estimate the size may be that a refusal names."""


class Known(NamedTuple):
    """What was last vouched for: `tokens` of the request's beginning, told by `source`; `newer` is the raw estimate of all
    behind it, `removed` of what edits took out of it since (below 0: put in)."""

    tokens: int
    newer: int
    removed: int = 0
    source: Provenance = "usage"


class Band(NamedTuple):
    """The tokens between which a report of a request may lie; `least` is the lower end by the estimate alone."""

    low: int
    high: int
    least: int

    def holds(self, tokens: int) -> bool:
        """Whether a number is believed at once."""
        return self.low <= tokens <= self.high


def band(whole: int, *, unsure: int = 0, factor: float = 1.0, known: Known | None = None) -> Band:
    """The band for a request of `whole` estimated tokens (raw), `unsure` of which a report may leave out or see far smaller
    (reasoning, images). `factor` is the model's calibration.
    """
    low, high = max(factor / SPREAD, LOWEST), min(factor * SPREAD, HIGHEST)
    least = int(max(whole - unsure, 0) * low) - SLACK
    if known is None:
        return Band(least, int(whole * high) + HIDDEN, least)
    off = int(known.tokens * MARGINS[known.source] * TOLERATED)
    gone, put = max(known.removed, 0), max(-known.removed, 0)
    lowest = known.tokens - off + int((known.newer + put) * low) - int(gone * high) - unsure - SLACK
    highest = known.tokens + off + int((known.newer + put) * high) - int(gone * low) + HIDDEN
    return Band(max(lowest, least), max(highest, 0), least)


@dataclass(frozen=True, slots=True)
class Trail:
    """Reports in a row that were not believed: the first, the last, how many, each with the raw estimate of its request."""

    first: int
    first_whole: int
    last: int
    last_whole: int
    count: int = 1

    @classmethod
    def begin(cls, reported: int, whole: int) -> Trail:
        """A trail of one report."""
        return cls(reported, whole, reported, whole)

    @property
    def grown(self) -> tuple[int, int]:
        """By how much the estimates and the reports grew."""
        return self.last_whole - self.first_whole, self.last - self.first

    def follow(self, reported: int, whole: int) -> Trail:
        """With one more report. One that grew otherwise than its estimate, or a request that is smaller, begins anew."""
        longer = Trail(self.first, self.first_whole, reported, whole, self.count + 1)
        estimated, told = longer.grown
        even = int(estimated * LOWEST) - SLACK <= told <= int(estimated * HIGHEST) + SLACK
        return longer if even and whole >= self.last_whole else Trail.begin(reported, whole)

    def steady(self, least: int) -> bool:
        """Whether so many reports agree with each other that they are the truth. None below `least` is."""
        estimated, told = self.grown
        if self.count < STEADY or estimated < GROWN or told <= 0 or self.last < least:
            return False
        growth, all_of_it = told / estimated, self.last / self.last_whole
        if all_of_it < 1:
            return all_of_it / ALIKE <= growth <= all_of_it * ALIKE
        return LOWEST <= growth <= HIGHEST


class Verdict(NamedTuple):
    """What is thought of a report: `trail` goes on where it is not believed; `steady` is the trail that made it believed."""

    believed: bool
    trail: Trail | None = None
    steady: Trail | None = None


def judge(reported: int, whole: int, expected: Band, trail: Trail | None, ceiling: int) -> Verdict:
    """Whether a report of a request is believed. `ceiling` is what the model can have taken at most: the window."""
    if expected.holds(reported):
        return Verdict(True)
    if reported > max(ceiling, int(whole * FAR)):
        return Verdict(False)
    longer = Trail.begin(reported, whole) if trail is None else trail.follow(reported, whole)
    return Verdict(True, steady=longer) if longer.steady(expected.least) else Verdict(False, longer)


def refusal_holds(tokens: int, whole: int, unsure: int = 0) -> bool:
    """Whether the size that a refusal names may be that of a request of `whole` estimated tokens (raw).

    It is the strongest evidence there is, so only what no tokenizer could give is not believed.
    """
    return int(max(whole - unsure, 0) * LOWEST) - SLACK <= tokens <= int(whole * REFUSED_MOST) + HIDDEN


def doubt_of_count(tokens: int, estimate: int, plain: int) -> str:
    """Why a provider's count is not believed beside the estimate, or nothing. `plain` is the estimate without what was
    learned, where that is lower."""
    if int(min(estimate, plain) * LEAST_COUNT) <= tokens <= int(estimate * MOST_COUNT):
        return ""
    return f"it said {shown(tokens)} tokens, which can't be true beside an estimate of {estimate:,}"
