"""The state that tools leave in the log, folded by key."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

PROCESSES_KEY = "processes"
"""The key of the background jobs in a result's `state`."""


def utc_now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class ToolState:
    """The newest value by key (`tasks`, `processes`), as the results in the log say it.

    A tool reads it and returns a whole new value in `ToolOutput.state`; whoever keeps the log calls `fold` with the
    `state` of each recorded result. `stage` lets a second call of the same batch see what the first one returned,
    before it is recorded.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._values: dict[str, Any] = copy.deepcopy(dict(values or {}))
        self.now = now

    def get(self, key: str) -> Any:
        """A copy of the value, or None."""
        return copy.deepcopy(self._values.get(key))

    def fold(self, state: Mapping[str, Any]) -> None:
        """Takes over the values of a recorded result."""
        self._values.update(copy.deepcopy(dict(state)))

    stage = fold

    def values(self) -> dict[str, Any]:
        """A copy of all values."""
        return copy.deepcopy(self._values)
