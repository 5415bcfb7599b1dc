"""The notes of a survey, read back in parts: how far it came, who imports what, and the report, piece by piece.

    ["#","survey notes: ..."]
    0 ["src/a.py",1,300,420,"|0|x","open_reader",...]      a page: see `worker.offline.survey_facts`
    0 ["src/a.py",301,420,420,...]                         the next page of the same file
    ["!src/NOTE.txt","Last line: The end."]                what was met, before the page that ends its file
    ["~",...]  ["=",...]                                   totals and their end: see `worker.offline.survey_totals`
    ["+",7,120,180,"- `src/a.py`: open_reader, ...",0]     line 7 of the report, as far as lines up to 120 say it

Each page says only what stands in it (but for its imports, which are all of its file so far), so notes grow as files do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from worker.estimate import estimate_text
from worker.offline import survey_totals as st
from worker.offline.survey_facts import MARKED, NAMED, Fact, read_fact
from worker.offline.survey_report import Frame
from worker.offline.survey_totals import Totals

NOTE_LINES = 100
"""Lines of the notes that are read back at once, at most."""

NOTE_BYTES = 12_000
"""Bytes of them, as far as the lines in view tell how long lines are."""

LINE_BYTES = 16_000
"""Bytes of a line of the report that is put together from more pages than are in view; the rest is only counted."""


class Unread(Exception):
    """Lines of the notes must be read first: `parts` has the first of them and how many."""

    def __init__(self, *parts: tuple[int, int]) -> None:
        super().__init__(parts)
        self.parts = parts


class Mark(NamedTuple):
    """How much of the report is known: `lines` lines are written, and the next is `text` as far as the notes up to line
    `since` say it; `more` findings were left out. The newest totals end in line `totals`."""

    lines: int
    since: int
    totals: int
    text: str
    more: int

    def line(self) -> str:
        """The mark as a line of the notes."""
        return json.dumps(["+", *self], ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class End:
    """What stands at the end of the notes: the last page, or the totals that ended in line `number`."""

    fact: Fact | None = None
    totals: Totals | None = None
    number: int = 0
    mark: Mark | None = None


class Notes:
    """Lines of the notes that are in view, by number, of `total` lines; pages stand in the first `pages` of them."""

    def __init__(self, lines: Mapping[int, str], total: int) -> None:
        self.lines = lines
        self.total = total
        self.pages = total
        self._facts: dict[int, Fact | None] = {}
        self._totals: dict[st.Range, st.Importers] = {}

    def limit(self, offset: int) -> int:
        """How many lines with pages are to be read back at once, from this one on."""
        sizes = [len(line.encode()) for line in self.lines.values() if not line.startswith(('["=', '["+'))]
        fitting = max(NOTE_BYTES * len(sizes) // max(sum(sizes), 1), 1) if sizes else NOTE_LINES
        return max(min(fitting, NOTE_LINES, self.pages - offset + 1), 1)

    def fact(self, number: int) -> Fact | None:
        """The page in a line, None where it holds something else. Raises `Unread`."""
        if number not in self.lines:
            raise Unread((number, self.limit(number)))
        if number not in self._facts:
            found = read_fact(self.lines[number])
            self._facts[number] = found if isinstance(found, Fact) else None
        return self._facts[number]

    def end(self) -> End:
        """What stands at the end. Raises `Unread`."""
        mark: Mark | None = None
        number = self.total
        while number > 0:
            if number not in self.lines:
                raise Unread((number, 1))
            row = st.row_of(self.lines[number])
            if st.is_totals(row):
                between = number - row[5]
                if not all(line in self.lines for line in range(between, number)):
                    raise Unread((between, number - between))
                return End(totals=st.read_end(number, row), number=number, mark=mark)
            if row and row[0] == "+":
                mark = mark or Mark(*row[1:])
                number = row[3] or number - 1
                continue
            fact = self.fact(number)
            if fact is not None:
                return End(fact, number=number, mark=mark)
            number -= 1
        return End(mark=mark)

    def count(self, totals: Totals) -> None:
        """Counts what follows in view. Raises `Unread` where what was counted before is not in view."""
        if totals.best_at is not None:
            following = totals.at + 1
            missing = self._missing(totals.best_at)
            if missing:
                wanted = [(following, self.limit(following))] if following not in self.lines else []
                raise Unread(missing, *wanted)
            totals.best = self._best(totals.best_at)
        while totals.at < totals.end and totals.at + 1 in self.lines:
            totals.take(self.fact(totals.at + 1))

    def importer(self, path: str, totals: Totals) -> tuple[str, int] | None:
        """Who imports a file most, from totals that are complete. Raises `Unread`."""
        place = totals.best_at
        if not totals.covers(path):
            place = next(each for each in reversed(totals.done) if each.low <= path)
        if place is None:
            return totals.best.get(path)
        missing = self._missing(place)
        if missing:
            raise Unread(missing)
        return self._best(place).get(path)

    def _missing(self, place: st.Range) -> tuple[int, int] | None:
        missing = [number for number in range(place.first, place.last + 1) if number not in self.lines]
        return (missing[0], place.last - missing[0] + 1) if missing else None

    def _best(self, place: st.Range) -> st.Importers:
        if place not in self._totals:
            self._totals[place] = st.read_entries(self.lines[n] for n in range(place.first, place.last + 1))
        return self._totals[place]

    def first_page(self, file: int) -> int:
        """The line of the first page of a Python file, by its number. Raises `Unread`."""
        low, low_file = 1, -1
        high, high_file = self.pages + 1, file + 1
        same: Fact | None = None
        for number in sorted(self.lines):
            fact = self.fact(number) if number <= self.pages else None
            if fact is None or fact.number is None:
                continue
            if fact.number == file and fact.first == 1 and is_python(fact):
                return number
            if fact.number < file or (fact.number == file and not is_python(fact)):
                low, low_file = number, fact.number
            elif number < high:
                high, high_file, same = number, fact.number, fact if fact.number == file else None
        offset = low + 1
        if same is not None:
            # A later page of the file: its pages are of one size, as a rule.
            offset = max(high - (same.first - 1) // max(same.last - same.first + 1, 1) - 2, offset)
        elif high - low > NOTE_LINES:
            guess = low + (file - low_file) * (high - low) // max(high_file - low_file, 1) - NOTE_LINES // 4
            quarter = (high - low) // 4
            # Files differ in length, so each step leaves out a quarter of what is in question.
            offset = min(max(guess, low + (quarter if quarter > NOTE_LINES else 1)), high - quarter)
        while offset in self.lines and offset < high - 1:
            offset += 1
        raise Unread((offset, self.limit(offset)))


def is_python(fact: Fact) -> bool:
    """Whether a file is one of those that the report is about."""
    return fact.path.endswith(".py")


class Part(NamedTuple):
    """The next part of a report: whole lines, or a mark that says what is known of the next line."""

    text: str
    mark: Mark | None = None


@dataclass(slots=True)
class Writer:
    """Makes the report from the notes. What a line says may stand in more pages than are ever in view at once."""

    frame: Frame
    notes: Notes
    end: End
    totals: Totals
    room: int

    def part(self, lines: int) -> Part:
        """What follows the first lines of the report, or a better mark for the next line. Raises `Unread`."""
        mark = self.end.mark
        if mark is None or mark.lines != lines:
            mark = Mark(lines, 0, 0, "", 0)
        text, spent, row = "", 0, mark.since
        while lines < len(self.frame):
            section, file = self.frame.place(lines)
            try:
                if file is None:
                    line = self.frame.line(lines)
                else:
                    mark, row = self._line(section, file, mark, row)
                    if row < 0:
                        return Part(text) if text else Part("", mark)
                    line = mark.text + (f", and {mark.more} more, too many for this line" if mark.more else "")
            except Unread:
                if text:
                    return Part(text)
                raise
            line = self.frame.without(line)
            spent += estimate_text(line, "o200k") + 1
            if spent > self.room and text:
                break
            text += line + "\n"
            lines += 1
            mark = Mark(lines, 0, 0, "", 0)
        return Part(text)

    def _line(self, section: str, file: int, mark: Mark, behind: int) -> tuple[Mark, int]:
        """A line and the line of the notes with which it ends; -1 where pages are missing and the mark is better."""
        row = mark.since + 1 if mark.since else self._start(file, behind)
        text, more = mark.text, mark.more
        while True:
            try:
                fact = self.notes.fact(row)
            except Unread:
                if row - 1 <= mark.since or not text:
                    raise
                return Mark(mark.lines, row - 1, self.end.number if self.end.totals else 0, text, more), -1
            if fact is not None and is_python(fact):
                piece, count = self._piece(section, fact)
                if not count or not text or (not more and len(text) + len(piece) <= LINE_BYTES):
                    text += piece
                else:
                    more += count
                if fact.final or section == "Importers":
                    return Mark(mark.lines, row, 0, text, more), row
            row += 1

    def _start(self, file: int, behind: int) -> int:
        """The line of the first page of a file; those behind line `behind` are looked at first."""
        while behind and behind < self.totals.end:
            behind += 1
            fact = self.notes.fact(behind)
            if fact is not None and fact.first == 1 and is_python(fact) and fact.number == file:
                return behind
        return self.notes.first_page(file)

    def _piece(self, section: str, fact: Fact) -> tuple[str, int]:
        """What a page adds to a line, and how many findings that is."""
        start = f"- `{fact.path}`: " if fact.first == 1 else ""
        if section == "Importers":
            found = self.notes.importer(fact.path, self.totals)
            return start + self.frame.said(section, [f"`{found[0]}` ({found[1]})"] if found else []), 0
        found = self.frame.found(section, [fact])
        earlier = bool(fact.flags & (NAMED if section == "Definitions" else MARKED))
        if earlier and found:
            start += self.frame.between(section)
        said = self.frame.said(section, found) if found or (fact.final and not earlier) else ""
        return start + said, len(found)
