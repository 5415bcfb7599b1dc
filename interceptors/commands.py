"""Shell command lines taken apart, as far as rules about them need it.

A rule about commands is a convenience, no wall: a shell has endless ways to write a command. So a rule that forbids
looks at every reading of the line, and a rule that allows needs every part of the line to be plain and allowed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n")
_REDIRECTS = "<>"
_ROUGH = re.compile(r"&&|\|\||[;|&\n(){}`]|\$\(")
_LEADING = re.compile(r"(?:[A-Za-z_]\w*=\S*\s+|(?:sudo|env|command|exec|nohup|time|then|do|else|!)\s+)+")
_BLANKS = re.compile(r"[ \t]+")


class Commands(NamedTuple):
    """The simple commands of a line. `plain` says that nothing in it can hide another one: no substitution,
    redirection, group or open quote."""

    parts: tuple[str, ...]
    plain: bool


def split(line: str) -> Commands:
    """Takes a line apart at its operators, minding quotes."""
    parts: list[str] = []
    plain = True
    quote = ""
    start = at = 0
    while at < len(line):
        char = line[at]
        if char == "\\" and quote != "'":
            plain = plain and line[at + 1 : at + 2] != "\n"
            at += 2
            continue
        if quote:
            if char == quote:
                quote = ""
            elif quote == '"' and char in "`$":
                plain = False
        elif char in "'\"":
            quote = char
        elif char in "`$(){}#" or char in _REDIRECTS:
            plain = False
        elif operator := next((o for o in _OPERATORS if line.startswith(o, at)), ""):
            parts.append(line[start:at])
            at += len(operator)
            start = at
            continue
        at += 1
    parts.append(line[start:])
    return Commands(tuple(part for part in (_tidy(p) for p in parts) if part), plain and not quote)


def readings(line: str) -> frozenset[str]:
    """Every piece of a line that a rule against a command should look at: the line, its parts with and without quotes
    minded, and each of them without leading assignments and wrappers."""
    pieces = {_tidy(line), *split(line).parts, *(_tidy(piece) for piece in _ROUGH.split(line))}
    bare = {_LEADING.sub("", piece, count=1) for piece in pieces}
    unquoted = {re.sub(r"[\\'\"]", "", piece) for piece in pieces | bare}
    return frozenset(piece for piece in pieces | bare | unquoted if piece)


def _tidy(text: str) -> str:
    return _BLANKS.sub(" ", text.strip())
