"""What a compact worker has decided so far: the summary, the marks within their budget, the references."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from compact_worker.files import Files, Slice
from compact_worker.material import Mark, Reference
from compact_worker.overview import one_line
from compact_worker.summary import Rules, Summary, SummaryRefused, check_summary
from worker.estimate import CONTEXT_TOKENS, estimate_text
from worker.models.base import Family
from worker.tools import ToolFault

REASON_CHARS = 200
"""Characters of the reason of a reference."""

MAX_REFERENCES = 50
"""Files that one compaction names."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a file, both ends included. `to_end` says that the mark goes to the end, however long the file is by
    then."""

    first: int
    last: int
    to_end: bool = False


@dataclass(slots=True)
class Draft:
    """The decisions. Every method that takes a path raises `ToolFault` and then has changed nothing."""

    files: Files
    rules: Rules
    budget: int
    family: Family = "unknown"
    summary: Summary | None = None
    marks: dict[str, tuple[Lines, ...]] = field(default_factory=dict[str, tuple[Lines, ...]])
    costs: dict[str, int] = field(default_factory=dict[str, int])
    references: dict[str, str] = field(default_factory=dict[str, str])
    unmarked: set[str] = field(default_factory=set[str])
    refused: Counter[str] = field(default_factory=Counter[str])

    @property
    def spent(self) -> int:
        """Tokens of the auto-read budget that the marks take."""
        return sum(self.costs.values())

    @property
    def left(self) -> int:
        """Tokens of the auto-read budget that are left."""
        return self.budget - self.spent

    def write(self, text: str) -> Summary:
        """Takes a summary in the place of the last one. Raises `SummaryRefused`; the last valid one then stays."""
        try:
            self.summary = check_summary(text, self.rules)
        except SummaryRefused as e:
            self.refused[e.reason] += 1
            raise
        return self.summary

    async def mark(self, path: str, offset: int = 1, limit: int | None = None) -> tuple[str, int]:
        """Marks lines to be read again; gives the file's name and the tokens that all its marks now take.

        Ranges that overlap or touch become one, and are charged once, by an estimate of the real text.
        """
        wanted = await self.files.slice(path, offset, limit)
        name = wanted.name
        merged = merge([*self.marks.get(name, ()), Lines(wanted.first, wanted.last, limit is None)])
        cost = 0
        for lines in merged:
            found = wanted
            if (lines.first, lines.last) != (wanted.first, wanted.last):
                found = await self.files.slice(path, lines.first, lines.last - lines.first + 1)
            cost += self._cost(found)
        left = self.left + self.costs.get(name, 0)
        if cost > left:
            raise ToolFault(
                f"not marked: {name} would take {cost:,} tokens, and {left:,} of "
                f"auto_read_budget_tokens={self.budget} are left for it. "
                "Mark fewer lines, unmark another file, or add a reference."
            )
        self.marks[name], self.costs[name] = merged, cost
        self.unmarked.discard(name)
        self.references.pop(name, None)
        return name, cost

    def unmark(self, path: str) -> tuple[str, bool]:
        """Takes a file out, its reference too; gives its name and whether it was in. It need not exist. Blocks."""
        name = self.files.show(path)
        known = name in self.marks or name in self.references
        self.marks.pop(name, None)
        self.costs.pop(name, None)
        self.references.pop(name, None)
        self.unmarked.add(name)
        return name, known

    async def refer(self, path: str, reason: str = "") -> str:
        """Names a file without its content; gives its name."""
        name = await self.files.name(path)
        if name not in self.references and len(self.references) >= MAX_REFERENCES:
            raise ToolFault(f"not added: {MAX_REFERENCES} files are referenced already; unmark one that matters less")
        self.unmarked.discard(name)
        if name not in self.marks:
            self.references[name] = one_line(reason)[:REASON_CHARS]
        return name

    def forget_files(self) -> None:
        """Begins the choice of files anew, for a call that brings the whole of it."""
        self.marks.clear()
        self.costs.clear()
        self.references.clear()

    def all_marks(self) -> tuple[Mark, ...]:
        """The marks, file by file, in the order of the lines."""
        return tuple(
            Mark(name, lines.first, None if lines.to_end else lines.last - lines.first + 1)
            for name, ranges in self.marks.items()
            for lines in ranges
        )

    def all_references(self) -> tuple[Reference, ...]:
        """The references, in the order in which they were added."""
        return tuple(Reference(name, reason) for name, reason in self.references.items())

    def _cost(self, found: Slice) -> int:
        header = f"[Auto-read file: {found.name}:{found.first}-{found.last}]\n"
        return CONTEXT_TOKENS + estimate_text(header + found.text, self.family)


def merge(ranges: list[Lines]) -> tuple[Lines, ...]:
    """Ranges in order, those that overlap or touch as one."""
    merged: list[Lines] = []
    for lines in sorted(ranges, key=lambda r: (r.first, r.last)):
        if merged and lines.first <= merged[-1].last + 1:
            old = merged.pop()
            lines = Lines(old.first, max(old.last, lines.last), old.to_end or lines.to_end)
        merged.append(lines)
    return tuple(merged)
