"""Numbers among the arguments of commands, each within its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


def _within(text: str, read: Callable[[str], N], fits: Callable[[N], bool], wanted: str) -> N:
    try:
        value = read(text)
        if fits(value):
            return value
    except ValueError:
        pass  # it is no number at all
    from argparse import ArgumentTypeError

    raise ArgumentTypeError(f"should be {wanted}, not {text[:40]!r}")


def seconds(text: str) -> float:
    """A span of time, zero or more."""
    return _within(text, float, lambda value: 0 <= value < math.inf, "a finite number of seconds, zero or more")


def lease(text: str) -> float:
    """Seconds, enough for a few signs of life."""
    return _within(text, float, lambda value: 1 <= value < math.inf, "seconds, 1 or more")


def span_of_starts(text: str) -> float:
    """Seconds over which starts are counted."""
    return _within(text, float, lambda value: 0 < value <= 86400, "seconds, above zero and a day (86400) at most")


def dollars(text: str) -> float:
    """US dollars, above zero."""
    return _within(text, float, lambda value: 0 < value < math.inf, "US dollars, above zero")


def entry(text: str) -> int:
    """The number of an entry, zero for the place before the first."""
    return _within(text, int, lambda value: value >= 0, "the number of an entry, zero or more")


def whole(text: str) -> int:
    """A number from 1 on."""
    return _within(text, int, lambda value: value >= 1, "a whole number from 1 on")


def port(text: str) -> int:
    """A port, zero for any free one."""
    return _within(text, int, lambda value: 0 <= value < 65_536, "a port from 0 to 65535")
