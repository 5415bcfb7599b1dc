"""File layers that fail: at a chosen operation the process ends, or the operation raises."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from pod.log.files import Files

T = TypeVar("T")

CRASHED = 137
"""The exit code of a process that `CrashingFiles` ended: that of one killed by SIGKILL."""

When: TypeAlias = Literal["before", "after", "during"]


class CrashingFiles(Files):
    """The real file layer until its `at`-th operation (counted from 1) or the point named `at`: there the process ends.

    Every operation and every `point` counts. `when` says on which side of the operation; `during` a write, half of
    the bytes are written (of another operation it means before). Nothing is cleaned up: no `finally`, no `atexit`, no
    flush. Exit code `CRASHED`. `log` names the operations that were begun, so that a test can choose among them.
    """

    def __init__(self, at: int | str, when: When = "before") -> None:
        self.at, self.when = at, when
        self.count = 0
        self.log: list[str] = []

    def make_folder(self, path: Path) -> None:
        """Makes a folder and its parents."""
        if not path.is_dir():
            self._do(f"mkdir {path.name}", lambda: super(CrashingFiles, self).make_folder(path))

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends."""
        name = f"{'create' if create else 'open'} {path.name}"
        return self._do(name, lambda: super(CrashingFiles, self).open_append(path, create=create))

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes."""
        half = data[: len(data) // 2]
        write = super().write
        self._do("write", lambda: write(fd, data), lambda: write(fd, half))

    def sync(self, fd: int) -> None:
        """Makes the bytes of a file durable."""
        self._do("sync", lambda: super(CrashingFiles, self).sync(fd))

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source`."""
        self._do(f"rename {target.name}", lambda: super(CrashingFiles, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        """Removes a name."""
        self._do(f"unlink {path.name}", lambda: super(CrashingFiles, self).unlink(path))

    def truncate(self, path: Path, length: int) -> None:
        """Cuts a file back, durably."""
        self._do(f"truncate {path.name}", lambda: super(CrashingFiles, self).truncate(path, length))

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Replaces the end of a file, durably; half-way, half of the bytes stand over the old ones."""
        overwrite = super().overwrite

        def half() -> None:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(data[: len(data) // 2])

        self._do(f"overwrite {path.name}", lambda: overwrite(path, offset, data), half)

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable."""
        self._do(f"sync_folder {path.name}", lambda: super(CrashingFiles, self).sync_folder(path))

    def point(self, name: str) -> None:
        """Where a test may crash."""
        if name == self.at:
            os._exit(CRASHED)
        self._do(f"point {name}", lambda: None)

    def _do(self, name: str, operation: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        self.count += 1
        self.log.append(name)
        now = self.count == self.at
        if now and self.when != "after":
            if self.when == "during" and half is not None:
                half()
            os._exit(CRASHED)
        value = operation()
        if now:
            os._exit(CRASHED)
        return value


class FailingFiles(Files):
    """The real file layer, of which the `at`-th write or sync (counted from 1) and every later one raises `OSError`.

    `what` chooses which of the two is counted; set `healed` and they work again. `done` says that it raises after its
    work: the bytes are there, but nobody was told. A failing write that is not `done` writes half of its bytes, as a
    full disk does.
    """

    def __init__(
        self, at: int, what: Literal["write", "sync"] = "write", *, error: int = errno.ENOSPC, done: bool = False
    ) -> None:
        self.at, self.what, self.error, self.done = at, what, error, done
        self.count = 0
        self.healed = False

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes, or fails."""
        failing = self._counts("write")
        if not failing or self.done:
            super().write(fd, data)
        else:
            super().write(fd, data[: len(data) // 2])
        if failing:
            raise OSError(self.error, os.strerror(self.error))

    def sync(self, fd: int) -> None:
        """Makes the bytes of a file durable, or fails."""
        failing = self._counts("sync")
        if not failing or self.done:
            super().sync(fd)
        if failing:
            raise OSError(self.error, os.strerror(self.error))

    def _counts(self, what: str) -> bool:
        if what != self.what:
            return False
        self.count += 1
        return self.count >= self.at and not self.healed
