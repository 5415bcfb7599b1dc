"""What a compaction works with: the session, the manifest's numbers, the models, files and tools of its pod."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compact_worker import CompactSettings
from interceptors.limits import Limits, Shared
from pod.context import opening as op
from pod.hooks.asking import Hooks
from pod.session import Session
from worker.builtin.artifacts import Artifacts
from worker.builtin.scope import Scope
from worker.interceptor import Interceptor
from worker.models.base import Model
from worker.sending import Sender
from worker.tools import Tool

Progress = Callable[[str, str, dict[str, Any]], None]


def _silent(label: str, stage: str, figures: dict[str, Any]) -> None:
    """No one is watching."""


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """What the manifest says: numbers by the same names, and what the new segment starts with.

    `notes` is the file whose text stands at the start of a new window, where the policy has such a slot. `cleared` names the
    models whose provider clears old tool results itself, so that its reports do not count them.
    """

    worker: CompactSettings
    ladder: tuple[str, ...]
    source: str
    retained_tokens: int
    retained_floor_tokens: int
    user_words_tokens: int
    result_context_max_tokens: int
    breaker_cooldown: float
    triggers: Callable[[int], list[int]]
    history_access: bool = True
    notes: str | None = None
    cleared: frozenset[str] = frozenset()


@dataclass
class Parts:
    """`models` are those that write summaries. `fresh` makes the blobs and the raw overhead of a new segment's system
    prompt and schemas; `wall` is the clock of the circuit breaker (Unix seconds).
    """

    session: Session
    sender: Sender
    config: CompactionConfig
    models: Sequence[Model]
    tools: Mapping[str, Tool]
    scope: Scope
    artifacts: Artifacts
    services: Mapping[type, object]
    read: op.ReadRange
    cwd: Path
    fresh: Callable[[], tuple[dict[str, str], int]]
    interceptors: Sequence[Interceptor] = ()
    hooks: Hooks | None = None
    deps: Any = None
    progress: Progress = _silent
    wall: Callable[[], float] = time.time

    def factor(self) -> float:
        """By what raw estimates of a whole request are multiplied: the provider's reports, or the heuristic's margin."""
        return self.session.state.history.calibration.whole(self.sender.model.name)

    def shared_limits(self, models: Sequence[Model]) -> Shared | None:
        """The limits of the run, for requests to these models beside it; None where the pod has none."""
        limits = next((i for i in self.interceptors if isinstance(i, Limits)), None)
        if limits is None:
            return None
        state = self.session.state
        counters = None if state.run is None else state.history.counters
        return limits.shared(counters, [model.capabilities.price for model in models[1:]])
