"""How well a model's requests were estimated: errors against the provider's reports, and when they are too low too
often to act on."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

JUDGED = 10
"""Requests that the bar looks back on."""

MISSES = 3
"""Under-counts beyond the buffer among these that bar a model's estimates from automatic decisions."""


class Errors(BaseModel):
    """Estimates against reports, as shares of the report: their number, the mean (above 0: estimated too high), the
    lowest and the highest, which may have the same sign."""

    model_config = ConfigDict(frozen=True)

    count: int = 0
    mean: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0

    def add(self, estimate: int, reported: int) -> Errors:
        """With one more comparison. `reported` is above 0."""
        share = (estimate - reported) / reported
        count = self.count + 1
        return Errors(
            count=count,
            mean=round(self.mean + (share - self.mean) / count, 6),
            lowest=round(min(self.lowest, share) if self.count else share, 6),
            highest=round(max(self.highest, share) if self.count else share, 6),
        )


class Accuracy(BaseModel):
    """One model's estimates: all of them, and the first of a stretch (after a start, a resume, a new segment, another
    model), where everything is estimated.

    `doubted` are estimates against the reports that were not believed, which are in no other figure. `recent` tells of the
    last requests which were under-counted beyond the buffer, newest last. `told` says that the bar was put on record.
    """

    model_config = ConfigDict(frozen=True)

    every: Errors = Errors()
    first: Errors = Errors()
    doubted: Errors = Errors()
    recent: tuple[bool, ...] = ()
    told: bool = False

    @property
    def barred(self) -> bool:
        """Whether automatic decisions must not rest on estimates for this model."""
        return sum(self.recent) >= MISSES

    def compare(self, estimate: int, reported: int, buffer: int, *, first: bool, tested: bool) -> Accuracy:
        """With a report. A barred model is put right by a report of a `tested` request (it grew enough to say something
        of the estimator) that lies within the buffer."""
        missed = reported > estimate + buffer
        right = self.barred and tested and not missed
        recent = () if right else (*self.recent, missed)[-JUDGED:]
        return Accuracy(
            every=self.every.add(estimate, reported),
            first=self.first.add(estimate, reported) if first else self.first,
            doubted=self.doubted,
            recent=recent,
            told=self.told and sum(recent) >= MISSES,
        )

    def doubt(self, estimate: int, reported: int) -> Accuracy:
        """With a report that was not believed. `reported` is above 0."""
        return self.model_copy(update={"doubted": self.doubted.add(estimate, reported)})

    def put_right(self) -> Accuracy:
        """After exact numbers have corrected the calibration: the record of misses begins anew."""
        return self.model_copy(update={"recent": (), "told": False})
