"""What is wrong with a text that is no TOML: the place, the key that stands twice, the line itself."""

from __future__ import annotations

import re
from typing import NamedTuple

from pod.manifest.errors import Problem, key_label
from pod.manifest.locate import Twice, twice
from pod.manifest.secrets import may_hold_secret

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TWICE = re.compile(r"Cannot overwrite a value|Cannot declare .* twice|Duplicate inline table key")
_TOKENS = re.compile(
    r"\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|#[^\n]*|[\[\]{}]", re.DOTALL
)
_WORD = re.compile(r"[^\W\d][\w.-]*")
BEFORE, SHOWN = 40, 80
"""Characters of a long line that are shown before the place, and in all."""


class Place(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


def syntax_problem(message: str, text: str, file: str) -> Problem:
    """The problem that the parser's own `message` about a text tells."""
    lines = lines_of(text)
    found = _PLACE.search(message)
    if found is None:
        return Problem(f"is not valid TOML: {message}", file=file)
    said = message[: found.start()]
    if not found[1]:
        last = lines if lines[-1] or len(lines) == 1 else lines[:-1]
        place = Place(len(last), len(last[-1]) + 1)
    else:
        place = Place(int(found[1]), int(found[2]))
    if _TWICE.match(said) and (again := twice("\n".join(lines[: place.line]), place.line)) is not None:
        return _stands_twice(again, lines, file)
    return Problem(
        f"is not valid TOML: {said}", file=file, line=place.line, column=place.column, hint=_hint(said, lines, place),
        excerpt=excerpt_of(lines, place),
    )  # fmt: skip


def _hint(said: str, lines: list[str], place: Place) -> str:
    """What a word that is no value may be meant as."""
    word = _WORD.match(lines[place.line - 1], place.column - 1) if said == "Invalid value" else None
    if word is None:
        return ""
    return f"write {word[0].lower()}" if word[0].lower() in {"true", "false"} else "a text stands in quotes"


def _stands_twice(again: Twice, lines: list[str], file: str) -> Problem:
    what = "the table" if again.table else "the key"
    return Problem(
        f"is not valid TOML: {what} stands there twice; the first is at line {again.first.line}", file=file,
        line=again.second.line, column=again.second.column, key=_named(again), hint="keep one of them",
        excerpt=excerpt_of(lines, Place(*again.second)), path=again.path,
    )  # fmt: skip


def _named(again: Twice) -> str:
    return f"[{'.'.join(map(str, again.path))}]" if again.table else key_label(again.path)


def deep_place(text: str, deepest: int) -> Place | None:
    """Where brackets first stand deeper in each other than `deepest`; None where they don't (dots nest as well)."""
    depth = 0
    for found in _TOKENS.finditer(text):
        if found[0] in "[{":
            depth += 1
            if depth > deepest:
                start = text.rfind("\n", 0, found.start()) + 1
                return Place(text.count("\n", 0, found.start()) + 1, found.start() - start + 1)
        elif found[0] in "]}":
            depth -= 1
    return None


def lines_of(text: str) -> list[str]:
    """The lines as TOML counts them: other marks that break lines elsewhere don't here."""
    return text.replace("\r\n", "\n").split("\n")


def excerpt_of(lines: list[str], place: Place) -> str:
    """The line with a mark under its column; empty where the line may hold a secret. Nothing in it acts on a terminal."""
    if place.line > len(lines):
        return ""
    line = lines[place.line - 1]
    if not line.strip() or may_hold_secret(line):
        return ""
    start = max(place.column - 1 - BEFORE, 0) if len(line) > SHOWN else 0
    end = start + SHOWN
    shown = "".join(
        " " if c == "\t" else c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[start:end]
    )
    head, tail = "..." if start else "", "..." if end < len(line) else ""
    number = f"{place.line:>5} | "
    mark = " " * (len(head) + place.column - 1 - start)
    return f"{number}{head}{shown}{tail}\n{' ' * (len(number) - 2)}| {mark}^"
