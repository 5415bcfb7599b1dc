"""Running totals of who imports each file most, as lines of the notes: no request must show all facts at once.

Totals cover a range of imported files and are taken over the facts of all files, in the order of the notes. Where more
files are imported than one range may have, the facts are gone through again for the next range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from worker.offline.survey_facts import Fact, imported_name, imported_path

RANGE = 200
"""Imported files that one range has at most."""

ENTRIES = 20
"""Files in one line of totals."""

Importers = dict[str, tuple[str, int]]
"""For each file that is imported: the file with most statements that name it so far, and how many."""


def row_of(line: str) -> list[Any]:
    """A line of the notes as what it holds; empty for any other line."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        return []
    return cast("list[Any]", row) if isinstance(row, list) else []


def add(best: Importers, fact: Fact) -> None:
    """Takes the imports of one more file into totals; of equal counts the first path stays."""
    for target, count in fact.imports:
        known, most = best.get(target, ("", 0))
        if count > most or (count == most and fact.path < known):
            best[target] = (fact.path, count)


class Range(NamedTuple):
    """Where the totals of a range stand: lines of the notes (`last` below `first`: none), and with which file it begins."""

    first: int
    last: int
    low: str


@dataclass(slots=True)
class Totals:
    """Totals over the notes up to line `at`; facts end at line `end`, and `files` Python files are noted.

    They are of the imported files from `low` on and before `high` (None: to the last). `done` has the earlier ranges.
    Totals that were read back stand in the lines of `best_at`, and are `best` once these lines are in view.
    """

    end: int
    files: int
    at: int = 0
    low: str = ""
    high: str | None = None
    best: Importers = field(default_factory=dict[str, tuple[str, int]])
    done: list[Range] = field(default_factory=list[Range])
    best_at: Range | None = None

    @property
    def complete(self) -> bool:
        """Whether all facts are counted, for all files."""
        return self.at >= self.end and self.high is None

    def take(self, fact: Fact | None) -> None:
        """Counts the next line of the notes: the last fact of a file has all its imports."""
        self.at += 1
        if fact is None or not fact.final or not fact.imports:
            return
        inside = tuple(each for each in fact.imports if self.covers(each[0]))
        add(self.best, Fact(fact.path, 1, 0, 0, imports=inside))
        while len(self.best) > RANGE:
            self.high = max(self.best)
            del self.best[self.high]

    def covers(self, path: str) -> bool:
        """Whether a file is in the range."""
        return self.low <= path and (self.high is None or path < self.high)

    def following(self) -> Totals:
        """The totals of the next range, before anything is counted."""
        done = [*self.done, self.best_at] if self.best_at else self.done
        return Totals(self.end, self.files, 0, self.high or "", None, {}, done)

    def lines(self, between: Sequence[str]) -> list[str]:
        """The totals as lines of the notes, with lines that belong to them between entries and end."""
        rows: list[list[Any]] = []
        targets = sorted(self.best)
        for at in range(0, len(targets), ENTRIES):
            entries: list[Any] = []
            last = ""
            for target in targets[at : at + ENTRIES]:
                importer, count = self.best[target]
                entries += [imported_name(target, last), imported_name(importer, target), count]
                last = target
            rows.append(["~", *entries])
        end: list[Any] = ["=", self.at, self.end, self.files, len(rows), len(between), self.low, self.high, self.done]
        return [*map(_line, rows), *between, _line(end)]


def is_totals(row: Sequence[Any]) -> bool:
    """Whether a row ends totals: where they are, the end of the facts, files, lines of entries, lines between, the
    range, and the earlier ranges."""
    return len(row) == 9 and row[0] == "="


def read_end(number: int, row: Sequence[Any]) -> Totals:
    """The totals that end in line `number` of the notes with this row, without their entries."""
    _, at, end, files, count, between, low, high, done = row
    first = number - between - count
    here = Range(first, first + count - 1, low)
    return Totals(end, files, at, low, high, {}, [Range(*each) for each in done], here)


def read_entries(lines: Iterable[str]) -> Importers:
    """The entries in lines of totals."""
    best: Importers = {}
    for line in lines:
        entries = row_of(line)[1:]
        target = ""
        for at in range(0, len(entries), 3):
            target = imported_path(entries[at], target)
            best[target] = (imported_path(entries[at + 1], target), entries[at + 2])
    return best


def _line(row: Sequence[Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def counted(facts: Iterable[Fact]) -> Importers:
    """The totals over the whole facts of all files."""
    best: Importers = {}
    for fact in facts:
        add(best, fact)
    return best
