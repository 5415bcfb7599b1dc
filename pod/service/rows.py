"""A pod in a list: how it stands, and how full its context is."""

from __future__ import annotations

from dataclasses import dataclass, field

from pod.log.folder import PodFolder
from pod.peek import Glance, row_of
from pod.retrace import Stored
from pod.service.schemas import PodRow
from pod.timeline import Bounds

KNOWN = 500
"""Manifests whose bounds are kept."""


@dataclass(eq=False)
class Rows:
    """Makes rows. What bounds the requests of a manifest is read once."""

    _bounds: dict[tuple[str, str], Bounds | None] = field(default_factory=dict[tuple[str, str], "Bounds | None"])

    def row(self, folder: PodFolder, look: Glance, status: str) -> PodRow:
        """The row of a pod. Blocks."""
        return PodRow.model_validate({**row_of(look), **self.fullness(folder, look), "status": status})

    def fullness(self, folder: PodFolder, look: Glance) -> dict[str, int | None]:
        """How many tokens its newest request had, how many one may have, and where something is done about it. Blocks."""
        bounds = self._of(folder, look)
        triggers = [] if bounds is None else [tokens for tokens in bounds.triggers.values() if tokens]
        available = None if bounds is None else bounds.available
        return {"tokens": look.tokens, "available": available, "trigger": min(triggers, default=None)}

    def _of(self, folder: PodFolder, look: Glance) -> Bounds | None:
        label = look.blobs.get("manifest", "")
        if not label or not look.model:
            return None
        key = label, look.model
        if key not in self._bounds:
            if len(self._bounds) >= KNOWN:
                self._bounds.clear()
            self._bounds[key] = Stored(folder).bounds(label, look.model, None)
        return self._bounds[key]
