"""What a server says, on its way to a model, a log or a person: plain, bounded, without secrets and without the session's tag.

Results of calls pass what every tool's output passes (`worker.calling`); this is the door for all else: descriptions, schemas, errors, why a
server failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from worker.builtin.terminal import PlainText
from worker.gate import Gate
from worker.text import clean, untagged, without_unseen

MOST_NESTED = 64
"""Levels of a schema."""


class TooDeep(ValueError):
    """A value is nested deeper than anybody would write it."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What a server's words pass. `gate` masks secrets, `tag` marks orders of the runtime in this session."""

    gate: Gate = field(default_factory=Gate)
    tag: str = ""

    def text(self, text: str, most: int) -> str:
        """A text of at most `most` characters and a mark that counts what is left out."""
        # The mask sees the cut's end as a cut: no part of a secret stays there.
        shown = untagged(self.gate.cut(plain(text[: 2 * most])), self.tag)
        left = len(shown) + max(len(text) - 2 * most, 0) - most
        return shown if left <= 0 else f"{shown[:most]} [... {left:,} characters left out ...]"

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts, keys too, as they may be told. Raises `TooDeep`."""

        def shown(text: str) -> str:
            lines = clean(text).replace("\r\n", "\n").replace("\r", "\n")
            return untagged(without_unseen(lines)[0], self.tag)

        return self.gate.masked(_each(value, shown, MOST_NESTED))


def plain(text: str) -> str:
    """A text without what steers a terminal and without what nobody sees."""
    made = PlainText()
    return without_unseen(made.feed(clean(text).encode(errors="replace")) + made.finish())[0]


def _each(value: Any, change: Callable[[str], str], levels: int) -> Any:
    if isinstance(value, str):
        return change(value)
    if not isinstance(value, dict | list):
        return value
    if not levels:
        raise TooDeep(f"is nested deeper than {MOST_NESTED} levels")
    if isinstance(value, list):
        return [_each(each, change, levels - 1) for each in cast("list[Any]", value)]
    return {change(key): _each(each, change, levels - 1) for key, each in cast("dict[str, Any]", value).items()}
