"""What a server's tools are called here: `server__tool`, unique, and as every provider takes it (case B135)."""

from __future__ import annotations

import re

from worker.text import sha256

LONGEST = 64

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """The name of a tool, of no other server's where no server's name holds `__` or ends with `_`. One that can't stand as it is ends
    with a hash of the server's own name for it, which is made to be told apart and no proof: a server may find two with one name."""
    whole = f"{server}__{tool}"
    fit = _UNFIT.sub("_", whole)
    if tool and fit == whole and len(fit) <= LONGEST:
        return fit
    mark = f"_{sha256(tool)[:8]}"
    return fit[: LONGEST - len(mark)] + mark


def prefix(server: str) -> str:
    """What the names of all tools of a server begin with, and of no other's."""
    return f"{server}__"
