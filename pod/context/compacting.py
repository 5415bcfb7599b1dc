"""Compaction: down the ladder to a rung whose new segment is accepted, and its commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anyio import to_thread

from compact_worker import CompactFailed, CompactResult, CompactSettings, Material, Reference, compact
from interceptors.permissions import Permissions
from pod.context import opening as op
from pod.context.beat import beating
from pod.context.policy import BREAKER_FAILURES, Limits, Plan, Trigger, make_plan, mandatory_of
from pod.errors import PodError, StoreError
from pod.journal import SideLog
from pod.log import entries as e
from pod.reading import SegmentItems
from pod.session import Session
from worker.builtin.artifacts import Artifacts
from worker.builtin.scope import Scope
from worker.estimate import HEURISTIC_FACTOR, estimate_item
from worker.ids import uuid7
from worker.interceptor import Interceptor
from worker.items import ContextItem, Item, ToolResultItem, UserItem
from worker.models.base import Model
from worker.records import Warned
from worker.results import Failed, LimitReached, Outcome
from worker.sending import Sender
from worker.text import sha256
from worker.tools import Tool

MODEL_RUNGS = frozenset({"compact", "coarse"})
"""Rungs that ask a model; the circuit breaker passes them over."""

Progress = Callable[[str, str, dict[str, Any]], None]


def _silent(label: str, stage: str, figures: dict[str, Any]) -> None:
    """No one is watching."""


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """What the manifest says: numbers by the same names, and what the new segment starts with."""

    worker: CompactSettings
    ladder: tuple[str, ...]
    source: str
    retained_tokens: int
    retained_floor_tokens: int
    user_words_tokens: int
    result_context_max_tokens: int
    breaker_cooldown: float
    triggers: Callable[[int], list[int]]
    history_access: bool = True


@dataclass
class Compactor:
    """Compacts one session. `fresh` makes the blobs and the raw overhead of a new segment's system prompt and schemas."""

    session: Session
    sender: Sender
    config: CompactionConfig
    models: Sequence[Model]
    tools: Mapping[str, Tool]
    scope: Scope
    artifacts: Artifacts
    services: Mapping[type, object]
    read: op.ReadRange
    cwd: Path
    fresh: Callable[[], tuple[dict[str, str], int]]
    interceptors: Sequence[Interceptor] = ()
    deps: Any = None
    progress: Progress = _silent
    wall: Callable[[], float] = time.time
    _texts: dict[str, str] = field(default_factory=dict[str, str], init=False)
    _overhead: int = field(default=0, init=False)
    _counted: str = ""

    # -- the plan ---------------------------------------------------------------------------------------------

    def limits(self) -> Limits:
        """The tokens that decide, for the pod's model with what refusals taught."""
        available = self.sender.budget(self.sender.model).available
        return Limits.of(available, self.config.triggers(available))

    def plan(self, trigger: Trigger) -> Plan:
        """What a compaction would do now."""
        config, state, model = self.config, self.session.state, self.sender.model
        mandatory = mandatory_of(
            state,
            self.sender.overhead(model),
            self._factor(),
            floor=config.retained_floor_tokens,
        )
        available = self.sender.budget(model).available
        return make_plan(
            state,
            self.sender.occupancy(),
            Limits.of(available, config.triggers(available), mandatory),
            trigger,
            retained=self.config.retained_tokens,
            summary_max=self.config.worker.summary_max_tokens,
        )

    # -- execution --------------------------------------------------------------------------------------------

    async def best_effort(self, trigger: Trigger, focus: str | None = None) -> bool:
        """Model rungs only. A failure is a warning. Returns whether a new segment began."""
        rungs = [rung for rung in self.config.ladder if rung in MODEL_RUNGS]
        return await self._execute(self.plan(trigger), rungs, focus, mandatory=False) is None

    async def mandatory(self, trigger: Trigger, detail: Mapping[str, Any]) -> Outcome | None:
        """Down the whole ladder; None once a new segment began, else the end of the run.

        A segment that passed its trigger without work being done in it goes on with the rung after the one that made it.
        """
        state = self.session.state
        rungs = list(self.config.ladder)
        if not state.progressed and state.made_by in rungs:
            rungs = rungs[rungs.index(state.made_by) + 1 :]
        plan = self.plan(trigger)
        return await self._execute(plan, rungs, None, mandatory=True)

    async def _execute(self, plan: Plan, rungs: Sequence[str], focus: str | None, *, mandatory: bool) -> Outcome | None:
        session, label = self.session, uuid7()
        state = session.state
        if not plan.possible and not mandatory:
            session.put(Warned(code="compaction.not_possible", message=plan.reason, figures=_figures(plan)))
            await session.sync()
            return Failed("nothing_to_compact", plan.reason)
        self._texts, self._overhead = await to_thread.run_sync(self.fresh)
        ids = [item.id for item in state.history.view[: plan.cut.at]]
        session.put(
            e.CompactionStarted(
                compaction=label, trigger=plan.trigger, tokens=plan.before.tokens, cut=plan.cut.at, items=len(ids),
                upto=state.last_seq, source_hash=sha256("\n".join(ids)), focus=focus,
            )
        )  # fmt: skip
        await session.sync()
        reasons: list[str] = []
        for rung in rungs:
            opening, figures, reason = await self._rung(rung, plan, label, focus)
            if opening is None:
                reasons.append(f"{rung}: {reason}")
                continue
            after = self._after(opening)
            if not plan.accepts(after):
                reason = (
                    f"the new segment would have {after:,} tokens; it must lie under {plan.limits.target:,} "
                    f"and a tenth below {plan.before.tokens:,}"
                )
                session.put(
                    e.CompactionRung(
                        compaction=label, rung=rung, state="failed", reason=reason, figures={"after": after, **figures}
                    )
                )
                reasons.append(f"{rung}: {reason}")
                continue
            if figures:
                session.put(e.CompactionRung(compaction=label, rung=rung, state="done", figures=figures))
            await self._commit(opening, plan, label, rung, after, figures)
            return None
        return await self._failed(plan, label, reasons, mandatory=mandatory)

    async def _rung(
        self, rung: str, plan: Plan, label: str, focus: str | None
    ) -> tuple[op.Opening | None, dict[str, Any], str]:
        session = self.session

        def skipped(reason: str) -> tuple[None, dict[str, Any], str]:
            session.put(e.CompactionRung(compaction=label, rung=rung, state="skipped", reason=reason))
            return None, {}, reason

        if not plan.possible and rung in MODEL_RUNGS:
            return skipped(plan.reason)
        if rung == "rollover":
            if not self.config.history_access:
                return skipped("session_history is denied, so a plain new window would lose what is in the old one")
            session.put(e.CompactionRung(compaction=label, rung=rung, state="tried"))
            return await to_thread.run_sync(self._opening, plan, None), {}, ""
        if rung not in MODEL_RUNGS:
            return skipped("this rung is not served yet")
        breaker = session.state.breaker
        if plan.trigger != "hand" and breaker.open_until is not None and self.wall() < breaker.open_until:
            return skipped(
                f"the compact worker failed {breaker.failures} times in a row; it rests until {breaker.open_until:.0f}"
            )
        session.put(e.CompactionRung(compaction=label, rung=rung, state="tried"))
        await session.sync()
        try:
            result = await self._ask_worker(plan, rung, label, focus)
        except CompactFailed as failure:
            figures = {**failure.figures.as_dict(), "after": None}
            session.put(
                e.CompactionRung(
                    compaction=label, rung=rung, state="failed", reason=str(failure)[:1000], figures=figures
                )
            )
            self._count_failure(label)
            await session.sync()
            return None, figures, str(failure)
        except PodError:
            raise
        except Exception as error:
            # A model of somebody else's may raise anything; a rung that breaks is a rung that failed.
            reason = f"the compact worker broke: {type(error).__name__}: {error}"[:1000]
            session.put(e.CompactionRung(compaction=label, rung=rung, state="failed", reason=reason))
            self._count_failure(label)
            await session.sync()
            return None, {}, reason
        if breaker.failures:
            session.put(e.Breaker(failures=0))
        opening = await to_thread.run_sync(self._opening, plan, result)
        return opening, result.figures.as_dict(), ""

    def _count_failure(self, label: str) -> None:
        """Counts a compaction whose worker failed: once, however many of its rungs did (case B009)."""
        if label == self._counted:
            return
        self._counted = label
        failures = self.session.state.breaker.failures + 1
        rest = self.wall() + self.config.breaker_cooldown if failures >= BREAKER_FAILURES else None
        self.session.put(e.Breaker(failures=failures, open_until=rest))

    async def _ask_worker(self, plan: Plan, rung: str, label: str, focus: str | None) -> CompactResult:
        state, history = self.session.state, self.session.state.history
        view = tuple(history.view)
        ids = [item.id for item in view[: plan.cut.at]]
        material = Material(
            view=view,
            cut=plan.cut.at,
            log=SegmentItems(self.session.writer.path, ids),
            tasks=tuple(op.rows(state.tool_state.get("tasks"))),
            recent_files=tuple(self.scope.show(Path(p)) for p in list(state.recent)[-5:]),
            previous_summary=state.summary,
            focus=focus,
            user_texts=tuple(
                i.text
                for i in view
                if isinstance(i, UserItem) or (isinstance(i, ContextItem) and i.kind == "user_words")
            ),
            system=self.sender.system,
            tools=tuple(self.tools.values()),
            tag=state.start.tag,
            cwd=self.cwd,
            touched_files=bool(state.recent),
            cache_key=self.sender.cache_key,
            baseline=history.baseline,
            calibration=history.calibration,
            windows=dict(history.windows),
        )
        with SideLog.beside(self.session, label) as journal:

            def beat(elapsed: float) -> None:
                counts = {"replies": journal.counts["reply"], "tool_results": journal.counts["tool_result"]}
                self.progress(label, "compaction.working", {"rung": rung, "elapsed": elapsed, **counts})

            async with beating(beat):
                return await compact(
                    material,
                    self.config.worker,
                    source="overview" if rung == "coarse" else self._source(plan),
                    coarse=rung == "coarse",
                    models=self.models,
                    journal=journal,
                    scope=self.scope,
                    services=self.services,
                    on_event=lambda name, figures: self.progress(label, name, figures),
                    ceiling=self.sender.budget(self.sender.model).available,
                    permissions=next((i for i in self.interceptors if isinstance(i, Permissions)), None),
                    max_output_tokens=self.sender.max_output_tokens,
                    buffer=self.sender.buffer,
                    retry=self.sender.retry,
                    deps=self.deps,
                )

    def _source(self, plan: Plan) -> Any:
        """`auto`: the prefix where the compact worker's model is the pod's own and its room suffices; else the overview."""
        if self.config.source != "auto":
            return self.config.source
        same = self.models[0].name == self.sender.model.name
        worker = self.config.worker
        room = plan.limits.available - plan.before.tokens
        fits = room >= worker.summary_max_tokens + worker.final_reserve_tokens
        warm = self.wall() - self.session.state.last_reply_at < self.sender.model.capabilities.cache_ttl
        return "prefix" if same and fits and warm and "write_summary" in self.tools else "overview"

    # -- the new segment --------------------------------------------------------------------------------------

    def _opening(self, plan: Plan, result: CompactResult | None) -> op.Opening:
        state, history, family = self.session.state, self.session.state.history, self.session.family
        head, tail = history.view[: plan.cut.at], history.view[plan.cut.at :]
        words = op.user_words(
            head,
            first=state.first_input,
            current=state.run_inputs,
            budget=self.config.user_words_tokens,
            family=family,
            omitted=state.omitted_words,
        )
        reads, references, notes = self._files(result)
        standing = {item.id for item in tail}
        pins = tuple(_pinned(item) for item in head if item.id in state.pins and item.id not in standing)
        summary = lead_in = None
        if result is not None:
            source = f"compact worker, {result.figures.source}"
            summary = ContextItem(kind="summary", text=result.summary, source=source, trust="model")
        else:
            summary = next((i for i in head if isinstance(i, ContextItem) and i.kind == "summary"), None)
            lead_in = ContextItem(kind="lead_in", text=_lead_in(state.start.segment, plan), source="runtime")
        opening = op.Opening(
            words=words,
            summary=summary,
            reads=reads,
            references=references,
            pins=pins,
            tail=op.without_bound_reasoning(tail, self._free()),
            state=op.state_item(state.tool_state, len(state.queued)),
            lead_in=lead_in,
            notes=notes,
        )
        limit = self._raw_limit(plan)
        mandatory = len(tail) - max(plan.cut.mandatory - plan.cut.at, 0)
        protected = frozenset(filter(None, (state.first_input, *state.run_inputs)))
        floor = self.config.retained_floor_tokens
        everything = protected | {item.id for item in words.items}
        opening = op.fit(opening, limit, family, floor=floor, mandatory=mandatory, protected=everything)
        # The user's words give way last: what is spilled stays readable as an artifact.
        opening = self._spilled(opening, limit)
        return op.fit(opening, limit, family, floor=floor, mandatory=mandatory, protected=protected)

    def _files(
        self, result: CompactResult | None
    ) -> tuple[tuple[ContextItem, ...], tuple[Reference, ...], tuple[str, ...]]:
        state = self.session.state
        marks = result.marks if result else ()
        shown = {self.scope.show(Path(path)): digest for path, digest in state.seen.items()}
        reads, left_out, notes = op.auto_reads(
            marks, self.read, shown, self.config.worker.auto_read_budget_tokens, self.session.family
        )
        named = {item.path for item in reads} | {r.path for r in left_out}
        references = list(left_out)
        for reference in result.references if result else ():
            if reference.path not in named:
                references.append(reference)
                named.add(reference.path)
        unmarked = result.unmarked if result else frozenset[str]()
        for path in list(state.recent)[-5:]:
            name = self.scope.show(Path(path))
            if name not in named and name not in unmarked:
                references.append(Reference(name, "touched recently"))
        return reads, tuple(self._checked(r) for r in references), notes

    def _checked(self, reference: Reference) -> Reference:
        """A reference with what became of its file: changed, unchanged or unreadable (cases B024, B098)."""
        from worker.tools import ToolFault

        state = self.session.state
        try:
            _, _, _, digest = self.read(reference.path, 1, 1)
            seen = state.seen.get(str(self.scope.resolve(reference.path)))
        except (ToolFault, OSError) as fault:
            return replace(reference, reason=f"not readable now: {str(fault)[:160]}")
        if seen is None:
            return reference
        mark = "unchanged since it was read" if seen == digest else "changed since it was read"
        return replace(reference, reason=f"{reference.reason}; {mark}" if reference.reason else mark)

    def _free(self) -> frozenset[str]:
        """The models whose reasoning stays valid whatever stands before it."""
        return frozenset(m.name for m in self.sender.models if m.capabilities.history_binding == "none")

    def _factor(self) -> float:
        return max(HEURISTIC_FACTOR, self.session.state.history.calibration.factor(self.sender.model.name))

    def _raw_limit(self, plan: Plan) -> int:
        """Raw tokens that the items may have, so that with overhead and factor they lie under the target."""
        room = int((plan.limits.target - 1) / self._factor()) - self._overhead
        return max(min(self.config.result_context_max_tokens, room), 0)

    def _spilled(self, opening: op.Opening, limit: int) -> op.Opening:
        """The largest results of a tail that must stay are cut to head and tail where it does not fit otherwise."""
        family = self.session.family
        tail = list(opening.tail)
        notes = list(opening.notes)
        order = sorted(
            (n for n, item in enumerate(tail) if isinstance(item, ToolResultItem) and item.content),
            key=lambda n: -estimate_item(tail[n], family),
        )
        for n in order:
            if opening.tokens(family) <= limit:
                break
            item = tail[n]
            assert isinstance(item, ToolResultItem)
            if len((item.content or "").encode()) <= op.SPILL_FLOOR * 2:
                break
            name = item.artifact or self.artifacts.store(
                item.call_id, f"{item.name}.txt", (item.content or "").encode()
            )
            tail[n] = op.spill(item, name)
            notes.append(f"the result of {item.name} was cut to head and tail; artifact:{name} holds it all")
            opening = replace(opening, tail=tuple(tail), notes=tuple(notes))
        return opening

    def _after(self, opening: op.Opening) -> int:
        """The occupancy of the new segment's first request, queued input included."""
        pending = sum(estimate_item(item, self.session.family) for item in self.session.state.queued)
        return int((self._overhead + opening.tokens(self.session.family) + pending) * self._factor())

    async def _commit(
        self, opening: op.Opening, plan: Plan, label: str, rung: str, after: int, figures: dict[str, Any]
    ) -> None:
        session, state = self.session, self.session.state
        await session.sync()
        carry = state.carry().model_copy(
            update={
                "omitted_words": opening.words.omitted,
                "totals": state.totals.model_copy(update={"segments": state.totals.segments + 1}),
            }
        )
        guards = {i.name: s for i in self.interceptors if (s := i.carry()) is not None}
        run = state.open_run(guards)
        if run is not None:
            more = run.counters.model_copy(update={"segments": run.counters.segments + 1})
            run = run.model_copy(update={"counters": more})
        blobs = {use: session.folder.put_blob(text) for use, text in self._texts.items()}
        start = e.SegmentStarted(
            session=state.start.session,
            segment=uuid7(),
            lineage=e.Lineage(
                kind="rolled_over_from" if rung == "rollover" else "compacted_from",
                segment=state.start.segment, run=state.run, seq=state.last_seq, compaction=label,
            ),
            items=opening.items(),
            blobs=blobs,
            pending_inputs=tuple(state.queued),
            open_run=run,
            carry=carry,
            tag=state.start.tag,
        )  # fmt: skip
        completed = e.CompactionCompleted(
            compaction=label, trigger=plan.trigger, rung=rung, before=plan.before.tokens, after=after,
            limit=plan.limits.target, notes=opening.notes, figures=figures,
        )  # fmt: skip
        try:
            await session.switch(start, completed)
        except OSError as error:
            raise StoreError(session.folder.segment_path(start.segment), "the new segment's commit", error) from error
        await session.sync()

    async def _failed(self, plan: Plan, label: str, reasons: Sequence[str], *, mandatory: bool) -> Outcome:
        figures = _figures(plan)
        reason = "; ".join(reasons) or plan.reason or "no rung of the ladder is left"
        self.session.put(
            e.CompactionFailed(compaction=label, reason=reason[:2000], mandatory=mandatory, figures=figures)
        )
        if not mandatory:
            self.session.put(
                Warned(
                    code="compaction.failed",
                    message=f"compaction failed, the run goes on: {reason[:1000]}",
                    figures=figures,
                )
            )
            await self.session.sync()
            return Failed("compaction_failed", reason)
        await self.session.sync()
        if not self.config.history_access and "rollover" in self.config.ladder:
            message = f"the context is full and session_history is denied, so no new window can be opened: {reason}"
            return LimitReached("context", message, figures)
        return Failed(
            "compact_thrash",
            f"the context can't be made small enough: fixed overhead (system prompt and tool schemas) {plan.before.overhead:,} tokens, "
            f"what must stand in any segment {plan.limits.mandatory:,} (the user's words included), "
            f"lowest trigger {plan.limits.lowest:,}, available {plan.limits.available:,}, occupancy {plan.before.tokens:,}. {reason.rstrip(' .')}. "
            "Raise the trigger or the window, or enable fewer tools.",
            details=figures,
        )


def _figures(plan: Plan) -> dict[str, Any]:
    return {
        "tokens": plan.before.tokens,
        "overhead": plan.before.overhead,
        "available": plan.limits.available,
        "lowest_trigger": plan.limits.lowest,
        "target": plan.limits.target,
        "cut": plan.cut.at,
        "retained": plan.retained_tokens,
        "mandatory_items": plan.retained_items,
    }


def _pinned(item: Item) -> ContextItem:
    text = item.text() if isinstance(item, ToolResultItem) else str(getattr(item, "text", ""))
    if isinstance(item, ContextItem):
        return item
    return ContextItem(id=item.id, kind="pin", text=text, source=f"pinned {item.type}", trust="tool")


def _lead_in(segment: str, plan: Plan) -> str:
    return (
        f"A new window begins here without a new summary. The window before it ({segment}, {plan.summarised_items} items) is on record: "
        "session_history lists, searches and reads it. The work goes on where it stood. Completed calls stand in the old window: "
        "look their results up there instead of repeating them."
    )
