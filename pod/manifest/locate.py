"""Where each key of a TOML file stands.

The standard parser gives values without their places. This scanner reads a text that the parser has accepted and
notes the line and the column of each key and table header; it checks nothing itself.
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

from pod.manifest.errors import KeyPath


class Position(NamedTuple):
    """Line and column, both from 1; the column counts characters."""

    line: int
    column: int


class Twice(NamedTuple):
    """A key or a table that stands there again, with both places."""

    path: KeyPath
    first: Position
    second: Position
    table: bool


_BLANK = " \t"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^,\]}#\r\n]+")


def locate(text: str) -> dict[KeyPath, Position]:
    """The place of each key and each table of a valid TOML text.

    Arrays of tables, and arrays that hold inline tables, have their index (from 0) in the path. A table that
    several headers or dotted keys make has the place of the first.
    """
    return _Scanner(text.replace("\r\n", "\n")).run()


def twice(text: str, line: int) -> Twice | None:
    """What the last line of a text says again, where the parser found that it does. The text may end anywhere."""
    scanner = _Scanner(text)
    try:
        scanner.run()
    except (IndexError, ValueError, RecursionError):
        pass  # it ends in the middle of something; what stands twice was met before that
    again = scanner.again
    return again if again is not None and again.second.line == line else None


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.found: dict[KeyPath, Position] = {}
        self.counts: dict[KeyPath, int] = {}
        self.again: Twice | None = None

    def run(self) -> dict[KeyPath, Position]:
        table: KeyPath = ()
        while self._skip_space(newlines=True):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.found

    def _here(self) -> Position:
        return Position(self.line, self.at - self.line_start + 1)

    def _note(self, path: KeyPath, place: Position) -> None:
        self.found.setdefault(path, place)

    def _note_last(self, path: KeyPath, place: Position, *, table: bool) -> None:
        """The place of the key or the table that a statement is about: it should be new."""
        if path in self.found:
            self.again = Twice(path, self.found[path], place, table)
        self._note(path, place)

    def _advance(self, end: int) -> None:
        """Moves to `end`, counting the lines passed."""
        passed = self.text.count("\n", self.at, end)
        if passed:
            self.line += passed
            self.line_start = self.text.rindex("\n", self.at, end) + 1
        self.at = end

    def _skip_space(self, *, newlines: bool) -> bool:
        """Passes white space and comments. False at the end of the text."""
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in _BLANK:
                self.at += 1
            elif newlines and character == "\n":
                self._advance(self.at + 1)
            elif newlines and character == "#":
                end = self.text.find("\n", self.at)
                self._advance(len(self.text) if end < 0 else end)
            else:
                return True
        return False

    def _header(self) -> KeyPath:
        repeated = self.text.startswith("[[", self.at)
        place = self._here()
        self.at += 2 if repeated else 1
        parts = [part for part, _ in self._keys()]
        path: KeyPath = ()
        for number, part in enumerate(parts):
            path += (part,)
            last = number == len(parts) - 1
            if last and not (repeated and path in self.counts):
                self._note_last(path, place, table=True)
            self._note(path, place)
            if last and repeated:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path += (self.counts[path],)
                self._note(path, place)
        self.at += 2 if repeated else 1
        return path

    def _keys(self) -> list[tuple[str, Position]]:
        """A key with its dots; ends behind it, on `=` or `]`."""
        keys: list[tuple[str, Position]] = []
        while True:
            self._skip_space(newlines=False)
            place = self._here()
            if self.text[self.at] in "\"'":
                keys.append((self._string(), place))
            else:
                bare = _BARE.match(self.text, self.at)
                if bare is None:
                    raise ValueError(f"no key at line {place.line}, column {place.column}")
                self.at = bare.end()
                keys.append((bare[0], place))
            self._skip_space(newlines=False)
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def _pair(self, table: KeyPath) -> None:
        path = table
        keys = self._keys()
        for number, (part, place) in enumerate(keys, 1):
            path += (part,)
            if number == len(keys):
                self._note_last(path, place, table=False)
            else:
                self._note(path, place)
        self.at += 1
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip_space(newlines=False)
        character = self.text[self.at]
        if character == "[":
            self._array(path)
        elif character == "{":
            self._inline_table(path)
        elif character in "\"'":
            self._string()
        else:
            atom = _ATOM.match(self.text, self.at)
            self._advance(atom.end() if atom else self.at + 1)

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._skip_space(newlines=True) and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            place = self._here()
            if self.text[self.at] == "{":
                self._note((*path, index), place)
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip_space(newlines=True) and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._pair(path)
        self.at += 1

    def _string(self) -> str:
        quote = self.text[self.at]
        start = self.at
        if self.text.startswith(quote * 3, start):
            end = self._end_of_long(quote, start + 3)
            self._advance(end)
            return ""
        end = start + 1
        while self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        self.at = end + 1
        inner = self.text[start + 1 : end]
        if quote == "'" or "\\" not in inner:
            return inner
        return str(tomllib.loads(f"v = {self.text[start : end + 1]}")["v"])

    def _end_of_long(self, quote: str, end: int) -> int:
        while not self.text.startswith(quote * 3, end):
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        end += 3
        # Up to two quotes may stand directly before the closing three: they belong to the text.
        for _ in range(2):
            if end < len(self.text) and self.text[end] == quote:
                end += 1
        return end
