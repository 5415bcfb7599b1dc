"""Running totals of who imports each file most, as lines of the notes: no request must show all facts at once.

Totals cover a range of imported files and are taken over the facts of all files, in the order of the notes. Where more
files are imported than one range may have, the facts are gone through again for the next range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from worker.offline.survey_facts import Fact, imported_name, imported_path

RANGE = 160
"""Imported files that one range has at most."""

ENTRIES = 40
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


@dataclass(slots=True)
class Totals:
    """Totals over the notes up to line `at`; facts end at line `end`, and `files` Python files are noted.

    They are of the imported files from `low` on and before `high` (None: to the last). `done` has the totals of earlier
    ranges: the last line of each, and where its range begins.
    """

    end: int
    files: int
    at: int = 0
    low: str = ""
    high: str | None = None
    best: Importers = field(default_factory=dict[str, tuple[str, int]])
    done: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

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

    def following(self, number: int) -> Totals:
        """The totals of the next range, before anything is counted; these here end at line `number` of the notes."""
        return Totals(self.end, self.files, 0, self.high or "", None, {}, [*self.done, (number, self.low)])

    def lines(self, before: int) -> list[str]:
        """The totals as lines of the notes; `before` lines that belong to them stand in front."""
        flat: list[list[Any]] = [[self.files, self.low, self.high, self.done]]
        targets = sorted(self.best)
        for at in range(0, len(targets), ENTRIES):
            entries: list[Any] = []
            last = ""
            for target in targets[at : at + ENTRIES]:
                importer, count = self.best[target]
                entries += [imported_name(target, last), imported_name(importer, target), count]
                last = target
            flat.append(entries)
        rows = (["=", self.at, self.end, before, len(flat), number, part] for number, part in enumerate(flat))
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]


def is_totals(row: Sequence[Any]) -> bool:
    """Whether a row belongs to totals: where they are, the end of the facts, lines before, rows, which of them, and
    what they say."""
    return len(row) == 7 and row[0] == "="


def span(number: int, row: Sequence[Any]) -> tuple[int, int]:
    """The first and the last line of the totals to which a row in line `number` belongs, with the lines before."""
    return number - row[5] - row[3], number - row[5] + row[4] - 1


def read_totals(lines: Mapping[int, str], last: int) -> Totals:
    """The totals that end in line `last`; all their lines must be there."""
    row = row_of(lines[last])
    first = span(last, row)[0] + row[3]
    files, low, high, done = row_of(lines[first])[6]
    totals = Totals(row[2], files, row[1], low, high, {}, [(number, start) for number, start in done])
    for number in range(first + 1, last + 1):
        entries = row_of(lines[number])[6]
        target = ""
        for at in range(0, len(entries), 3):
            target = imported_path(entries[at], target)
            totals.best[target] = (imported_path(entries[at + 1], target), entries[at + 2])
    return totals


def counted(facts: Iterable[Fact]) -> Importers:
    """The totals over the whole facts of all files."""
    best: Importers = {}
    for fact in facts:
        add(best, fact)
    return best
