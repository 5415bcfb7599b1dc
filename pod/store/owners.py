"""Who holds a lease, as text: a process, its machine and since when; and whether it still is."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from pod.alive import is_gone, label
from pod.log.lines import now
from worker.ids import uuid7

_OWNER = re.compile(r"process (?P<pid>\d+) on (?P<host>\S+) since (?P<since>\S+) \((?P<label>\S+) \S+\)")


def new_owner() -> str:
    """A name for a writer in this process, never used again: who, where, since when."""
    return f"process {os.getpid()} on {socket.gethostname()} since {now()} ({label()} {uuid7()[-8:]})"


def told(owner: str) -> dict[str, Any]:
    """What such a name says: `pid`, `host`, `since`."""
    found = _OWNER.fullmatch(owner)
    if found is None:
        return {"host": owner}
    return {"pid": int(found["pid"]), "host": found["host"], "since": found["since"]}


def is_dead(owner: str) -> bool:
    """Whether an owner was a process of this machine that is gone."""
    found = _OWNER.fullmatch(owner)
    return found is not None and is_gone(found["label"])
