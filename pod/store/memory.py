"""A store of sessions in memory, for tests: gone with the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pod.store.port import (
    PAGE,
    TTL,
    Conflict,
    Entry,
    Fenced,
    Gathered,
    Held,
    Holding,
    Lease,
    NoSession,
    Posted,
    SessionExists,
    SessionInfo,
    all_entries,
    gathered,
)


@dataclass
class _Session:
    epoch: int = 0
    owner: str = ""
    state: str = ""
    beat: float = 0.0
    logs: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict[str, list[tuple[int, bytes]]])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    inbox: dict[str, Posted] = field(default_factory=dict[str, Posted])
    last: int = 0


class MemoryStore:
    """`SessionStore` in memory. Safe between threads."""

    def __init__(self, *, ttl: float = TTL, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.RLock()
        self._ttl, self._clock = ttl, clock

    def create(self, session: str, *, exist_ok: bool = False) -> None:
        """Makes a session."""
        with self._lock:
            if session in self._sessions and not exist_ok:
                raise SessionExists(session)
            self._sessions.setdefault(session, _Session())

    def acquire(self, session: str, owner: str, *, over: int = 0) -> Lease:
        """Becomes the writer."""
        with self._lock:
            found = self._of(session)
            alive = found.owner and self._clock() - found.beat < self._ttl
            if alive and found.owner != owner and over != found.epoch:
                raise Held(session, found.owner, found.epoch)
            found.epoch, found.owner, found.beat = found.epoch + 1, owner, self._clock()
            return Lease(session, found.epoch, owner)

    def beat(self, lease: Lease) -> int:
        """A sign of life."""
        with self._lock:
            found = self._fenced(lease)
            found.beat = self._clock()
            return found.last

    def release(self, lease: Lease) -> None:
        """Gives the session free."""
        with self._lock:
            found = self._sessions.get(lease.session)
            if found is not None and found.epoch == lease.epoch:
                found.owner = ""

    def append(self, lease: Lease, log: str, first: int, bodies: Sequence[bytes]) -> None:
        """Appends entries."""
        with self._lock:
            found = self._fenced(lease)
            held = found.logs.get(log, [])
            new = [(lease.epoch, bytes(body)) for body in bodies]
            if first < 1 or first > len(held) + 1 or held[first - 1 :] != new[: len(held) - first + 1]:
                raise Conflict(lease.session, log, first)
            if new:
                found.logs.setdefault(log, []).extend(new[len(held) - first + 1 :])

    def rewrite(self, lease: Lease, log: str, bodies: Sequence[bytes]) -> None:
        """Makes a log anew."""
        with self._lock:
            found = self._fenced(lease)
            found.logs[log] = [(lease.epoch, bytes(body)) for body in bodies]
            if not bodies:
                del found.logs[log]

    def load(self, session: str, log: str, first: int = 1) -> Iterator[Entry]:
        """The entries of a log."""
        while True:
            with self._lock:
                page = self._of(session).logs.get(log, [])[first - 1 : first - 1 + PAGE]
            yield from (Entry(first + n, body) for n, (_, body) in enumerate(page))
            if len(page) < PAGE:
                return
            first += PAGE

    def logs(self, session: str) -> list[Holding]:
        """All logs."""
        with self._lock:
            held = sorted(self._of(session).logs.items())
            return [Holding(name, len(log), sum(len(body) for _, body in log)) for name, log in held]

    def head(self, session: str) -> SessionInfo:
        """What is known of a session."""
        with self._lock:
            found = self._of(session)
            return SessionInfo(session, found.epoch, found.owner, found.state, self._clock() - found.beat)

    def set_state(self, session: str, state: str, *, expect: str | None = None) -> bool:
        """Sets the state."""
        with self._lock:
            found = self._of(session)
            if expect is not None and found.state not in {expect, state}:
                return False
            found.state = state
            return True

    def list(
        self, *, prefix: str = "", state: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[SessionInfo]:
        """Sessions in order."""
        with self._lock:
            names = sorted(
                name
                for name, found in self._sessions.items()
                if name.startswith(prefix) and name > after and state in (None, found.state)
            )
            return [self.head(name) for name in names[:limit]]

    def gather(self, sessions: Sequence[str], small: int = 0) -> list[Gathered]:
        """What these sessions hold."""
        return gathered(self, sessions, small)

    def contents(self, logs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Entry]]:
        """All entries of short logs."""
        return all_entries(self, logs)

    def marks(self, sessions: Sequence[str]) -> dict[str, object]:
        """What changes when something happens to these sessions."""
        found = gathered(self, sessions, 0)
        return {
            each.info.id: (each.info.epoch, each.info.owner, tuple(p.number for p in each.posted)) for each in found
        }

    def remove(self, lease: Lease) -> None:
        """Removes the session."""
        with self._lock:
            self._fenced(lease)
            del self._sessions[lease.session]

    def put(self, lease: Lease, name: str, data: bytes) -> None:
        """Keeps a file."""
        with self._lock:
            self._fenced(lease).files[name] = bytes(data)

    def get(self, session: str, name: str) -> bytes | None:
        """A file."""
        with self._lock:
            return self._of(session).files.get(name)

    def drop(self, lease: Lease, name: str) -> None:
        """Removes a file or log."""
        with self._lock:
            found = self._fenced(lease)
            found.files.pop(name, None)
            found.logs.pop(name, None)

    def files(self, session: str) -> list[Holding]:
        """All files."""
        with self._lock:
            return [Holding(name, 0, len(data)) for name, data in sorted(self._of(session).files.items())]

    def post(self, session: str, command: str, body: bytes) -> bool:
        """Leaves a command."""
        with self._lock:
            found = self._of(session)
            if command in found.inbox:
                return False
            found.last += 1
            found.inbox[command] = Posted(found.last, command, bytes(body))
            return True

    def posted(self, session: str, after: int = 0) -> list[Posted]:
        """The commands that wait."""
        with self._lock:
            return [each for each in self._of(session).inbox.values() if each.number > after]

    def take(self, session: str, command: str) -> None:
        """Removes a command."""
        with self._lock:
            self._of(session).inbox.pop(command, None)

    def close(self) -> None:
        """Nothing is held."""

    def _of(self, session: str) -> _Session:
        found = self._sessions.get(session)
        if found is None:
            raise NoSession(session)
        return found

    def _fenced(self, lease: Lease) -> _Session:
        found = self._sessions.get(lease.session)
        if found is None or found.epoch != lease.epoch or found.owner != lease.owner:
            raise Fenced(lease.session, found.owner if found is not None else "")
        return found
