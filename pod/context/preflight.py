"""Input that no request can ever hold: found before anything is spent on it, and kept out of all later requests."""

from __future__ import annotations

from dataclasses import dataclass

from pod.log import entries as e
from pod.session import Session
from worker.history import History
from worker.items import ContextItem, OrderItem, UserItem
from worker.records import Withdrawn
from worker.results import Failed
from worker.sending import Sender

TOO_LARGE = frozenset({"over_budget", "compact_thrash", "overflow"})
"""Kinds of failures that an input may cause which is too large by itself."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """The items at the end of a view that are too large: `ids` of all of them, `inputs` of the user's. `alone` is the
    occupancy of a request with nothing else, `room` the most that one may have.
    """

    ids: tuple[str, ...]
    inputs: tuple[str, ...]
    alone: int
    room: int

    def failure(self) -> Failed:
        """The end of the run."""
        message = (
            f"the newest input is too large: with what every request holds it has {self.alone:,} tokens, and a new segment "
            f"may have {self.room:,}. It is not sent. Put it into a file, send it in parts, or raise the trigger or the window."
        )
        return Failed("over_budget", message, details={"tokens": self.alone, "available": self.room})

    def reject(self, session: Session, message: str) -> None:
        """Takes the items out of all later requests; the log keeps them, for display."""
        reason = message.partition("\n")[0][:500]
        for label in self.inputs:
            session.put(e.InputRejected(id=label, reason=reason))
        session.put(Withdrawn(ids=self.ids))


def oversized(history: History, sender: Sender, factor: float, room: int) -> Oversized | None:
    """The inputs without a reply, where they fill by themselves what a request may have; else None.

    Not so where the fixed overhead alone is above it (that is no input's fault), nor where the window is one that refusals
    taught (it may be put right).
    """
    at = history.unanswered - 1
    tail = history.view[at:] if at >= 0 else []
    if not tail or not all(isinstance(item, UserItem | ContextItem | OrderItem) for item in tail):
        return None
    if sender.budget(sender.model).window_source == "learned":
        return None
    overhead = sender.overhead(sender.model)
    alone = int((overhead + sum(history.tokens[at:])) * factor)
    if not overhead * factor < room < alone:
        return None
    inputs = tuple(item.id for item in tail if isinstance(item, UserItem))
    return Oversized(tuple(item.id for item in tail), inputs, alone, room)
