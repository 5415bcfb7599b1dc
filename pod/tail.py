"""A session's entries as they are written: each once, whoever writes them, through new segments too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pod.errors import PodNotFound
from pod.log.folder import PodFolder
from pod.log.lines import Line
from pod.log.segment import Damage, scan
from pod.reading import Segment, SessionReader

MOST, MOST_BYTES = 500, 1024 * 1024
"""Entries of one read, and bytes after which it takes no further one."""


@dataclass
class Tail:
    """Reads on from entry `after`. Beside any writer, without the lock; from one thread at a time.

    What was read is not read again, so that following a log costs what is new in it. Where a rewind left entries that were
    told already, they stay told; the numbers of what comes go on.
    """

    folder: PodFolder
    after: int = 0
    _reader: SessionReader = field(init=False, repr=False)
    _segment: str = field(default="", init=False, repr=False)
    _path: Path = field(default=Path(), init=False, repr=False)
    _upto: int | None = field(default=None, init=False, repr=False)
    _offset: int = field(default=0, init=False, repr=False)
    _seen: tuple[int, int, int] | None = field(default=None, init=False, repr=False)
    _room: int = field(default=0, init=False, repr=False)
    _owner: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        self._reader = SessionReader(self.folder)

    def read(self, most: int = MOST) -> list[Line]:
        """What was written since, at most so many entries, of a mebibyte together: empty where that is nothing. Damage is passed over.
        Blocks.

        Raises `PodNotFound`, also where another pod has taken the name since, `LogDamaged` and its kin where the active segment does
        not begin as one, `OSError`.
        """
        found: list[Line] = []
        self._room = MOST_BYTES
        while not self._is_full(found, most):
            # The pointer first: a log that it no longer names is written no more, and is read to its end below.
            pointer = self.folder.pointer()
            active, self._owner = pointer.segment, self._owner or pointer.owner
            if pointer.owner != self._owner:
                raise PodNotFound(f"the pod {self.folder.name!r} that was read is gone: another one has its name")
            if not self._segment and not self._place():
                break
            self._take(found, most)
            if self._is_full(found, most) or active == self._segment:
                break
            if not self._next():
                break
        return found

    def has_news(self) -> bool:
        """Whether something was written since it last said no: two looks at the file system, of a home that is a folder."""
        try:
            pointer, log = self.folder.pointer_path.stat(), self._path.stat()
        except OSError:
            return True
        seen = (pointer.st_ino, pointer.st_mtime_ns, log.st_size)
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def skip(self, seq: int) -> None:
        """Passes over what is told already, up to this number."""
        self.after = max(self.after, seq)

    def _take(self, found: list[Line], most: int) -> None:
        if self._path.stat().st_size <= self._offset:
            return
        for each in scan(self._path, self._offset):
            if isinstance(each, Damage):
                continue  # passed over once an entry stands behind it
            if self._upto is not None and each.seq > self._upto:
                return
            if self._is_full(found, most):
                return
            self._offset = each.offset + each.length
            if each.seq > self.after:
                self.after = each.seq
                self._room -= each.length
                found.append(each)

    def _is_full(self, found: list[Line], most: int) -> bool:
        return len(found) >= most or self._room <= 0

    def _place(self) -> bool:
        """Goes to the segment that holds the next entry, or to the oldest that can be read."""
        chosen: Segment | None = None
        for segment in self._reader.walk():
            chosen = segment
            if segment.seq <= self.after + 1:
                break
        return self._enter(chosen)

    def _next(self) -> bool:
        """Goes to the segment behind this one; where this one is no part of the session any more, to the one that goes on."""
        newer: Segment | None = None
        for segment in self._reader.walk():
            if segment.id == self._segment or segment.seq <= self.after:
                newer = newer or (segment if segment.id != self._segment else None)
                break
            newer = segment
        return self._enter(newer)

    def _enter(self, segment: Segment | None) -> bool:
        if segment is None:
            return False
        self._segment, self._path, self._upto, self._offset = segment.id, segment.path, segment.upto, 0
        return True
