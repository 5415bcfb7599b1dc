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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker.offline.survey_facts import Fact
from worker.offline.survey_task import SECTIONS, Directives

LEFT_OUT = "[word left out]"
"""Stands in a report for a word that must not be used."""

BARE_MARK = "[...]"
"""Stands for it where `LEFT_OUT` would itself use the word."""

NOTHING = {"Definitions": "nothing public", "Todos": "none", "Importers": "nobody"}
"""What a line says of a file without findings."""

_HEAD = 2
_FRAME = 3


class NotInView(Exception):
    """A line needs the facts of a file that the request does not show; `path` names it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class Report:
    """The lines of a report. `facts` gives a file's facts or None; `importers` the importer of each file that has
    one."""

    directives: Directives
    files: Sequence[str]
    facts: Callable[[str], Sequence[Fact] | None]
    importers: Mapping[str, tuple[str, int]]

    def __len__(self) -> int:
        return _HEAD + len(SECTIONS) * (len(self.files) + _FRAME) + (self.directives.last_line is not None)

    def line(self, number: int) -> str:
        """One line, counted from 0, without forbidden words. Raises `NotInView`."""
        return without(self._line(number), self.directives.forbidden)

    def _line(self, number: int) -> str:
        if number < _HEAD:
            return f"# {self.directives.title}" if number == 0 else ""
        section, row = divmod(number - _HEAD, len(self.files) + _FRAME)
        if section == len(SECTIONS):
            return self.directives.last_line or ""
        name = self.directives.order[section]
        if row == 0:
            return f"## {name}"
        if row == 1 or row == len(self.files) + _FRAME - 1:
            return ""
        path = self.files[row - 2]
        return f"- `{path}`: {self._finding(name, path) or NOTHING[name]}"

    def _finding(self, section: str, path: str) -> str:
        if section == "Importers":
            found = self.importers.get(path)
            return f"`{found[0]}` ({found[1]})" if found else ""
        facts = self.facts(path)
        if facts is None:
            raise NotInView(path)
        if facts[-1].unreadable:
            return f"not readable ({facts[-1].carry})"
        if section == "Definitions":
            return ", ".join(name for fact in facts for name in fact.definitions)
        return " | ".join(f"{line}: {text}" for fact in facts for line, text in fact.todos)


def without(text: str, words: Sequence[str]) -> str:
    """`text` with each of these words, whole and in any letter case, replaced by a mark."""
    for word in words:
        mark = BARE_MARK if any(_whole(each).search(LEFT_OUT) for each in words) else LEFT_OUT
        text = _whole(word).sub(mark, text)
    return text


def _whole(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
