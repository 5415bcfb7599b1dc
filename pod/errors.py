"""What a pod raises. Every error names the thing, the place and the way out, and carries its exit code.

PodError                        exit 1
├── UsageProblem                exit 2   a wrong name, path or argument
│   ├── PodNotFound                      no pod of this name
│   ├── PodExists                        the name is taken
│   ├── NotALog                          a FIFO, a folder or a lost link stands where a segment's log should
│   ├── ImportRefused                    a file is no pod's export, or not as it was written
│   └── NotSettled                       the operation needs a settled point (open calls, a running pod)
├── ServerUnavailable           exit 69  a server of tools that nothing may begin without is not running
├── PodBusy                     exit 75  another process writes to this pod
├── StoreError                  exit 1   a write or sync failed; state on disk is whole, the run stops
├── LogDamaged                  exit 1   damage before a valid entry: `pod doctor --repair`
│   └── LogLost                          a segment's log is missing, empty, or does not begin as one
├── NewerFormat                 exit 2   written by a newer version
└── RunFailed                   exit by its result: raised by `RunResult.raise_for_status()`
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class PodError(Exception):
    """Base of the pod's errors."""

    exit_code = 1


class UsageProblem(PodError):
    """A wrong name, path or argument; nothing was touched."""

    exit_code = 2


class PodNotFound(UsageProblem):
    """There is no pod of this name."""


class PodExists(UsageProblem):
    """The name is taken by another pod."""


class ImportRefused(UsageProblem):
    """A file is no pod's export, is not whole, was altered, or names a place outside of a pod's folder."""

    def __init__(self, file: object, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{file}: {reason}; nothing was imported")


class ServerUnavailable(PodError):
    """A server of tools that the manifest requires is not running; nothing was sent."""

    exit_code = 69


class NotALog(UsageProblem):
    """What stands where a segment's log should is no file: its entries are lost."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(
            f"{path}: {kind}, where a log should be; `pod doctor NAME --repair` puts it aside, or says what is lost"
        )


class NotSettled(UsageProblem):
    """The operation needs a settled point: no open call, no running writer."""


class PodBusy(PodError):
    """Another process writes to this pod. `owner` says who and since when."""

    exit_code = 75

    def __init__(self, name: str, owner: dict[str, Any]) -> None:
        self.name = name
        self.owner = owner
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
        super().__init__(
            f"pod {name!r} is in use by {who}. Wait for it (--wait), stop it (pod stop {name}), or send to it (pod send {name})."
        )


class StoreError(PodError):
    """A write or sync of the store failed. What was acknowledged before is on disk; after the cause is gone the pod resumes.

    `made` is False where a pod was to be made: then there is none.
    """

    def __init__(self, path: Path, what: str, cause: OSError, *, made: bool = True) -> None:
        self.path = path
        self.cause = cause
        if cause.errno == errno.ESTALE:  # another process writes to the pod now: there is nothing to remove
            super().__init__(
                f"{path}: {what} failed: {cause.strerror or cause}. Nothing acknowledged before is lost; the pod goes on there."
            )
            return
        left = "Nothing recorded before is lost" if made else "No pod was made"
        then = "resume the pod" if made else "try again"
        super().__init__(
            f"{path}: {what} failed: {cause.strerror or cause}. {left}; "
            f"remove the cause (free space, permissions) and {then}."
        )

    @property
    def meets_all(self) -> bool:
        """Whether any other pod of the home would meet the same: there is no room, or nothing can be written."""
        return self.cause.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


NO_BEGINNING = "It is the first, from which all is replayed."

NEW_POD = "Put the file back from a copy, or begin a new pod to go on with the work; `pod doctor` says what is left."
"""The way out where no repair brings a segment back."""


class LogDamaged(PodError):
    """A log is damaged before a valid entry. A run refuses; showing skips the damage and says so."""

    def __init__(self, path: Path, line: int, offset: int, reason: str) -> None:
        self.path, self.line, self.offset, self.reason = path, line, offset, reason
        # A segment is replayed from its first entry: where that is damaged, no repair brings it back.
        then = "`pod doctor --repair` puts the damage aside." if offset else f"{NO_BEGINNING} {NEW_POD}"
        super().__init__(f"{path}:{line} (byte {offset}): damaged entry: {reason}. {then}")


class LogLost(LogDamaged):
    """The log of a segment is missing, holds no entry or does not begin as one: nothing can be replayed from it."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.line, self.offset, self.reason = path, 1, 0, reason
        PodError.__init__(self, f"{path}: {reason}: nothing can be replayed from it. {NEW_POD}")


class NewerFormat(PodError):
    """The pod was written by a newer version of the runtime."""

    exit_code = 2

    def __init__(self, path: object, found: object, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            f"{path}: format {found} is newer than this version reads ({known}). Update pod-runtime to open it."
        )


FOLDER_IS_GONE = "the current folder is gone; go to one that exists, or give whole paths"


def folder_is_gone() -> bool:
    """Whether the folder that relative paths start from was removed."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


@contextmanager
def in_a_folder() -> Generator[None]:
    """While relative paths are made whole. Raises `UsageProblem` where the current folder is gone."""
    try:
        yield
    except FileNotFoundError as error:
        if not folder_is_gone():
            raise
        raise UsageProblem(FOLDER_IS_GONE) from error
