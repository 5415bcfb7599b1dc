"""Compaction: down the ladder to a rung whose new segment is accepted, and its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from anyio import to_thread

from interceptors.ceiling import LEARNED_ANEW
from pod import codes
from pod.context.facts import Trigger
from pod.context.parts import Parts
from pod.context.policy import (
    LEAD_IN_TOKENS,
    Limits,
    Plan,
    Rung,
    RungFailed,
    best_effort,
    least_after,
    plan_of,
)
from pod.context.rungs import Breaker, rungs_of
from pod.context.segmenting import NextSegment
from pod.errors import StoreError
from pod.hooks.around import BLOCKED, compacted, may_compact
from pod.log import entries as e
from pod.state import PodState
from pod.traced import CompactionWork
from worker import tracing
from worker.ids import uuid7
from worker.items import source_hash
from worker.occupancy import Occupancy
from worker.records import Warned
from worker.results import Failed, LimitReached, Outcome


@dataclass(frozen=True, slots=True)
class Fallen:
    """A rung without a new segment, and why. `too_large`: it made one, which could not be accepted; `unanswered`: no model
    answered it as it should, so that another time it may work. `limit`: its next request would have passed this limit.
    """

    rung: str
    reason: str
    too_large: bool = False
    unanswered: bool = False
    limit: LimitReached | None = None


@dataclass
class Compactor:
    """Compacts one session."""

    parts: Parts

    def __post_init__(self) -> None:
        self.breaker = Breaker(self.parts)
        self.rungs = rungs_of(self.parts, self.breaker)

    # -- the plan ---------------------------------------------------------------------------------------------

    def limits(self) -> Limits:
        """The tokens that decide, for the pod's model with what refusals taught."""
        sender = self.parts.sender
        available = sender.budget(sender.model).available
        return Limits.of(available, self.parts.config.triggers(available))

    def plan(self, trigger: Trigger, *, ahead: bool = False) -> Plan:
        """What a compaction would do now, or (`ahead`) once the calls that are open have ended."""
        config, sender = self.parts.config, self.parts.sender
        available = sender.budget(sender.model).available
        return plan_of(
            self.parts.session.state, self._before(trigger), available, config.triggers(available), trigger,
            overhead=sender.overhead(sender.model), factor=self.parts.factor(), retained=config.retained_tokens,
            floor=config.retained_floor_tokens, summary_max=config.worker.summary_max_tokens, ahead=ahead,
        )  # fmt: skip

    def _before(self, trigger: Trigger) -> Occupancy:
        """What a new segment is measured against: the next request or, where that is the matter, the history uncleared. After a
        refusal the number was too low, so that the estimate counts by which the new segment is measured, where it is higher.
        """
        sender = self.parts.sender
        if trigger not in {"uncleared", "overflow"}:
            return sender.occupancy()
        in_full = sender.occupancy_of_head(sender.model, len(sender.history.view), in_full=True)
        if trigger == "uncleared":
            return in_full
        return max(sender.occupancy(), in_full, key=lambda each: each.tokens)

    def refused(self, trigger: Trigger) -> str:
        """Why no new segment would begin if one was asked for now, and began once the open calls have ended; nothing where
        one is to be expected. Changes nothing.
        """
        plan = self.plan(trigger, ahead=True)
        if not plan.possible:
            return plan.reason
        passed_over = [self.rungs[name].passed_over(plan) for name in best_effort(self.parts.config.ladder)]
        if all(passed_over):
            return "; ".join(dict.fromkeys(passed_over))
        after = least_after(self.parts.session.state, plan, self.parts.factor()) + LEAD_IN_TOKENS
        if plan.accepts(after):
            return ""
        return f"a new window would hold {after:,} of the {plan.before.tokens:,} tokens that stand in this one: too few would go"

    # -- execution --------------------------------------------------------------------------------------------

    async def best_effort(self, trigger: Trigger, focus: str | None = None) -> str:
        """Model rungs only, under a policy that has some, else the policy's own rung. A failure is a warning. Returns why no
        new segment began, nothing where one did.
        """
        failed = await self._execute(self.plan(trigger), best_effort(self.parts.config.ladder), focus, mandatory=False)
        return failed.message if isinstance(failed, Failed | LimitReached) else ""

    async def mandatory(self, trigger: Trigger, detail: Mapping[str, Any]) -> Outcome | None:
        """Down the whole ladder; None once a new segment began, or where the run can go on without one, else its end.

        A segment that passed its trigger without work being done in it goes on with the rung after the one that made it.
        """
        state = self.parts.session.state
        rungs = list(self.parts.config.ladder)
        if not state.progressed and state.made_by in rungs:
            rungs = rungs[rungs.index(state.made_by) + 1 :]
        ended = await self._execute(self.plan(trigger), rungs, None, mandatory=True)
        return self.with_the_cause(ended, str(detail.get("message") or ""))

    def with_the_cause(self, ended: Outcome | None, refusal: str) -> Outcome | None:
        """The end of the run with what the provider said: of this request, or when it taught the window."""
        if not isinstance(ended, Failed | LimitReached):
            return ended
        budget = self.parts.sender.budget(self.parts.sender.model)
        if refusal:
            return replace(ended, message=f'the provider refused the request: "{refusal}"; {ended.message}')
        if not budget.told:
            return ended
        window = (
            f"The window of {budget.window:,} tokens was {budget.origin}. Ways out: {LEARNED_ANEW}a model with more."
        )
        return replace(ended, message=f"{ended.message} {window}")

    async def _execute(self, plan: Plan, names: Sequence[str], focus: str | None, *, mandatory: bool) -> Outcome | None:
        with tracing.doing(self._work(plan)):
            return await self._executed(plan, names, focus, mandatory=mandatory)

    def _work(self, plan: Plan) -> CompactionWork:
        session, model = self.parts.session, self.parts.sender.active.name
        start, name = session.state.start, session.folder.name
        return CompactionWork(name, start.session, start.segment, model, plan.trigger, plan.before.tokens)

    async def _executed(
        self, plan: Plan, names: Sequence[str], focus: str | None, *, mandatory: bool
    ) -> Outcome | None:
        session, label = self.parts.session, uuid7()
        state = session.state
        if not plan.possible and not mandatory:
            session.put(Warned(code=codes.COMPACTION_NOT_POSSIBLE, message=plan.reason, figures=_figures(plan)))
            await session.sync()
            return Failed("nothing_to_compact", plan.reason)
        if (blocked := await self._blocked(plan, focus)) != "":
            return await self._left_alone(plan, label, blocked, mandatory=mandatory)
        segment = NextSegment(self.parts, *await to_thread.run_sync(self.parts.fresh))
        head = state.history.view[: plan.cut.at]
        session.put(
            e.CompactionStarted(
                compaction=label, trigger=plan.trigger, tokens=plan.before.tokens, rung=names[0] if names else "",
                cut=plan.cut.at, items=len(head), upto=state.last_seq, source_hash=source_hash(head), focus=focus,
            )
        )  # fmt: skip
        try:
            await session.sync()
            return await self._down(plan, label, names, focus, segment, mandatory=mandatory)
        except BaseException:
            self._interrupted(label)
            raise

    async def _blocked(self, plan: Plan, focus: str | None) -> str:
        return "" if self.parts.hooks is None else await may_compact(self.parts.hooks, plan, focus)

    async def _left_alone(self, plan: Plan, label: str, reason: str, *, mandatory: bool) -> Outcome | None:
        """A hook blocked it: the run goes on where its requests fit, and the next try comes after more growth; else that is its
        end.
        """
        session, figures = self.parts.session, _figures(plan)
        held = mandatory and plan.bearable
        session.put(
            e.CompactionFailed(compaction=label, reason=reason[:2000], mandatory=mandatory, held=held, figures=figures)
        )
        if held or not mandatory:
            later = "; it is tried again after a tenth more growth" if held else ""
            message = f"{_failure(session.state)}: {reason[:1000]}{later}"
            session.put(Warned(code=codes.COMPACTION_BLOCKED, message=message, figures=figures))
        await session.sync()
        if held:
            return None
        room = f"the context has {plan.before.tokens:,} tokens, of {plan.limits.available:,} available, and was not made smaller: "
        return Failed(BLOCKED, f"{room if mandatory else ''}{reason}", details=figures)

    def _interrupted(self, label: str) -> None:
        """A compaction that was cancelled, or whose commit the store refused, is over; a log that takes nothing more says
        so when it is opened again.
        """
        session = self.parts.session
        if session.state.compaction == label:
            with suppress(StoreError):
                session.put(e.CompactionInterrupted(compaction=label))

    async def _down(
        self,
        plan: Plan,
        label: str,
        names: Sequence[str],
        focus: str | None,
        segment: NextSegment,
        *,
        mandatory: bool,
    ) -> Outcome | None:
        found: list[Fallen] = []
        for name in names:
            fallen = await self._climb(self.rungs[name], plan, label, focus, segment)
            if fallen is None:
                if self.parts.hooks is not None:
                    await compacted(self.parts.hooks, plan, name)
                return None
            found.append(fallen)
            if fallen.limit is not None:
                break  # the run is at its limit: the rungs below would go on without what it was about to buy
        return await self._failed(plan, label, found, mandatory=mandatory)

    async def _climb(
        self, rung: Rung, plan: Plan, label: str, focus: str | None, segment: NextSegment
    ) -> Fallen | None:
        """Tries one rung, commits its segment where that is accepted, else says why not."""
        session, name = self.parts.session, rung.name
        passed_over = rung.passed_over(plan)
        if passed_over:
            session.put(e.CompactionRung(compaction=label, rung=name, state="skipped", reason=passed_over))
            return Fallen(name, passed_over, unanswered=passed_over == self.breaker.resting() and rung.asks_model)
        session.put(e.CompactionRung(compaction=label, rung=name, state="tried"))
        await session.sync()
        try:
            memory = await rung.attempt(plan, label, focus)
        except RungFailed as failure:
            await self._failed_rung(label, name, str(failure), failure.figures)
            return Fallen(name, str(failure), unanswered=rung.asks_model, limit=failure.limit)
        opening = await to_thread.run_sync(segment.opening, plan, memory)
        after = segment.after(plan, opening)
        if not plan.accepts(after):
            reason = (
                f"the new segment would have {after:,} tokens; it must lie under {plan.limits.most:,} "
                f"and a tenth below {plan.before.tokens:,}"
            )
            if rung.asks_model and not memory.figures.get("taken_up"):
                self.breaker.failed(label)
            await self._failed_rung(label, name, reason, {"after": after, **memory.figures})
            return Fallen(name, reason, too_large=True)
        if rung.asks_model:
            self.breaker.worked()
        if memory.figures:
            figures = dict(memory.figures)
            session.put(e.CompactionRung(compaction=label, rung=name, state="done", figures=figures))
        await segment.commit(opening, memory, plan, label, name, after)
        return None

    async def _failed_rung(self, label: str, name: str, reason: str, figures: Mapping[str, Any]) -> None:
        session = self.parts.session
        session.put(
            e.CompactionRung(compaction=label, rung=name, state="failed", reason=reason[:1000], figures=dict(figures))
        )
        await session.sync()

    async def _failed(self, plan: Plan, label: str, found: Sequence[Fallen], *, mandatory: bool) -> Outcome | None:
        """The end of the run, or of the attempt; None where the run goes on without a new segment."""
        session, figures = self.parts.session, _figures(plan)
        reason = (
            "; ".join(f"{fallen.rung}: {fallen.reason}" for fallen in found)
            or plan.reason
            or "no rung of the ladder is left"
        )
        # A segment that is above its trigger at once, without work done in it, would be so again and again.
        too_large = not plan.possible or any(fallen.too_large for fallen in found)
        held = mandatory and too_large and session.state.progressed and plan.bearable
        told = held and session.state.held_tokens > 0
        session.put(
            e.CompactionFailed(compaction=label, reason=reason[:2000], mandatory=mandatory, held=held, figures=figures)
        )
        if not told and (held or not mandatory):
            message = f"{_failure(session.state)}: {reason[:1000]}"
            if held:
                message += f". It is tried again after a tenth more growth; the ceiling is {plan.limits.available:,}"
            session.put(Warned(code=codes.COMPACTION_FAILED, message=message, figures=figures))
        await session.sync()
        if held:
            return None
        if not mandatory:
            return Failed("compaction_failed", reason)
        limit = next((fallen.limit for fallen in found if fallen.limit is not None), None)
        if limit is not None:
            return limit
        if not self.parts.config.history_access and "rollover" in self.parts.config.ladder:
            message = f"the context is full and session_history is denied, so no new window can be opened: {reason}"
            return LimitReached("context", message, figures)
        if plan.possible and not too_large and any(fallen.unanswered for fallen in found):
            return Failed("compaction_failed", _unanswered(plan, reason), details=figures)
        return Failed(
            "compact_thrash",
            f"the context can't be made small enough: fixed overhead (system prompt and tool schemas) {plan.before.overhead:,} tokens, "
            f"what must stand in any segment {plan.limits.standing.mandatory:,} (the user's words included), "
            f"lowest trigger {plan.limits.lowest:,}, available {plan.limits.available:,}, occupancy {plan.before.tokens:,}. {reason.rstrip(' .')}. "
            "Raise the trigger or the window, or enable fewer tools.",
            details=figures,
        )


def _unanswered(plan: Plan, reason: str) -> str:
    """The end of a run whose context has room, where the models that should make it smaller did not answer."""
    return (
        f"the context has {plan.before.tokens:,} tokens (lowest trigger {plan.limits.lowest:,}, available "
        f"{plan.limits.available:,}) and was not made smaller: {reason.rstrip(' .')}. Nothing is lost: `pod resume` tries "
        "again. A last rung in [context] ladder that asks no model (checkpoint, rollover) would have gone on."
    )


def _failure(state: PodState) -> str:
    """What a failed compaction means where nothing forced it."""
    return "compaction failed, " + ("the context stays as it is" if state.run is None else "the run goes on")


def _figures(plan: Plan) -> dict[str, Any]:
    return {
        "tokens": plan.before.tokens,
        "overhead": plan.before.overhead,
        "available": plan.limits.available,
        "lowest_trigger": plan.limits.lowest,
        "target": plan.limits.most,
        "cut": plan.cut.at,
        "retained": plan.retained_tokens,
        "mandatory_items": plan.retained_items,
    }
