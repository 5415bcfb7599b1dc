"""Python source read in pieces: top-level names, imports, and marked lines, without the whole file in view.

A page border may fall inside a string, a bracket or a statement. What is open at the end of a piece is a short text,
the `carry`, that is given to the next piece; scanning a file in pieces gives what scanning it whole gives.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Import(NamedTuple):
    """One thing that an import statement names: `module` (with leading dots), and the names taken from it, if any."""

    module: str
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Piece:
    """What a piece of source holds. `imports` has one entry a statement: the modules that it names."""

    definitions: list[str] = field(default_factory=list[str])
    imports: list[list[Import]] = field(default_factory=list[list[Import]])
    todos: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    carry: str = ""


_TODO = re.compile(r"\b(?:TODO|FIXME)\b")
_TOKEN = re.compile(r"#[^\n]*|\"\"\"|'''|[\"'()\[\]{}\n]|\\\n")
_STRING_END = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*("""|\Z)', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*('''|\Z)", re.DOTALL),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*("|\n|\Z)', re.DOTALL),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*('|\n|\Z)", re.DOTALL),
}
_DEFINITION = re.compile(r"(?:async\s+def|def|class)\s+(\w+)")
_IMPORT = re.compile(
    r"(?:^|[;:])\s*(?:import\s+(?P<plain>[^;]+)|from\s*(?P<module>[.\w][.\w\s]*?)\s*\bimport\b(?P<names>[^;]+))"
)
_WORD = re.compile(r"\w+")
_START = re.compile(r"\s*(?:import|from)\b")


def scan(lines: Sequence[str], first: int, carry: str = "") -> Piece:
    """Scans consecutive lines of a file; `first` is the number of the first (from 1), `carry` that of the piece
    before."""
    piece = Piece()
    for number, line in enumerate(lines, first):
        if _TODO.search(line):
            piece.todos.append((number, line.strip()))
    quote, depth, buffer = _open(carry)
    text = "".join(line.rstrip("\r") + "\n" for line in lines)
    if first == 1:
        text = text.removeprefix("\ufeff")
    at = 0
    while at < len(text):
        if quote:
            end = _STRING_END[quote].match(text, at)
            assert end is not None  # each of these patterns matches the empty text
            at = end.end()
            if end.group(1) == "":
                break
            if end.group(1) == "\n":
                at -= 1
            buffer += '""'
            quote = ""
            continue
        token = _TOKEN.search(text, at)
        if token is None:
            buffer += text[at:]
            break
        buffer += text[at : token.start()]
        at = token.end()
        word = token.group()
        if word in _STRING_END:
            quote = word
        elif word in "([{":
            depth += 1
            buffer += " "
        elif word in ")]}":
            depth = max(depth - 1, 0)
            buffer += " "
        elif word == "\n" and depth == 0:
            _statement(buffer, piece)
            buffer = ""
        elif word in ("\n", "\\\n"):
            buffer += " "
    piece.carry = _close(quote, depth, buffer)
    return piece


def _statement(line: str, piece: Piece) -> None:
    line = _normal(line)
    definition = _DEFINITION.match(line.lstrip("\f"))
    if definition and not definition.group(1).startswith("_"):
        piece.definitions.append(definition.group(1))
    if "import" not in line:
        return
    for found in _IMPORT.finditer(line.strip()):
        if found["plain"] is not None:
            piece.imports.append([Import(name) for name in _names(found["plain"])])
        else:
            module = re.sub(r"\s+", "", found["module"])
            piece.imports.append([Import(module, _names(found["names"]))])


def _normal(line: str) -> str:
    """The line with its identifiers in the form in which Python compares them (NFKC); strings are gone already."""
    return line if line.isascii() else _WORD.sub(lambda word: unicodedata.normalize("NFKC", word.group()), line)


def _names(text: str) -> tuple[str, ...]:
    parts = (re.sub(r"\s*\.\s*", ".", part).split() for part in text.split(","))
    return tuple(part[0] for part in parts if part)


def _open(carry: str) -> tuple[str, int, str]:
    if not carry:
        return "", 0, ""
    quote, depth, buffer = carry.split("|", 2)
    return quote, int(depth), buffer


def _close(quote: str, depth: int, buffer: str) -> str:
    if not quote and not depth and not buffer:
        return ""
    definition = _DEFINITION.match(buffer.lstrip("\f"))
    if definition:
        buffer = definition.group()
    elif not _START.match(buffer):
        buffer = "x"
    return f"{quote}|{depth}|{buffer}"
