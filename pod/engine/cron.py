"""Cron texts: when a schedule is due, in its time zone, as cron itself does it.

Fields, names, steps and what happens when clocks change are the library's (cronsim, which follows Debian's cron). Seconds, which cron
does not have, it treats apart from that: so here it is asked for the minutes alone, and the seconds are counted within each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from pod.errors import UsageProblem
from worker.errors import way_to_install

if TYPE_CHECKING:
    from cronsim import CronSim

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Words for whole texts."""

LONGEST = 200
"""Characters of a cron text."""

FORM = "five fields (minute hour day month weekday), six with seconds before them, or a word such as @daily"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron text in a time zone. Made by `cron_of`, which looks whether it can be one. Times are seconds since 1970."""

    text: str
    zone: str
    five: str = field(repr=False)
    seconds: tuple[int, ...] = field(repr=False)

    def after(self, moment: float) -> float | None:
        """The first time after a moment; None where there is none within 50 years."""
        return next(self.times(moment), None)

    def times(self, after: float) -> Iterator[float]:
        """All times after a moment, in order."""
        for minute in _minutes(self.five, self.zone, after):
            start = minute.timestamp()
            for second in self.seconds:
                # A minute that clocks go through twice is met at its first time, so one that is over may come once more.
                if start + second > after:
                    yield start + second

    def newest(self, after: float, until: float) -> float | None:
        """The last time after one moment and not after another; None where there is none."""
        low, high = int(after), int(until) + 1
        found = self.after(after)
        if found is None or found > until:
            return None
        # The next time never falls as its moment rises, so halving finds the last moment whose next time is not past the end.
        while high - low > 1:
            middle = (low + high) // 2
            following = self.after(middle)
            if following is not None and following <= until:
                low, found = middle, following
            else:
                high = middle
        return found


@lru_cache(maxsize=256)
def cron_of(text: str, zone: str) -> Cron:
    """A cron text in a time zone. Raises `UsageProblem` where it is none, where there is no such zone, or where it never comes."""
    _zone(zone)
    fields = NAMED.get(text.strip().lower(), text).split()
    if len(fields) not in {5, 6} or len(text) > LONGEST:
        raise UsageProblem(f"{text[:LONGEST]!r} is no cron text: it should be {FORM}")
    whole = _library(text, " ".join(fields), datetime.now(UTC))
    cron = Cron(text, zone, " ".join(fields[-5:]), tuple(sorted(whole.seconds)))
    if cron.after(datetime.now(UTC).timestamp()) is None:
        raise UsageProblem(f"{text!r} never comes: no day within 50 years is one of these")
    return cron


def local(moment: float, zone: str) -> datetime:
    """A time as the clocks of a zone show it."""
    return datetime.fromtimestamp(moment, _zone(zone))


def _minutes(five: str, zone: str, after: float) -> Iterator[datetime]:
    """The minutes of a text from the one on in which a moment lies; a few before it may come as well."""
    start = datetime.fromtimestamp(after, UTC) - timedelta(minutes=1)
    found = _library(five, five, start.astimezone(_zone(zone)))
    return itertools.dropwhile(lambda minute: minute.timestamp() + 60 <= after, found)


def _library(text: str, five: str, start: datetime) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise UsageProblem(f"schedules need the extra `dbos`: {way_to_install('dbos')}") from None
    try:
        return CronSim(five, start)
    except CronSimError as error:
        raise UsageProblem(f"{text!r} is no cron text ({str(error).lower()}): it should be {FORM}") from None


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    """A time zone. Raises `UsageProblem` where there is none of this name."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a name that leads out of the folder of zones, a folder, no zone
        raise UsageProblem(
            f"there is no time zone {name[:80]!r}: it should be a name such as UTC, Europe/Berlin or America/New_York"
        ) from None
