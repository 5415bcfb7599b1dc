"""A home in PostgreSQL: this process works on a copy in files, written through to the database.

What a sync acknowledges is committed under the pod's lease before it returns; so is each file that is put as a whole. An event loop
never waits for the database: what it puts or removes is sent, in order, by the next sync or within about a second, and what is then
acknowledged stands behind it. The copy is gone with the process. One thread shows signs of life for all leases, and brings commands
that others left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from pod.errors import PodBusy
from pod.log.files import Files, absent, present
from pod.log.items import named_artifacts
from pod.store.copies import ARTIFACTS, INBOX, LOCAL, POINTER, Copies, Log, Pod, as_errors
from pod.store.documents import Documents
from pod.store.owners import is_dead, new_owner, told
from pod.store.port import TTL, Fenced, Held, Lease, NoSession, SessionStore

FRESH = 0.2
"""Seconds for which a look at the database counts, and commands are not asked for again."""

AT_ONCE = 1 << 20
"""Bytes up to which a file's content comes when the pod is opened for writing."""


class SharedFiles(Files):
    """The file layer of a shared home's copy in `home`. `kept` are its small documents."""

    def __init__(
        self, store: SessionStore, home: Path, *, ttl: float = TTL, fresh: float = FRESH, kept: Documents | None = None
    ) -> None:
        self.store, self.home, self.ttl, self.fresh, self.kept = store, home, ttl, fresh, kept
        self._copies = Copies(store, home, ttl)
        self._fds: dict[int, Path] = {}
        self._lock = threading.Lock()
        self._listed = -1e9
        self._steady = False
        self._beating: threading.Thread | None = None
        self._end = threading.Event()

    def documents(self) -> Documents | None:
        """Those of the database."""
        return self.kept

    # -- the lease -----------------------------------------------------------------------------------------------

    def claim(self, path: Path) -> None:
        """Acquires the pod's lease, and brings the copy up to date. An owner that died on this machine is not waited for.

        Raises `PodBusy`, `OSError`.
        """
        pod = self._copies.pod(path)
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
            pod.due.clear()
            self._copies.forget(pod)
            self._copies.update(pod, AT_ONCE)
            for name in pod.files:
                if name.startswith(ARTIFACTS):  # tools read these without asking anyone
                    present(pod.path / name)
        with self._lock:
            if self._beating is None:
                self._beating = threading.Thread(target=self._beat, name="pod-lease", daemon=True)
                self._beating.start()

    def give_back(self, path: Path) -> None:
        """Sends what is left and gives the lease free. Where someone took the pod over, nothing is sent."""
        pod = self._copies.pod(path)
        with pod.lock:
            lease = pod.lease
            pod.looked = -1e9
            if lease is None:
                return
            try:
                with suppress(Fenced):
                    self._settle(pod)
                    self._send_artifacts(pod, lease, None)
                    self.store.release(lease)
            finally:
                pod.lease = None

    def owner(self, path: Path) -> dict[str, Any]:
        """Who writes to a pod, wherever."""
        pod = self._copies.pod(path)
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
            held = [(pod, pod.lease) for pod in self._copies.all() if pod.lease is not None]
            if time.monotonic() - beaten > self.ttl / 6:
                beaten = time.monotonic()
                for _, lease in held:  # all of them before anything that may wait for a pod
                    with suppress(OSError, NoSession):  # who writes next is told
                        self.store.beat(lease)
            for pod, _ in held:
                if not pod.lock.acquire(blocking=False):
                    continue  # it is being sent for, and asked for with that
                try:
                    with suppress(OSError, NoSession):
                        self._settle(pod)
                        self._ask(pod)
                finally:
                    pod.lock.release()

    def _ask(self, pod: Pod) -> None:
        """Puts commands that were left since into the copy's inbox."""
        with pod.lock:
            pod.asked = time.monotonic()
            for each in self.store.posted(pod.name, pod.seen):
                LOCAL.make_folder(pod.path / INBOX)
                LOCAL.put(pod.path / INBOX / f"{each.id}.json", each.body)
                pod.seen = each.number

    # -- up to date ----------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        after, known = "", list[str]()
        while page := self.store.list(after=after):
            known += [info.id for info in page]
            after = page[-1].id
        return known

    def names(self, home: Path) -> None:
        """Makes a folder for each pod of the database."""
        if time.monotonic() - self._listed < self.fresh:
            return
        for name in self._names():
            LOCAL.make_folder(home / "pods" / name)
        self._listed = time.monotonic()

    @contextmanager
    def steady(self) -> Generator[None]:
        """One look at all pods counts for as long as it is open."""
        if self._steady:
            yield
            return
        pods = [self._copies.pod(self.home / "pods" / name) for name in self._names()]
        self._copies.update_all(pods)
        for pod in pods:
            LOCAL.make_folder(pod.path)
            pod.steady = True
        self._steady = True
        try:
            yield
        finally:
            self._steady = False
            for pod in pods:
                pod.steady = False

    def look(self, path: Path) -> None:
        """Brings the copy of a pod up to date, where this process is not its writer."""
        pod = self._copies.pod(path)
        if pod.lease is not None or pod.steady:  # what this process knows is what there is
            return
        with pod.lock:
            if pod.lease is None and time.monotonic() - pod.looked > self.fresh:
                with as_errors():
                    self._copies.update(pod)
                pod.looked = time.monotonic()

    def leave(self, path: Path) -> None:
        """Removes the copy of a pod, where this process is not its writer; who looks again gets it again."""
        pod = self._copies.pod(path)
        with pod.lock:
            if pod.lease is None:
                self._copies.forget(pod)
                pod.looked = -1e9

    def marks(self, paths: Sequence[Path]) -> dict[Path, object]:
        """As files do, in one question."""
        names = {path: self._copies.pod(path).name for path in paths}
        found = self.store.marks(list(names.values()))
        return {path: found.get(name) for path, name in names.items()}

    # -- what an event loop does is sent later --------------------------------------------------------------------

    def _do(self, pod: Pod, step: Callable[[], None]) -> None:
        """Has a step of a pod's writer done: now, or where an event loop runs in this thread before the next thing that is sent."""
        if _in_a_loop() and pod.lease is not None:
            with pod.guard:
                pod.due.append(step)
            return
        with pod.lock, as_errors():
            self._settle(pod)
            step()

    def _settle(self, pod: Pod) -> None:
        """Does what is due. A step that fails stays the next one: nothing behind it is ever sent without it."""
        with pod.lock, as_errors():
            while pod.due:
                pod.due[0]()
                with pod.guard:
                    pod.due.popleft()

    # -- writing through -----------------------------------------------------------------------------------------

    def _lease(self, pod: Pod) -> Lease:
        if pod.lease is None:
            raise Fenced(pod.name, "")
        return pod.lease

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends."""
        if not create:
            present(path)
        fd = super().open_append(path, create=create)
        if self._copies.place(path) is not None:
            self._fds[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Writes here; a sync sends it."""
        super().write(fd, data)
        if (path := self._fds.get(fd)) is not None and (place := self._copies.place(path)) is not None:
            pod, name = place
            with pod.guard:
                pod.logs.setdefault(name, Log()).pending += data

    def sync(self, fd: int) -> None:
        """Commits what was written to the database. Raises `OSError`."""
        if (path := self._fds.get(fd)) is not None and (place := self._copies.place(path)) is not None:
            self._send(*place)

    def close(self, fd: int) -> None:
        """Gives a descriptor up; what nobody synced is sent too."""
        path = self._fds.pop(fd, None)
        super().close(fd)
        if path is not None and (place := self._copies.place(path)) is not None:
            pod, name = place
            if pod.lease is not None:
                with suppress(Fenced):
                    self._do(pod, partial(self._send_log, pod, name))

    def _send(self, pod: Pod, name: str) -> None:
        """Sends what is due, and then what was written to a log."""
        with pod.lock, as_errors():
            self._settle(pod)
            self._send_log(pod, name)
            if time.monotonic() - pod.asked > self.fresh:
                self._ask(pod)

    def _send_log(self, pod: Pod, name: str) -> None:
        with pod.guard:
            log = pod.logs.setdefault(name, Log())
            data = bytes(log.pending)
        if not data:
            return None
        lease = self._lease(pod)
        self._send_artifacts(pod, lease, data)
        if not name.endswith(".jsonl"):
            del pod.logs[name]
            return self._put(pod, name, (pod.path / name).read_bytes())
        self.store.append(lease, name, log.last + 1, [data])
        with pod.guard:
            log.last, log.size = log.last + 1, log.size + len(data)
            del log.pending[: len(data)]
        return None

    def _put(self, pod: Pod, name: str, data: bytes) -> None:
        """Sends a whole file."""
        if name.endswith(".jsonl"):
            self.store.rewrite(self._lease(pod), name, [data] if data else [])
        else:
            self.store.put(self._lease(pod), name, data)
            pod.files[name] = len(data)

    def _replace(self, pod: Pod, name: str, data: bytes) -> None:
        """Has a whole file sent; a command at once, which needs no lease."""
        absent.pop(str(pod.path / name), None)
        if name.startswith(INBOX) and name.endswith(".json"):
            with as_errors():
                self.store.post(pod.name, Path(name).stem, data)
            return
        if name.endswith(".jsonl"):
            with pod.guard:  # what is written from now on stands behind it
                pod.logs[name] = Log(1 if data else 0, len(data))
        elif _in_a_loop() and pod.lease is not None:
            pod.files[name] = len(data)
        self._do(pod, partial(self._put, pod, name, data))

    def _send_artifacts(self, pod: Pod, lease: Lease, entries: bytes | None) -> None:
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
                absent.pop(str(path), None)
                self._put(pod, name, path.read_bytes())

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source`, in the database first."""
        old, new = self._copies.place(source), self._copies.place(target)
        if new is None and target.is_relative_to(self.home / "pods") and source.is_dir():
            with as_errors():
                return self._placed(source, target)
        if new is not None:
            pod, name = new
            for path in _all(source):
                part = path.relative_to(source).as_posix()
                self._replace(pod, name if part == "." else f"{name}/{part}", present(path).read_bytes())
        if old is not None:
            self._drop(*old)
        super().rename(source, target)
        return None

    def _placed(self, source: Path, target: Path) -> None:
        """A whole pod that was made elsewhere comes to its place: its pointer is sent last."""
        pod = self._copies.pod(target)
        self.claim(target)
        try:
            super().rename(source, target)
            for path in sorted(_all(target), key=lambda path: path.name == POINTER):
                if (place := self._copies.place(path)) is not None and place[0] is pod:
                    self._replace(pod, place[1], path.read_bytes())
        finally:
            self.give_back(target)

    def _drop(self, pod: Pod, name: str) -> None:
        """Has a file, all in a folder or, with its pointer, a whole pod removed."""
        if name.startswith(INBOX):
            return self._do(pod, partial(self.store.take, pod.name, Path(name).stem))
        return self._do(pod, partial(self._dropped, pod, name))

    def _dropped(self, pod: Pod, name: str) -> None:
        lease = self._lease(pod)
        if name == POINTER:
            self.store.remove(lease)
            pod.lease = None
            for held in (*pod.logs, *pod.files):
                absent.pop(str(pod.path / held), None)
            pod.logs.clear()
            pod.files.clear()
            return
        prefix = f"{name}/"
        for held in [*pod.logs, *pod.files]:
            if held == name or held.startswith(prefix):
                absent.pop(str(pod.path / held), None)
                self.store.drop(lease, held)
                pod.logs.pop(held, None)
                pod.files.pop(held, None)

    def unlink(self, path: Path) -> None:
        """Removes a name; a pod whose pointer goes is removed with all that it has."""
        place = self._copies.place(path)
        if place is not None and (place[0].lease is not None or place[1].startswith(INBOX)):
            self._drop(*place)
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
        if (place := self._copies.place(path)) is None:
            return
        pod, name = place
        with pod.guard:
            size = path.stat().st_size
            log = pod.logs.setdefault(name, Log())
            if log.size <= size <= log.size + len(log.pending):
                del log.pending[size - log.size :]
                return
        self._replace(pod, name, path.read_bytes())

    def sync_folder(self, path: Path) -> None:
        """Sends what came into a folder of links without anyone having written it."""
        if (place := self._copies.place(path / "any")) is None or place[0].lease is None:
            return
        pod, name = place
        for child in sorted(path.iterdir()) if "/" in name and not name.startswith(INBOX) else ():
            known = self._copies.place(child)
            if known is not None and child.is_file() and known[1] not in pod.logs and known[1] not in pod.files:
                self._replace(pod, known[1], child.read_bytes())

    def stop(self) -> None:
        """Gives all leases back and closes the store."""
        self._end.set()
        for pod in self._copies.all():
            with suppress(OSError):
                self.give_back(pod.path)
        self.store.close()


def _in_a_loop() -> bool:
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True


def _all(path: Path) -> Iterator[Path]:
    """A file, or all files in a folder."""
    if not path.is_dir():
        yield path
        return
    yield from (child for child in sorted(path.rglob("*")) if child.is_file() and not child.name.startswith("."))
