"""Folders that belong to a process: locked while it lives, so that what a killed one left is known."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pod.log.locking import exclusive
from worker.ids import uuid7

STAGES = ".import-*.tmp"
"""The names of folders in a home in which an import unpacks."""

UNLOCKED_SECONDS = 3600.0
"""Age from which a folder counts as left behind though it has no lock: its process was killed before it could lock."""


def new_stage(home: Path) -> Path:
    """A name of its own in a home; the folder is not made."""
    return home / STAGES.replace("*", uuid7())


@contextmanager
def owned(stage: Path) -> Generator[None]:
    """Holds the lock of a folder; it is free again when the process ends, however that comes."""
    with exclusive(stage / "lock", wait=False):
        yield


@contextmanager
def abandoned(stage: Path, moment: float) -> Generator[bool]:
    """Whether its process is no more at `moment` (UTC seconds); the lock is held meanwhile.

    Raises `FileNotFoundError` where the folder is gone.
    """
    try:
        fd = os.open(stage / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield moment - stage.stat().st_mtime >= UNLOCKED_SECONDS
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        over = True
    except BlockingIOError:
        over = False
    try:
        yield over
    finally:
        os.close(fd)
