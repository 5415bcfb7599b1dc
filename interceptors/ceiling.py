"""The ceiling: no request estimated above what the window leaves is sent, under any policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from interceptors.progress import Progress, progressed
from interceptors.triggers import crossing
from worker.budget import Budget
from worker.estimate import estimate_spec, estimate_text
from worker.history import History
from worker.interceptor import CONTINUE, Decision, Interceptor, Note, RequestContext, Stop, Yield
from worker.items import ContextItem, ToolResultItem, UserItem
from worker.models.base import Family, ToolSpec
from worker.occupancy import Occupancy
from worker.records import Record, Warned
from worker.results import Failed

WARN_SHARE = 0.8
"""Share of what is available at which a policy that does not act warns."""

WARNING = "context_high"
"""The code of that warning."""


WAY_ON = "Set a [context] policy that acts (compact, checkpoint, rollover)"
"""The way out where nothing makes the context smaller: a trigger alone does nothing under a written `off` or `warn`."""

LEARNED_ANEW = (
    "another [model] context_window, where the model has more (what was learned is then dropped), a fork from an entry "
    "before it was learned (pod fork NAME NEW --at SEQ), "
)
"""The ways out where it is a learned window that is too small."""


class BudgetLine(NamedTuple):
    """One category of a budget and its estimated tokens."""

    category: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Overhead:
    """What each request holds whatever its history is, in estimated tokens."""

    instructions: int = 0
    schemas: int = 0


def overhead_of(system: str, specs: Sequence[ToolSpec], family: Family = "unknown") -> Overhead:
    """The overhead of a system prompt and tool schemas."""
    return Overhead(estimate_text(system, family), sum(estimate_spec(spec, family) for spec in specs))


def budget_table(history: History, overhead: Overhead, budget: Budget, pending: int = 0) -> list[BudgetLine]:
    """The next request by category, in estimated tokens, and last what is kept free for the reply.

    The current request is the newest user message with all that is not yet answered and `pending`, the queued input that
    goes with it. Lines of nothing stay in, so that every table has the same categories.
    """
    sums = dict.fromkeys(("current request", "history", "tool results", "context items"), 0)
    newest = max((at for at, item in enumerate(history.view) if isinstance(item, UserItem)), default=-1)
    since = min(newest, history.unanswered - 1) if history.unanswered else newest
    for at, (item, tokens) in enumerate(zip(history.view, history.tokens, strict=True)):
        match item:
            case UserItem():
                sums["current request" if at >= since else "history"] += tokens
            case ToolResultItem():
                sums["tool results"] += tokens
            case ContextItem():
                sums["context items"] += tokens
            case _:
                sums["history"] += tokens
    sums["current request"] += pending
    return [
        BudgetLine("instructions", overhead.instructions),
        BudgetLine("tool schemas", overhead.schemas),
        *(BudgetLine(category, tokens) for category, tokens in sums.items()),
        BudgetLine("reserve", max(budget.output, budget.buffer)),
    ]


def over_budget(occupancy: Occupancy, budget: Budget, table: Sequence[BudgetLine], model: str = "") -> Failed:
    """The failure of a request that does not fit and cannot be made smaller: the sum, line by line, and the ways
    out."""
    lines = [f"  {line.category:<16}{line.tokens:>12,}" for line in table]
    message = "\n".join(
        (
            f"the next request{f' to {model}' if model else ''} is estimated at {occupancy} "
            f"({occupancy.provenance}), above the ceiling of {budget.available:,}: a window of {budget.window:,} "
            f"({budget.origin}) less a reserve of {max(budget.output, budget.buffer):,}. It was not sent.",
            *lines,
            f"Ways out: {LEARNED_ANEW if budget.window_source == 'learned' else ''}a model with a larger window, fewer "
            "tools or shorter instructions, a [context] policy that acts (compact, rollover), or a fresh session.",
        )
    )
    details = {
        "tokens": occupancy.tokens,
        "available": budget.available,
        "window": budget.window,
        "window_source": budget.window_source,
        "categories": {line.category: line.tokens for line in table},
    }
    return Failed("over_budget", message, details=details)


@dataclass(eq=False)
class Ceiling(Interceptor):
    """Stands last in the chain, on the final view.

    Above the ceiling it yields `compact` where the pod has a rung left (`can_recover`), once without progress in a
    segment; else it stops with the budget by category. `overhead` splits system prompt and schemas for that table. With
    `warn` it warns once per segment at 80 % of what is available.
    """

    can_recover: bool = False
    overhead: Overhead | None = None
    warn: bool = False
    _progress: Progress = field(default_factory=Progress, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)
    _history: History | None = field(default=None, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Yield`, a `Stop`, a warning, or nothing. Never waits."""
        if self._history is not None and self._history is not ctx.history:
            self._warned = False
        self._history = ctx.history
        left = self._progress.look(ctx.history)
        tokens, available = ctx.occupancy.tokens, ctx.budget.available
        if not ctx.occupancy.fits(available):
            if self.can_recover and not left:
                self._progress.left = True
                thrash = not progressed(ctx.history)
                return Yield("compact", crossing(ctx.occupancy, available, trigger="ceiling", thrash=thrash))
            overhead = self.overhead or Overhead(ctx.occupancy.overhead)
            table = budget_table(ctx.history, overhead, ctx.budget, ctx.occupancy.pending)
            return Stop(over_budget(ctx.occupancy, ctx.budget, table, ctx.model))
        if self.warn and not self._warned and tokens > WARN_SHARE * available:
            return Note(_warning(ctx.occupancy, ctx.budget))
        return CONTINUE

    def observe(self, record: Record) -> None:
        """Follows progress, and whether this segment was warned of."""
        self._progress.observe(record)
        if isinstance(record, Warned) and record.code == WARNING:
            self._warned = True


def _warning(occupancy: Occupancy, budget: Budget) -> Warned:
    share = round(100 * occupancy.tokens / max(budget.available, 1))
    message = (
        f"the context is at {occupancy.tokens:,} of {budget.available:,} tokens ({share} %), and the policy does not "
        f"make it smaller; requests above that are refused. {WAY_ON} to go on beyond it."
    )
    figures = {"tokens": occupancy.tokens, "available": budget.available, "provenance": occupancy.provenance}
    return Warned(code=WARNING, message=message, figures=figures)
