"""What the logs of a session should hold and don't: told by their first and last entries, without reading them whole.

Damage between whole entries is found by who reads them all (`SessionReader.located`, `pod.log.doctor`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pod.errors import LogLost
from pod.log.folder import PodFolder
from pod.log.segment import EMPTY, MISSING, stands_for
from pod.reading import SessionReader, before, last_lines

_LOOKS = (1 << 16, 1 << 20)


@dataclass(frozen=True, slots=True)
class Loss:
    """A log of which something is lost, and what."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def losses(folder: PodFolder, *, origins: bool = False) -> list[Loss]:
    """What is missing of a session, newest first, with `origins` also of those that the pod was forked from. Blocks.

    Raises `PodNotFound`, `UsageProblem`, `LogLost` where the active log is missing or holds no entry.
    """
    chain = SessionReader(folder).chain(origins=origins)
    active = folder.segment_path(folder.pointer().segment)
    if not os.path.lexists(active):
        raise LogLost(active, MISSING)
    if not _last(active):
        raise LogLost(active, EMPTY)
    found: list[Loss] = []
    for newer, older in pairwise(chain.segments):
        upto = newer.seq - 1 if older.upto is None else older.upto
        if older.seq and (last := _last(older.path)) < upto:
            found.append(Loss(older.path, f"entries {last + 1} to {upto} are missing at its end"))
    oldest = chain.segments[-1] if chain.segments else None
    if chain.end == "unreadable":
        path = active if oldest is None else oldest.path
        found.append(Loss(path, "its beginning does not read: what came before it is out of reach"))
    if chain.end == "missing":
        step = before(oldest) if oldest is not None else None
        path = active if step is None else step.log(folder)
        found.append(Loss(path, "an older segment of this session is missing: it is out of reach, with all before it"))
    return found


def _last(path: Path) -> int:
    """The last number that a log's entries stand for; 0 where it has none."""
    size = path.stat().st_size
    for limit in (*(look for look in _LOOKS if look < size), size):
        if lines := last_lines(path, limit):
            return lines[-1].seq + stands_for(lines[-1]) - 1
    return 0
