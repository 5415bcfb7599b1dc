"""Defaults that give way to a small window (case B142): a number that nobody chose is no contradiction.

A window that a manifest names may be smaller than the defaults of other keys allow for. Those defaults are then lowered
to fit; what someone wrote stays as it is, and is an error where it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pod.manifest.context import CompactionSection, PruneSection
from pod.manifest.errors import KeyPath
from pod.manifest.model import Manifest
from pod.manifest.sections import ModelSection
from pod.manifest.types import trigger_tokens

Written = Callable[[KeyPath], bool]
"""Whether someone wrote a key."""

# Shares of the compact worker's room, for its own numbers: where the room is small, they keep their proportions.
_SHARES: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("final_reserve_tokens", 0.2, ()),
    ("finish_warning_remaining_tokens", 0.3, ("final_reserve_tokens",)),
    ("overview_target_tokens", 0.25, ()),
    ("overview_warning_tokens", 0.5, ("overview_target_tokens",)),
    ("overview_deadline_tokens", 0.75, ("overview_target_tokens", "overview_warning_tokens")),
    ("summary_max_tokens", 0.2, ("summary_target_tokens",)),
    ("summary_target_tokens", 0.1, ()),
)


class Lowered(NamedTuple):
    """A default that was lowered, from what to what, and the key that it gave way to."""

    key: KeyPath
    was: int
    now: int
    reason: KeyPath

    def __str__(self) -> str:
        return f"its default {self.was} is lowered to {self.now}, to fit {self.reason[-1]}"


class Fitted(NamedTuple):
    """A manifest whose defaults fit its windows, and what was lowered."""

    manifest: Manifest
    lowered: tuple[Lowered, ...]


def fit(manifest: Manifest, written: Written | None = None) -> Fitted:
    """The manifest with defaults that fit the windows it names. Pure; a manifest that fits is given back as it is.

    Without `written`, as for a manifest that code made or a pod keeps, a value that equals its default counts as one that
    nobody chose.
    """
    c = manifest.compaction
    if c is None:
        return Fitted(manifest, ())
    fitting = _Fitting(manifest, c, written)
    fitting.worker()
    fitting.segment()
    if not fitting.lowered:
        return Fitted(manifest, ())
    changed = {
        table: getattr(manifest, table).model_copy(update=values) for table, values in fitting.values.items() if values
    }
    return Fitted(manifest.model_copy(update=changed), tuple(fitting.lowered))


class _Fitting:
    def __init__(self, manifest: Manifest, c: CompactionSection, written: Written | None) -> None:
        self.manifest, self.c = manifest, c
        self._written = written
        self.values: dict[str, dict[str, int]] = {"compaction": {}, "prune": {}}
        self.lowered: list[Lowered] = []

    def worker(self) -> None:
        """What bounds the compact worker, in the window that it runs in."""
        own = self.c.model
        section, where = (self.manifest.model, ("model",)) if own is None else (own, ("compaction", "model"))
        if own is None and self.c.source == "prefix":
            return  # there it is growth over a prefix, and the ceiling bounds it
        room = available(section, self.manifest.context.buffer_tokens)
        if room is None:
            return
        reason = (*where, "context_window")
        self.lower("worker_context_max_tokens", room, (), reason)
        if "worker_context_max_tokens" not in self.values["compaction"]:
            return
        budget = self.value("worker_context_max_tokens")
        for key, part, below in _SHARES:
            self.lower(key, max(int(budget * part), 1), below, reason)

    def segment(self) -> None:
        """What a new segment begins with, and what is never pruned, in the pod's own window."""
        room = available(self.manifest.model, self.manifest.context.buffer_tokens)
        if room is None:
            return
        reason = ("model", "context_window")
        self.lower("result_context_max_tokens", room, (), reason)
        if "result_context_max_tokens" in self.values["compaction"]:
            start = self.value("result_context_max_tokens")
            self.lower("retained_floor_tokens", start // 4, (), reason)
            self.lower("summary_max_tokens", max(start // 2, 1), ("summary_target_tokens",), reason)
            self.lower("summary_target_tokens", self.value("summary_max_tokens"), (), reason)
        shares = [trigger_tokens(t, room) for t in self.manifest.triggers.values() if isinstance(t, str)]
        if not shares:
            return
        lowest = min(shares)
        if self.value("retained_tokens") >= lowest:
            self.lower("retained_tokens", max(lowest // 4, 1), ("retained_floor_tokens",), reason)
            self.lower("retained_floor_tokens", self.value("retained_tokens"), (), reason)
        if self.manifest.prune.enabled and self.manifest.prune.protected_tokens >= lowest:
            self.lower("protected_tokens", lowest // 2, (), reason, table="prune")

    def value(self, key: str, table: str = "compaction") -> int:
        """The value as it is now."""
        lowered = self.values[table].get(key)
        return getattr(getattr(self.manifest, table), key) if lowered is None else lowered

    def lower(
        self,
        key: str,
        bound: int,
        below: tuple[str, ...],
        reason: KeyPath,
        *,
        table: str = "compaction",
    ) -> None:
        """Lowers a default to the bound, but never under a written number that must not lie above it."""
        now = self.value(key, table)
        if self.written(table, key) or now <= bound:
            return
        floor = max((self.value(other) for other in below if self.written("compaction", other)), default=0)
        lowered = min(max(bound, floor), now)
        if lowered < now:
            was: int = getattr(getattr(self.manifest, table), key)
            self.values[table][key] = lowered
            self.lowered = [each for each in self.lowered if each.key != (table, key)]
            self.lowered.append(Lowered((table, key), was, lowered, reason))

    def written(self, table: str, key: str) -> bool:
        """Whether someone chose the number."""
        if self._written is not None:
            return self._written((table, key))
        section: Any = PruneSection if table == "prune" else CompactionSection
        return getattr(getattr(self.manifest, table), key) != section.model_fields[key].default


def available(model: ModelSection, buffer: int) -> int | None:
    """Tokens that a window leaves for input, where the manifest names the window."""
    if not model.context_window:
        return None
    from worker.budget import budget_of
    from worker.models.base import FALLBACK_OUTPUT, Capabilities

    known = Capabilities(
        window=model.context_window, window_source="manifest", max_output=model.max_output_tokens or FALLBACK_OUTPUT
    )
    return budget_of(known, requested_output=model.max_output_tokens, buffer=buffer).available
