"""The end of a window, told to the agent in time: once per window, and only where the notice itself still fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from interceptors.triggers import Lowest, Trigger
from worker.budget import Budget
from worker.estimate import HEURISTIC_FACTOR, estimate_item
from worker.interceptor import CONTINUE, Append, Decision, Interceptor, RequestContext
from worker.items import OrderItem
from worker.records import ContextAdded, Record

IN_TIME = 0.8
"""The share of a window's end at which it is warned of where `warn` does not lie below that end."""


@dataclass(eq=False)
class WindowWarning(Interceptor):
    """Appends an order where the occupancy is above `warn` and a new window begins above `at`.

    `text` makes the order's words of the tokens used and of those at which the window ends. A window that ends at this
    very request gets no warning: what ends it stands before this one in the chain. One of it serves one window; `warned`
    says that the window was warned before its segment began.
    """

    warn: Trigger
    at: Trigger | Lowest
    text: Callable[[int, int], str]
    warned: bool = False
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._warned = self.warned

    def begins(self, budget: Budget) -> int:
        """The tokens above which the window is warned of its end."""
        warn, end = self.warn.tokens(budget), self.at.tokens(budget)
        return warn if warn < end else int(end * IN_TIME)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """An `Append`, or nothing. Never waits."""
        used, end = ctx.occupancy.decides, self.at.tokens(ctx.budget)
        if self._warned or used <= self.begins(ctx.budget):
            return CONTINUE
        order = OrderItem(text=self.text(used, end), tag=ctx.tag)
        if used + int(estimate_item(order, ctx.history.family) * HEURISTIC_FACTOR) > end:
            return CONTINUE
        return Append((order,))

    def observe(self, record: Record) -> None:
        """Follows whether this window was warned of its end."""
        if isinstance(record, ContextAdded) and record.by == self.name:
            self._warned = True
