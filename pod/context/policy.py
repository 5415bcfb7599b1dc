"""The contract of a context policy: a pure plan, then its execution, down a ladder of rungs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from compact_worker import Mark, Reference
from pod.carry import BreakerState
from pod.context.cut import Cut, find_cut
from pod.context.facts import Checkpoint, Trigger
from pod.state import PodState
from worker.admission import waiting
from worker.items import ContextItem, OpaqueItem
from worker.memory import memory_of, read_by_others
from worker.occupancy import Occupancy
from worker.results import LimitReached

FULLEST = 0.9
"""Share of the lowest trigger that a new segment never reaches, however much must stand in it."""

BREAKER_FAILURES = 3
"""Failures of the compact worker in a row that open the circuit breaker."""

ASK_A_MODEL = frozenset({"native", "compact", "coarse"})
"""The rungs that cost requests: those that the circuit breaker passes over."""

LEAD_IN_TOKENS = 150
"""Tokens of a lead-in, about."""


class Standing(NamedTuple):
    """Tokens that stand in any segment, whatever is left out: `overhead` with all `words` that must stay whole (`least`),
    with the largest of them alone (`alone`), and with the least tail (`mandatory`).
    """

    alone: int = 0
    least: int = 0
    mandatory: int = 0

    @classmethod
    def of(cls, overhead: int, words: Sequence[int], floor: int, factor: float) -> Standing:
        """Of raw tokens."""
        every = overhead + sum(words)
        sums = overhead + max(words, default=0), every, every + floor
        return cls(*(int(tokens * factor) for tokens in sums))


NOTHING = Standing()
"""Where it does not matter what stands."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The tokens that decide: `lowest` trigger (or what is available), `target` that a result is fitted to, and `most`
    that it must lie under to be accepted.
    """

    available: int
    lowest: int
    target: int
    most: int
    standing: Standing = NOTHING

    @classmethod
    def of(
        cls, available: int, triggers: list[int], standing: Standing = NOTHING, before: int = 0, again: bool = False
    ) -> Limits:
        """`target` is half the lowest trigger; without a trigger, half of what is available.

        Where what must stand in any segment is above that, it is half of the room between it and the trigger: one large
        message must not end a session that has room. `most` is the same; but after an attempt that came to nothing
        (`again`), half of what there is (`before`) is enough, and above the ceiling all that gives room below it.
        """
        lowest = min([*triggers, available])
        target = lowest // 2
        if standing.mandatory > target:
            target = max(target, min((standing.mandatory + lowest) // 2, int(lowest * FULLEST)))
        most = max(target, before // 2) if again else target
        if before > available:
            most = max(most, int(available * FULLEST))
        return cls(available, lowest, target, most, standing)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction would do. `reason` says why nothing can be done, where `possible` is False."""

    possible: bool
    reason: str
    trigger: Trigger
    before: Occupancy
    limits: Limits
    cut: Cut
    summarised_items: int
    summarised_tokens: int
    retained_items: int
    retained_tokens: int
    expected: int

    def accepts(self, after: int) -> bool:
        """Whether a new segment of this occupancy counts as a success: under what it may have at most, and a tenth below
        before."""
        return after < self.limits.most and after <= int(self.before.tokens * 0.9)

    @property
    def bearable(self) -> bool:
        """Whether the run can go on without it: the request fits the ceiling, and neither the overhead nor a message beside
        it is by itself above the trigger."""
        waits = self.trigger not in {"overflow", "ceiling"}
        return waits and self.before.fits(self.limits.available) and self.limits.standing.alone <= self.limits.lowest


@dataclass(frozen=True, slots=True)
class Memory:
    """What a rung of the ladder puts in the place of the items before the cut, and which files it wants read again
    (`marks`), named (`references`) or left out (`unmarked`). `notebook` is the agent's own notes as they stand now.
    `checkpoint` is the one that the summary, or what others read of `native`, is the text of. `native` is the provider's own
    memory, with which the segment begins; it stands in the place of a summary. `figures` go on record.
    """

    summary: ContextItem | None = None
    native: OpaqueItem | None = None
    checkpoint: Checkpoint | None = None
    lead_in: ContextItem | None = None
    notebook: ContextItem | None = None
    marks: tuple[Mark, ...] = ()
    references: tuple[Reference, ...] = ()
    unmarked: frozenset[str] = frozenset()
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RungFailed(Exception):
    """A rung could not make a memory; the text says why. `figures` go on record. `limit` is the limit of the run that its
    next request would have passed."""

    def __init__(
        self, reason: str, figures: Mapping[str, Any] | None = None, *, limit: LimitReached | None = None
    ) -> None:
        super().__init__(reason)
        self.figures = dict(figures or {})
        self.limit = limit


def best_effort(ladder: Sequence[str]) -> tuple[str, ...]:
    """The rungs that are tried where nothing forces a compaction: those that ask a model, where there are some, else the
    policy's own.
    """
    return tuple(name for name in ladder if name in ASK_A_MODEL) or tuple(ladder[:1])


def resting(breaker: BreakerState, now: float) -> str:
    """Why the rungs that ask a model are passed over at a time (UTC seconds), or nothing."""
    if breaker.open_until is None or now >= breaker.open_until:
        return ""
    return f"the rungs that ask a model failed {breaker.failures} times in a row; they rest until {utc(breaker.open_until)}"


def utc(seconds: float) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(min(seconds, _LAST), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_LAST = 253_402_300_799.0
"""The last second of the year 9999, behind which there are no dates."""


class Rung(Protocol):
    """One way to make a memory. `asks_model` says that it costs requests: then best effort may use it, and the circuit
    breaker passes it over.
    """

    @property
    def name(self) -> str:
        """As the ladder of the manifest names it."""
        ...

    @property
    def asks_model(self) -> bool: ...

    def passed_over(self, plan: Plan) -> str:
        """Why it is of no use for this plan, or nothing."""
        ...

    async def attempt(self, plan: Plan, label: str, focus: str | None) -> Memory:
        """Makes the memory. Raises `RungFailed`. Cancelled, it leaves nothing but its own log."""
        ...


def standing_words(state: PodState) -> list[int]:
    """Raw tokens of each of the user's words that stay whole in any new segment: the session's first input, the current
    run's, and what waits for a reply."""
    history = state.history
    return [history.tokens[at] for at in sorted({*whole_places(state), *waiting(history)})]


def standing_before(state: PodState) -> int:
    """Raw tokens of the user's words that stay whole whatever goes next: those of a run that is over do not."""
    return sum(state.history.tokens[at] for at in whole_places(state))


def whole_places(state: PodState) -> set[int]:
    """The places in the view of the user's words that stay whole: the session's first input, and the current run's."""
    return {state.history.index[label] for label in state.whole_inputs if label in state.history.index}


def plan_of(
    state: PodState, before: Occupancy, available: int, triggers: list[int], trigger: Trigger, *,
    overhead: int, factor: float, retained: int, floor: int, summary_max: int, ahead: bool = False,
) -> Plan:  # fmt: skip
    """The plan for a state whose next request would have `before` tokens, `overhead` (raw) of them fixed."""
    words = [*standing_words(state), *([before.pending] if before.pending else [])]
    standing = Standing.of(overhead, words, floor, factor)
    limits = Limits.of(available, triggers, standing, before.upper, again=state.held_tokens > 0)
    return make_plan(
        state, before, limits, trigger, retained=retained, summary_max=summary_max, factor=factor, ahead=ahead
    )


def least_after(state: PodState, plan: Plan, factor: float) -> int:
    """Tokens that the new segment of a plan has at least, whatever stands for what is summarised: the overhead, the tail (cut to
    what must stay where it has no room) and the user's words that stay whole.
    """
    history, cut = state.history, plan.cut
    places = whole_places(state)

    def kept(at: int, tail: int) -> int:
        return plan.before.overhead + int((tail + sum(history.tokens[p] for p in places if p < at)) * factor)

    tail = kept(cut.at, cut.tokens)
    return tail if tail < plan.limits.target else kept(cut.mandatory, sum(history.tokens[cut.mandatory :]))


def _refuted(state: PodState, before: Occupancy, limits: Limits, trigger: Trigger) -> Occupancy | None:
    """The size of what stands, where a provider's memory stands in it that no request can hold; else None.

    Only its provider knows how much a memory holds: after a refusal the number was too low, and the request at least as
    large as what was thought to fit.
    """
    if memory_of(state.history.view) is None or (trigger != "overflow" and before.fits(limits.available)):
        return None
    return before.model_copy(update={"tokens": max(before.tokens, limits.available)})


def make_plan(
    state: PodState,
    before: Occupancy,
    limits: Limits,
    trigger: Trigger,
    *,
    retained: int,
    summary_max: int,
    factor: float = 1.0,
    ahead: bool = False,
) -> Plan:
    """The plan for a state: where the cut is, what is summarised, what size is expected. Pure; serves a dry run as well.

    `factor` turns raw estimates into what the model counts. `ahead`: it is for when the calls that are open now will have ended.
    """
    history = state.history
    refuted = _refuted(state, before, limits, trigger)
    before = refuted or before
    cut = find_cut(
        history.view,
        history.tokens,
        min(retained, limits.target),
        unanswered=history.unanswered,
        newest_batch=history.newest_batch if state.replies else 0,
    )
    old = [item for item in map(read_by_others, history.view[: cut.at]) if not isinstance(item, ContextItem)]
    summarised = sum(history.tokens[: cut.at])
    expected = before.overhead + before.pending + int((cut.tokens + summary_max) * factor)
    reason = ""
    if history.unresolved and not ahead:
        reason = "a call is open: compaction waits for a settled point"
    elif not old and refuted is None:
        reason = "there is nothing to compact: all that could be summarised is already a summary or must stay"
    elif limits.standing.least >= limits.most:
        reason = (
            f"what must stand in any segment has {limits.standing.least:,} tokens (system prompt, tools and the user's words "
            f"that stay whole), and a new one must lie under {limits.most:,}"
        )
    return Plan(
        possible=not reason,
        reason=reason,
        trigger=trigger,
        before=before,
        limits=limits,
        cut=cut,
        summarised_items=cut.at,
        summarised_tokens=summarised,
        retained_items=len(history.view) - cut.at,
        retained_tokens=cut.tokens,
        expected=expected,
    )
