"""Triggers: at which occupancy a worker leaves its loop so that the pod can make the context smaller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from interceptors.progress import Progress, progressed
from worker.budget import Budget
from worker.errors import KEPT_WORDS, ConfigError, ContextOverflow, ModelError
from worker.interceptor import CONTINUE, Decision, Interceptor, RequestContext, Stop, Yield
from worker.occupancy import Occupancy
from worker.records import Record
from worker.results import Failed

OVERFLOW_RECOVERIES = 1
"""How often one request that the provider found too large is made smaller and sent again (case B061)."""

UNCLEARED_SHARE = 0.8
"""Share of what is available that a history may have uncleared, where its provider clears old results: above the ceiling
it can neither be compacted by that provider nor go to a model that does not clear."""

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A threshold: `value` tokens, or per cent of what is available. It triggers above it, not at it."""

    value: float
    percent: bool = False

    @classmethod
    def parse(cls, value: int | str | Trigger) -> Trigger:
        """Reads `80000` or `"60%"`. Raises `ConfigError` for anything else, and for values that could never act."""
        if isinstance(value, Trigger):
            return value
        if isinstance(value, str):
            found = _PERCENT.fullmatch(value.strip())
            if found and 0 < float(found[1]) <= 100:
                return cls(float(found[1]), percent=True)
        elif not isinstance(value, bool) and value > 0:
            return cls(value)
        raise ConfigError(f'a trigger is a number of tokens above 0, or a text like "60%" (up to 100%), not {value!r}')

    def tokens(self, budget: Budget) -> int:
        """The threshold in tokens for this budget; never above what is available."""
        wanted = int(budget.available * self.value / 100) if self.percent else int(self.value)
        return min(wanted, budget.available)

    def passed(self, tokens: int, budget: Budget) -> bool:
        """Whether an occupancy is above the threshold."""
        return tokens > self.tokens(budget)

    def __str__(self) -> str:
        return f"{self.value:g}%" if self.percent else f"{int(self.value):,} tokens"


@dataclass(frozen=True, slots=True)
class Lowest:
    """Several triggers as one: the lowest of them acts. Which one that is depends on the budget."""

    triggers: tuple[Trigger, ...]

    def tokens(self, budget: Budget) -> int:
        """The threshold in tokens for this budget; what is available where there is no trigger."""
        return min((trigger.tokens(budget) for trigger in self.triggers), default=budget.available)

    def passed(self, tokens: int, budget: Budget) -> bool:
        """Whether an occupancy is above the threshold."""
        return tokens > self.tokens(budget)


def lowest_trigger(triggers: Iterable[Trigger | None], budget: Budget) -> int | None:
    """The lowest of the triggers that are set, in tokens; None where none is."""
    return min((trigger.tokens(budget) for trigger in triggers if trigger is not None), default=None)


def uncleared_limit(available: int) -> int:
    """The tokens above which a history that is sent cleared is compacted."""
    return int(available * UNCLEARED_SHARE)


def _nothing(ctx: RequestContext) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """What decides between requests. Without `request_threshold` nothing is triggered by size.

    `uncleared` tells the tokens of the whole history where the provider leaves parts of it out of requests and it must stay
    small enough to be compacted as it is; 0 where that does not matter. `overflow_recovery`: whether a request that the
    provider found too large is a reason to compact. `policy` is named in the error where it is not.
    """

    request_threshold: Trigger | Lowest | None = None
    uncleared: Callable[[RequestContext], int] = _nothing
    overflow_recovery: bool = False
    policy: str = "off"


def crossing(occupancy: Occupancy, threshold: int, *, trigger: str, thrash: bool) -> dict[str, Any]:
    """The figures of a yield: what was measured, against what, and whether nothing was done in the segment before."""
    return {
        "trigger": trigger,
        "tokens": occupancy.tokens,
        "threshold": threshold,
        "provenance": occupancy.provenance,
        "overhead": occupancy.overhead,
        "thrash": thrash,
    }


def _always() -> int:
    return 0


@dataclass(eq=False)
class CompactTrigger(Interceptor):
    """Yields `compact` above the request threshold, and where the provider says that the request is too large.

    It yields at most once without progress in a segment (a reply or a user input). At the first request of a new
    segment that is above the threshold already, the yield carries `thrash`, so that the pod takes the next rung instead
    of the same. At most `least()` tokens trigger nothing, whatever is set. A history that grows too large uncleared yields
    with the trigger `uncleared`, above `least_uncleared()` tokens: that one forces nothing.
    """

    settings: CompactSettings = field(default_factory=CompactSettings)
    least: Callable[[], int] = _always
    least_uncleared: Callable[[], int] = _always
    _progress: Progress = field(default_factory=Progress, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Yield`, or nothing. Never waits."""
        trigger = self.settings.request_threshold
        left = self._progress.look(ctx.history)
        if left:
            return CONTINUE
        tokens = ctx.occupancy.decides
        if trigger is None or tokens <= self.least() or not trigger.passed(tokens, ctx.budget):
            return self._uncleared(ctx)
        self._progress.left = True
        thrash = not progressed(ctx.history)
        detail = crossing(ctx.occupancy, trigger.tokens(ctx.budget), trigger="request_threshold", thrash=thrash)
        return Yield("compact", detail)

    def _uncleared(self, ctx: RequestContext) -> Decision:
        tokens, most = self.settings.uncleared(ctx), uncleared_limit(ctx.budget.available)
        if tokens <= max(most, self.least_uncleared()) or not progressed(ctx.history):
            return CONTINUE
        detail = crossing(ctx.occupancy, most, trigger="uncleared", thrash=False)
        return Yield("compact", {**detail, "tokens": tokens, "provenance": "heuristic"})

    async def after_error(self, ctx: RequestContext, error: ModelError) -> Decision:
        """Gives an overflow its meaning: once a `Yield`, then nothing, so that the run ends with the provider's error
        (B061).

        Where recovery is off, the failure says so (B006). Other errors are left alone.
        """
        if not isinstance(error, ContextOverflow):
            return CONTINUE
        overflows = ctx.history.counters.overflows_since_reply
        if not self.settings.overflow_recovery:
            hint = (
                f"{_sentence(error.message)} Nothing was compacted: the context policy is {self.settings.policy!r} and "
                "overflow_recovery is off. Set [context] overflow_recovery = true, or leave it unset under a policy that acts "
                "(compact, checkpoint, rollover)"
            )
            return Stop(_failure(error, hint))
        if overflows > OVERFLOW_RECOVERIES:
            message = f"{_sentence(error.message)} Still too large after {OVERFLOW_RECOVERIES} recovery, the bound for a request"
            return Stop(_failure(error, message))
        self._progress.left = True
        detail = crossing(ctx.occupancy, ctx.budget.available, trigger="overflow", thrash=not progressed(ctx.history))
        figures = {"limit": error.limit, "requested": error.requested, "overflows": overflows}
        return Yield("compact", {**detail, **figures, "message": error.message[:KEPT_WORDS]})

    def observe(self, record: Record) -> None:
        """Follows progress."""
        self._progress.observe(record)


def _sentence(text: str) -> str:
    """A provider's message with one full stop at its end."""
    text = text.rstrip(" .")
    return text if text.endswith(("!", "?", "…")) else f"{text}."


def _failure(error: ContextOverflow, message: str) -> Failed:
    details = {
        "status": error.status,
        "code": error.code,
        "request_id": error.request_id,
        "model": error.model,
        "limit": error.limit,
        "requested": error.requested,
    }
    return Failed(error.kind, message, details={**{k: v for k, v in details.items() if v}, "retryable": False})
