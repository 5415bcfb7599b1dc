"""The port of a session store: what every store of sessions keeps, and what it promises. Opaque bytes only.

A session has *logs* (by name, entries numbered from 1 without gaps), *files* (small, whole, by name) and *commands* that others
leave for its writer. Whoever writes holds a *lease*. Each lease has a higher epoch than the one before it, and the store takes
nothing more of an older one: that is the fence. All methods block; `pod.store.threaded.Threaded` is the same for an event loop.
`pod.testing.store_conformance` holds every store to this.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

TTL = 30.0
"""Seconds that a lease holds without a sign of life of its owner."""

PAGE = 1000
"""Entries that are read at a time."""


class NoSession(LookupError):
    """The store has no session of this id."""

    def __init__(self, session: str) -> None:
        self.session = session
        super().__init__(f"the store has no session {session!r}")


class SessionExists(Exception):
    """A session of this id is there already."""

    def __init__(self, session: str) -> None:
        self.session = session
        super().__init__(f"the store has a session {session!r} already")


class Held(Exception):
    """Another owner holds the lease and showed a sign of life within its time. Its `epoch` is what `over` takes."""

    def __init__(self, session: str, owner: str, epoch: int) -> None:
        self.session, self.owner, self.epoch = session, owner, epoch
        super().__init__(f"session {session!r} is held by {owner}")


class Fenced(OSError):
    """The lease is no longer the session's: nothing was written, nothing more will be. `owner` holds it now, '' for nobody."""

    def __init__(self, session: str, owner: str) -> None:
        self.session, self.owner = session, owner
        who = (
            f"{owner} took the session {session!r} over"
            if owner
            else f"the session {session!r} was given up or removed"
        )
        super().__init__(errno.ESTALE, f"{who}; this process may not write to it any more")


class Conflict(OSError):
    """An append that is not the next one: numbers are missing before it, or other bytes stand at its place."""

    def __init__(self, session: str, log: str, seq: int) -> None:
        self.session, self.log, self.seq = session, log, seq
        super().__init__(errno.EEXIST, f"entry {seq} of {session}/{log} is not the next one, or another stands there")


class Unreachable(OSError):
    """The store does not answer. `where` names it without secrets."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(errno.EHOSTUNREACH, f"{where} can't be reached: {why}")


class Refused(OSError):
    """The store answers, and does not do it: a right that the user lacks, tables that are not its own. `where` as above."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(errno.EPERM, f"{where} refuses what is asked of it: {why}")


class Lease(NamedTuple):
    """The right to write to a session until someone else acquires it."""

    session: str
    epoch: int
    owner: str


class Entry(NamedTuple):
    """An entry of a log."""

    seq: int
    body: bytes


class Holding(NamedTuple):
    """What a session holds under a name: a log with the number of its last entry, or a file (0). `size` in bytes."""

    name: str
    last: int
    size: int


class Posted(NamedTuple):
    """A command as it was left; `number` grows from one to the next."""

    number: int
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What the store knows of a session. `quiet` are the seconds since the owner's last sign of life, by the store's clock."""

    id: str
    epoch: int
    owner: str
    state: str
    quiet: float


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a session holds, its large contents left out; `small` are those of small files."""

    info: SessionInfo
    logs: Sequence[Holding]
    files: Sequence[Holding]
    posted: Sequence[Posted]
    small: Mapping[str, bytes]


class SessionStore(Protocol):
    """A store of sessions. Every method is one step: all of it happens, or nothing.

    Raises `Unreachable` where the store does not answer; whether a step that was asked for then happened is unknown, and
    asking for the same again is safe.
    """

    def create(self, session: str, *, exist_ok: bool = False) -> None:
        """Makes a session. Raises `SessionExists`."""
        ...

    def acquire(self, session: str, owner: str, *, over: int = 0) -> Lease:
        """Becomes the writer, with an epoch above all before. The same owner may ask again. Raises `NoSession`, `Held`.

        `over` is the epoch of an owner that is known to be dead: it is not waited for.
        """
        ...

    def beat(self, lease: Lease) -> int:
        """A sign of life; returns the number of the last command. Raises `Fenced`."""
        ...

    def release(self, lease: Lease) -> None:
        """Gives the session free, where the lease still counts."""
        ...

    def append(self, lease: Lease, log: str, first: int, bodies: Sequence[bytes]) -> None:
        """Appends entries, the first with the number `first`: all or none.

        Raises `Fenced`, `Conflict`. The same append once more finds its own entries and does nothing.
        """
        ...

    def rewrite(self, lease: Lease, log: str, bodies: Sequence[bytes]) -> None:
        """Makes a log anew with these entries alone. Raises `Fenced`."""
        ...

    def load(self, session: str, log: str, first: int = 1) -> Iterator[Entry]:
        """The entries of a log from a number on, read in pages. Nothing for a log that is not there."""
        ...

    def logs(self, session: str) -> list[Holding]:
        """All logs of a session, by name."""
        ...

    def head(self, session: str) -> SessionInfo:
        """What is known of a session. Raises `NoSession`."""
        ...

    def set_state(self, session: str, state: str, *, expect: str | None = None) -> bool:
        """Sets the state, where it is the expected one or none is expected (or it is so already). Raises `NoSession`."""
        ...

    def list(
        self, *, prefix: str = "", state: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[SessionInfo]:
        """Sessions in the order of their ids, at most `limit` of those after `after`."""
        ...

    def gather(self, sessions: Sequence[str], small: int = 0) -> list[Gathered]:
        """What these sessions hold, those that are not there left out; the contents of files of at most `small` bytes come along.

        For many sessions it costs hardly more than for one.
        """
        ...

    def contents(self, logs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Entry]]:
        """All entries of short logs, each by its session and name; those that are not there are left out."""
        ...

    def marks(self, sessions: Sequence[str]) -> dict[str, object]:
        """For each session that is there a value that differs once it was acquired or given free, or a command was left or taken."""
        ...

    def remove(self, lease: Lease) -> None:
        """Removes the session with all that it holds. Raises `Fenced`."""
        ...

    def put(self, lease: Lease, name: str, data: bytes) -> None:
        """Keeps a file whole under a name, in the place of an older one. Raises `Fenced`."""
        ...

    def get(self, session: str, name: str) -> bytes | None:
        """A file; None where there is none."""
        ...

    def drop(self, lease: Lease, name: str) -> None:
        """Removes the file or log of a name, where it is there. Raises `Fenced`."""
        ...

    def files(self, session: str) -> list[Holding]:
        """All files of a session, by name."""
        ...

    def post(self, session: str, command: str, body: bytes) -> bool:
        """Leaves a command; False where one of this id waits already. Needs no lease. Raises `NoSession`."""
        ...

    def posted(self, session: str, after: int = 0) -> list[Posted]:
        """The commands that wait, in the order of their arrival, those with a number above `after`."""
        ...

    def take(self, session: str, command: str) -> None:
        """Removes a command: it is on record, or its sender takes it back."""
        ...

    def close(self) -> None:
        """Gives up what the store holds of the system."""
        ...


def gathered(store: SessionStore, sessions: Sequence[str], small: int) -> list[Gathered]:
    """`gather`, one session after the other: for stores in which that costs little."""
    found: list[Gathered] = []
    for session in sessions:
        try:
            files = store.files(session)
            contents = {name: store.get(session, name) for name, _, size in files if size <= small}
            kept = {name: data for name, data in contents.items() if data is not None}
            found.append(Gathered(store.head(session), store.logs(session), files, store.posted(session), kept))
        except NoSession:
            continue
    return found


def all_entries(store: SessionStore, logs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Entry]]:
    """`contents`, one log after the other."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for session, log in logs:
        try:
            entries = list(store.load(session, log))
        except NoSession:
            continue
        if entries:
            found[session, log] = entries
    return found
