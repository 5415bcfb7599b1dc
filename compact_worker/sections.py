"""The sections of a summary: found in the text, and written in one form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

REQUIRED = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Current Work")
"""Headings that every summary has."""

ORDER = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Findings", "Current Work")
"""The order in which a normalised summary has them. Findings may be missing."""

FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"\s{0,3}(#{1,2})(?!#)")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+")
_NAMES = {name.casefold(): name for name in ORDER} | {
    "completed task": "Completed Tasks", "active tasks": "Active Task", "key decision": "Key Decisions",
    "user directive": "User Directives", "finding": "Findings",
}  # fmt: skip
_VACUOUS = frozenset(
    {"", "none", "n/a", "na", "nothing", "empty", "nil", "not applicable", "none yet", "なし", "特になし", "无", "無"}
)


@dataclass(frozen=True, slots=True)
class Sections:
    """The bodies by canonical heading, and what stood under headings of another name."""

    bodies: Mapping[str, str]
    others: Mapping[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Required headings that do not occur."""
        return tuple(name for name in REQUIRED if name not in self.bodies)


def parse(text: str) -> Sections:
    """Splits a summary at its headings of level 1 and 2; headings inside a code fence are text.

    What stands before the first heading is left out: it is addressed to nobody. A heading that occurs twice has both
    bodies.
    """
    found: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    current: list[str] | None = None
    fence = ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        heading = None if fence or mark else _HEADING.match(line)
        title = "" if heading is None else line[heading.end() :].strip().rstrip("#").rstrip()
        if heading is None or not title:
            if current is not None:
                current.append(line.rstrip())
            continue
        title = title.strip("*_: ")
        name = _NAMES.get(title.casefold())
        if name is not None:
            current = found.setdefault(name, [])
        elif heading[1] == "#":
            current = None  # the title of the whole text
        else:
            current = others.setdefault(title, [])
    return Sections(
        {name: _body(lines) for name, lines in found.items()}, {name: _body(lines) for name, lines in others.items()}
    )


def render(bodies: Mapping[str, str]) -> str:
    """The normalised text: canonical headings in their order, Findings only where there are any."""
    names = [name for name in ORDER if name in bodies and (name != "Findings" or bodies[name])]
    return "\n\n".join(f"## {name}\n{bodies[name]}".rstrip() for name in names) + "\n"


def entries(body: str) -> list[str]:
    """The entries of a section that is a list, each without its bullet and with its lines that go on.

    A line that is neither bullet nor indented is an entry of its own.
    """
    result: list[str] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        bullet = _BULLET.match(line)
        if bullet and not line.startswith(("  ", "\t")):
            result.append(line[bullet.end() :].strip())
        elif result and line[:1].isspace():
            result[-1] += "\n" + line.strip()
        else:
            result.append(line.strip())
    return [entry for entry in result if not vacuous(entry)]


def vacuous(line: str) -> bool:
    """Whether a line says only that there is nothing to say."""
    bullet = _BULLET.match(line)
    text = line[bullet.end() :] if bullet else line
    return text.strip(" \t-*_().。,:—").casefold() in _VACUOUS


def substance(bodies: Mapping[str, str]) -> str:
    """What a summary says: its lines without headings and without lines that say nothing."""
    lines = (line for body in bodies.values() for line in body.splitlines())
    return "\n".join(line for line in lines if not vacuous(line) and not line.lstrip().startswith("#"))


def _body(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
