"""Whether a process of this machine still is: a number alone may be another process by now."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import lru_cache
from pathlib import Path

from worker.builtin.process_table import look_at


def label() -> str:
    """What names this process and no other: a mark of its machine, boot and namespace, its number, and when it began."""
    return f"{_where()}/{os.getpid()}/{_began(os.getpid())}"


def is_gone(of: str) -> bool:
    """Whether the process of a label is gone for certain. False for one of another machine or namespace, which can't be seen from here."""
    where, _, rest = of.partition("/")
    number, _, began = rest.partition("/")
    if not where or where != _where() or not number.isdigit():
        return False
    return _began(int(number)) != began


@lru_cache(maxsize=1)
def _where() -> str:
    """What tells machines, and containers that share one, apart; empty where that can't be told."""
    try:
        told = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
    return hashlib.sha256(f"{socket.gethostname()} {told}".encode()).hexdigest()[:12]


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where there is none."""
    found = look_at(pid)
    return "" if found is None else str(found.started)
