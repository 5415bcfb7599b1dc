"""Limits of a run: requests, cost, tokens, wall time, tool calls. Reached ones end it, resumable, with the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from interceptors.purse import Share
from worker.history import Counters
from worker.interceptor import (
    ALLOW,
    CONTINUE,
    CallContext,
    Decision,
    Deny,
    Interceptor,
    Note,
    RequestContext,
    Stop,
    ToolDecision,
)
from worker.models.base import Price
from worker.records import Record, ReplyRecord, Warned
from worker.results import Failed, LimitReached

WARN_SHARE = 0.8
"""Share of a limit at which a warning goes on record."""

WARNING = "limit_warning"
"""The code of that warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits of one run; None is no limit. Requests, US dollars, tokens (input and output), seconds, tool calls.

    `max_wall_seconds` counts while a process drives the run; while it waits for a human or lies stopped, no time counts.
    """

    max_requests: int | None = None
    max_cost_usd: float | None = None
    max_total_tokens: int | None = None
    max_wall_seconds: float | None = None
    max_tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used. Compact workers and children count for cost and tokens, not for requests."""

    requests: int = 0
    cost_usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    tool_calls: int = 0
    unpriced: int = 0

    def beside(self, other: Spent) -> Spent:
        """With what another worker has used whose cost and tokens count here; its requests and calls do not."""
        return replace(
            self, cost_usd=self.cost_usd + other.cost_usd, tokens=self.tokens + other.tokens,
            unpriced=self.unpriced + other.unpriced,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ahead:
    """What the next request may cost: its input at the dearest rate of the models that may be asked, its output whole.

    `cost_usd` is None where a price is unknown.
    """

    tokens: int = 0
    cost_usd: float | None = 0.0


def spent_of(counters: Counters, seconds: float) -> Spent:
    """The figures of a run from its counters."""
    return Spent(
        requests=counters.requests,
        cost_usd=counters.cost_usd + counters.worker_cost_usd,
        tokens=counters.prompt_tokens + counters.output_tokens + counters.worker_tokens,
        seconds=max(seconds, 0.0),
        tool_calls=counters.tool_calls,
        unpriced=counters.unpriced,
    )


def reserve(tokens: int, output: int, prices: Sequence[Price | None]) -> Ahead:
    """What a request of this many input and output tokens may cost: nothing of it cached, and the cache written."""
    costs: list[float] = []
    for price in prices:
        if price is None:
            return Ahead(tokens, None)
        costs.append((tokens * max(price.input, price.cache_write) + output * price.output) / 1_000_000)
    return Ahead(tokens, max(costs, default=0.0))


def reached(settings: LimitSettings, spent: Spent, ahead: Ahead) -> LimitReached | Failed | None:
    """The first limit that the next request would pass, or that is reached; a failure where a cost cannot be
    bounded."""
    s = settings
    if s.max_requests is not None and spent.requests >= s.max_requests:
        return _limit("max_requests", f"{spent.requests} requests were made", spent.requests, s.max_requests)
    if s.max_tool_calls is not None and spent.tool_calls > s.max_tool_calls:
        return _limit("max_tool_calls", f"{spent.tool_calls} calls were asked for", spent.tool_calls, s.max_tool_calls)
    if s.max_wall_seconds is not None and spent.seconds >= s.max_wall_seconds:
        seconds = round(spent.seconds, 1)
        return _limit("max_wall_seconds", f"the run has taken {_shown(seconds)} s", seconds, s.max_wall_seconds)
    if s.max_total_tokens is not None and spent.tokens + ahead.tokens > s.max_total_tokens:
        said = f"{spent.tokens:,} tokens were used and the next request has about {ahead.tokens:,}"
        return _limit("max_total_tokens", said, spent.tokens, s.max_total_tokens, next_tokens=ahead.tokens)
    if s.max_cost_usd is not None:
        if ahead.cost_usd is None or spent.unpriced:
            return Failed(
                "unknown_price",
                f"max_cost_usd = {_shown(s.max_cost_usd)} is set, but the price of a model is not known, so the "
                "cost cannot be bounded. Take max_total_tokens instead, or a model with a known price.",
            )
        if spent.cost_usd + ahead.cost_usd > s.max_cost_usd:
            cost, more = round(spent.cost_usd, 6), round(ahead.cost_usd, 6)
            said = f"{_shown(cost)} USD were spent and the next request may cost {_shown(more)} USD"
            return _limit("max_cost_usd", said, cost, s.max_cost_usd, reserved=more)
    return None


def _limit(key: str, said: str, used: float, limit: float, **more: Any) -> LimitReached:
    return LimitReached(key, f"{said}; the limit {key} is {_shown(limit)}", {"used": used, "limit": limit, **more})


def _shown(value: float) -> str:
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def near(settings: LimitSettings, spent: Spent, warned: frozenset[str]) -> Warned | None:
    """A warning about the first limit of which 80 % is used and that was not warned of in this run."""
    used: dict[str, tuple[float, float | None]] = {
        "max_requests": (spent.requests, settings.max_requests),
        "max_cost_usd": (round(spent.cost_usd, 6), settings.max_cost_usd),
        "max_total_tokens": (spent.tokens, settings.max_total_tokens),
        "max_wall_seconds": (round(spent.seconds, 1), settings.max_wall_seconds),
        "max_tool_calls": (spent.tool_calls, settings.max_tool_calls),
    }
    for key, (value, limit) in used.items():
        if limit is not None and key not in warned and value >= WARN_SHARE * limit:
            message = f"{_shown(value)} of {key} = {_shown(limit)} are used"
            return Warned(code=WARNING, message=message, figures={"limit": key, "used": value, "max": limit})
    return None


def refused_call(settings: LimitSettings, counters: Counters, batch: Sequence[str], call_id: str) -> str | None:
    """Why a call of the newest batch may not run: the run's calls are used up. `batch` holds the batch's call ids in
    order."""
    if settings.max_tool_calls is None or call_id not in batch:
        return None
    number = counters.tool_calls - len(batch) + list(batch).index(call_id) + 1
    if number <= settings.max_tool_calls:
        return None
    return f"not run: this is call {number} of the run, and the limit max_tool_calls is {settings.max_tool_calls}"


@dataclass(eq=False)
class Limits(Interceptor):
    """Stops a run at its limits, before the request that would pass them.

    `driven` gives for a time (UTC seconds) how many seconds the run has been driven until then, through yields and
    restarts; without it wall time counts from the first request that is seen. `fallback_prices` are those of the
    models that may be asked instead of the first. `share` is the pod's hold on what several pods may spend together.
    """

    settings: LimitSettings = field(default_factory=LimitSettings)
    driven: Callable[[float], float] | None = None
    fallback_prices: Sequence[Price | None] = ()
    share: Share | None = None
    _first_seen: float | None = field(default=None, init=False, repr=False)
    _warned: set[str] = field(default_factory=set[str], init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Stop` at a limit, a warning at 80 % of one, or nothing. Waits for other pods' requests alone, where a purse is shared."""
        spent = spent_of(ctx.history.counters, self._seconds(ctx.wall))
        ahead = reserve(ctx.occupancy.tokens, ctx.budget.output, (ctx.capabilities.price, *self.fallback_prices))
        outcome = reached(self.settings, spent, ahead)
        if outcome is None and self.share is not None:
            outcome = await self.share.take(ahead.cost_usd)
        if outcome is not None:
            return Stop(outcome)
        warning = near(self.settings, spent, frozenset(self._warned))
        return CONTINUE if warning is None else Note(warning)

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """Denies calls beyond `max_tool_calls`; the next request then is not made."""
        why = refused_call(self.settings, ctx.history.counters, tuple(ctx.history.open), ctx.call.call_id)
        return ALLOW if why is None else Deny(why)

    def observe(self, record: Record) -> None:
        """Remembers which limits were warned of; a reply's cost is booked, and what was set aside for it free."""
        if isinstance(record, Warned) and record.code == WARNING:
            self._warned.add(str(record.figures.get("limit")))
        elif isinstance(record, ReplyRecord) and self.share is not None:
            self.share.settled()

    def carry(self) -> dict[str, Any] | None:
        """When the first request was seen, and what was warned of."""
        return {"first_seen": self._first_seen, "warned": sorted(self._warned)}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave."""
        self._first_seen = state.get("first_seen")
        self._warned = set(state.get("warned", ()))

    def begin_run(self) -> None:
        """Nothing is used yet."""
        self._first_seen = None
        self._warned = set()

    def _seconds(self, now: float) -> float:
        if self.driven is not None:
            return self.driven(now)
        if self._first_seen is None:
            self._first_seen = now
        return now - self._first_seen

    def shared(self, counters: Counters | None, fallback_prices: Sequence[Price | None] = ()) -> Shared:
        """The same limits for a worker beside the run with these counters (None: beside no run, where it has them alone)."""
        settings = replace(self.settings, max_requests=None, max_tool_calls=None)
        spent = Spent() if counters is None else spent_of(counters, 0.0)
        driven = self._seconds if counters is not None else None
        return Shared(settings, spent, driven, fallback_prices, self.share)


@dataclass(eq=False)
class Shared(Interceptor):
    """The limits of a run, held by a worker whose cost and tokens count in it: before each of its requests.

    `spent` is what the run used before, `driven` how many seconds it has been driven until a time. `met` is the limit that
    stopped the worker.
    """

    settings: LimitSettings
    spent: Spent = Spent()
    driven: Callable[[float], float] | None = None
    fallback_prices: Sequence[Price | None] = ()
    share: Share | None = None
    met: LimitReached | None = field(default=None, init=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Stop` at a limit, or nothing. Waits for other pods' requests alone, where a purse is shared."""
        prices = (ctx.capabilities.price, *self.fallback_prices)
        outcome = await self.reached(ctx.wall, ctx.occupancy.tokens, ctx.budget.output, prices, ctx.history.counters)
        return CONTINUE if outcome is None else Stop(outcome)

    async def reached(
        self, wall: float, tokens: int, output: int, prices: Sequence[Price | None], counters: Counters | None = None
    ) -> LimitReached | Failed | None:
        """The limit that a request of so many input and output tokens would pass, with what the worker has used itself."""
        used = self.spent if counters is None else self.spent.beside(spent_of(counters, 0.0))
        used = replace(used, seconds=0.0 if self.driven is None else self.driven(wall))
        ahead = reserve(tokens, output, prices)
        outcome = reached(self.settings, used, ahead)
        if outcome is None and self.share is not None:
            own = 0.0 if counters is None else spent_of(counters, 0.0).cost_usd
            outcome = await self.share.take(ahead.cost_usd, own)
        if isinstance(outcome, LimitReached):
            self.met = outcome = replace(outcome, message=f"in a compaction, {outcome.message}")
        return outcome
