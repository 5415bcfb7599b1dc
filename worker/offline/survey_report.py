"""The report of a survey, line by line: each line is a function of its number, so that it can be written in parts.

    # Title

    ## Definitions

    - `src/a.py`: Reader, open_reader
    ...

Each section has one line for each file, in the order of their paths. Definitions names the public classes and
functions of the top level in their order; Todos the lines that hold TODO or FIXME, with their numbers, at most 160
characters of each; Importers the other file with most import statements that name the file (ties by path), and their
count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.offline.survey_facts import Fact
from worker.offline.survey_task import SECTIONS, Directives

LEFT_OUT = "[word left out]"
"""Stands in a report for a word that must not be used."""

BARE_MARK = "[...]"
"""Stands for it where `LEFT_OUT` would itself use the word."""

NOTHING = {"Definitions": "nothing public", "Todos": "none", "Importers": "nobody"}
"""What a line says of a file without findings."""

_BETWEEN = {"Definitions": ", ", "Todos": " | "}
_HEAD = 2
_FRAME = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """Which lines a report on so many files has."""

    directives: Directives
    files: int

    def __len__(self) -> int:
        return _HEAD + len(SECTIONS) * (self.files + _FRAME) + (self.directives.last_line is not None)

    def place(self, number: int) -> tuple[str, int | None]:
        """The section of a line, counted from 0, and the number of the file that it is about, if there is one."""
        section, row = divmod(number - _HEAD, self.files + _FRAME)
        if number < _HEAD or section == len(SECTIONS):
            return "", None
        return self.directives.order[section], row - 2 if 2 <= row < self.files + 2 else None

    def line(self, number: int) -> str:
        """A line that is about no file."""
        if number < _HEAD:
            return f"# {self.directives.title}" if number == 0 else ""
        section, row = divmod(number - _HEAD, self.files + _FRAME)
        if section == len(SECTIONS):
            return self.directives.last_line or ""
        return f"## {self.directives.order[section]}" if row == 0 else ""

    def found(self, section: str, facts: Sequence[Fact]) -> list[str]:
        """What these facts about a file have for Definitions or Todos."""
        if facts and facts[-1].unreadable:
            return [f"not readable ({facts[-1].carry})"]
        if section == "Definitions":
            return [name for fact in facts for name in fact.definitions]
        return [f"{line}: {text}" for fact in facts for line, text in fact.todos]

    def said(self, section: str, found: Sequence[str]) -> str:
        """Findings as the line says them."""
        return self.between(section).join(found) or NOTHING[section]

    def between(self, section: str) -> str:
        """What stands between two findings."""
        return _BETWEEN.get(section, "")

    def without(self, text: str) -> str:
        """`text` without forbidden words."""
        return without(text, self.directives.forbidden)


def report_line(frame: Frame, number: int, facts: Sequence[Fact], importers: Mapping[str, tuple[str, int]]) -> str:
    """One line, counted from 0, without forbidden words; `facts` has one whole fact for each file."""
    section, file = frame.place(number)
    if file is None:
        return frame.without(frame.line(number))
    fact = facts[file]
    if section == "Importers":
        best = importers.get(fact.path)
        found = [f"`{best[0]}` ({best[1]})"] if best else []
    else:
        found = frame.found(section, [fact])
    return frame.without(f"- `{fact.path}`: {frame.said(section, found)}")


def without(text: str, words: Sequence[str]) -> str:
    """`text` with each of these words, whole and in any letter case, replaced by a mark."""
    for word in words:
        mark = BARE_MARK if any(_whole(each).search(LEFT_OUT) for each in words) else LEFT_OUT
        text = _whole(word).sub(mark, text)
    return text


def _whole(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
