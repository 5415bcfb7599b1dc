"""What bounds a compact worker: its context, its turns, cut replies, and which tools run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio.to_thread

from compact_worker import prompt
from compact_worker.clip import clip
from compact_worker.draft import Draft
from compact_worker.tools import WRITE_SUMMARY
from worker.builtin.scope import Scope
from worker.estimate import CALL_TOKENS, HEURISTIC_FACTOR, estimate_text
from worker.interceptor import (
    ALLOW,
    CONTINUE,
    Answer,
    Append,
    CallContext,
    Decision,
    Deny,
    Interceptor,
    Pause,
    RequestContext,
    Stop,
    ToolDecision,
)
from worker.items import OrderItem, ToolOutput
from worker.models.base import Family, Reply, Usage
from worker.results import Failed, LimitReached
from worker.tools import ToolFault

MAX_CUTS = 2
"""Replies cut at the output limit that end a compaction: one, and one after a demand for a shorter text (cases B010,
B030)."""

MAX_THIN = 2
"""Summaries that say nothing that end a compaction (case B011)."""

CLIPPED = "\n[cut here: the context that is left ends]"

Warn: TypeAlias = Callable[[str, str, dict[str, Any]], None]
"""Takes a code, a message and figures: puts a warning on record and tells the human."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens, except `turns`. `context` is the hard limit of one request, `key` names where it comes from."""

    context: int
    finish: int
    reserve: int
    turns: int


class Guards(Interceptor):
    """Watches the occupancy of a compact worker: one order to finish, then only write_summary, then the end.

    `measure` gives the occupancy of the next request. What tools of one reply give is counted as it comes, before it
    is in the view.
    """

    name = "compact_guards"

    def __init__(self, limits: Limits, draft: Draft, warn: Warn, measure: Callable[[], int], family: Family) -> None:
        self.limits = limits
        self.draft = draft
        self.cuts = 0
        self.usages: list[Usage] = []
        self._warn = warn
        self._measure = measure
        self._family: Family = family
        self._limit = limits.context
        self._batch = 0
        self._cut_told = False
        self._finish_told = False
        self._last_cut = False

    async def before_request(self, ctx: RequestContext) -> Decision:
        """Ends at a hard limit; else says once what must be said."""
        self._batch = 0
        self._limit = min(self.limits.context, ctx.budget.available)
        stop = self._over(ctx)
        if stop is not None:
            return stop
        orders: list[str] = []
        if self.cuts and not self._cut_told:
            self._cut_told = True
            orders.append(prompt.NUDGE_CUT)
        left = self._limit - ctx.occupancy.tokens
        if left <= self.limits.finish and not self._finish_told:
            self._finish_told = True
            orders.append(prompt.finish_order(left, self.limits.reserve))
            figures = {"left": left, "limit": self._limit, "occupancy": ctx.occupancy.tokens}
            self._warn("finish_warning", f"the compact worker has {left:,} tokens left and was told to finish", figures)
        return Append(tuple(OrderItem(text=text, tag=ctx.tag) for text in orders)) if orders else CONTINUE

    def _over(self, ctx: RequestContext) -> Stop | None:
        requests, size = ctx.history.counters.requests, ctx.occupancy.tokens
        figures = {"requests": requests, "tokens": size, "limit": self._limit, "turns": self.limits.turns}
        if self.cuts >= MAX_CUTS:
            return Stop(Failed("cut", f"{self.cuts} replies were cut off at the output limit", details=figures))
        if self.draft.refused["thin"] >= MAX_THIN and self.draft.summary is None:
            return Stop(Failed("thin", f"{MAX_THIN} summaries said next to nothing", details=figures))
        if requests >= self.limits.turns:
            message = (
                f"the compact worker made {requests} requests, all that worker_max_turns={self.limits.turns} allows"
            )
            return Stop(LimitReached("worker_max_turns", message, figures))
        if size > self._limit:
            message = (
                f"the compact worker's next request would have {size:,} tokens, above its limit of {self._limit:,}"
            )
            return Stop(LimitReached("worker_context_max_tokens", message, figures))
        return None

    async def after_request(self, ctx: RequestContext, reply: Reply) -> None:
        """Keeps the figures, and whether the reply was cut."""
        self.usages.append(reply.usage)
        self._last_cut = reply.stop == "length"
        self.cuts += self._last_cut

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """Refuses a summary of a cut reply, and below the reserve everything else."""
        if ctx.tool.name == WRITE_SUMMARY:
            if self._last_cut:
                return _error(
                    "summary refused: the reply was cut off at the output limit. Call again with a shorter text."
                )
            return ALLOW
        return _error(prompt.CLOSED) if self._left() < self.limits.reserve else ALLOW

    async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
        """Clips a result to what is left before the reserve."""
        if ctx.tool.name == WRITE_SUMMARY:
            return output
        room = int((self._left() - self.limits.reserve) / HEURISTIC_FACTOR) - CALL_TOKENS
        cost = self._cost(output)
        if cost > room and output.content is not None:
            rest = room - estimate_text(output.summary, self._family) - estimate_text(CLIPPED, self._family)
            content = clip(output.content, tokens=rest, family=self._family)
            output = output.model_copy(update={"content": content + CLIPPED})
            cost = self._cost(output)
        self._batch += int((cost + CALL_TOKENS) * HEURISTIC_FACTOR)
        return output

    def _left(self) -> int:
        return self._limit - self._measure() - self._batch

    def _cost(self, output: ToolOutput) -> int:
        return estimate_text(output.summary, self._family) + estimate_text(output.content or "", self._family)


class ReadOnly(Interceptor):
    """Lets through `write_summary` and tools that only read, when a worker continues the pod's own prefix."""

    name = "compact_read_only"

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """Denies what is neither."""
        if ctx.tool.name == WRITE_SUMMARY or ctx.tool.effect == "read":
            return ALLOW
        return Deny(prompt.READ_ONLY)


class AskIsDeny(Interceptor):
    """The pod's own permissions, where nobody can be asked: a question is a denial, except for reads in scope."""

    name = "compact_permissions"

    def __init__(self, inner: Interceptor, scope: Scope) -> None:
        self._inner = inner
        self._scope = scope

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """What the pod's permissions say, with questions decided."""
        if ctx.tool.name == WRITE_SUMMARY:
            return ALLOW
        decision = await self._inner.before_tool(ctx)
        if not isinstance(decision, Pause):
            return decision
        if await anyio.to_thread.run_sync(self._reads_in_scope, ctx):
            return ALLOW
        return Deny(f"{ctx.tool.name} would have to ask a human, and a compaction asks nobody")

    def _reads_in_scope(self, ctx: CallContext) -> bool:
        properties: dict[str, Any] = ctx.tool.parameters.get("properties", {})
        if ctx.tool.effect != "read" or "path" not in properties:
            return False
        try:
            self._scope.resolve(str(ctx.arguments.get("path", ".")))
        except ToolFault:
            return False
        return True


def _error(message: str) -> Answer:
    return Answer(ToolOutput(summary=message, is_error=True))
