"""The texts that a segment goes on with, by use: which are in force, which are lost, and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import Damage, scan
from worker.records import Record

USES = {
    "system": "system prompt",
    "schemas": "tool schemas",
    "manifest": "manifest",
    "cwd": "working folder",
    "files": "list of the manifest's files",
}
"""What the uses are called."""

NEEDED = ("system", "manifest", "cwd", "files")
"""Without these a session can't go on; the schemas are kept to be compared, by their hash alone. Without its list, the manifest's own
files would be open to the tools of the agent."""

PLURAL = ("schemas",)

MADE_ANEW = ("system", "schemas")
"""The next run makes these anew, where they are the active segment's."""

_FLAGS = {"manifest": "--manifest FILE", "files": "--manifest FILE", "cwd": "-C DIR"}


def follow(blobs: dict[str, str], record: Record | None) -> None:
    """Folds what changes the texts in force, by use, into `blobs`."""
    match record:
        case e.SegmentStarted():
            blobs.clear()
            blobs.update(record.blobs)
        case e.ManifestChanged():
            blobs["manifest"] = record.digest
            if record.cwd is not None:
                blobs["cwd"] = record.cwd
        case e.TextsRestored():
            blobs.update(record.blobs)
        case _:
            pass


def texts_of(folder: PodFolder, segment: str) -> dict[str, str]:
    """The texts in force at the end of a segment. Damage is passed over. Raises `OSError`, `NewerFormat`, `LogDamaged`."""
    path = folder.segment_path(segment)
    found: dict[str, str] = {}
    for line in scan(path):
        if not isinstance(line, Damage) and line.kind in {"segment_started", "manifest", "texts_restored"}:
            follow(found, e.record_of(line, path))
    return found


def lost_texts(folder: PodFolder, blobs: Mapping[str, str]) -> tuple[str, ...]:
    """The uses whose texts are missing or altered."""
    return tuple(use for use, label in blobs.items() if not folder.holds(label))


def way_out(name: str, uses: Iterable[str]) -> str:
    """What goes on with a pod of which these texts are lost."""
    flags = " ".join(dict.fromkeys(_FLAGS[use] for use in uses if use in _FLAGS))
    return f"`pod resume {name}{' ' + flags if flags else ''}`"
