"""What reaches a run from outside between two requests: orders to stop or compact, and the check of a new segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pod.log import entries as e
from pod.session import Session
from worker.interceptor import CONTINUE, Decision, Interceptor, Note, RequestContext, Yield
from worker.models.base import Model, Reply


@dataclass
class Orders:
    """What was asked of the pod from outside, to be followed at the next request boundary."""

    stop: str | None = None
    after_segment: bool = False
    compact: bool = False
    focus: str | None = None


class Supervision(Interceptor):
    """First in the chain: orders from outside, the check of a new segment against its first report, and what each report
    shows of a prune or compaction before it."""

    name = "supervision"

    def __init__(self, orders: Orders, session: Session, models: Sequence[Model] = ()) -> None:
        self._orders = orders
        self._session = session
        self._models = models

    async def after_request(self, ctx: RequestContext, reply: Reply) -> None:
        """Puts on record what the reply's figures show. Never waits."""
        self._measure()

    def _measure(self) -> None:
        due = self._session.state.savings.due
        if due is not None:
            known = next((m.capabilities for m in self._models if m.name == due.model), None)
            self._session.put(due.measured(known))

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A yield for an order; a note where a new segment's first report came in."""
        self._measure()
        if self._orders.stop is not None:
            return Yield("stop", {"reason": self._orders.stop})
        if self._orders.compact:
            return Yield("compact", {"trigger": "hand"})
        state = self._session.state
        if state.window_asked:
            return Yield("compact", {"trigger": "agent"})
        accepted = state.accepted
        if accepted is not None and not state.verified and state.first_reported:
            ok = state.first_reported < accepted.limit and state.first_reported <= accepted.before * 0.9
            return Note(
                e.Verified(reported=state.first_reported, estimated=accepted.after, before=accepted.before, accepted=ok)
            )
        return CONTINUE
