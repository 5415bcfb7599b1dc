"""What is wrong with a server of tools, in words: read from what its pod's log tells, so that a look loads nothing of servers."""

from __future__ import annotations

from pod.log.entries import ServerTold

MOST_NAMED = 5
"""Tools that can't be offered, or are described otherwise, that a warning names."""


def warning_of(told: ServerTold) -> str:
    """What is wrong with a server, in words; nothing where all is well."""
    if told.state != "up":
        word = (
            "was lost; a call starts it again" if told.state == "down" else "did not start, and its tools are missing"
        )
        return f"the server {told.server!r} {word}: {told.why}"
    if not told.unfit:
        return ""
    named = "; ".join(f"{name!r}: {why}" for name, why in list(told.unfit.items())[:MOST_NAMED])
    more = "" if len(told.unfit) <= MOST_NAMED else f"; and {len(told.unfit) - MOST_NAMED} more"
    return f"tools of the server {told.server!r} can't be offered: {named}{more}"
