"""A problem with what a manifest names, at the place of its key."""

from __future__ import annotations

from pod.manifest import Loaded, Origin, Problem
from pod.manifest.errors import KeyPath, key_label
from pod.manifest.load import dotted


def placed(loaded: Loaded, key: KeyPath, message: str, hint: str = "", *, warning: bool = False) -> Problem:
    """A problem with the place of its key, else of the nearest table around it."""
    severity = "warning" if warning else "error"
    origins = (loaded.sources.get(dotted(key[:length])) for length in range(len(key), 0, -1))
    origin = next((origin for origin in origins if origin is not None and origin.file is not None), Origin("default"))
    return Problem(
        message, file=origin.file, line=origin.line, column=origin.column, key=key_label(key), hint=hint,
        severity=severity, path=key,
    )  # fmt: skip
