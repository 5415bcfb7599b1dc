"""How long a run has been driven: the time that processes worked on it, without what it lay waiting in between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Driven:
    """A fold of the times of a run's entries (UTC seconds).

    `before` are the seconds of stretches that are over. `since` is when the one under way began, None where the run
    waits; `newest` is its newest entry: a process that was killed drove the run until then.
    """

    before: float = 0.0
    since: float | None = None
    newest: float = 0.0

    def begin(self, at: float) -> None:
        """A process takes up the run. A stretch that nobody ended was over at its newest entry."""
        self.end()
        self.since = self.newest = at

    def follow(self, at: float) -> None:
        """An entry of the stretch under way."""
        if self.since is not None:
            self.newest = at

    def end(self, at: float | None = None) -> None:
        """The stretch is over, at its newest entry where the time is not known."""
        self.before = self.seconds(self.newest if at is None else at)
        self.since = None

    def seconds(self, now: float) -> float:
        """All seconds until now. A clock that went back takes nothing away."""
        return self.before + (0.0 if self.since is None else max(now - self.since, 0.0))
