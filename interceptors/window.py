"""The end of a window, told to the agent in time: once per window, and only where the notice itself still fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from interceptors.triggers import Trigger
from worker.estimate import HEURISTIC_FACTOR, estimate_item
from worker.interceptor import CONTINUE, Append, Decision, Interceptor, RequestContext
from worker.items import OrderItem
from worker.records import ContextAdded, Record


@dataclass(eq=False)
class WindowWarning(Interceptor):
    """Appends an order where the occupancy is above `warn` and a new window begins above `at`.

    `text` makes the order's words of the tokens used and of those at which the window ends. A window that ends at this
    very request gets no warning: what ends it stands before this one in the chain. One of it serves one window.
    """

    warn: Trigger
    at: Trigger
    text: Callable[[int, int], str]
    _warned: bool = field(default=False, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """An `Append`, or nothing. Never waits."""
        used, end = ctx.occupancy.decides, self.at.tokens(ctx.budget)
        if self._warned or not self.warn.passed(used, ctx.budget):
            return CONTINUE
        order = OrderItem(text=self.text(used, end), tag=ctx.tag)
        if used + int(estimate_item(order, ctx.history.family) * HEURISTIC_FACTOR) > end:
            return CONTINUE
        return Append((order,))

    def observe(self, record: Record) -> None:
        """Follows whether this window was warned of its end."""
        if isinstance(record, ContextAdded) and record.by == self.name:
            self._warned = True
