"""From a pod's folder to its timeline: reads the log once, and what it names by a hash. Needs no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from interceptors.ceiling import Overhead, overhead_of
from pod import setup
from pod.errors import LogDamaged, PodError
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.lines import Line
from pod.log.segment import Damage
from pod.manifest import Manifest, ManifestError, trigger_tokens
from pod.reading import SessionReader
from pod.timeline import Bounds
from worker.budget import LearnedWindow, budget_of
from worker.errors import ConfigError
from worker.models.base import Family, Model
from worker.records import Record


class Entry(NamedTuple):
    """An entry and what it holds."""

    line: Line
    record: Record


def entries_of(
    folder: PodFolder, on_damage: Callable[[str, Damage], None], unread: Callable[[int, str], None]
) -> Iterator[Entry]:
    """All entries of the session that this version knows, oldest first. What does not read is told and passed over.

    Raises `PodNotFound`, `UsageProblem`, `NewerFormat`.
    """
    for line in SessionReader(folder).lines(0, on_damage):
        try:
            record = e.record_of(line)
        except LogDamaged as error:
            unread(line.seq, error.reason)
            continue
        if record is not None:
            yield Entry(line, record)


class _Known(NamedTuple):
    manifest: Manifest
    models: dict[str, Model]


@dataclass
class Stored:
    """The blobs of a pod, read once each. What is missing or does not read counts as unknown, never as an error."""

    folder: PodFolder
    _known: dict[str, _Known | None] = field(default_factory=dict[str, "_Known | None"])
    _overheads: dict[tuple[str, str, Family], Overhead] = field(default_factory=dict[tuple[str, str, Family], Overhead])
    _bounds: dict[tuple[str, str, LearnedWindow | None], Bounds | None] = field(
        default_factory=dict[tuple[str, str, LearnedWindow | None], "Bounds | None"]
    )

    def family(self, manifest: str) -> Family:
        """The estimator of a manifest's model."""
        known = self._of(manifest)
        return next(iter(known.models.values())).capabilities.family if known else "unknown"

    def overhead(self, system: str, schemas: str, family: Family) -> Overhead:
        """What system prompt and schemas cost."""
        key = (system, schemas, family)
        if key not in self._overheads:
            self._overheads[key] = overhead_of(self._text(system), setup.specs_in(self._text(schemas)), family)
        return self._overheads[key]

    def bounds(self, manifest: str, model: str, learned: LearnedWindow | None) -> Bounds | None:
        """What bounds requests to a model, None where it is not known."""
        key = (manifest, model, learned)
        if key not in self._bounds:
            self._bounds[key] = self._bounded(*key)
        return self._bounds[key]

    def _bounded(self, manifest: str, model: str, learned: LearnedWindow | None) -> Bounds | None:
        known = self._of(manifest)
        if known is None or model not in known.models:
            return None
        m = known.manifest
        budget = budget_of(
            known.models[model].capabilities, requested_output=m.model.max_output_tokens,
            buffer=m.context.buffer_tokens, learned=learned,
        )  # fmt: skip
        triggers = {key: trigger_tokens(value, budget.available) for key, value in m.acting_triggers.items()}
        return Bounds(budget.window, budget.available, budget.window - budget.available, triggers)

    def _of(self, label: str) -> _Known | None:
        if label not in self._known:
            self._known[label] = self._read(label)
        return self._known[label]

    def _read(self, label: str) -> _Known | None:
        try:
            manifest = Manifest.model_validate_json(self._text(label), strict=False)
            models = setup.models_of(manifest.model)
        except (ManifestError, PodError, ConfigError):
            return None
        return _Known(manifest, {model.name: model for model in models})

    def _text(self, label: str) -> str:
        try:
            return self.folder.blob(label) if label else ""
        except PodError:
            return ""
