"""The inputs that go next: how much of what is queued one request takes along."""

from __future__ import annotations

from worker.estimate import estimate_item
from worker.history import History
from worker.items import UserItem

SHARE = 0.5
"""The share of the room beside what stands in every request that inputs may have which wait for a reply together."""


def next_inputs(history: History, standing: int, most: float) -> tuple[UserItem, ...]:
    """The queued inputs that the next request takes along, in order; the others wait for the request after it.

    The first goes always, unless one that was admitted before still waits for its reply. Further ones go while all that
    wait have at most half of the room between `standing` (raw tokens of what every request holds) and `most` (raw
    tokens that a request should have at most), so that only an input too large by itself can be too large.
    """
    if not history.queue:
        return ()
    going: list[UserItem] = []
    used = waiting_tokens(history)
    room = (most - standing) * SHARE
    for item in history.queue.values():
        tokens = estimate_item(item, history.family)
        if used and used + tokens > room:
            break
        going.append(item)
        used += tokens
    return tuple(going)


def waiting_tokens(history: History) -> int:
    """Raw tokens of the admitted inputs without a reply."""
    return sum(history.tokens[at] for at in waiting(history))


def waiting(history: History) -> list[int]:
    """The places in the view of the admitted inputs without a reply."""
    if not history.unanswered:
        return []
    return [at for at in range(history.unanswered - 1, len(history.view)) if isinstance(history.view[at], UserItem)]
