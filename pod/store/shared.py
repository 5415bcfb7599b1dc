"""A home in PostgreSQL: this process works on a copy in files, written through to the database.

What a sync acknowledges is committed under the pod's lease before it returns; so is each file that is put as a whole. The copy
holds the names and sizes of everything; contents come when they are first read (`pod.log.files.present`). It is gone with the
process. One thread shows signs of life for all leases, and brings commands that others left.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pod.errors import PodBusy
from pod.log.files import Files, absent, present
from pod.log.items import named_artifacts
from pod.names import of_a_pod
from pod.store.owners import is_dead, new_owner, told
from pod.store.port import TTL, Fenced, Held, Holding, Lease, NoSession, SessionStore

POINTER, INBOX, ARTIFACTS = "pod.json", "inbox/", "artifacts/"

FRESH = 0.2
"""Seconds for which a look at the database counts, and commands are not asked for again."""


class _Local(Files):
    """What is done to the copy alone. Nothing of it is made durable: it is gone with the process."""

    def sync(self, fd: int) -> None:
        """Nothing."""

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


_LOCAL = _Local()


@dataclass
class _Log:
    """How much of a log the database has; `pending` was written and not yet sent. `fetched` is false for a placeholder."""

    last: int = 0
    size: int = 0
    pending: bytearray = field(default_factory=bytearray)
    fetched: bool = True


@dataclass
class _Pod:
    """What is known of a pod. `lock` orders everything that is sent for it; `guard` is held for a moment only, so that whoever
    writes never waits for the database.
    """

    name: str
    path: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    guard: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    logs: dict[str, _Log] = field(default_factory=dict[str, _Log])
    files: dict[str, int] = field(default_factory=dict[str, int])
    looked: float = -1e9
    asked: float = -1e9
    seen: int = 0
    owner: tuple[str, bool] = "", False


class SharedFiles(Files):
    """The file layer of a shared home's copy in `home`."""

    def __init__(self, store: SessionStore, home: Path, *, ttl: float = TTL, fresh: float = FRESH) -> None:
        self.store, self.home, self.ttl, self.fresh = store, home, ttl, fresh
        self._pods: dict[str, _Pod] = {}
        self._fds: dict[int, Path] = {}
        self._lock = threading.Lock()
        self._listed = -1e9
        self._beating: threading.Thread | None = None
        self._end = threading.Event()

    # -- which pod a path belongs to -----------------------------------------------------------------------------

    def _pod(self, path: Path) -> _Pod:
        name = path.relative_to(self.home / "pods").as_posix()
        with self._lock:
            return self._pods.setdefault(name, _Pod(name, path))

    def _place(self, path: Path) -> tuple[_Pod, str] | None:
        """The pod and the name in it of a file; None for what stays here: temporaries, and what is no pod's."""
        root = self.home / "pods"
        if path.name.startswith(".") or path.name == "lock" or not path.is_relative_to(root):
            return None
        parts = path.relative_to(root).parts
        at = next((n for n, part in enumerate(parts) if of_a_pod(part)), 0)
        return (self._pod(root.joinpath(*parts[:at])), "/".join(parts[at:])) if at else None

    # -- the lease -----------------------------------------------------------------------------------------------

    def claim(self, path: Path) -> None:
        """Acquires the pod's lease, and brings the copy up to date. An owner that died on this machine is not waited for.

        Raises `PodBusy`, `OSError`.
        """
        pod = self._pod(path)
        with pod.lock:
            self.store.create(pod.name, exist_ok=True)
            owner = new_owner()
            try:
                lease = self.store.acquire(pod.name, owner)
            except Held as held:
                if not is_dead(held.owner):
                    raise PodBusy(pod.name, told(held.owner)) from None
                try:
                    lease = self.store.acquire(pod.name, owner, over=held.epoch)
                except Held as other:
                    raise PodBusy(pod.name, told(other.owner)) from None
            pod.lease, pod.seen = lease, 0
            self._forget(pod)
            self._update(pod)
            for name in pod.files:
                if name.startswith(ARTIFACTS):  # tools read these without asking anyone
                    present(pod.path / name)
        with self._lock:
            if self._beating is None:
                self._beating = threading.Thread(target=self._beat, name="pod-lease", daemon=True)
                self._beating.start()

    def give_back(self, path: Path) -> None:
        """Sends what is left and gives the lease free. Where someone took the pod over, nothing is sent."""
        pod = self._pod(path)
        with pod.lock:
            lease, pod.lease = pod.lease, None
            pod.looked = -1e9
            if lease is None:
                return
            with suppress(Fenced):
                self._send_artifacts(pod, lease, None)
                self.store.release(lease)

    def owner(self, path: Path) -> dict[str, Any]:
        """Who writes to a pod, wherever."""
        pod = self._pod(path)
        self.look(path)
        owner, alive = pod.owner
        return told(owner) if owner and alive and not is_dead(owner) else {}

    def lasting(self, durability: str) -> str:
        """All of a shared pod is made durable: a copy that nobody syncs would be lost with its process."""
        return "fsync"

    def _beat(self) -> None:
        tick = min(self.ttl / 6, 1.0)
        beaten = 0.0
        while not self._end.wait(tick):
            due = time.monotonic() - beaten > self.ttl / 6
            beaten = time.monotonic() if due else beaten
            for pod in list(self._pods.values()):
                lease = pod.lease
                if lease is None:
                    continue
                with suppress(OSError, NoSession):  # who writes next is told
                    if due:
                        self.store.beat(lease)
                    self._ask(pod)

    def _ask(self, pod: _Pod) -> None:
        """Puts commands that were left since into the copy's inbox."""
        with pod.lock:
            pod.asked = time.monotonic()
            for each in self.store.posted(pod.name, pod.seen):
                _LOCAL.make_folder(pod.path / INBOX)
                _LOCAL.put(pod.path / INBOX / f"{each.id}.json", each.body)
                pod.seen = each.number

    # -- up to date ----------------------------------------------------------------------------------------------

    def names(self, home: Path) -> None:
        """Makes a folder for each pod of the database."""
        if time.monotonic() - self._listed < self.fresh:
            return
        after, known = "", set[str]()
        while page := self.store.list(after=after):
            known.update(info.id for info in page)
            after = page[-1].id
        for name in known:
            _LOCAL.make_folder(home / "pods" / name)
        self._listed = time.monotonic()

    def look(self, path: Path) -> None:
        """Brings the copy of a pod up to date, where this process is not its writer."""
        pod = self._pod(path)
        if pod.lease is not None:  # what this process knows is what there is
            return
        with pod.lock:
            if pod.lease is None and time.monotonic() - pod.looked > self.fresh:
                with _as_errors():
                    self._update(pod)
                pod.looked = time.monotonic()

    def _update(self, pod: _Pod) -> None:
        try:
            info = self.store.head(pod.name)
            logs = {each.name: each for each in self.store.logs(pod.name)}
            files = {each.name: each.size for each in self.store.files(pod.name)}
            inbox = self.store.posted(pod.name)
        except NoSession:
            pod.owner = "", False
            return self._forget(pod)
        pod.owner = info.owner, info.quiet < self.ttl
        for name in [*pod.logs.keys() - logs.keys(), *pod.files.keys() - files.keys()]:
            self._gone(pod, name)
        for held in logs.values():
            self._update_log(pod, held)
        for name, size in files.items():
            if name == POINTER or pod.files.get(name) != size or name.endswith(".key"):
                self._placeholder(pod, name, size, self._file_fetcher(pod, name))
            pod.files[name] = size
        if POINTER in files:
            present(pod.path / POINTER)  # it is replaced in one step, and read by its name
        folder = pod.path / INBOX
        waiting = {f"{each.id}.json": each for each in inbox}
        for old in folder.glob("*.json") if folder.is_dir() else ():
            if old.name not in waiting:
                _LOCAL.unlink(old)
        for name, each in waiting.items():
            _LOCAL.make_folder(folder)
            if not (folder / name).exists():
                _LOCAL.put(folder / name, each.body)
            pod.seen = max(pod.seen, each.number)
        return None

    def _update_log(self, pod: _Pod, held: Holding) -> None:
        known = pod.logs.get(held.name)
        if known is not None and (known.last, known.size) == (held.last, held.size):
            return
        path = pod.path / held.name
        if known is not None and known.fetched and known.last < held.last and known.size <= held.size:
            with path.open("ab") as file:
                for entry in self.store.load(pod.name, held.name, known.last + 1):
                    file.write(entry.body)
                    known.last, known.size = entry.seq, known.size + len(entry.body)
            return
        log = pod.logs[held.name] = _Log(held.last, held.size, fetched=False)

        def fetch() -> None:
            with pod.lock, _as_errors():
                if absent.get(str(path)) is not fetch:
                    return
                last, size, data = 0, 0, list[bytes]()
                for entry in self.store.load(pod.name, held.name):
                    last, size = entry.seq, size + len(entry.body)
                    data.append(entry.body)
                _fill(path, b"".join(data))
                log.last, log.size, log.fetched = last, size, True
                del absent[str(path)]

        self._placeholder(pod, held.name, held.size, fetch)

    def _file_fetcher(self, pod: _Pod, name: str) -> Callable[[], None]:
        path = pod.path / name

        def fetch() -> None:
            with pod.lock, _as_errors():
                if absent.get(str(path)) is not fetch:
                    return
                data = self.store.get(pod.name, name)
                if name == POINTER:
                    _LOCAL.put(path, data or b"")
                else:
                    _fill(path, data or b"")
                del absent[str(path)]

        return fetch

    def _placeholder(self, pod: _Pod, name: str, size: int, fetch: Callable[[], None]) -> None:
        """A file of the right size in the place of one that is elsewhere still."""
        path = pod.path / name
        _LOCAL.make_folder(path.parent)
        absent[str(path)] = fetch
        if name == POINTER:
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _gone(self, pod: _Pod, name: str) -> None:
        absent.pop(str(pod.path / name), None)
        pod.logs.pop(name, None)
        pod.files.pop(name, None)
        _LOCAL.unlink(pod.path / name)

    def _forget(self, pod: _Pod) -> None:
        """The copy of a pod goes; folders stay, since other pods may lie in them."""
        for name in [*pod.logs, *pod.files]:
            self._gone(pod, name)
        for left in (pod.path / INBOX).glob("*.json"):
            _LOCAL.unlink(left)

    # -- writing through -----------------------------------------------------------------------------------------

    def _lease(self, pod: _Pod) -> Lease:
        if pod.lease is None:
            raise Fenced(pod.name, "")
        return pod.lease

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends."""
        if not create:
            present(path)
        fd = super().open_append(path, create=create)
        if self._place(path) is not None:
            self._fds[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Writes here; a sync sends it."""
        super().write(fd, data)
        if (path := self._fds.get(fd)) is not None and (place := self._place(path)) is not None:
            pod, name = place
            with pod.guard:
                pod.logs.setdefault(name, _Log()).pending += data

    def sync(self, fd: int) -> None:
        """Commits what was written to the database. Raises `OSError`."""
        if (path := self._fds.get(fd)) is not None and (place := self._place(path)) is not None:
            self._send(*place)

    def close(self, fd: int) -> None:
        """Gives a descriptor up; what nobody synced is sent too."""
        path = self._fds.pop(fd, None)
        super().close(fd)
        if path is not None and (place := self._place(path)) is not None:
            pod, name = place
            if pod.lease is not None:
                with suppress(Fenced):
                    self._send(pod, name)

    def _send(self, pod: _Pod, name: str) -> None:
        with pod.lock, _as_errors():
            with pod.guard:
                log = pod.logs.setdefault(name, _Log())
                data = bytes(log.pending)
            if not data:
                return
            lease = self._lease(pod)
            self._send_artifacts(pod, lease, data)
            if name.endswith(".jsonl"):
                self.store.append(lease, name, log.last + 1, [data])
                with pod.guard:
                    log.last, log.size = log.last + 1, log.size + len(data)
                    del log.pending[: len(data)]
            else:
                del pod.logs[name]
                self._put(pod, lease, name, (pod.path / name).read_bytes())
            if time.monotonic() - pod.asked > self.fresh:
                self._ask(pod)

    def _put(self, pod: _Pod, lease: Lease, name: str, data: bytes) -> None:
        """A whole file."""
        if name.endswith(".jsonl"):
            self.store.rewrite(lease, name, [data] if data else [])
            pod.logs[name] = _Log(1 if data else 0, len(data))
        else:
            self.store.put(lease, name, data)
            pod.files[name] = len(data)
        absent.pop(str(pod.path / name), None)

    def _put_any(self, pod: _Pod, name: str, data: bytes) -> None:
        """A whole file, or a command: that needs no lease."""
        if name.startswith(INBOX) and name.endswith(".json"):
            self.store.post(pod.name, Path(name).stem, data)
        else:
            self._put(pod, self._lease(pod), name, data)

    def _send_artifacts(self, pod: _Pod, lease: Lease, entries: bytes | None) -> None:
        """Sends artifacts that the database has not: those that entries name, before these; at the end all."""
        folder = pod.path / ARTIFACTS
        if entries is not None:
            named = named_artifacts(entries) if b"artifact" in entries else ()
            found = [folder / name for name in named if f"{ARTIFACTS}{name}" not in pod.files]
        else:
            found = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in found:
            name = f"{ARTIFACTS}{path.name}"
            if path.is_file() and pod.files.get(name) != path.stat().st_size:
                self._put(pod, lease, name, path.read_bytes())

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source`, in the database first."""
        old, new = self._place(source), self._place(target)
        with _as_errors():
            if new is None and target.is_relative_to(self.home / "pods") and source.is_dir():
                return self._placed(source, target)
            if new is not None:
                pod, name = new
                with pod.lock:
                    for path in _all(source):
                        part = path.relative_to(source).as_posix()
                        self._put_any(pod, name if part == "." else f"{name}/{part}", present(path).read_bytes())
            if old is not None:
                self._dropped(*old)
        super().rename(source, target)
        return None

    def _placed(self, source: Path, target: Path) -> None:
        """A whole pod that was made elsewhere comes to its place: its pointer is sent last."""
        pod = self._pod(target)
        self.claim(target)
        try:
            super().rename(source, target)
            for path in sorted(_all(target), key=lambda path: path.name == POINTER):
                if (place := self._place(path)) is not None and place[0] is pod:
                    self._put_any(pod, place[1], path.read_bytes())
        finally:
            self.give_back(target)

    def _dropped(self, pod: _Pod, name: str) -> None:
        if name.startswith(INBOX):
            return self.store.take(pod.name, Path(name).stem)
        with pod.lock:
            lease = self._lease(pod)
            if name == POINTER:
                self.store.remove(lease)
                pod.lease = None
                for held in (*pod.logs, *pod.files):
                    absent.pop(str(pod.path / held), None)
                pod.logs.clear()
                pod.files.clear()
                return None
            prefix = f"{name}/"
            for held in [*pod.logs, *pod.files]:
                if held == name or held.startswith(prefix):
                    absent.pop(str(pod.path / held), None)
                    self.store.drop(lease, held)
                    pod.logs.pop(held, None)
                    pod.files.pop(held, None)
        return None

    def unlink(self, path: Path) -> None:
        """Removes a name; a pod whose pointer goes is removed with all that it has."""
        place = self._place(path)
        if place is not None and (place[0].lease is not None or place[1].startswith(INBOX)):
            with _as_errors():
                self._dropped(*place)
        super().unlink(path)

    def truncate(self, path: Path, length: int) -> None:
        """Cuts a file back."""
        super().truncate(present(path), length)
        self._anew(path)

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Puts `data` in the place of a file's end."""
        super().overwrite(present(path), offset, data)
        self._anew(path)

    def _anew(self, path: Path) -> None:
        """The database gets what a log holds now, where that is not what it has and what is still to be sent."""
        if (place := self._place(path)) is None:
            return
        pod, name = place
        with pod.lock, _as_errors():
            size = path.stat().st_size
            with pod.guard:
                log = pod.logs.setdefault(name, _Log())
                if log.size <= size <= log.size + len(log.pending):
                    del log.pending[size - log.size :]
                    return
            self._put(pod, self._lease(pod), name, path.read_bytes())

    def sync_folder(self, path: Path) -> None:
        """Sends what came into a folder of links without anyone having written it."""
        if (place := self._place(path / "any")) is None or place[0].lease is None:
            return
        pod, name = place
        with pod.lock, _as_errors():
            for child in sorted(path.iterdir()) if "/" in name and not name.startswith(INBOX) else ():
                known = self._place(child)
                if known is not None and child.is_file() and known[1] not in pod.logs and known[1] not in pod.files:
                    self._put(pod, self._lease(pod), known[1], child.read_bytes())

    def stop(self) -> None:
        """Gives all leases back and closes the store."""
        self._end.set()
        for pod in list(self._pods.values()):
            with suppress(OSError):
                self.give_back(pod.path)
        self.store.close()


@contextmanager
def _as_errors() -> Generator[None]:
    """A session that is gone is an error of writing."""
    try:
        yield
    except NoSession as error:
        raise Fenced(error.session, "") from None


def _fill(path: Path, data: bytes) -> None:
    """Gives a placeholder its content, in the same file."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view, at = memoryview(data), 0
        while view:
            done = os.pwrite(fd, view, at)
            at, view = at + done, view[done:]
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _all(path: Path) -> Iterator[Path]:
    """A file, or all files in a folder."""
    if not path.is_dir():
        yield path
        return
    yield from (child for child in sorted(path.rglob("*")) if child.is_file() and not child.name.startswith("."))
