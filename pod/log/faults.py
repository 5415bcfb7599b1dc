"""Where a log is not whole, and what was lost there: one pass, for the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.lines import Line
from pod.log.segment import Damage, scan, stands_for


@dataclass(frozen=True, slots=True)
class Fault:
    """A stretch of a log between whole entries that holds none.

    `length` is 0 where entries are missing without a trace. `first` is the number that the entry in this place should
    have, `numbers` how many entries are known to be lost. `torn` says that no whole entry follows, `committed` that an entry
    in it was written to its end, and its body does not read: no run cuts it off.
    """

    offset: int
    length: int
    line: int
    reason: str
    first: int
    numbers: int
    torn: bool
    committed: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """A log as a whole: `start` is its first entry, or None where that is lost."""

    start: e.SegmentStarted | None
    first_seq: int
    next_seq: int
    entries: int
    size: int
    faults: tuple[Fault, ...]

    @property
    def torn(self) -> bool:
        """Whether it ends with a torn tail."""
        return bool(self.faults) and self.faults[-1].torn


def survey(path: Path) -> Survey:
    """Reads a log to its end; an entry whose body does not read is a fault too. Raises `NewerFormat`, `OSError`."""
    start: e.SegmentStarted | None = None
    first = following = count = 0
    faults: list[Fault] = []
    held: list[Damage] = []
    size = path.stat().st_size
    for found in scan(path):
        if isinstance(found, Damage):
            held.append(found)
            continue
        try:
            record = e.record_of(found, path)
        except LogDamaged as error:
            held.append(_unreadable(found, error.reason[:200]))
            continue
        if held:
            lost_start = not count and not isinstance(record, e.SegmentStarted)
            faults.append(_fault(held, following, before=found if lost_start else None))
            held = []
        if not count:
            first = found.seq
            start = record if isinstance(record, e.SegmentStarted) else None
        count += 1
        following = found.seq + stands_for(found)
    if held:
        faults.append(_fault(held, following or 1, size=size))
    return Survey(start, first, following or 1, count, size, tuple(faults))


def _unreadable(line: Line, reason: str) -> Damage:
    return Damage(line.offset, line.length, line.number, reason, first=line.seq, numbers=stands_for(line))


def _fault(held: list[Damage], following: int, *, before: Line | None = None, size: int | None = None) -> Fault:
    """One fault of all damage between two whole entries; blank lines between go with it.

    `before` is the entry after a lost beginning: at least the number before it is lost. `size` is that of the file,
    for its end.
    """
    begin = held[0].offset
    end = size if size is not None else max(d.offset + d.length for d in held)
    numbers = sum(d.numbers for d in held)
    first = following or min((d.first for d in held if d.numbers), default=0)
    if before is not None and not numbers:
        first, numbers = max(before.seq - 1, 0), 1
    reason = "; ".join(dict.fromkeys(d.reason for d in held[:4]))
    committed = any(d.length and d.numbers for d in held)
    return Fault(begin, end - begin, held[0].number, reason, first, numbers, size is not None, committed)
