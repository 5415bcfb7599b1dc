"""Running totals of who imports each file most, as lines of the notes: no request must show all facts at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from worker.offline.survey_facts import Fact

ENTRIES = 400
"""Entries in one line of totals."""

Importers = dict[str, tuple[str, int]]
"""For each file that is imported: the file with most statements that name it so far, and how many."""


def row_of(line: str) -> list[Any]:
    """A line of the notes as what it holds; empty for any other line."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        return []
    return cast("list[Any]", row) if isinstance(row, list) else []


def is_totals(row: Sequence[Any]) -> bool:
    """Whether a row belongs to totals: stops that they cover, all stops, part, parts, entries, end of the facts."""
    return len(row) == 7 and row[0] == "="


def add(best: Importers, path: str, facts: Iterable[Fact]) -> None:
    """Takes the imports of one more file into the totals; paths come in order, so the first of equals stays."""
    tally: Counter[str] = Counter()
    for fact in facts:
        tally.update(dict(fact.imports))
    for target, count in tally.items():
        if count > best.get(target, ("", 0))[1]:
            best[target] = (path, count)


def lines_of(best: Mapping[str, tuple[str, int]], stops: Sequence[str], done: int, end: int) -> list[str]:
    """Totals over the first `done` stops as lines; `end` is the last line of the notes that holds a fact."""
    index = {path: number for number, path in enumerate(stops)}
    entries = [f"{index[target]}:{index[path]}:{count}" for target, (path, count) in sorted(best.items())]
    parts = [entries[at : at + ENTRIES] for at in range(0, len(entries), ENTRIES)] or [[]]
    rows = (["=", done, len(stops), number, len(parts), " ".join(part), end] for number, part in enumerate(parts))
    return [json.dumps(row, separators=(",", ":")) for row in rows]


def read_totals(lines: Iterable[str], stops: Sequence[str]) -> tuple[int, Importers]:
    """The totals over most stops among these lines, and over how many; lines of another set of stops do not count."""
    parts: dict[int, dict[int, list[Any]]] = {}
    for row in map(row_of, lines):
        if is_totals(row) and row[2] == len(stops):
            parts.setdefault(row[1], {})[row[3]] = row
    whole = [done for done, rows in parts.items() if len(rows) == next(iter(rows.values()))[4]]
    if not whole:
        return 0, {}
    best: Importers = {}
    for row in parts[max(whole)].values():
        for entry in row[5].split():
            target, importer, count = (int(part) for part in entry.split(":"))
            best[stops[target]] = (stops[importer], count)
    return max(whole), best


def end_of_facts(lines: Iterable[str], total: int) -> int:
    """The last line of notes of `total` lines that holds a fact, as far as these lines tell."""
    return min((row[6] for row in map(row_of, lines) if is_totals(row)), default=total)
