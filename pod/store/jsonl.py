"""A store of sessions in files of one machine: the pod folder's lock and logs, for opaque bytes.

A session is a `PodFolder`: `lock` (held by the process that has the lease, freed by the kernel at its death), `lease.json` (the
epoch), `logs/NAME.jsonl` (one line for each append, so that it counts whole or not at all), `files/NAME`, `inbox/NAME`.
A process that is stopped keeps the lease: nobody takes over from it. Not for network file systems.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pod.errors import PodBusy, StoreError
from pod.log.files import Files, json_of, read_file
from pod.log.folder import PodFolder, check_name
from pod.log.lines import now, render
from pod.log.locking import exclusive
from pod.log.segment import SegmentWriter, entries
from pod.store.port import (
    PAGE,
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

_MARK = "lease.json"


@dataclass
class _Log:
    writer: SegmentWriter
    last: int
    at: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, tuple[int, bytes]])
    """The last append: where a repeated one finds itself."""


@dataclass
class _Open:
    """A session that this process writes to."""

    folder: PodFolder
    lease: Lease
    logs: dict[str, _Log] = field(default_factory=dict[str, _Log])


class JsonlStore:
    """`SessionStore` in a folder. Safe between threads and processes of one machine."""

    def __init__(self, home: Path, files: Files | None = None) -> None:
        self.home, self._files = home, files or Files()
        self._open: dict[str, _Open] = {}
        self._lock = threading.RLock()

    def create(self, session: str, *, exist_ok: bool = False) -> None:
        """Makes a session."""
        with self._lock:
            folder = self._folder(session)
            self._files.make_folder(folder.path)
            with exclusive(folder.path / "posting"):
                if (folder.path / _MARK).exists():
                    if not exist_ok:
                        raise SessionExists(session)
                    return
                self._mark(folder, Lease(session, 0, ""))

    def acquire(self, session: str, owner: str, *, over: int = 0) -> Lease:
        """Becomes the writer. The kernel knows who is alive: `over` counts only for a lease of this very object."""
        with self._lock:
            folder, (epoch, held) = self._folder(session), self._marked(session)
            known = self._open.get(session)
            if known is not None and known.lease.owner != owner and over != known.lease.epoch:
                raise Held(session, known.lease.owner, known.lease.epoch)
            if known is None:
                try:
                    folder.lock()
                except PodBusy:
                    raise Held(session, held, epoch) from None
                epoch, _ = self._marked(session)
            else:
                folder = known.folder
                _closed(known)
            lease = Lease(session, epoch + 1, owner)
            self._mark(folder, lease)
            self._open[session] = _Open(folder, lease)
            return lease

    def beat(self, lease: Lease) -> int:
        """Whether the lease still counts; the kernel needs no sign of life."""
        with self._lock:
            self._fenced(lease)
            return max((each.number for each in self.posted(lease.session)), default=0)

    def release(self, lease: Lease) -> None:
        """Gives the session free."""
        with self._lock:
            known = self._open.get(lease.session)
            if known is not None and known.lease == lease:
                _closed(known)
                self._mark(known.folder, Lease(lease.session, lease.epoch, ""))
                known.folder.unlock()
                del self._open[lease.session]

    def append(self, lease: Lease, log: str, first: int, bodies: Sequence[bytes]) -> None:
        """Appends entries, as one line."""
        with self._lock:
            known = self._fenced(lease)
            if bodies:
                self._append(known, log, first, bodies)

    def _append(self, known: _Open, log: str, first: int, bodies: Sequence[bytes]) -> None:
        opened = known.logs.get(log) or self._opened(known, log)
        label, body = known.lease, _packed(known.lease.epoch, first, bodies)
        if first != opened.last + 1:
            if opened.at.get(first) != (len(bodies), body):
                raise Conflict(label.session, log, first)
            return
        try:
            opened.writer.write("entries", body)
            opened.writer.sync_now()
        except StoreError as error:
            del known.logs[log]
            raise error.cause from error
        opened.last += len(bodies)
        opened.at = {first: (len(bodies), body)}

    def _opened(self, known: _Open, log: str) -> _Log:
        path = _log(known.folder, log)
        last = 0
        if path.exists():
            for entry in self.load(known.lease.session, log):
                last = entry.seq
            writer, _, _ = SegmentWriter.open(path, self._files)
        else:
            self._files.make_folder(path.parent)
            self._files.put(path, b"")
            writer, _, _ = SegmentWriter.open(path, self._files)
        known.logs[log] = _Log(writer, last)
        return known.logs[log]

    def rewrite(self, lease: Lease, log: str, bodies: Sequence[bytes]) -> None:
        """Makes a log anew."""
        with self._lock:
            known = self._fenced(lease)
            self._closed_log(known, log)
            path = _log(known.folder, log)
            if not bodies:
                return self._files.unlink(path)
            self._files.make_folder(path.parent)
            self._files.put(path, render(1, "entries", _packed(lease.epoch, 1, bodies), now())[1])
        return None

    def load(self, session: str, log: str, first: int = 1) -> Iterator[Entry]:
        """The entries of a log."""
        path = _log(self._known(session), log)
        if not path.exists():
            return
        for line in entries(path):
            value = json_of(line.body)
            for n, body in enumerate(value["bodies"], value["first"]):
                if n >= first:
                    yield Entry(n, base64.b64decode(body))

    def logs(self, session: str) -> list[Holding]:
        """All logs."""
        found: list[Holding] = []
        for path in sorted((self._known(session).path / "logs").glob("*.jsonl")):
            name, last, size = unquote(path.name.removesuffix(".jsonl")), 0, 0
            for entry in self.load(session, name):
                last, size = entry.seq, size + len(entry.body)
            if last:
                found.append(Holding(name, last, size))
        return sorted(found)

    def head(self, session: str) -> SessionInfo:
        """What is known of a session."""
        epoch, owner = self._marked(session)
        folder = self._folder(session)
        alive = folder.is_busy()
        path = folder.path / "state"
        state = read_file(path).decode() if path.exists() else ""
        return SessionInfo(session, epoch, owner if alive else "", state, 0.0)

    def set_state(self, session: str, state: str, *, expect: str | None = None) -> bool:
        """Sets the state."""
        folder = self._known(session)
        with exclusive(folder.path / "posting"):
            if expect is not None and self.head(session).state not in {expect, state}:
                return False
            self._files.put(folder.path / "state", state.encode())
            return True

    def list(
        self, *, prefix: str = "", state: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[SessionInfo]:
        """Sessions in order."""
        root = self.home / "pods"
        names = sorted(path.parent.relative_to(root).as_posix() for path in root.rglob(_MARK))
        found: list[SessionInfo] = []
        for name in names:
            if name.startswith(prefix) and name > after and len(found) < limit:
                info = self.head(name)
                if state in (None, info.state):
                    found.append(info)
        return found

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
            known = self._fenced(lease)
            _closed(known)
            self._files.unlink(known.folder.path / _MARK)
            self._files.sync_folder(known.folder.path)
            for part in ("logs", "files", "inbox"):
                shutil.rmtree(known.folder.path / part, ignore_errors=True)
            self._files.unlink(known.folder.path / "state")
            known.folder.unlock()
            del self._open[lease.session]

    def put(self, lease: Lease, name: str, data: bytes) -> None:
        """Keeps a file."""
        with self._lock:
            path = _file(self._fenced(lease).folder, name)
            self._files.make_folder(path.parent)
            self._files.put(path, data)

    def get(self, session: str, name: str) -> bytes | None:
        """A file."""
        try:
            return read_file(_file(self._known(session), name))
        except FileNotFoundError:
            return None

    def drop(self, lease: Lease, name: str) -> None:
        """Removes a file or log."""
        with self._lock:
            known = self._fenced(lease)
            self._closed_log(known, name)
            self._files.unlink(_file(known.folder, name))
            self._files.unlink(_log(known.folder, name))

    def files(self, session: str) -> list[Holding]:
        """All files."""
        paths = (p for p in (self._known(session).path / "files").glob("*") if not p.name.startswith("."))
        return sorted(Holding(unquote(path.name), 0, path.stat().st_size) for path in paths)

    def post(self, session: str, command: str, body: bytes) -> bool:
        """Leaves a command."""
        folder = self._known(session)
        self._files.make_folder(folder.inbox)
        with exclusive(folder.path / "posting"):
            waiting = self.posted(session)
            if any(each.id == command for each in waiting):
                return False
            number = max(time.time_ns(), max((each.number for each in waiting), default=0) + 1)
            data = json.dumps({"number": number, "body": base64.b64encode(body).decode()}).encode()
            self._files.put(_command(folder, command), data)
            return True

    def posted(self, session: str, after: int = 0) -> list[Posted]:
        """The commands that wait."""
        found: list[Posted] = []
        for path in self._known(session).inbox.glob("*.command"):
            try:
                value = json_of(read_file(path))
            except FileNotFoundError:
                continue  # taken since
            found.append(Posted(value["number"], unquote(path.stem), base64.b64decode(value["body"])))
        return sorted(each for each in found if each.number > after)

    def take(self, session: str, command: str) -> None:
        """Removes a command."""
        self._files.unlink(_command(self._known(session), command))

    def close(self) -> None:
        """Gives all leases of this object up."""
        for known in list(self._open.values()):
            self.release(known.lease)

    # -- inside -----------------------------------------------------------------------------------------------

    def _folder(self, session: str) -> PodFolder:
        return PodFolder(self.home, check_name(session), self._files)

    def _known(self, session: str) -> PodFolder:
        folder = self._folder(session)
        if not (folder.path / _MARK).exists():
            raise NoSession(session)
        return folder

    def _marked(self, session: str) -> tuple[int, str]:
        try:
            value: Any = json_of(read_file(self._folder(session).path / _MARK))
        except FileNotFoundError:
            raise NoSession(session) from None
        return value["epoch"], value["owner"]

    def _mark(self, folder: PodFolder, lease: Lease) -> None:
        data = json.dumps({"epoch": lease.epoch, "owner": lease.owner}).encode()
        self._files.put(folder.path / _MARK, data)

    def _fenced(self, lease: Lease) -> _Open:
        known = self._open.get(lease.session)
        if known is None or known.lease != lease:
            raise Fenced(lease.session, known.lease.owner if known is not None else "")
        return known

    def _closed_log(self, known: _Open, log: str) -> None:
        if (opened := known.logs.pop(log, None)) is not None:
            opened.writer.close()


def _closed(known: _Open) -> None:
    for opened in known.logs.values():
        opened.writer.close()
    known.logs.clear()


def _packed(epoch: int, first: int, bodies: Sequence[bytes]) -> bytes:
    """The body of a line. What is packed needs no escapes."""
    packed = b'","'.join(base64.b64encode(body) for body in bodies)
    return b'{"epoch":%d,"first":%d,"bodies":["%s"]}' % (epoch, first, packed)


def _log(folder: PodFolder, name: str) -> Path:
    return folder.path / "logs" / f"{_quoted(name)}.jsonl"


def _file(folder: PodFolder, name: str) -> Path:
    return folder.path / "files" / _quoted(name)


def _command(folder: PodFolder, command: str) -> Path:
    return folder.inbox / f"{_quoted(command)}.command"


def _quoted(name: str) -> str:
    """A name as one of a file: no separators, no leading dot."""
    text = quote(name, safe="")
    return f"%2E{text[1:]}" if text.startswith(".") else text
