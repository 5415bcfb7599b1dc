"""Which segment is the active one, told by the logs alone: for a pod whose pointer is lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pod.errors import LogDamaged, UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder, Pointer
from pod.log.lines import Line
from pod.log.segment import Damage, scan, stands_for
from worker.ids import uuid7
from worker.records import Record


@dataclass(frozen=True, slots=True)
class _Log:
    """One log at a glance. `start` is None where its beginning is lost. `generation` is 0 where no writer ever opened it."""

    label: str
    start: e.SegmentStarted | None
    at: str
    first: int
    next: int
    generation: int


def found_pointer(folder: PodFolder) -> Pointer:
    """The pointer that the logs give: to the newest segment, if it is whole from its beginning on.

    A segment that was written but never became the active one (no writer opened it, and the one before went on) does
    not count. Nothing older is taken where the newest segment's beginning is lost: what a `pod clear` left behind must
    not come back. Raises `UsageProblem` where no log gives one, `NewerFormat`, `OSError`.
    """
    logs = [log for log in map(_read, folder.logs()) if log is not None]
    whole = [log for log in logs if log.start is not None and log.start.segment == log.label]
    if not whole:
        raise UsageProblem(f"{folder.path}: no log here says how a segment begins; nothing can replay this session")
    newest = max(whole, key=lambda log: log.label)
    session = [log for log in whole if _session(log) == _session(newest)]
    active = max((log for log in session if not _abandoned(log, session)), key=lambda log: (log.next, log.label))
    for log in logs:
        if log.start is None and (log.label > active.label or log.next > active.next):
            raise UsageProblem(
                f"{folder.segment_path(log.label)}: the beginning of the newest segment is lost, and going back to an older "
                "one could bring back what was cleared; begin a new pod to go on with the work"
            )
    # Whether the pod was imported is not known: an id of its own keeps it from taking another pod's processes for its.
    return Pointer(
        name=folder.name, session=_session(active), segment=active.label, imported=uuid7(),
        generation=max(log.generation for log in session), created=min(log.at for log in session),
    )  # fmt: skip


def _session(log: _Log) -> str:
    return log.start.session if log.start is not None else ""


def _abandoned(log: _Log, others: list[_Log]) -> bool:
    """Whether a segment never became the active one: nobody opened it, and another one has numbers of its own since."""
    return not log.generation and any(o is not log and o.first < log.first < o.next for o in others)


def _read(path: Path) -> _Log | None:
    """None for a file without any entry."""
    start: e.SegmentStarted | None = None
    at, first, following, generation = "", 0, 0, 0
    for found in scan(path):
        if isinstance(found, Damage):
            continue
        record = _record(found, path) if not first or found.kind == "lease" else None
        if not first:
            start = record if isinstance(record, e.SegmentStarted) else None
            at, first = found.at, found.seq
        if isinstance(record, e.Lease):
            generation = max(generation, record.generation)
        following = found.seq + stands_for(found)
    return _Log(path.stem, start, at, first, following, generation) if first else None


def _record(line: Line, path: Path) -> Record | None:
    try:
        return e.record_of(line, path)
    except LogDamaged:
        return None
