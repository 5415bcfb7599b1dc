"""The rungs of the ladder: how the memory of a new segment is made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from compact_worker import CompactFailed, CompactResult, Material
from interceptors.limits import Shared
from interceptors.permissions import Permissions
from pod import codes
from pod.context import opening as op
from pod.context.beat import beating
from pod.context.native import NativeRung
from pod.context.notebook import read_notes
from pod.context.parts import Parts
from pod.context.policy import BREAKER_FAILURES, Memory, Plan, Rung, RungFailed, resting
from pod.errors import PodError, StoreError
from pod.journal import SideLog
from pod.log import entries as e
from pod.log.items import SegmentItems
from worker.gate import Gate
from worker.items import ContextItem, UserItem
from worker.memory import memory_of
from worker.records import Warned

if TYPE_CHECKING:
    from pod.context.checkpoint import Made


def rungs_of(parts: Parts, breaker: Breaker) -> dict[str, Rung]:
    """All rungs by name."""
    quotes = CheckpointRung(parts)
    found: tuple[Rung, ...] = (
        NativeRung(parts, breaker, quotes),
        WorkerRung("compact", parts, breaker),
        WorkerRung("coarse", parts, breaker),
        quotes,
        RolloverRung(parts),
    )
    return {rung.name: rung for rung in found}


@dataclass
class Breaker:
    """The durable circuit breaker of the rungs that ask a model: after some failures in a row they rest. An answer that is
    paid for and can't be accepted is one.
    """

    parts: Parts
    _counted: str = ""

    def resting(self) -> str:
        """Why the rungs are passed over just now, or nothing."""
        return resting(self.parts.session.state.breaker, self.parts.wall())

    def failed(self, label: str) -> None:
        """Counts a compaction whose worker failed: once, however many of its rungs did (case B009)."""
        if label == self._counted:
            return
        self._counted = label
        parts = self.parts
        failures = parts.session.state.breaker.failures + 1
        rest = parts.wall() + parts.config.breaker_cooldown if failures >= BREAKER_FAILURES else None
        parts.session.put(e.Breaker(failures=failures, open_until=rest))

    def worked(self) -> None:
        """Ends the counting, once a segment is accepted."""
        if self.parts.session.state.breaker.failures:
            self.parts.session.put(e.Breaker(failures=0))


@dataclass(frozen=True, slots=True)
class WorkerRung:
    """A summary by a compact worker; `coarse` shows it a short overview only."""

    name: str
    parts: Parts
    breaker: Breaker
    asks_model: bool = True

    def passed_over(self, plan: Plan) -> str:
        """Where nothing can be summarised, or the breaker is open; by hand it is tried all the same."""
        if not plan.possible:
            return plan.reason
        return "" if plan.trigger == "hand" else self.breaker.resting()

    async def attempt(self, plan: Plan, label: str, focus: str | None) -> Memory:
        """Runs the compact worker. Raises `RungFailed`, `PodError` of the store."""
        parts = self.parts
        limits = parts.shared_limits(parts.models)
        spent: dict[str, Any] = {}
        try:
            result = await self._ask_worker(plan, label, focus, limits, spent)
        except CompactFailed as failure:
            limit = None if limits is None else limits.met
            if limit is None:
                self.breaker.failed(label)
            figures = {**failure.figures.as_dict(), "after": None}
            raise RungFailed(str(failure), figures, limit=limit) from failure
        except PodError:
            raise
        except Exception as error:
            # A model of somebody else's may raise anything; a rung that breaks is a rung that failed.
            self.breaker.failed(label)
            raise RungFailed(f"the compact worker broke: {type(error).__name__}: {error}", spent) from error
        except BaseException:
            self._book(label, spent)
            raise
        return Memory(
            summary=ContextItem(
                kind="summary",
                text=parts.session.gate.own(result.summary),
                source=f"compact worker, {result.figures.source}",
                trust="model",
            ),
            marks=result.marks,
            references=result.references,
            unmarked=result.unmarked,
            figures=result.figures.as_dict(),
        )

    def _book(self, label: str, spent: dict[str, Any]) -> None:
        """What a cancelled worker had spent goes on record; a log that takes nothing more says so by itself."""
        if not spent.get("requests"):
            return
        with suppress(StoreError):
            self.parts.session.put(
                e.CompactionRung(compaction=label, rung=self.name, state="failed", reason="interrupted", figures=spent)
            )

    async def _ask_worker(
        self, plan: Plan, label: str, focus: str | None, limits: Shared | None, spent: dict[str, Any]
    ) -> CompactResult:
        from compact_worker.job import BROKEN_OFF, compact  # loaded when the pod was opened

        parts = self.parts
        state, history = parts.session.state, parts.session.state.history
        view = tuple(history.view)
        ids = [item.id for item in view[: plan.cut.at]]
        material = Material(
            view=view,
            cut=plan.cut.at,
            log=SegmentItems(parts.session.writer.path, ids),
            tasks=tuple(op.rows(state.tool_state.get("tasks"))),
            recent_files=tuple(parts.scope.show(Path(p)) for p in list(state.recent)[-5:]),
            previous_summary=state.summary,
            focus=focus,
            user_texts=tuple(
                i.text
                for i in view
                if isinstance(i, UserItem) or (isinstance(i, ContextItem) and i.kind == "user_words")
            ),
            system=parts.sender.system,
            tools=tuple(parts.tools.values()),
            tag=state.start.tag,
            cwd=parts.cwd,
            touched_files=bool(state.recent),
            cache_key=parts.sender.cache_key,
            baseline=history.baseline,
            calibration=history.calibration,
            windows=dict(history.windows),
        )
        with SideLog.beside(parts.session, label) as journal:

            def told(name: str, figures: dict[str, Any]) -> None:
                if name == BROKEN_OFF:
                    spent.update(figures)
                else:
                    parts.progress(label, name, figures)

            def beat(elapsed: float) -> None:
                counts = {"replies": journal.counts["reply"], "tool_results": journal.counts["tool_result"]}
                parts.progress(label, "compaction.working", {"rung": self.name, "elapsed": elapsed, **counts})

            async with beating(beat):
                return await compact(
                    material,
                    parts.config.worker,
                    source="overview" if self.name == "coarse" else self._source(plan),
                    coarse=self.name == "coarse",
                    models=parts.models,
                    journal=journal,
                    scope=parts.scope,
                    services=parts.services,
                    on_event=told,
                    ceiling=parts.sender.budget(parts.sender.model).available,
                    permissions=next((i for i in parts.interceptors if isinstance(i, Permissions)), None),
                    bounds=limits,
                    max_output_tokens=parts.sender.max_output_tokens,
                    buffer=parts.sender.buffer,
                    retry=parts.sender.retry,
                    deps=parts.deps,
                    gate=Gate(parts.session.gate.masker),
                )

    def _source(self, plan: Plan) -> Any:
        """`auto`: the prefix where the compact worker's model is the pod's own and its room suffices; else the overview."""
        parts = self.parts
        if parts.config.source != "auto":
            return parts.config.source
        same = parts.models[0].name == parts.sender.model.name
        worker = parts.config.worker
        room = plan.limits.available - plan.before.tokens
        fits = room >= worker.summary_max_tokens + worker.final_reserve_tokens
        warm = parts.wall() - parts.session.state.last_reply_at < parts.sender.model.capabilities.cache_ttl
        return "prefix" if same and fits and warm and "write_summary" in parts.tools else "overview"


@dataclass(frozen=True, slots=True)
class CheckpointRung:
    """An extract of the summarised range, made by code from the log; goes on from an earlier checkpoint that fits it."""

    parts: Parts
    name: str = "checkpoint"
    asks_model: bool = False

    def passed_over(self, plan: Plan) -> str:
        """Where nothing can be summarised."""
        return "" if plan.possible else plan.reason

    async def attempt(self, plan: Plan, label: str, focus: str | None) -> Memory:
        """The checkpoint as the summary. Raises `RungFailed`."""
        made = await self.made(plan, label)
        checkpoint = made.checkpoint
        source = f"checkpoint, extracted by code from {checkpoint.messages} messages"
        figures = {**checkpoint.provenance(), "taken_up": made.taken_up, "shown": made.shown, "omitted": made.omitted}
        return Memory(
            summary=ContextItem(kind="summary", text=checkpoint.text, source=source, trust="model"),
            checkpoint=checkpoint,
            figures=figures,
        )

    async def made(self, plan: Plan, label: str) -> Made:
        """Makes the checkpoint and puts it on record. Raises `RungFailed`, also where its own code breaks."""
        try:
            made = await to_thread.run_sync(self._make, plan)
        except Exception as error:
            # Whatever a log or a text holds: the rung below needs neither.
            raise RungFailed(f"the checkpoint could not be made: {type(error).__name__}: {error}") from error
        if made is None:
            raise RungFailed("there is nothing that a checkpoint could quote, or no room for it")
        session = self.parts.session
        for reason in made.stale:
            session.put(Warned(code=codes.CHECKPOINT_STALE, message=reason))
        session.put(e.CheckpointMade(compaction=label, checkpoint=made.checkpoint))
        return made

    def _make(self, plan: Plan) -> Made | None:
        # Their patterns take longer to compile than a run without a checkpoint should wait.
        from pod.context.checkpoint import LEAST_TOKENS, Earlier, Rules, make_checkpoint
        from pod.context.quoting import Quoter
        from pod.context.sources import read_sources

        parts, state = self.parts, self.parts.session.state
        view, sender, worker = tuple(state.history.view), parts.sender, parts.config.worker
        room = int((plan.limits.target - 1 - plan.limits.standing.mandatory) / parts.factor())
        rules = Rules(
            limit=min(worker.summary_max_tokens, max(room, LEAST_TOKENS)),
            quoter=Quoter(parts.session.gate.masker.values, state.start.tag),
            segment=state.start.segment,
            model=sender.model.name,
            at=datetime.fromtimestamp(parts.wall(), UTC).isoformat(timespec="seconds"),
            family=parts.session.family,
            last=state.last_seq,
            tail=view[plan.cut.at :],
            whole=frozenset(state.whole_inputs),
            show=lambda path: parts.scope.show(Path(path)),
            history=parts.config.history_access,
        )
        sources = read_sources(parts.session.writer.path, view[: plan.cut.at])
        first = next((source.entry for source in sources if source.entry), rules.last)
        return make_checkpoint(sources, Earlier(state.checkpoint, state.attempt), replace(rules, first=first))


@dataclass(frozen=True, slots=True)
class RolloverRung:
    """A plain new window: no summary or memory beyond one that stands, a lead-in, and the old window in `session_history`."""

    parts: Parts
    name: str = "rollover"
    asks_model: bool = False

    def passed_over(self, plan: Plan) -> str:
        """Where the old window could not be looked up."""
        if self.parts.config.history_access:
            return ""
        return "session_history is denied, so a plain new window would lose what is in the old one"

    async def attempt(self, plan: Plan, label: str, focus: str | None) -> Memory:
        """Needs no model, and always works."""
        state, notes = self.parts.session.state, self.parts.config.notes
        head = state.history.view[: plan.cut.at]
        standing = next((i for i in head if isinstance(i, ContextItem) and i.kind == "summary"), None)
        found = None if notes is None else await to_thread.run_sync(read_notes, self.parts.scope, notes, state.notes)
        native = memory_of(head)
        checkpoint = None if standing is None and native is None else state.checkpoint
        text = _lead_in(state.start.segment, plan, "" if found is None else f" {found.said}")
        return Memory(
            summary=standing,
            native=native,
            checkpoint=checkpoint,
            lead_in=ContextItem(kind="lead_in", text=text, source="runtime"),
            notebook=None if found is None else found.item,
        )


def _lead_in(segment: str, plan: Plan, notes: str) -> str:
    return (
        f"A new window begins here without a new summary. The window before it ({segment}, {plan.summarised_items} items) "
        f"is on record: session_history lists, searches and reads it.{notes} The work goes on where it stood. Completed "
        "calls stand in the old window: look their results up there instead of repeating them."
    )
