"""Glob patterns over relative paths: `*`, `?`, `[...]`, `**`, `{a,b}`; matched in bounded time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from functools import lru_cache

from worker.text import clipped
from worker.tools import ToolFault

LONGEST = 1_000
_ALTERNATIVES = 64


class Glob:
    """A pattern. Without a slash it matches names at any depth; with one, paths from the start of the search.

    Raises `ToolFault` for an empty or overlong pattern.
    """

    def __init__(self, pattern: str) -> None:
        pattern = pattern.removeprefix("./").strip("/") if pattern != "/" else ""
        if not pattern or len(pattern) > LONGEST:
            raise ToolFault(
                f"not a file pattern (1 to {LONGEST} characters, such as *.py or src/**/*.py): {clipped(pattern, 80)!r}"
            )
        self._patterns = [_compiled(p) for p in _alternatives(pattern)]

    def matches(self, path: str) -> bool:
        """Whether the relative path (with `/`) matches."""
        parts = path.split("/")
        return any(_match(pattern, parts) for pattern in self._patterns)


def _alternatives(pattern: str) -> list[str]:
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    results: list[str] = []
    for choice in found.group(1).split(","):
        results += _alternatives(pattern[: found.start()] + choice + pattern[found.end() :])
        if len(results) > _ALTERNATIVES:
            raise ToolFault(f"the pattern has more than {_ALTERNATIVES} alternatives: {clipped(pattern, 80)!r}")
    return results


def _compiled(pattern: str) -> list[re.Pattern[str] | None]:
    """One regular expression a segment, None for `**`. A pattern without a slash may stand at any depth."""
    parts = [part for part in pattern.split("/") if part]
    return list(_segments(parts if "/" in pattern else ["**", *parts]))


def _segments(parts: list[str]) -> Iterator[re.Pattern[str] | None]:
    before = ""
    for part in parts:
        if part != "**":
            # `fnmatch` writes atomic groups, so that many stars stay fast.
            yield _segment(part)
        elif before != "**":
            yield None
        before = part


@lru_cache(maxsize=256)
def _segment(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def _match(pattern: list[re.Pattern[str] | None], parts: list[str]) -> bool:
    """Row by row: `reached[i]` says that the first i parts can be matched by the segments so far."""
    reached = [True] + [False] * len(parts)
    for segment in pattern:
        following = [False] * (len(parts) + 1)
        for i in range(len(parts) + 1):
            if segment is None:
                following[i] = reached[i] or (i > 0 and following[i - 1])
            elif i > 0 and reached[i - 1]:
                following[i] = segment.match(parts[i - 1]) is not None
        reached = following
    # A trailing `**` means what lies below, not the folder itself.
    return reached[-1]
