"""Input that no request can ever hold: found before anything is spent on it, and kept out of all later requests."""

from __future__ import annotations

from dataclasses import dataclass

from pod.log import entries as e
from pod.session import Session
from pod.state import PodState
from worker.admission import waiting
from worker.items import ContextItem, OrderItem, UserItem
from worker.records import Withdrawn
from worker.results import Failed
from worker.sending import Sender

TOO_LARGE = frozenset({"over_budget", "compact_thrash", "overflow"})
"""Kinds of failures that an input may cause which is too large by itself."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """Inputs without a reply that are too large by themselves (`inputs`), and all items that go with them (`ids`). `alone` is
    the occupancy of a request with the largest and what every request holds, `room` the most that one may have.
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


def oversized(
    state: PodState, sender: Sender, factor: float, room: int, segment: int | None = None
) -> Oversized | None:
    """The inputs without a reply that are too large by themselves: with the fixed overhead above `room`, or with the session's
    first input above `segment`, where new segments are made. None where there is none, or it is no input's fault.
    """
    history = state.history
    places = waiting(history)
    tail = history.view[history.unanswered - 1 :] if places else []
    if not all(isinstance(item, UserItem | ContextItem | OrderItem) for item in tail):
        return None
    overhead = sender.overhead(sender.model)
    first = history.index.get(state.first_input or "")
    stands = overhead + (0 if first is None or first in places else history.tokens[first])
    bounds = [(overhead, room)] if segment is None else [(overhead, room), (stands, segment)]
    found: dict[str, tuple[int, int]] = {}
    for at in places:
        tokens = history.tokens[at]
        for fixed, most in bounds:
            if fixed * factor < most < int((fixed + tokens) * factor):
                found.setdefault(history.view[at].id, (int((fixed + tokens) * factor), most))
    if not found:
        return None
    # What the runtime said beside them goes too, unless another input stays.
    ids = tuple(item.id for item in tail) if len(found) == len(places) else tuple(found)
    alone, most = max(found.values())
    return Oversized(ids, tuple(found), alone, most)
