"""Whether a process of this machine still is: a number alone may be another process by now."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def label() -> str:
    """What names this process and no other: host, boot, its namespace, its number, and when it began."""
    return f"{_where()}/{os.getpid()}/{_began(os.getpid())}"


def is_gone(of: str) -> bool:
    """Whether the process of a label is gone for certain. False for one of another machine or namespace, which can't be seen from here."""
    where, _, rest = of.partition("/")
    number, _, began = rest.partition("/")
    if where != _where() or not number.isdigit():
        return False
    return _began(int(number)) != began


def _where() -> str:
    return f"{socket.gethostname()}+{_text('/proc/sys/kernel/random/boot_id')}+{_link('/proc/self/ns/pid')}"


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where there is none, or where it is dead and not yet taken note of."""
    _, _, fields = _text(f"/proc/{pid}/stat").rpartition(") ")
    words = fields.split()
    return words[19] if len(words) > 19 and words[0] not in {"Z", "X"} else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path).replace("/", "+")  # noqa: PTH115
    except OSError:
        return ""
