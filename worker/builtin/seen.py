"""Which content of which file the model last saw."""

from __future__ import annotations

from collections.abc import Mapping

from worker.items import FileRange


class SeenFiles:
    """Resolved path to the SHA-256 that the file had when the model last read or wrote it.

    Tools only look things up. Whoever keeps the log calls `note` with the `reads` and the `writes` of each recorded
    result, in order: the log is where this knowledge lives, so it outlasts a restart and a compaction (case B100).
    """

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._known = dict(known or {})

    def get(self, path: str) -> str | None:
        """The hash last seen, or None where the model has not seen the file."""
        return self._known.get(path)

    def note(self, seen: FileRange) -> None:
        """Takes over what a result says. An empty hash means that the model no longer knows what the file holds."""
        if seen.sha256:
            self._known[seen.path] = seen.sha256
        else:
            self._known.pop(seen.path, None)

    def known(self) -> dict[str, str]:
        """A copy of the whole mapping, for what crosses a segment boundary."""
        return dict(self._known)
