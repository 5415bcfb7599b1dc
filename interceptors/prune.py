"""Prune: old tool output leaves the view, rarely and in large pieces; the log keeps everything.

The decision is `plan_prune`, a pure function of the view. What is pruned stays pruned in the segment (the history folds
the entry), and a new prune happens only where what it saves *anew* is worth the prefix cache that it costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from interceptors.economics import Economy, Growth, Runs, before_trigger, best_start, tails
from interceptors.stubs import RENDERER, render_arguments, render_read_stub, render_stub
from worker.budget import Budget
from worker.estimate import estimate_item
from worker.history import History
from worker.interceptor import CONTINUE, Continue, Edit, Interceptor, RequestContext
from worker.items import ContextItem, FileRange, Item, ToolCallItem, ToolResultItem
from worker.models.base import Family, Price, Reply
from worker.records import Pruned, Record, ReplyRecord, ToolsChanged

TRIGGER_SHARE = 0.6
"""Above a trigger a prune is done only where it leads to this share of it; else compaction is the better step."""

LEAST_GAIN = 32
"""Tokens that a single stub must save: below that the content itself is the better stub."""

Reason: TypeAlias = Literal[
    "min_savings", "cold_cache", "model_changed", "tools_changed", "new_segment", "trigger", "ceiling"
]


@dataclass(frozen=True, slots=True)
class PruneSettings:
    """What `[prune]` says. Tokens, but for `excerpt_chars`.

    `pinned` gives the ids of items that are never pruned, asked at each request.
    """

    enabled: bool = True
    protected_tokens: int = 8_000
    min_savings: int | Literal["auto"] = "auto"
    min_savings_floor: int = 4_096
    excerpt_chars: int = 200
    supersede_in_tail: bool = False
    prune_arguments: bool = False
    pinned: Callable[[], frozenset[str]] = frozenset

    @property
    def savings(self) -> int:
        """What a prune must save, more than this, at an ordinary moment, where the model's prices are not known.

        `auto` is the larger of floor and protected tokens: savings of at least the tail that stays are what paid in
        recorded sessions. With prices, `interceptors.economics` decides.
        """
        if self.min_savings == "auto":
            return max(self.min_savings_floor, self.protected_tokens)
        return self.min_savings


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune would do: replacements by item id, in order of the view, and estimated tokens.

    `tail_tokens` is what stands in the view from the first change on, which the provider must read anew. `superseded`
    says that only reads are taken whose file was read or written again since.
    """

    replacements: Mapping[str, Item]
    tokens_saved: int
    tail_tokens: int
    first_changed: int
    superseded: bool


@dataclass(frozen=True, slots=True)
class Stub:
    """A replacement and its tokens."""

    item: Item
    tokens: int


StubCache: TypeAlias = dict[tuple[str, Family], Stub]
"""Rendered stubs, kept between requests so that a view that is not yet worth a prune costs little."""


def protected_from(
    tokens: Sequence[int], newest_batch: int, protected_tokens: int, *, unanswered: int = 0
) -> tuple[int, int]:
    """Two places in the view: where the protected tail starts, and where that starts which is never touched.

    The tail is walked back from the end until `protected_tokens` are passed; the crossing item belongs to it. Never
    touched are the newest batch (the last reply and its results) and what the model has not answered yet.
    """
    never = min(newest_batch, unanswered or newest_batch)
    at, passed = len(tokens), 0
    while at > 0 and passed <= protected_tokens:
        at -= 1
        passed += tokens[at]
    return min(at, never), never


def superseded_reads(view: Sequence[Item]) -> frozenset[int]:
    """Places of reads that say nothing more: a later read in the view covers the same lines of the unchanged file, or
    the file was written later."""
    written: set[str] = set()
    later: dict[str, list[FileRange]] = {}
    found: set[int] = set()
    for at in range(len(view) - 1, -1, -1):
        item = view[at]
        if isinstance(item, ContextItem):
            if item.kind == "auto_read" and item.path in written:
                found.add(at)
            continue
        if not isinstance(item, ToolResultItem) or item.status != "ok":
            continue
        if (read := item.reads) is not None:
            if read.path in written or any(_covers(other, read) for other in later.get(read.path, ())):
                found.add(at)
            elif not item.pruned and item.artifact is None:
                later.setdefault(read.path, []).append(read)
        if item.writes is not None:
            written.add(item.writes.path)
    return frozenset(found)


def _covers(later: FileRange, earlier: FileRange) -> bool:
    same = later.sha256 == earlier.sha256
    return same and later.first <= earlier.first and earlier.last <= later.last


def plan_prune(
    view: Sequence[Item],
    tokens: Sequence[int],
    newest_batch: int,
    settings: PruneSettings,
    *,
    unanswered: int = 0,
    exceed: int | None = None,
    arguments: bool = False,
    pinned: frozenset[str] = frozenset(),
    family: Family = "unknown",
    stubs: StubCache | None = None,
    economy: Economy | None = None,
) -> PrunePlan | None:
    """What to prune now, or None where it would not save more than `exceed` tokens (by default what the settings ask).

    `tokens` holds the estimate of each item of the view, `newest_batch` and `unanswered` are those of the history.
    Superseded reads go alone where they save enough; else everything behind the protected tail goes in one step. With
    an `economy` it must pay as well, and begins at the place from which on it pays best. Items without content are
    passed over, so planning the outcome again gives None.
    """
    exceed = settings.savings if exceed is None else exceed
    tail, never = protected_from(tokens, newest_batch, settings.protected_tokens, unanswered=unanswered)
    reach = never if settings.supersede_in_tail else tail
    old = [at for at in range(reach) if _prunable(view[at], arguments) and view[at].id not in pinned]
    most = sum(tokens[at] for at in old)
    least_kept = 0 if settings.supersede_in_tail else settings.protected_tokens
    if most <= exceed or (economy is not None and economy.hopeless(most, least_kept)):
        return None
    behind = tails(tokens)
    kept = behind[tail] if tail < len(behind) else 0

    def paying(places: list[int], gains: Mapping[int, int] | Sequence[int]) -> list[int]:
        if economy is None:
            return places
        start = best_start(places, [gains[at] for at in places], behind, kept, economy, exceed)
        return places[start:] if start >= 0 else []

    if not paying(old, tokens):
        return None
    stale = superseded_reads(view)
    cache: StubCache = {} if stubs is None else stubs
    gains = {
        at: gain for at in old if (gain := tokens[at] - _stub(view[at], settings, family, cache).tokens) >= LEAST_GAIN
    }
    for only_stale in (True, False):
        chosen = paying([at for at in gains if at in stale or (at < tail and not only_stale)], gains)
        saved = sum(gains[at] for at in chosen)
        if chosen and saved > exceed:
            return PrunePlan(
                replacements={view[at].id: _stub(view[at], settings, family, cache).item for at in chosen},
                tokens_saved=saved,
                tail_tokens=behind[0 if economy is not None and economy.whole else chosen[0]],
                first_changed=chosen[0],
                superseded=only_stale,
            )
    return None


def _prunable(item: Item, arguments: bool) -> bool:
    match item:
        case ToolResultItem():
            return item.prunable and not item.pruned and (item.content is not None or bool(item.images))
        case ContextItem():
            return item.kind == "auto_read" and not item.pruned
        case ToolCallItem():
            return arguments
        case _:
            return False


def _stub(item: Item, settings: PruneSettings, family: Family, cache: StubCache) -> Stub:
    key = (item.id, family)
    if key not in cache:
        replacement: Item = item
        if isinstance(item, ToolResultItem):
            replacement = render_stub(item, settings.excerpt_chars)
        elif isinstance(item, ContextItem):
            replacement = render_read_stub(item)
        elif isinstance(item, ToolCallItem):
            replacement = render_arguments(item)
        cache[key] = Stub(replacement, estimate_item(replacement, family))
    return cache[key]


@dataclass(frozen=True, slots=True)
class Moment:
    """What decides how much a prune must save now. Tokens; `margin` is how many an edited number may be too low, `trigger`
    the lowest set one, `free` why the cache is lost anyway.

    `bound` says that reasoning is bound to the prefix, so that an edit of it costs the reasoning too (facts, providers
    2.6), `cleared` that the provider clears old results itself: then only the ceiling counts.
    `factor` turns estimated tokens into tokens of the occupancy. `price` is the model's, where it is known;
    `runs` and `growth` say how many requests to expect; `whole` is that of `Economy`.
    """

    occupancy: int
    available: int
    margin: int = 0
    trigger: int | None = None
    free: Reason | None = None
    bound: bool = False
    cleared: bool = False
    factor: float = 1.0
    price: Price | None = None
    runs: Runs = field(default_factory=Runs)
    growth: Growth = field(default_factory=Growth)
    whole: bool = False

    @property
    def economy(self) -> Economy | None:
        """What decides whether a prune pays; None without prices, and where the model costs nothing: there a broken cache
        costs time, which no price tells.

        Requests are expected to the end of this run, or to the trigger where that is nearer.
        """
        price = self.price
        if price is None or not price.cache_write:
            return None
        requests = self.runs.ahead
        if self.trigger is not None:
            trigger = min(self.trigger, self.available)
            requests = min(requests, before_trigger(self.growth, self.occupancy, trigger, price))
        waits = self.trigger is None or self.occupancy <= self.trigger
        step = (self.growth.step or 0.0) if waits else 0.0
        return Economy(price.cache_read, price.cache_write, requests, self.free is not None, self.whole, step)


@dataclass(frozen=True, slots=True)
class Demand:
    """A prune must save more than `exceed` estimated tokens, and pay where there is an `economy`; `reason` goes on
    record.
    """

    exceed: int
    reason: Reason
    economy: Economy | None = None


def demand(moment: Moment, settings: PruneSettings) -> Demand | None:
    """How much a prune must save at this moment; None where none may be done.

    Above the trigger it must lead to 60 % of the trigger, else compaction takes over; above the ceiling, where no
    trigger is set, under the ceiling, whatever it costs. At a free moment the floor is enough. With `auto` and prices
    the floor is enough at any moment, as long as the prune pays.
    """
    over_ceiling = moment.occupancy + moment.margin > moment.available
    if (moment.cleared or (moment.bound and moment.free is None)) and not over_ceiling:
        return None
    trigger = None if moment.trigger is None else min(moment.trigger, moment.available)
    economy = moment.economy if settings.min_savings == "auto" else None
    if trigger is not None and moment.occupancy > trigger:
        return Demand(_needed(moment, int(TRIGGER_SHARE * trigger)) - 1, "trigger", economy)
    if over_ceiling:
        return Demand(_needed(moment, moment.available - moment.margin) - 1, "ceiling")
    if moment.free is not None:
        return Demand(min(settings.min_savings_floor, settings.savings), moment.free, economy)
    return Demand(settings.savings if economy is None else settings.min_savings_floor, "min_savings", economy)


def _record(plan: PrunePlan, wanted: Demand, moment: Moment) -> Pruned:
    """What goes on record of a prune: its figures, and what it is expected to cost where prices are known."""
    economy, least = moment.economy, wanted.exceed
    if wanted.economy is not None:
        least = max(least, int(wanted.economy.break_even(plan.tail_tokens)))
    expected = None if economy is None else economy.next_request(plan.tokens_saved, plan.tail_tokens)
    return Pruned(
        items=tuple(plan.replacements.values()),
        renderer=RENDERER,
        tokens_saved=plan.tokens_saved,
        tokens_before=moment.occupancy,
        tail_tokens=plan.tail_tokens,
        min_savings=least,
        reason=f"{wanted.reason}, superseded reads only" if plan.superseded else wanted.reason,
        first_changed=plan.first_changed,
        cold=moment.free is not None,
        requests=None if economy is None else round(economy.requests, 1),
        expected_usd=None if expected is None else round(expected, 8),
    )


def _needed(moment: Moment, target: int) -> int:
    return math.ceil((moment.occupancy - target) / moment.factor)


@dataclass(frozen=True, slots=True)
class Look:
    """What a prune was decided by before a request: the moment, how much it must save (None: none may be done), and the prune
    (None: none is done)."""

    moment: Moment
    wanted: Demand | None
    plan: PrunePlan | None = None


@dataclass(slots=True)
class _Cache:
    """What is known of the provider's prefix cache in this segment, and of the segment's growth."""

    model: str | None = None
    tools_changed: bool = False
    last_reply: float | None = None
    growth: Growth = field(default_factory=Growth)


@dataclass(eq=False)
class Prune(Interceptor):
    """Prunes before a request, where it pays.

    `trigger` gives the lowest set trigger in tokens for a budget. `last_reply` gives when the last reply came (UTC
    seconds, 0 or None where none is known), so that a cold cache is seen after a restart too. `runs` gives the ended runs
    of the session and their requests. `cleared` names the models whose provider clears old results itself.
    """

    settings: PruneSettings = field(default_factory=PruneSettings)
    trigger: Callable[[Budget], int | None] | None = None
    last_reply: Callable[[], float | None] | None = None
    runs: Callable[[], tuple[int, int]] | None = None
    cleared: frozenset[str] = frozenset()
    _cache: _Cache = field(default_factory=_Cache, init=False, repr=False)
    _stubs: StubCache = field(default_factory=dict[tuple[str, Family], Stub], init=False, repr=False)
    _history: History | None = field(default=None, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Continue | Edit:
        """An `Edit` with a `Pruned` record, or nothing. Never waits."""
        if not self.settings.enabled:
            return CONTINUE
        look = self.look(ctx)
        plan, wanted = look.plan, look.wanted
        if plan is None or wanted is None:
            return CONTINUE
        self._stubs.clear()
        return Edit(plan.replacements, record=_record(plan, wanted, look.moment), reason=wanted.reason)

    def look(self, ctx: RequestContext) -> Look:
        """What would be done before this request; serves a forecast as well. Changes nothing but its own caches."""
        if self._history is not None and self._history is not ctx.history:
            self._cache = _Cache()
            self._stubs.clear()
        self._history = ctx.history
        moment = self._moment(ctx)
        wanted = demand(moment, self.settings)
        history = ctx.history
        if wanted is None or history.total <= wanted.exceed:
            return Look(moment, wanted)
        plan = plan_prune(
            history.view,
            history.tokens,
            history.newest_batch,
            self.settings,
            unanswered=history.unanswered,
            exceed=wanted.exceed,
            arguments=self.settings.prune_arguments and ctx.capabilities.history_binding == "none",
            pinned=self.settings.pinned(),
            family=history.family,
            stubs=self._stubs,
            economy=wanted.economy,
        )
        return Look(moment, wanted, plan)

    async def after_request(self, ctx: RequestContext, reply: Reply) -> None:
        """Remembers when the cache was last used."""
        self._cache.last_reply = ctx.wall

    def observe(self, record: Record) -> None:
        """Follows which model last read the prefix, whether the schemas are still those it read, and the growth."""
        cache = self._cache
        if isinstance(record, ReplyRecord):
            cache.model = record.model
            cache.tools_changed = False
            if tokens := record.usage.input_tokens or record.estimate:
                cache.growth = cache.growth.replied(tokens)
        elif isinstance(record, Pruned):
            cache.growth = cache.growth.saved(record.tokens_saved)
        elif isinstance(record, ToolsChanged):
            cache.tools_changed = True

    def _moment(self, ctx: RequestContext) -> Moment:
        ended, requests = self.runs() if self.runs else (0, 0)
        return Moment(
            occupancy=ctx.occupancy.tokens,
            available=ctx.budget.available,
            margin=ctx.occupancy.without(0).margin,
            trigger=self.trigger(ctx.budget) if self.trigger else None,
            free=self._free(ctx),
            bound=ctx.capabilities.history_binding != "none",
            cleared=ctx.model in self.cleared,
            factor=min(ctx.history.calibration.factor(ctx.model), 1.0),
            price=ctx.capabilities.price,
            runs=Runs(ended, requests, ctx.history.counters.requests),
            growth=self._cache.growth,
            whole=ctx.capabilities.cache_markers,
        )

    def _free(self, ctx: RequestContext) -> Reason | None:
        if self._cache.model is None:
            return "new_segment"
        if self._cache.model != ctx.model:
            return "model_changed"
        if self._cache.tools_changed:
            return "tools_changed"
        last = self._cache.last_reply or (self.last_reply() if self.last_reply else None)
        return "cold_cache" if last and ctx.wall - last > ctx.capabilities.cache_ttl else None
