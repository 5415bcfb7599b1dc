"""What a pod lends to the tools that look at it: apart from them, since a pod that has none of them need not make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.history import History


@dataclass(frozen=True, slots=True)
class Pins:
    """What the tool `context` needs of its pod. `set` puts a pin on record; `budget` is the tokens that pinned items may have together."""

    history: Callable[[], History]
    pinned: Callable[[], frozenset[str]]
    set: Callable[[str, bool], None]
    budget: int


@dataclass(frozen=True, slots=True)
class Window:
    """What the tool `new_context` needs of its pod: why no new window would begin now, or nothing."""

    refused: Callable[[], str]
