"""Shell command lines taken apart, as far as rules about them need it.

A rule about commands is a convenience, no wall: a shell has endless ways to write a command. So a rule that forbids
looks at every reading of the line, and a rule that allows needs every part of the line to be plain and allowed.

All of it takes time in proportion to the line: a model may write a megabyte on one line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPECIAL = re.compile(r"[\\'\"`$(){}#<>&|;\n]")
_OPERATORS = re.compile(r"[&|;\n]+")
_HIDING = re.compile(r"[`$(){}#<>]+")
_BACKSLASHES = re.compile(r"\\+")
_IN_DOUBLE = re.compile(r"[\\\"]")
_ROUGH = re.compile(r"\$\(|[;|&\n(){}`]+")
_LEADING = re.compile(
    r"(?:[A-Za-z_]\w*=\S*\s+|(?:sudo|env|command|exec|nohup|time|if|elif|while|until|then|do|else|!)\s+)+"
)
_BLANKS = re.compile(r"[ \t]+")
_UNQUOTED = str.maketrans("", "", "\\'\"")


class Commands(NamedTuple):
    """The simple commands of a line. `plain` says that nothing in it can hide another one: no substitution,
    redirection, group or open quote."""

    parts: tuple[str, ...]
    plain: bool


def split(line: str) -> Commands:
    """Takes a line apart at its operators, minding quotes."""
    parts: list[str] = []
    plain = True
    start = at = 0
    while (special := _SPECIAL.search(line, at)) is not None:
        at = special.start()
        char = line[at]
        if char == "\\":
            at, joined = _escaped(line, at)
            plain = plain and not joined
        elif char == "'":
            end = line.find("'", at + 1)
            plain = plain and end >= 0
            at = end + 1 or len(line)
        elif char == '"':
            at, quoted_plain = _double_quoted(line, at + 1)
            plain = plain and quoted_plain
        elif (operators := _OPERATORS.match(line, at)) is not None:
            parts.append(line[start:at])
            start = at = operators.end()
        else:
            plain = False
            hiding = _HIDING.match(line, at)
            assert hiding is not None
            at = hiding.end()
    parts.append(line[start:])
    return Commands(tuple(part for part in (_tidy(p) for p in parts) if part), plain)


def _escaped(line: str, at: int) -> tuple[int, bool]:
    """Where a run of backslashes and what it escapes end, and whether that is the end of a line."""
    run = _BACKSLASHES.match(line, at)
    end = run.end() if run is not None else at
    if (end - at) % 2 == 0:
        return end, False
    return end + 1, line[end : end + 1] == "\n"


def _double_quoted(line: str, at: int) -> tuple[int, bool]:
    """Where a double-quoted text ends, and whether it is closed and nothing in it is replaced by the shell."""
    plain = True
    begin = at
    while (found := _IN_DOUBLE.search(line, at)) is not None:
        if line[found.start()] == '"':
            return found.end(), plain and _still(line, begin, found.start())
        plain = plain and _still(line, begin, found.start())
        at, joined = _escaped(line, found.start())
        plain = plain and not joined
        begin = at
    return len(line), False


def _still(line: str, start: int, end: int) -> bool:
    return line.find("$", start, end) < 0 and line.find("`", start, end) < 0


def readings(line: str) -> frozenset[str]:
    """Every piece of a line that a rule against a command should look at: the line, its parts with and without quotes
    minded, and each of them without leading assignments and wrappers."""
    pieces = {_tidy(line), *split(line).parts, *(_tidy(piece) for piece in set(_ROUGH.split(line)))}
    found = {*pieces, *(_bare(piece) for piece in pieces)}
    return frozenset(piece for piece in (*found, *(_unquoted(piece) for piece in found)) if piece)


def _bare(piece: str) -> str:
    leading = _LEADING.match(piece)
    return piece if leading is None else piece[leading.end() :]


def _unquoted(piece: str) -> str:
    return piece.translate(_UNQUOTED) if "'" in piece or '"' in piece or "\\" in piece else piece


def _tidy(text: str) -> str:
    text = text.strip()
    return _BLANKS.sub(" ", text) if "  " in text or "\t" in text else text
