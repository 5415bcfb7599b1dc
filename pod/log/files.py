"""The few operations on files that durability rests on, in one place so that tests can crash, count and drop them.

Folders are made 0700 and files 0600, from their creation on (case B081).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.ids import uuid7

if TYPE_CHECKING:
    from pod.store.documents import Documents


class Files:
    """The real file layer. Every method is one operation that a crash can come before or after."""

    def make_folder(self, path: Path) -> None:
        """Makes a folder and its parents, mode 0700, and makes their names durable."""
        missing: list[Path] = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            self.sync_folder(folder.parent)

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends; a new file has mode 0600 from its creation on.

        The umask of the process is left alone: it can only take bits away, and to change it would race with other
        threads.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o600)

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes; a short write is gone on with, a failed one raises `OSError`."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Makes the bytes of a file durable."""
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source` in one step."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Removes a name; missing is fine."""
        path.unlink(missing_ok=True)

    def truncate(self, path: Path, length: int) -> None:
        """Cuts a file back to `length` bytes, durably."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with named(path):
                os.ftruncate(fd, length)
                os.fsync(fd)
        finally:
            os.close(fd)

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Puts `data` in the place of all that a file holds from `offset` on, durably.

        Interrupted, some of the old end may be left behind or between; what stands before `offset` is not touched.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            at, view = offset, memoryview(data)
            with named(path):
                while view:
                    done = os.pwrite(fd, view, at)
                    at, view = at + done, view[done:]
                os.ftruncate(fd, at)
                os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Gives a descriptor up."""
        os.close(fd)

    def point(self, name: str) -> None:
        """A place where a test may crash (before and after a tool starts, say). Here it does nothing."""

    # -- a home that several machines share -----------------------------------------------------------------------

    def claim(self, path: Path) -> None:
        """Becomes the one writer of a pod's folder among all machines. Here the lock alone decides.

        Raises `PodBusy`, `OSError`.
        """

    def give_back(self, path: Path) -> None:
        """Stops being the writer."""

    def leave(self, path: Path) -> None:
        """This process is done with a pod's folder for now: what of it is only a copy may go."""

    def look(self, path: Path) -> None:
        """Brings a pod's folder up to date with what others wrote. Here there is one copy."""

    @contextmanager
    def steady(self) -> Generator[None]:
        """While it is open, one look at all pods may count for all: for those who list them."""
        yield

    def names(self, home: Path) -> None:
        """Brings the folders of a home's pods up to date, their names alone."""

    def owner(self, path: Path) -> dict[str, Any]:
        """Who writes to a pod on whatever machine, as far as the lock does not tell; empty for nobody."""
        return {}

    def lasting(self, durability: str) -> str:
        """The durability that a log here can have, where `durability` is asked for."""
        return durability

    def documents(self) -> Documents | None:
        """Where a home keeps its small documents; None for its own folder."""
        return None

    def marks(self, paths: Sequence[Path]) -> dict[Path, object]:
        """For each pod's folder what changes when somebody writes to it or leaves a command; None where nothing is. Looks cheaply."""
        return {path: _mark(path) for path in paths}

    # -- made of the above ------------------------------------------------------------------------------------

    def put(self, path: Path, data: bytes) -> None:
        """Writes a whole file: a temporary of its own name, synced, renamed over `path`, folder synced (case B070)."""
        self.put_all({path: data})

    def put_all(self, contents: Mapping[Path, bytes]) -> None:
        """Writes whole files as `put` does, one after the other; their folders are synced once, at the end."""
        for path, data in contents.items():
            self._place_whole(path, data)
        for folder in dict.fromkeys(path.parent for path in contents):
            self.sync_folder(folder)

    def _place_whole(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{uuid7()}.tmp")
        fd = self.open_append(temporary, create=True)
        try:
            try:
                with named(path):
                    self.write(fd, data)
                    self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _mark(path: Path) -> object:
    try:
        pointer = json_of((path / "pod.json").read_bytes())
        found = (path / f"{pointer['segment']}.jsonl").stat()
        posted = tuple(each.name for each in (path / "inbox").glob("*.json"))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found.st_size, found.st_mtime_ns, posted


@contextmanager
def named(path: Path) -> Generator[None]:
    """Errors of writes to a descriptor get the file's name: the system does not know it there."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


absent: dict[str, Callable[[], None]] = {}
"""Files whose content is still elsewhere, and what fetches it."""

_shared: dict[Path, tuple[Files, str]] = {}


def share(home: Path, files: Files, label: str) -> None:
    """From now on a home in this process is the copy of a shared one: `files` write to it, `label` names it to people."""
    _shared[home] = files, label


def files_of(home: Path) -> Files:
    """The file layer of a home."""
    found = _shared.get(home)
    return found[0] if found is not None else Files()


def label_of(home: Path) -> str:
    """A home as people know it."""
    found = _shared.get(home)
    return found[1] if found is not None else str(home)


def present(path: Path) -> Path:
    """The path, its content fetched where it was elsewhere. Raises `OSError`."""
    if absent and (fetch := absent.get(str(path))) is not None:
        fetch()
    return path


def open_file(path: Path) -> BufferedReader:
    """Opens a file to read. Raises `OSError`, also for what is no file: a named pipe would hold its reader for ever."""
    present(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def odd_kind(path: Path) -> str | None:
    """What stands where a file should, in words; None for a regular file, and where nothing is."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a loop of links"
        return "a link that leads nowhere" if error.errno == errno.ENOENT and path.is_symlink() else None
    if stat.S_ISREG(mode):
        return None
    return "a folder" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"


def json_of(data: bytes | str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also where it is nested deeper than can be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_file(path: Path) -> bytes:
    """All bytes of a file. Raises `OSError` as `open_file` does."""
    with open_file(path) as file:
        return file.read()
