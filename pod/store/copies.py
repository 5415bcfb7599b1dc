"""The copy of a shared home: what this process knows of each pod of the database, and its files brought up to date.

Names and sizes of everything are there; contents come when they are first read (`pod.log.files.present`).
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pod.log.files import Files, absent, present
from pod.names import of_a_pod
from pod.store.port import Entry, Fenced, Gathered, Holding, Lease, NoSession, SessionStore

POINTER, INBOX, ARTIFACTS, BLOBS = "pod.json", "inbox/", "artifacts/", "blobs/"

SMALL = 4096
"""Bytes up to which a file's content comes with its name."""

SHORT = 256 * 1024
"""Bytes up to which an active log comes along when pods are listed."""

MANY = 64
"""Pods that are asked for at a time when they are listed."""


class _Local(Files):
    """What is done to the copy alone. Nothing of it is made durable: it is gone with the process."""

    def sync(self, fd: int) -> None:
        """Nothing."""

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


LOCAL = _Local()


@dataclass
class Log:
    """How much of a log the database has; `pending` was written and not yet sent. `fetched` is false for a placeholder."""

    last: int = 0
    size: int = 0
    pending: bytearray = field(default_factory=bytearray)
    fetched: bool = True


@dataclass
class Pod:
    """What is known of a pod. `lock` orders everything that is sent for it; `guard` is held for a moment only, so that whoever
    writes never waits for the database. `due` is what is still to be sent, in order; `steady` says that a listing looked at it.
    """

    name: str
    path: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    guard: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    logs: dict[str, Log] = field(default_factory=dict[str, Log])
    files: dict[str, int] = field(default_factory=dict[str, int])
    looked: float = -1e9
    asked: float = -1e9
    seen: int = 0
    owner: tuple[str, bool] = "", False
    steady: bool = False
    due: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])


@dataclass
class Copies:
    """The pods of `store` as they lie below `home`."""

    store: SessionStore
    home: Path
    ttl: float
    _pods: dict[str, Pod] = field(default_factory=dict[str, "Pod"])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self) -> list[Pod]:
        """All that were looked at."""
        with self._lock:
            return list(self._pods.values())

    def pod(self, path: Path) -> Pod:
        name = path.relative_to(self.home / "pods").as_posix()
        with self._lock:
            return self._pods.setdefault(name, Pod(name, path))

    def place(self, path: Path) -> tuple[Pod, str] | None:
        """The pod and the name in it of a file; None for what stays here: temporaries, and what is no pod's."""
        root = self.home / "pods"
        if path.name.startswith(".") or path.name == "lock" or not path.is_relative_to(root):
            return None
        parts = path.relative_to(root).parts
        at = next((n for n, part in enumerate(parts) if of_a_pod(part)), 0)
        return (self.pod(root.joinpath(*parts[:at])), "/".join(parts[at:])) if at else None

    def update(self, pod: Pod, small: int = SMALL) -> None:
        """Brings one up to date; the contents of files up to so many bytes come along."""
        found = self.store.gather([pod.name], small)
        self._take(pod, found[0] if found else None)

    def update_all(self, pods: Sequence[Pod]) -> None:
        """Brings many up to date, with the logs that are active in them where these are short: for those who list them."""
        for start in range(0, len(pods), MANY):
            page = [pod for pod in pods[start : start + MANY] if pod.lease is None]
            found = {each.info.id: each for each in self.store.gather([pod.name for pod in page], SMALL)}
            wanted: dict[tuple[str, str], Pod] = {}
            for pod in page:
                with pod.lock:
                    if pod.lease is None:
                        self._take(pod, found.get(pod.name))
                        if (log := self._short_log(pod)) is not None:
                            wanted[pod.name, log] = pod
            contents = self.store.contents(list(wanted)) if wanted else {}
            for (name, log), entries in contents.items():
                self._fill_log(wanted[name, log], log, entries)

    def _short_log(self, pod: Pod) -> str | None:
        """The log that the pointer names, where it is short and its content is still elsewhere."""
        try:
            name = f"{json.loads((pod.path / POINTER).read_bytes())['segment']}.jsonl"
        except (OSError, ValueError, LookupError, TypeError):
            return None
        log = pod.logs.get(name)
        return name if log is not None and not log.fetched and log.size <= SHORT else None

    def _fill_log(self, pod: Pod, name: str, entries: Sequence[Entry]) -> None:
        path, log = pod.path / name, pod.logs[name]
        with pod.lock:
            if not log.fetched and str(path) in absent and entries:
                data = b"".join(entry.body for entry in entries)
                fill(path, data)
                log.last, log.size, log.fetched = entries[-1].seq, len(data), True
                del absent[str(path)]

    def _take(self, pod: Pod, found: Gathered | None) -> None:
        if found is None:
            pod.owner = "", False
            return self.forget(pod)
        logs = {each.name: each for each in found.logs}
        files = {each.name: each.size for each in found.files}
        pod.owner = found.info.owner, found.info.quiet < self.ttl
        for name in [*pod.logs.keys() - logs.keys(), *pod.files.keys() - files.keys()]:
            self._gone(pod, name)
        for held in logs.values():
            self._update_log(pod, held)
        for name, size in files.items():
            if name == POINTER or pod.files.get(name) != size or name.endswith(".key"):
                self._take_file(pod, name, size, found.small.get(name))
            pod.files[name] = size
        if POINTER in files:
            present(pod.path / POINTER)  # it is replaced in one step, and read by its name
        folder = pod.path / INBOX
        waiting = {f"{each.id}.json": each for each in found.posted}
        for old in folder.glob("*.json") if folder.is_dir() else ():
            if old.name not in waiting:
                LOCAL.unlink(old)
        for name, each in waiting.items():
            LOCAL.make_folder(folder)
            if not (folder / name).exists():
                LOCAL.put(folder / name, each.body)
            pod.seen = max(pod.seen, each.number)
        return None

    def _take_file(self, pod: Pod, name: str, size: int, data: bytes | None) -> None:
        path = pod.path / name
        if data is None:
            return self._placeholder(pod, name, size, self._file_fetcher(pod, name))
        absent.pop(str(path), None)
        LOCAL.make_folder(path.parent)
        LOCAL.put(path, data)
        return None

    def _update_log(self, pod: Pod, held: Holding) -> None:
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
        log = pod.logs[held.name] = Log(held.last, held.size, fetched=False)

        def fetch() -> None:
            with pod.lock, as_errors():
                if absent.get(str(path)) is not fetch:
                    return
                last, size, data = 0, 0, list[bytes]()
                for entry in self.store.load(pod.name, held.name):
                    last, size = entry.seq, size + len(entry.body)
                    data.append(entry.body)
                fill(path, b"".join(data))
                log.last, log.size, log.fetched = last, size, True
                del absent[str(path)]

        self._placeholder(pod, held.name, held.size, fetch)

    def _file_fetcher(self, pod: Pod, name: str) -> Callable[[], None]:
        path = pod.path / name

        def fetch() -> None:
            with pod.lock, as_errors():
                if absent.get(str(path)) is not fetch:
                    return
                data = self.store.get(pod.name, name)
                if name == POINTER:
                    LOCAL.put(path, data or b"")
                else:
                    fill(path, data or b"")
                del absent[str(path)]

        return fetch

    def _placeholder(self, pod: Pod, name: str, size: int, fetch: Callable[[], None]) -> None:
        """A file of the right size in the place of one that is elsewhere still."""
        path = pod.path / name
        LOCAL.make_folder(path.parent)
        absent[str(path)] = fetch
        if name == POINTER:
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _gone(self, pod: Pod, name: str) -> None:
        absent.pop(str(pod.path / name), None)
        pod.logs.pop(name, None)
        pod.files.pop(name, None)
        LOCAL.unlink(pod.path / name)

    def forget(self, pod: Pod) -> None:
        """The copy of a pod goes; folders stay, since other pods may lie in them."""
        for name in [*pod.logs, *pod.files]:
            self._gone(pod, name)
        for left in (pod.path / INBOX).glob("*.json"):
            LOCAL.unlink(left)


@contextmanager
def as_errors() -> Generator[None]:
    """A session that is gone is an error of writing."""
    try:
        yield
    except NoSession as error:
        raise Fenced(error.session, "") from None


def fill(path: Path, data: bytes) -> None:
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
