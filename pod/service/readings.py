"""What is read of pods again and again, so that a reading costs what is new.

Two things are remembered, both within bounds. An answer, as long as every file that it was made from is the very one that it was
made from. And the state that a log gave, which the entries behind it are folded into. What is answered is what a reading from the
first entry on would answer.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pod import views
from pod.errors import LogDamaged, LogLost
from pod.log.folder import PodFolder
from pod.log.lines import Invalid, Line, parse
from pod.log.segment import EMPTY, Damage, open_log, scan, stands_for
from pod.outlook import outlook
from pod.peek import Glance, glance
from pod.session import folded, whole
from pod.state import PodState
from worker.models.base import Family

LOGS = 64 * 1024 * 1024
"""Bytes of the logs whose states are kept, together. One that is longer is read anew each time."""

ANSWERS = 32 * 1024 * 1024
"""Bytes of the answers that are kept, together."""

T = TypeVar("T")


class Kept(Generic[T]):
    """Values by key, those that were asked for last, so many bytes together. Safe between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[Any, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> T | None:
        """The value, where it is still here."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key][0]

    def put(self, key: Any, value: T, size: int) -> None:
        """Keeps a value, and lets go of the oldest ones for it."""
        with self._lock:
            self._drop(key)
            if size > self._most:
                return
            self._found[key] = value, size
            self._size += size
            while self._size > self._most:
                self._drop(next(iter(self._found)))

    def drop(self, key: Any) -> None:
        """Lets go of a value."""
        with self._lock:
            self._drop(key)

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return self._size

    def _drop(self, key: Any) -> None:
        if (found := self._found.pop(key, None)) is not None:
            self._size -= found[1]


@dataclass
class _Fold:
    """A log's state up to byte `end`, of the file that `seen` tells of, whose last entry is `last`."""

    path: Path
    family: Family
    seen: tuple[int, int, int]
    state: PodState
    end: int
    last: Line

    @classmethod
    def read(cls, path: Path, family: Family) -> _Fold:
        """From the first entry on. Raises as `load` does."""
        state, last, seen = None, None, _seen(path)
        for last in whole(path):
            state = folded(state, last, path, family)
        if state is None or last is None:
            raise LogLost(path, EMPTY)
        return cls(path, family, seen, state, last.offset + last.length, last)

    def advance(self) -> bool:
        """Folds in what came since; False where that can't be: this fold is of no use then.

        A log only grows. One that became another file, or shorter, or was changed without growing, is read anew.
        """
        before, self.seen = self.seen, _seen(self.path)
        if self.seen == before:
            return True
        if self.seen[0] != before[0] or self.seen[1] <= before[1]:
            return False
        try:
            return self._is_there() and self._folded()
        except (OSError, LogDamaged):
            return False  # from the first entry on it is said better

    def _folded(self) -> bool:
        damaged = False
        for found in scan(self.path, self.end, self.last.seq + stands_for(self.last)):
            if isinstance(found, Damage):
                damaged = True  # an entry that is being written, unless another one stands behind it
            elif damaged:
                return False
            else:
                self.state = folded(self.state, found, self.path, self.family)
                self.end, self.last = found.offset + found.length, found
        return True

    def _is_there(self) -> bool:
        """Whether the last entry that was read stands where it stood."""
        with open_log(self.path) as file:
            data = os.pread(file.fileno(), self.last.length, self.last.offset)
        try:
            found = parse(data.removesuffix(b"\n"), self.last.offset, 0)
        except Invalid:
            return False
        return (found.seq, found.id, found.body) == (self.last.seq, self.last.id, self.last.body)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer, what it was made from, and the moments (UTC seconds) at which it would be another one."""

    made_from: object
    value: Any
    moments: tuple[float, ...] = ()
    at: float = 0.0

    def holds(self, made_from: object, now: float) -> bool:
        return made_from == self.made_from and all((each < self.at) == (each < now) for each in self.moments)


@dataclass(eq=False)
class Readings:
    """Readings of pods. Everything blocks, and may be asked by many threads at once; of one pod they come one after the other."""

    clock: Callable[[], float] = time.time
    _folds: Kept[_Fold] = field(default_factory=lambda: Kept[_Fold](LOGS))
    _answers: Kept[_Answer] = field(default_factory=lambda: Kept[_Answer](ANSWERS))
    _locks: tuple[threading.RLock, ...] = field(default_factory=lambda: tuple(threading.RLock() for _ in range(64)))

    def glance(self, folder: PodFolder) -> Glance:
        """How a pod stands, as `pod.peek.glance`. Raises `PodNotFound`."""
        return self._answered(folder, "glance", lambda: (glance(folder), ()))

    def facts(self, folder: PodFolder) -> dict[str, Any]:
        """What there is to say of a pod, as `pod.views.whole_of`. Raises `PodNotFound`."""
        return self._answered(
            folder,
            "facts",
            lambda: (views.whole_of(folder, self.glance(folder), partial(self._state, family="unknown")), ()),
        )

    def context(self, folder: PodFolder) -> dict[str, Any]:
        """What fills the context, and what would go next, as `pod.views.context_of`. Raises as `pod.outlook.outlook` does."""
        now = self.clock()

        def made() -> tuple[dict[str, Any], tuple[float, ...]]:
            view = outlook(folder, self._state)
            # What comes next depends on the time by these alone: when the cache is cold, and when the breaker closes.
            cold = view.state.last_reply_at + view.model.capabilities.cache_ttl
            return views.context_of(view, now), (cold, view.state.breaker.open_until or 0.0)

        return self._answered(folder, "context", made, now)

    @contextmanager
    def state(self, folder: PodFolder) -> Generator[PodState]:
        """The state of a pod, for a look in the block alone. Raises `PodNotFound`, `LogDamaged`."""
        with self._lock(folder):
            yield self._state(folder.segment_path(folder.pointer().segment), "unknown")

    def _answered(
        self, folder: PodFolder, kind: str, made: Callable[[], tuple[Any, tuple[float, ...]]], now: float = 0.0
    ) -> Any:
        key = (folder.home, folder.name, kind)
        with self._lock(folder):
            folder.pointer()
            before = made_from(folder)
            known = self._answers.get(key)
            if known is not None and known.holds(before, now):
                return known.value
            value, moments = made()
            if made_from(folder) == before:
                size = len(repr(value)) if kind == "glance" else len(json.dumps(value, default=str))
                self._answers.put(key, _Answer(before, value, moments, now), size)
            return value

    def _state(self, path: Path, family: Family) -> PodState:
        """The state of a log, which stays as it is until the next reading of it. Raises as `load` does."""
        key = (path, family)
        fold = self._folds.get(key)
        try:
            if fold is None or not fold.advance():
                fold = _Fold.read(path, family)
        except BaseException:
            self._folds.drop(key)  # it may have been folded by half
            raise
        self._folds.put(key, fold, fold.end)
        return fold.state

    def _lock(self, folder: PodFolder) -> threading.RLock:
        return self._locks[hash((folder.home, folder.name)) % len(self._locks)]


def made_from(folder: PodFolder) -> object:
    """What all that is said of a pod is made from: its files, each with its time of change and size, and whether somebody has it open."""
    places = (folder.path, folder.path / "blobs", folder.inbox, folder.origin)
    return tuple(_files(place) for place in places), folder.is_busy()


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)  # a link that leads nowhere


def _seen(path: Path) -> tuple[int, int, int]:
    """Which file this is, its size, and when it was changed."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _files(place: Path) -> tuple[tuple[Any, ...], ...]:
    found: list[tuple[Any, ...]] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                stat = _stat(entry)
                # Of a folder that nothing is made from (artifacts) no more than that it is there.
                about = () if entry.is_dir() else (stat.st_size, stat.st_mtime_ns)
                found.append((entry.name, stat.st_ino, *about))
    except OSError as error:
        return ((error.errno,),)
    return tuple(sorted(found))
