"""A lock between processes, on a file: free again when its holder ends, however that comes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Generator[None]:
    """While it is open, nobody else has it. The file is made; its folder is there. Blocks with `wait`, else raises `BlockingIOError`.

    No two threads of a process have it at once either.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
