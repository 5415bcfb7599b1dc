"""A place that a user named for output: what stood there stays until something takes its place.

A regular file is written beside its final name and takes its place in one step, behind a link too, unless its folder
takes no other file. A FIFO or a device is written through, and stays what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from pod.errors import UsageProblem
from pod.log.files import Files
from pod.log.folder import default_home
from worker.ids import uuid7

_MAGIC = ("/dev/fd/", "/dev/std", "/proc/")
"""Where names stand for files that are open already: another file in their place would be none of theirs."""


class Target:
    """Where output goes. Making one looks whether that can be, and touches nothing. Raises `UsageProblem`.

    Nothing below the folder of the pods (`pods` in `home`, and in `$POD_HOME`) is written. `mode` are the permissions of a file: None
    keeps those of the file that is replaced, and gives a new one the usual.
    """

    def __init__(self, path: Path, mode: int | None = None, *, home: Path | None = None) -> None:
        self.given = path
        self._path = Path(os.path.realpath(path))
        for kept in {default_home() / "pods", (home or default_home()) / "pods"}:
            if self._path.is_relative_to(os.path.realpath(kept)):
                raise UsageProblem(f"{path} would replace a pod's own file; name a file outside of {kept}")
        self._temporary: Path | None = None
        self._fd: int | None = None
        self._mode = mode
        found = self._found()
        special = found is not None and (not stat.S_ISREG(found.st_mode) or str(path).startswith(_MAGIC))
        folder = self._path.parent
        if not special and not folder.is_dir():
            raise UsageProblem(f"{path} can't be written: there is no folder {folder}")
        beside = not special and os.access(folder, os.W_OK | os.X_OK)
        if not os.access(folder if found is None else path, os.W_OK):
            raise UsageProblem(f"{path} can't be written: {os.strerror(errno.EACCES)}")
        self._in_place = None if beside else os.O_APPEND if special else os.O_TRUNC
        if found is not None and mode is None:
            self._mode = stat.S_IMODE(found.st_mode)

    def _found(self) -> os.stat_result | None:
        try:
            found = self.given.stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageProblem(f"{self.given} can't be written: {getattr(error, 'strerror', None) or error}") from error
        if stat.S_ISDIR(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            kind = "folder" if stat.S_ISDIR(found.st_mode) else "socket"
            raise UsageProblem(f"{self.given} is a {kind}; name a file")
        return found

    def open(self) -> int:
        """A descriptor for the output; `close` gives it up. Waits for the reader of a FIFO."""
        if self._in_place is not None:
            self._fd = os.open(self.given, os.O_WRONLY | self._in_place | os.O_CLOEXEC)
            return self._fd
        temporary = self._path.with_name(f".{self._path.name[:40]}.{uuid7()}.tmp")
        mode = 0o666 if self._mode is None else self._mode
        self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self._temporary = temporary
        if self._mode is not None:
            os.fchmod(self._fd, self._mode)
        return self._fd

    def keep(self) -> None:
        """What was written so far takes its place, durably, and what is written from now on follows it."""
        if self._temporary is None or self._fd is None:
            return
        os.fsync(self._fd)
        self._temporary.replace(self._path)
        self._temporary = None
        Files().sync_folder(self._path.parent)

    def close(self) -> None:
        """Gives the descriptor up, and takes away what did not take its place."""
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
