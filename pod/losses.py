"""What the logs of a session should hold and don't: told by their first and last entries, without reading them whole.

Damage between whole entries is found by who reads them all (`SessionReader.located`, `pod.log.doctor`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pod.errors import LogLost
from pod.log.bounded import last_number
from pod.log.folder import PodFolder
from pod.log.segment import EMPTY, MISSING, missing
from pod.reading import Segment, SessionReader, before


@dataclass(frozen=True, slots=True)
class Loss:
    """A log of which something is lost, and what. `origin`: it is of the past that a fork took along, not of its own
    session.
    """

    path: Path
    text: str
    origin: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def losses(folder: PodFolder) -> list[Loss]:
    """What is missing of a session and of those that it was forked from, newest first. Blocks.

    Raises `PodNotFound`, `UsageProblem`, `LogLost` where the active log is missing or holds no entry.
    """
    chain = SessionReader(folder).chain(origins=True)
    active = folder.segment_path(folder.pointer().segment)
    if not os.path.lexists(active):
        raise LogLost(active, MISSING)
    if not last_number(active):
        raise LogLost(active, EMPTY)
    found = [loss for segment in chain.segments if (loss := cut(segment)) is not None]
    oldest = chain.segments[-1] if chain.segments else None
    if chain.end == "unreadable":
        path = active if oldest is None else oldest.path
        text = "its beginning does not read: what came before it is out of reach"
        found.append(Loss(path, text, origin=oldest is not None and bool(oldest.origin)))
    if chain.end == "missing":
        step = before(oldest) if oldest is not None else None
        path = active if step is None else step.log(folder)
        text = "an older segment of this session is missing: it is out of reach, with all before it"
        found.append(Loss(path, text, origin=step is not None and bool(step.origin)))
    return found


def cut(segment: Segment) -> Loss | None:
    """What is missing at a log's end, by what the newer segment says."""
    if segment.last is None or not segment.seq:
        return None
    reached = last_number(segment.path) or 0
    if reached >= segment.last:
        return None
    text = f"{missing(reached + 1, segment.last + 1)} at its end"
    return Loss(segment.path, text, origin=bool(segment.origin))
