"""One compaction: a worker is made, asked, nudged once if need be, and thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread

from compact_worker import prompt
from compact_worker.draft import Draft
from compact_worker.evidence import Evidence
from compact_worker.files import Files
from compact_worker.guards import AskIsDeny, Guards, Limits, ReadOnly
from compact_worker.lending import lent, permit_of
from compact_worker.material import (
    CompactFailed,
    CompactResult,
    CompactSettings,
    Figures,
    Material,
    OnEvent,
    Source,
)
from compact_worker.overview import Extras, Overview, build_overview
from compact_worker.summary import Rules
from compact_worker.tools import WRITE_SUMMARY, live_write_summary, overview_tools
from worker.budget import DEFAULT_BUFFER
from worker.builtin.scope import Scope
from worker.calling import Caller
from worker.estimate import estimate_items
from worker.gate import Gate
from worker.history import History, pending_tokens
from worker.interceptor import Interceptor
from worker.items import ContextItem, Item, OrderItem
from worker.ledger import Ledger
from worker.loop import Observer, Silent, Worker
from worker.models.base import Model
from worker.records import ContextAdded, Journal, Warned
from worker.results import Failed, Finished, LimitReached, Outcome
from worker.retry import RetryPolicy
from worker.sending import Sender
from worker.text import untagged
from worker.tools import Tool

PREFIX_TURNS = 4
"""Requests of a worker that continues the pod's prefix: each pays for that prefix again."""

BY = "compact_worker"
"""Who puts the order and the overview on record."""


BROKEN_OFF = "compaction.broken_off"
"""The event of a compaction that was cancelled or broke, with what it had spent until then."""


def no_event(name: str, figures: dict[str, Any]) -> None:
    """Nobody listens."""


async def compact(
    material: Material,
    settings: CompactSettings,
    *,
    source: Source,
    models: Sequence[Model],
    journal: Journal,
    scope: Scope,
    coarse: bool = False,
    services: Mapping[type, object] | None = None,
    observer: Observer | None = None,
    on_event: OnEvent = no_event,
    ceiling: int | None = None,
    permissions: Interceptor | None = None,
    bounds: Interceptor | None = None,
    max_output_tokens: int = 0,
    buffer: int = DEFAULT_BUFFER,
    retry: RetryPolicy | None = None,
    deps: Any = None,
    gate: Gate | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CompactResult:
    """Has a disposable worker summarise what lies before `material.cut`.

    `source` is `prefix` (continue the pod's own view on its warm cache) or `overview` (start small and look things up;
    `coarse` makes the start smaller). `journal` is the worker's own. `scope` is the pod's read scope, and
    `permissions` its interceptor for calls: what that would ask a human is denied, except for reads in scope.
    `bounds` is asked before each request too: the limits that this worker shares with the pod's run.
    `ceiling` is the most tokens that a request may have. `max_output_tokens`, `buffer`, `retry`, `services` and `deps`
    are those of the pod's own worker. `gate` masks secrets in all that it reads, says and puts on record.

    Raises `CompactFailed` where no valid summary came of it: the reason, and what was spent; whatever the journal
    raises; what an observer raises. Cancelled, nothing but the records in the journal is left; where it ends by that or by an
    error, `on_event` is told `BROKEN_OFF` with what was spent.
    """
    made = _Job(
        material=material,
        settings=settings,
        source=source,
        coarse=coarse,
        models=models,
        scope=scope,
        on_event=on_event,
        permissions=permissions,
        bounds=bounds,
        ceiling=ceiling,
        clock=clock,
        started=clock(),
        ledger=Ledger(journal, _history(material, source, models[0]), gate=gate),
    )
    retry = retry or RetryPolicy()
    await made.prepare(
        max_output_tokens=max_output_tokens, buffer=buffer, retry=retry, services=dict(services or {}),
        observer=observer or Silent(), deps=deps,
    )  # fmt: skip
    outcome: Outcome | None = None
    try:
        with anyio.move_on_after(settings.deadline):
            outcome = await made.converse()
        return await made.settle(outcome)
    except CompactFailed:
        raise
    except BaseException:
        on_event(BROKEN_OFF, made.figures().as_dict())
        raise


def _history(material: Material, source: Source, model: Model) -> History:
    """An empty history, or one that starts with the pod's view and what it knows of its size."""
    history = History(
        family=model.capabilities.family, calibration=material.calibration, windows=dict(material.windows)
    )
    if source == "prefix":
        history.extend(material.view)
        history.baseline = material.baseline
        history.newest_batch = len(material.view)
    return history


@dataclass(slots=True)
class _Job:
    material: Material
    settings: CompactSettings
    source: Source
    coarse: bool
    models: Sequence[Model]
    scope: Scope
    on_event: OnEvent
    permissions: Interceptor | None
    bounds: Interceptor | None
    ceiling: int | None
    clock: Callable[[], float]
    started: float
    ledger: Ledger
    sender: Sender = field(init=False)
    draft: Draft = field(init=False)
    guards: Guards = field(init=False)
    worker: Worker = field(init=False)
    overview: Overview | None = None
    first_input: int = 0
    nudges: int = 0
    warnings: list[str] = field(default_factory=list[str])

    # -- before the first request -------------------------------------------------------------------------------

    async def prepare(
        self,
        *,
        max_output_tokens: int,
        buffer: int,
        retry: RetryPolicy,
        services: dict[type, object],
        observer: Observer,
        deps: Any,
    ) -> None:
        """Makes the worker and its first input. Raises `CompactFailed` where there is no room for it."""
        material, history = self.material, self.ledger.history
        files = Files(self.scope, permit_of(self.permissions, material, history))
        family = history.family
        log = (
            await anyio.to_thread.run_sync(material.log.read, 0, material.log.count)
            if self.source == "overview"
            else []
        )
        evidence = Evidence(material.log, history.view, len(history.view), material.previous_summary)
        size = sum(history.tokens[: material.cut]) if self.source == "prefix" else estimate_items(log, family)
        rules = Rules(
            max_tokens=self.settings.summary_max_tokens, user_texts=material.user_texts, find_source=evidence.find,
            previous=material.previous_summary, prefix_tokens=size, family=family,
        )  # fmt: skip
        self.draft = Draft(files, rules, self.settings.auto_read_budget_tokens, family)
        tools = self._tools(files)
        self.sender = Sender(
            models=self.models,
            ledger=self.ledger,
            system=material.system if self.source == "prefix" else prompt.system_prompt(material.tag),
            tools=tuple(tool.spec for tool in tools),
            max_output_tokens=max_output_tokens,
            buffer=buffer,
            retry=retry,
            cache_key=material.cache_key if self.source == "prefix" else "",
            clock=self.clock,
        )
        limits = self._limits()
        self.sender.ceiling = limits.context
        self.guards = Guards(limits, self.draft, self.warn, lambda: self.sender.occupancy().tokens, family)
        interceptors: list[Interceptor] = [self.guards] if self.bounds is None else [self.bounds, self.guards]
        if self.source == "prefix":
            interceptors.append(ReadOnly())
            if self.permissions is not None:
                interceptors.append(AskIsDeny(self.permissions, self.scope))
        caller = Caller(
            ledger=self.ledger, tools={tool.name: tool for tool in tools}, interceptors=interceptors, cwd=material.cwd,
            tag=material.tag, deps=deps, services=lent(services), clock=self.clock,
        )  # fmt: skip
        self.worker = Worker(self.ledger, self.sender, caller, interceptors, observer=observer)
        self._begin(log, limits)

    def _tools(self, files: Files) -> tuple[Tool, ...]:
        if self.source == "overview":
            return overview_tools(self.material.log, self.draft, files, self.ledger.history.family)
        declared = next((tool for tool in self.material.tools if tool.name == WRITE_SUMMARY), None)
        if declared is None:
            raise CompactFailed(
                "not_declared",
                f"the pod declares no tool {WRITE_SUMMARY}, so its prefix cannot be continued",
                self.figures(),
            )
        live = live_write_summary(declared, self.draft)
        return tuple(live if tool is declared else tool for tool in self.material.tools)

    def _limits(self) -> Limits:
        """The worker's limit: its own maximum, over the prefix where it continues one, and never above the ceiling
        (B012)."""
        settings = self.settings
        context = settings.worker_context_max_tokens
        turns = settings.worker_max_turns
        if self.source == "prefix":
            context += self.sender.occupancy().tokens
            turns = min(turns, PREFIX_TURNS)
        if self.ceiling is not None:
            context = min(context, self.ceiling)
        context = min(context, self.sender.budget(self.sender.model).available)
        return Limits(context, settings.finish_warning_remaining_tokens, settings.final_reserve_tokens, turns)

    def _begin(self, log: Sequence[Item], limits: Limits) -> None:
        if self.source == "prefix":
            items: list[ContextItem | OrderItem] = [self._order(limits)]
        else:
            items = self._overview_input(log, limits)
        self.first_input = self._with(items)
        if self.first_input + limits.reserve > limits.context:
            raise CompactFailed(
                "no_room",
                f"the first request would have {self.first_input:,} tokens; with "
                f"final_reserve_tokens={limits.reserve} that is above the limit of {limits.context:,}",
                self.figures(),
            )
        self.ledger.put(ContextAdded(items=tuple(items), by=BY))

    def _order(self, limits: Limits) -> OrderItem:
        text = prompt.order_text(
            self.source, self.settings, focus=untagged(self.material.focus or "", self.material.tag),
            retained=max(len(self.material.view) - self.material.cut, 0), turns=limits.turns,
        )  # fmt: skip
        return OrderItem(text=text, tag=self.material.tag)

    def _overview_input(self, log: Sequence[Item], limits: Limits) -> list[ContextItem | OrderItem]:
        """The overview and the order; a coarse overview where the normal one is above the deadline or the limit (B007,
        B052)."""
        settings, order = self.settings, self._order(limits)
        cap = min(settings.overview_deadline_tokens, limits.context - limits.reserve)
        coarse = self.coarse
        items: list[ContextItem | OrderItem] = []
        if not coarse:
            items = [self._shown(self._overview(log, coarse=False)), order]
            size = self._with(items)
            if size > settings.overview_warning_tokens:
                figures = {"tokens": size, "warning": settings.overview_warning_tokens}
                self.warn("overview_large", f"the compact worker's first input has {size:,} tokens", figures)
            coarse = size > cap
            if coarse:
                self.warn(
                    "overview_coarse",
                    f"above {cap:,} tokens: a coarse overview is taken",
                    {"tokens": size, "limit": cap},
                )
        if coarse:
            bare = self._with([ContextItem(kind="lead_in", text="-"), order])
            factor = self.ledger.history.calibration.whole(self.sender.model.name)
            items = [self._shown(self._overview(log, coarse=True, limit=max(int((cap - bare) / factor) - 8, 0))), order]
            self.coarse = True
        assert self.overview is not None
        shown = {
            "tokens": self._with(items),
            "shown": self.overview.shown,
            "omitted": self.overview.omitted,
            "coarse": coarse,
        }
        self.on_event("compaction.overview", shown)
        return items

    def _overview(self, log: Sequence[Item], *, coarse: bool, limit: int | None = None) -> str:
        extras = Extras(self.material.tasks, self.material.recent_files, self.material.previous_summary)
        self.overview = build_overview(
            log, extras, target_tokens=self.settings.overview_target_tokens, coarse=coarse, limit_tokens=limit,
            family=self.ledger.history.family,
        )  # fmt: skip
        return self.overview.text

    def _shown(self, text: str) -> ContextItem:
        return ContextItem(
            kind="lead_in", text=untagged(text, self.material.tag), source="session overview", trust="tool"
        )

    def _with(self, items: Sequence[Item]) -> int:
        """The occupancy of a request with these items at its end."""
        model, history = self.sender.model, self.ledger.history
        return history.occupancy(model.name, self.sender.overhead(model), pending_tokens(history, items)).tokens

    # -- the conversation ---------------------------------------------------------------------------------------

    async def converse(self) -> Outcome:
        """Runs until the worker has ended its turn and has been nudged at most once, or a bound ends it."""
        while True:
            outcome = await self.worker.run()
            if isinstance(outcome, Failed) and outcome.kind == "output_limit" and self.draft.summary is None:
                continue  # the guards demand a shorter text once, and end the run at the second cut
            text = self._nudge() if isinstance(outcome, Finished) and not self.nudges else None
            if text is None:
                return outcome
            self.nudges += 1
            self.on_event("compaction.nudge", {"text": text.split(".")[0]})
            self.ledger.put(ContextAdded(items=(OrderItem(text=text, tag=self.material.tag),), by=BY))

    def _nudge(self) -> str | None:
        if self.draft.summary is None:
            return prompt.NUDGE_NO_SUMMARY
        unmarked = not self.draft.marks and self.material.touched_files and self.draft.budget > 0
        return prompt.NUDGE_NOTHING_MARKED if unmarked else None

    def warn(self, code: str, message: str, figures: dict[str, Any]) -> None:
        """Puts a warning on record and tells the human."""
        self.warnings.append(f"{code}: {message}")
        self.ledger.put(Warned(code=code, message=message, figures=figures))
        self.on_event("compaction.warning", {"code": code, "message": message, **figures})

    # -- the end ------------------------------------------------------------------------------------------------

    async def settle(self, outcome: Outcome | None) -> CompactResult:
        """The result, or why there is none. A valid summary counts however the worker ended."""
        summary = self.draft.summary
        reason, message = self._end(outcome)
        if summary is not None and not isinstance(outcome, Finished):
            self.warn(reason, f"ended after its summary was valid: {message}", {})
        await self.ledger.sync()
        if summary is None:
            raise CompactFailed(reason, message, self.figures())
        missing = await anyio.to_thread.run_sync(self.draft.files.count_missing, summary.text)
        return CompactResult(
            summary=summary.text,
            marks=self.draft.all_marks(),
            references=self.draft.all_references(),
            unmarked=frozenset(self.draft.unmarked),
            directives=summary.directives,
            figures=self.figures(missing),
        )

    def _end(self, outcome: Outcome | None) -> tuple[str, str]:
        match outcome:
            case None:
                return "deadline", f"the compact worker had not ended after deadline={self.settings.deadline:g} s"
            case Finished():
                refused = ", ".join(f"{count} {reason}" for reason, count in self.draft.refused.items())
                tries = f"; refused summaries: {refused}" if refused else ""
                return (
                    "no_summary",
                    f"the compact worker ended its turn without a valid summary, after {self.nudges} nudge{tries}",
                )
            case LimitReached(limit=limit, message=text) | Failed(kind=limit, message=text):
                return limit, text
            case other:
                return type(other).__name__.lower(), f"the compact worker ended as {type(other).__name__}"

    def figures(self, missing_paths: int = 0) -> Figures:
        """What it has cost so far, and what code did to the summary."""
        now = self.ledger.history.counters
        made = hasattr(self, "guards")
        usages = self.guards.usages if made else []
        draft = self.draft
        summary = draft.summary
        return Figures(
            source=self.source,
            coarse=self.coarse,
            model=self.models[0].name,
            requests=now.requests + now.retries,
            turns=now.requests,
            prompt_tokens=now.prompt_tokens,
            cached_tokens=now.cached_tokens,
            cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
            output_tokens=now.output_tokens,
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            cost_usd=now.cost_usd,
            unpriced=now.unpriced,
            seconds=round(self.clock() - self.started, 3),
            first_input_tokens=self.first_input,
            items_shown=self.overview.shown if self.overview else 0,
            items_omitted=self.overview.omitted if self.overview else 0,
            summary_tokens=summary.tokens if summary else 0,
            summaries_refused=sum(draft.refused.values()),
            auto_read_tokens=draft.spent,
            directives=len(summary.directives) if summary else 0,
            directives_moved=len(summary.moved) if summary else 0,
            directives_dropped=len(summary.dropped) if summary else 0,
            lines_excluded=summary.excluded if summary else 0,
            missing_paths=missing_paths,
            entries_lost=len(summary.lost) if summary else 0,
            nudges=self.nudges,
            warnings=tuple(self.warnings),
        )
