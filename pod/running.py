"""What a pod does in one run: the worker of the active segment, the meaning of its yields, recovery, the end on record."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from interceptors.ceiling import overhead_of
from interceptors.purse import Share
from pod import codes, renewal, setup
from pod.bus import Bus
from pod.context.compacting import Compactor
from pod.context.facts import Trigger, trigger_of
from pod.context.notebook import small_window
from pod.context.parts import Parts
from pod.context.policy import FULLEST, standing_before
from pod.context.preflight import TOO_LARGE, Oversized, oversized
from pod.errors import PodError, UsageProblem
from pod.events import CompactionProgress, Event, RequestStarted, TextDelta, event_of
from pod.guarding import files_text
from pod.heeding import Heeding
from pod.hooks.around import may_begin, may_end
from pod.hooks.asking import Hooks
from pod.hooks.calls import CallHooks
from pod.hooks.program import LABEL
from pod.instructions import Instructions, Note, collect
from pod.intake import Intake, message_of
from pod.log import entries as e
from pod.log.lines import Line
from pod.manifest import ACTING, Manifest, trigger_tokens
from pod.manifest.errors import key_label
from pod.manifest.model import trigger_path
from pod.output import OutputSchema
from pod.recovery import close_open_calls, end_survivors
from pod.result import RunResult, last_result, result_of
from pod.servers import tell, tell_altered, with_servers
from pod.services import Services
from pod.session import Session
from pod.state import GROWTH
from pod.supervision import Orders, Supervision
from pod.traced import PodWork, RunWork, SegmentWork
from pod.unfinished import check_unfinished
from worker import tracing
from worker.budget import Budget
from worker.calling import Caller
from worker.estimate import estimate_spec, estimate_text
from worker.ids import uuid7
from worker.interceptor import Interceptor, RequestContext
from worker.items import OrderItem, UserItem
from worker.loop import Worker
from worker.masking import MaskedStream
from worker.models.base import Delta, Model
from worker.records import ContextAdded, Input, ModelSwitched, Record, ReplyRecord, Retry, Warned, Withdrawn
from worker.results import Cancelled, Failed, Finished, Outcome, Paused, Yielded
from worker.retry import RetryPolicy
from worker.sending import Sender
from worker.text import sha256
from worker.tools import Tool

if TYPE_CHECKING:
    from worker.mcp.servers import Servers

SEGMENTS_WITHOUT_END = 10_000
"""Segments of one run after which it ends: far above any use, so that no loop is without a bound."""


@dataclass
class Running:
    """The moving parts of an open pod. `pod.Pod` is its public face.

    One worker lives per segment: a new segment gets new ones from the log, exactly as a restart does. `retry` stands in the place of
    the manifest's. `doubts` are what the next run that begins is warned of.
    """

    manifest: Manifest
    session: Session
    models: Sequence[Model]
    compact_models: Sequence[Model]
    tools: dict[str, Tool]
    services: Services
    cwd: Path
    hooks: Hooks
    files: Sequence[Path] = ()
    users: Sequence[Interceptor] = ()
    deps: Any = None
    headless: bool = True
    output: OutputSchema | None = None
    on_yield: Callable[[Yielded], Any] | None = None
    bus: Bus = field(default_factory=Bus)
    orders: Orders = field(default_factory=Orders)
    resting: dict[str, float] = field(default_factory=dict[str, float])
    instructions: Instructions = field(default_factory=Instructions)
    retry: RetryPolicy | None = None
    doubts: tuple[str, ...] = ()
    servers: Servers | None = None
    share: Share | None = None
    sender_waits: bool = True
    telemetry: tracing.Guarded | None = None
    stopped_by: str = ""
    busy: bool = False
    closed: bool = False
    _noted: tuple[Note, ...] = ()
    _coming: dict[str, Tool] | None = None
    _leash: anyio.CancelScope | None = None
    _left: anyio.Event | None = None
    _streamed: MaskedStream = field(init=False)
    intake: Intake = field(init=False)
    worker: Worker = field(init=False)
    compactor: Compactor = field(init=False)
    chain: tuple[Interceptor, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.intake = Intake(self.session, self.orders)
        self._streamed = self.session.gate.stream()
        self.session.listeners += [self._tell, self.services.told]
        if (ordered := self.session.state.ordered) is not None:
            self.orders.compact, self.orders.focus = True, ordered.args.get("focus")
        self.assemble()

    # -- assembling -------------------------------------------------------------------------------------------

    def assemble(self) -> None:
        """Makes worker, interceptors and compactor for the active segment."""
        session, m = self.session, self.manifest
        state = session.state
        self._take_tools()
        system = session.folder.blob(state.blobs["system"])
        specs = tuple(t.spec for t in self.tools.values())
        self.services.follow(state)
        self.services.window_refused = self._no_window
        family = self.models[0].capabilities.family
        state.history.set_family(family)
        self.chain = setup.chain(
            m, session, self.models, self.users, Supervision(self.orders, session, self.models),
            overhead_of(system, specs, family), self.services.scope, headless=self.headless, hooks=self.hooks,
            share=self.share,
        )  # fmt: skip
        self.hooks.stops = next((i.stops for i in self.chain if isinstance(i, CallHooks)), self.hooks.stops)
        session.observe_with(self.chain)
        sender = Sender(
            models=self.models,
            ledger=session.ledger,
            system=system,
            tools=specs,
            max_output_tokens=m.model.max_output_tokens,
            buffer=m.context.buffer_tokens,
            retry=self.retry or RetryPolicy(max_attempts=m.retry.max_attempts, max_seconds=m.retry.max_seconds),
            cache_key=state.start.session,
            resting=self.resting,
            thresholds=self._thresholds,
            standing=lambda: standing_before(session.state),
        )
        caller = Caller(
            ledger=session.ledger,
            tools=self.tools,
            interceptors=self.chain,
            cwd=self.cwd,
            tag=state.start.tag,
            deps=self.deps,
            services=self.services.by_type(),
            artifacts=self.services.artifacts,
            point=session.folder.files.point,
        )
        heed = Heeding(session, sender, self.users, lambda: self.compactor.limits())
        self.worker = Worker(session.ledger, sender, caller, self.chain, intake=self._admit, observer=self, heed=heed)
        parts = Parts(
            session=session,
            sender=sender,
            config=setup.compaction_config(m, self.models),
            models=self.compact_models,
            tools=self.tools,
            scope=self.services.scope,
            artifacts=self.services.artifacts,
            services=self.services.by_type(),
            read=self.services.read_again,
            cwd=self.cwd,
            fresh=self._fresh,
            interceptors=self.chain,
            deps=self.deps,
            progress=self._progress,
            hooks=self.hooks,
        )
        self.compactor = Compactor(parts)

    async def _admit(self) -> None:
        """What came in since the last request: how servers stand, and messages."""
        self._tell_of_servers()
        await self.intake.drain()

    def _tell_of_servers(self) -> None:
        if self.servers is not None:
            tell(self.session, self.servers.news())

    def _take_tools(self) -> None:
        """A new segment that was made with other tools of servers goes on with them; a segment keeps those it began with."""
        coming, self._coming = self._coming, None
        if coming is None or self.servers is None:
            return
        if sha256(setup.schemas_text(coming)) == self.session.state.schemas:
            specs = ([tool.spec for tool in each.values()] for each in (self.tools, coming))
            tell_altered(self.session, self.manifest, *specs)
            self.tools = coming
            self.servers.take()

    def _tools_to_come(self) -> dict[str, Tool]:
        """The tools of a segment that would begin now."""
        if self.servers is None:
            return self.tools
        now = {tool.name for tool in self.servers.tools()}
        own = {name: tool for name, tool in self.tools.items() if name not in now}
        self._coming = with_servers(own, self.servers.tools(now=True), strict=False)
        return self._coming

    def _thresholds(self, budget: Budget) -> list[int]:
        """The set triggers, in tokens."""
        return setup.trigger_list(self.manifest)(budget.available) if self.manifest.policy in ACTING else []

    def _fresh(self) -> tuple[dict[str, str], int]:
        """The texts of a new segment by use, and the raw tokens of its prompt and schemas."""
        tools = self._tools_to_come()
        system = self.render(tools)
        family = self.models[0].capabilities.family
        overhead = estimate_text(system, family) + sum(estimate_spec(t.spec, family) for t in tools.values())
        texts = {
            "system": system,
            "schemas": setup.schemas_text(tools),
            "manifest": self.manifest.kept_text(),
            "cwd": str(self.cwd),
            **files_text(self.files),
        }
        return texts, overhead

    def collect(self) -> Instructions:
        """The instruction files as they are now. Blocks."""
        found = collect(self.cwd, self.manifest.worker.instructions, self.manifest.scope.read)
        return found.masked(self.session.gate.own)

    def render(self, tools: Mapping[str, Tool] | None = None) -> str:
        """The system prompt that a new segment would get."""
        tag, name = self.session.state.start.tag, self.session.folder.name
        system = setup.render_system(
            self.manifest, self.instructions, tools or self.tools, self.cwd, name, tag, self.output
        )
        return self.session.gate.own(system)

    # -- telling ----------------------------------------------------------------------------------------------

    def _tell(self, line: Line, record: Record) -> None:
        if not self.bus.watched:
            return
        if isinstance(record, ReplyRecord | Retry | ModelSwitched | e.RunEndedEntry):
            self._stream(self._streamed.end(), line.seq - 1)
        event = event_of(line, record)
        if event is not None:
            self.bus.publish(event)

    def _pass(self, event: Event) -> None:
        event = event.model_copy(update={"seq": self.session.state.last_seq})
        self.bus.publish(self.session.gate.masked(event))

    def _progress(self, label: str, stage: str, figures: Mapping[str, Any]) -> None:
        self._pass(CompactionProgress(compaction=label, stage=stage, figures=dict(figures)))

    def request_started(self, ctx: RequestContext) -> None:
        """Tells readers (worker.loop.Observer)."""
        if not self.bus.watched:
            return
        lowest = self.compactor.limits().lowest if self.manifest.policy in ACTING else None
        number = ctx.history.counters.requests + 1
        self._pass(
            RequestStarted(
                model=ctx.model, request=number, tokens=ctx.occupancy.tokens, provenance=ctx.occupancy.provenance,
                ceiling=ctx.budget.available, trigger=lowest,
            )
        )  # fmt: skip

    def delta(self, delta: Delta) -> None:
        """Tells readers (worker.loop.Observer)."""
        if delta.kind == "text" and self.bus.watched:
            self._stream(self._streamed.feed(delta.text), self.session.state.last_seq)

    def _stream(self, text: str, seq: int) -> None:
        """Passes on what the gate has let through; `seq` is that of the last entry before it."""
        if text:
            self.bus.publish(TextDelta(text=text, seq=seq))

    # -- one run ----------------------------------------------------------------------------------------------

    async def drive(
        self, text: str | None, scope: anyio.CancelScope | None = None, key: str | None = None
    ) -> RunResult[Any]:
        """One run (or, without text, the continuation of one) to its end on record.

        A message with a `key` is taken once: where it was before, its run goes on, or its result is given again; cancelled, it is kept.

        Cancelled, the end is put on record (shielded, short) and the cancellation goes on; where it was `scope` that was cancelled, or
        the pod was closed, the result is returned instead. Raises `UsageProblem` while another run is under way, for blank text, and
        where there is nothing to go on with; `PodError` of the store.
        """
        mine = None if text is None else message_of(text)
        with self._alone() as leash:
            state = self.session.state
            goes_on = mine is None or state.run is not None
            with tracing.doing(self._work(RunWork, earlier=(state.trace or "") if goes_on else "")):
                return await self._driven(mine, leash, scope, key)

    async def _driven(
        self, mine: UserItem | None, leash: anyio.CancelScope, scope: anyio.CancelScope | None, key: str | None
    ) -> RunResult[Any]:
        try:
            if key is not None and mine is not None and await self.intake.known(key, mine.text):
                mine = None
                if not self.session.state.unanswered and (before := self.last_result()) is not None:
                    return before
            outcome = await self._begin(mine, key) or await self._stretch()
        except anyio.get_cancelled_exc_class():
            given_back = mine is not None and key is None and self.sender_waits
            outcome = await self.conclude(Cancelled(), withdraw=mine.id if mine and given_back else None)
            if not leash.cancel_called and (scope is None or not scope.cancel_called):
                raise
            return self.result(outcome)
        except PodError:
            raise
        except Exception as error:
            await self.conclude(Failed("internal", f"{type(error).__name__}: {error}"))
            raise
        return self.result(await self.conclude(outcome))

    def _work(self, kind: Callable[..., PodWork], **more: Any) -> PodWork:
        """A work as a tracing is told of it."""
        start, name = self.session.state.start, self.session.folder.name
        model = self.worker.sender.active.name
        return kind(pod=name, session=start.session, segment=start.segment, model=model, **more)

    async def _begin(self, mine: UserItem | None, key: str | None = None) -> Outcome | None:
        if mine is not None:
            self.session.put(Input(item=mine, inbox=key))
            await self.session.sync()
        else:
            await self.check_unfinished()
        return await self.prepare()

    async def check_unfinished(self) -> None:
        """Raises `UsageProblem` where nothing is left to go on with; nothing is recorded, and the inbox is as it was."""
        await anyio.to_thread.run_sync(check_unfinished, self.session.state, self.session.folder)
        asked = self.orders.stop
        await self.intake.drain()
        # An order to stop that was left in the inbox was meant for the stretch before this one.
        self.orders.stop = asked

    @contextmanager
    def _alone(self) -> Generator[anyio.CancelScope]:
        """One run or compaction at a time. The scope is what `close` cancels. Raises `UsageProblem`."""
        self.check_open()
        if self.busy:
            raise UsageProblem(
                f"a run or compaction of pod {self.session.folder.name!r} is under way; send to it, or wait for its end"
            )
        self.busy, self._left = True, anyio.Event()
        try:
            with anyio.CancelScope() as self._leash, tracing.using(self.telemetry):
                yield self._leash
        finally:
            self.orders.stop, self.orders.after_segment = None, False
            if self.share is not None:
                self.share.release()
            self.busy = False
            self._left.set()

    def check_open(self) -> None:
        """Raises `UsageProblem` where the pod is closed."""
        if self.closed:
            raise UsageProblem(f"pod {self.session.folder.name!r} is closed: enter it again (`async with pod`)")

    async def close(self) -> None:
        """Nothing new begins; a run or compaction under way in another task ends, its end on record. Shielded.

        Its message is kept: whoever waits for it did not ask for the end, so the run goes on with it when the pod is open again.
        """
        self.closed = True
        if self._leash is None or self._left is None or not self.busy:
            return
        self.sender_waits = False
        self.stopped_by = self.stopped_by or "the pod was closed"
        self._leash.cancel()
        with anyio.CancelScope(shield=True):
            await self._left.wait()

    def result(self, outcome: Outcome) -> RunResult[Any]:
        """The outcome with the run's figures, its output of the type that the pod was opened with."""
        state = self.session.state
        return self._typed(result_of(outcome, state, self.session.folder.name, state.last_run, self.stopped_by))

    def last_result(self) -> RunResult[Any] | None:
        """The result of the last run, where it has ended."""
        state = self.session.state
        if state.run is not None or state.last_run is None:
            return None
        return self._typed(last_result(state, self.session.folder.name))

    def _typed(self, result: RunResult[Any]) -> RunResult[Any]:
        return result if self.output is None else self.output.typed(result)

    async def prepare(self) -> Outcome | None:
        """Everything before the first request of a run or of its continuation; the run's end where a hook refuses it."""
        session = self.session
        if session.state.run is not None:
            session.put(e.RunContinued(run=session.state.run, trace=_trace()))
        await self.intake.drain()
        await end_survivors(session, self.services, LABEL if self.hooks.starts_programs else "")
        await close_open_calls(session, self.tools)
        run, refused, notices = session.state.run or uuid7(), None, ()
        # Asked until something was sent: a kill right behind its no must not let the run go on.
        if session.state.run is None or not session.state.history.counters.requests:
            refused, notices = await may_begin(self.hooks, run)
        if session.state.run is None:
            if refused is None:
                await self._between_runs()
            self.instructions = found = await anyio.to_thread.run_sync(self.collect)
            await anyio.to_thread.run_sync(renewal.keep, session, found)
            before, known = dict(session.state.instructions), session.state.last_run is not None
            started = e.RunStarted(run=run, trace=_trace(), instructions=found.hashes, instructions_cut=found.cut)
            session.put(started)
            if known:
                renewal.instructions_compared(session, started, before)
            for note in self.instructions.notes if self.instructions.notes != self._noted else ():
                session.put(note.warning())
            self._noted = self.instructions.notes
            for text in self.doubts:
                session.put(Warned(code=codes.FOLDER_NOT_TRUSTED, message=text))
            self.doubts = ()
            for interceptor in self.chain:
                interceptor.begin_run()
            renewal.instructions_changed(session, self.instructions)
        if refused is not None:
            return refused
        self.hooks.notify(notices)
        self._tell_of_servers()
        renewal.folder_changed(session)
        self._compare_schemas()
        renewal.windows_declared(session, self.models)
        renewal.refusals_recalled(session, self.models)
        renewal.window_unknown(session, self.worker.sender)
        if self.output is not None:
            self.output.ask(session)
        await session.sync()
        return None

    def _compare_schemas(self) -> None:
        """Other tools than the session knew last are put on record."""
        session, schemas = self.session, setup.schemas_text(self.tools)
        if renewal.schemas_changed(session, schemas) and self.servers is not None:
            label = session.state.blobs.get("schemas", "")
            before = session.folder.blob(label) if session.folder.holds(label) else ""
            tell_altered(session, self.manifest, setup.specs_in(before), [tool.spec for tool in self.tools.values()])

    async def _between_runs(self) -> None:
        threshold = self.manifest.compaction.threshold if self.manifest.compaction else None
        if threshold is None or self.manifest.policy not in ACTING:
            return
        await self.worker.sender.measure()
        available = self.worker.sender.budget(self.worker.sender.model).available
        tokens = self.worker.sender.occupancy().decides
        if tokens <= min(trigger_tokens(threshold, available), available):
            return
        failed_at = self.session.state.failed_at_tokens
        if failed_at and tokens < failed_at * GROWTH:
            return
        if not self.compactor.plan("threshold").possible:
            return
        await self.compact("threshold")

    async def compact(self, trigger: Trigger, focus: str | None = None) -> bool:
        """Compacts as well as it can; a failure is a warning. Returns whether a new segment began."""
        failed = await self.compactor.best_effort(trigger, focus)
        if not failed:
            self.assemble()
        return not failed

    def _no_window(self) -> str:
        """Why no new window would begin before the agent's next step, if it asked for one now; nothing where one would."""
        policy, state = self.manifest.policy, self.session.state
        if policy not in ACTING:
            return f"the context policy here is {policy!r}: it opens no new windows"
        if state.replies <= 1 and state.start.lineage.kind_ not in {"forked_from", "rewound_from"}:
            return "this window has only just begun: a new one would hold the same"
        return self.compactor.refused("agent")

    async def _window_asked(self) -> None:
        """The window that the agent asked for. It was promised one: where none begins after all, it is told so."""
        failed = await self.compactor.best_effort("agent")
        if not failed:
            self.assemble()
            return
        text = f"No new window has begun: {failed}. All that stands in this one still does. Go on with the task."
        order = OrderItem(text=text, tag=self.session.state.start.tag)
        self.session.put(ContextAdded(items=(order,), by="new_context"))
        await self.session.sync()

    async def compact_by_hand(self, focus: str | None = None) -> bool:
        """Compacts now, where no run is under way. Raises `UsageProblem` where one is."""
        with self._alone():
            renewal.refusals_recalled(self.session, self.models)
            return await self.compact("hand", focus)
        return False  # the pod was closed under it

    async def _stretch(self) -> Outcome:
        for _ in range(SEGMENTS_WITHOUT_END):
            with tracing.doing(self._work(SegmentWork)):
                outcome = await self._in_segment()
            if not isinstance(outcome, Yielded) or outcome.reason != "compact":
                return outcome
            ended = await self._compact_between_requests(outcome)
            if ended is not None:
                return ended
        return Failed("segments", f"the run went through {SEGMENTS_WITHOUT_END} segments, which is the bound")

    async def _in_segment(self) -> Outcome:
        """Until the end of the run or of this stretch of it, or a yield for a compaction: `Yielded`, on record."""
        for _ in range(SEGMENTS_WITHOUT_END):
            outcome = self._said_before() or await self.worker.run()
            if isinstance(outcome, Finished) and self.output is not None:
                outcome = self.output.checked(outcome, self.session)
                if outcome is None:
                    continue
            if isinstance(outcome, Finished):
                outcome = await may_end(self.hooks, outcome)
                if outcome is None:
                    continue
            if not isinstance(outcome, Yielded):
                return outcome
            run = self.session.state.run or ""
            self.session.put(e.YieldedEntry(run=run, reason=outcome.reason, detail=outcome.detail))
            await self.session.sync()
            if outcome.reason == "stop":
                return Cancelled()
            if outcome.reason != "compact":
                if self.on_yield is None or not await _maybe(self.on_yield(outcome)):
                    return outcome
                self.session.put(e.RunContinued(run=run))
                continue
            return outcome
        return Failed("segments", f"the run went through {SEGMENTS_WITHOUT_END} segments, which is the bound")

    def _window_small(self, trigger: Trigger) -> None:
        """A warning, once a run, where a window ends after one reply: it goes on, but each reply costs a window."""
        state = self.session.state
        if self.manifest.policy != "rollover" or trigger == "overflow" or state.replies != 1 or state.small_window:
            return
        plan = self.compactor.plan(trigger)
        end, key = self._window_end(plan.limits.available)
        path = trigger_path(key)
        figures = {"tokens": plan.before.tokens, "overhead": plan.before.overhead, "at": end, "key": ".".join(path)}
        self.session.put(
            Warned(code=codes.SMALL_WINDOW, message=small_window(plan, key_label(path), end), figures=figures)
        )

    def _window_end(self, available: int) -> tuple[int, str]:
        """Where a window ends, in tokens, and the key of the lowest trigger that says so."""
        return min((setup.trigger_value(v, available), k) for k, v in self.manifest.request_triggers.items())

    def _said_before(self) -> Outcome | None:
        """The outcome of a reply that a killed runtime put on record, but not what it meant: asking again would send it back as input."""
        state = self.session.state
        if state.last_word is None or state.history.queue:
            return None
        return self.worker.ending(state.last_word, state.last_word.model)

    async def _compact_between_requests(self, outcome: Yielded) -> Outcome | None:
        trigger = trigger_of(outcome.detail)
        if trigger == "hand":
            focus, self.orders.compact, self.orders.focus = self.orders.focus, False, None
            await self.compact("hand", focus)
            return None
        if trigger == "agent":
            await self._window_asked()
            return None
        if trigger == "uncleared":
            await self.compact(trigger)
            return None
        oversized = self._oversized()
        if oversized is not None:
            return self.compactor.with_the_cause(oversized.failure(), str(outcome.detail.get("message") or ""))
        if trigger == "request_threshold" and self.manifest.request_triggers:
            sender = self.worker.sender
            _, key = self._window_end(sender.budget(sender.model).available)
            trigger = trigger_of({"trigger": key})
        self._window_small(trigger)
        ended = await self.compactor.mandatory(trigger, outcome.detail)
        if ended is not None:
            return ended
        if self.worker.history is self.session.state.history:
            return None  # the run goes on without a new segment
        self.assemble()
        if self.orders.after_segment:
            self.orders.after_segment = False
            return Cancelled()
        return None

    async def conclude(self, outcome: Outcome, *, withdraw: str | None = None) -> Outcome:
        """Puts the end of a stretch on record, shielded and short. A paused run stays open.

        `withdraw` is the input whose sender is still there: a run cancelled before anything of the model was kept gives it back.
        """
        session = self.session
        state = session.state
        outcome = session.gate.masked(outcome)
        with anyio.CancelScope(shield=True):
            if isinstance(outcome, Cancelled) and withdraw is not None and self._withdrawable(withdraw):
                session.put(Withdrawn(ids=(withdraw,)))
                outcome = Cancelled(withdrawn=(withdraw,))
            if (
                isinstance(outcome, Failed)
                and outcome.kind in TOO_LARGE
                and (rejected := self._oversized()) is not None
            ):
                rejected.reject(session, outcome.message)
                outcome = replace(outcome, details={**outcome.details, "rejected": list(rejected.ids)})
            elif isinstance(outcome, Failed):
                outcome = self._with_way_out(outcome)
            if isinstance(outcome, Paused):
                session.put(
                    e.YieldedEntry(
                        run=state.run or "", reason="approval", detail={"approvals": list(outcome.approvals)}
                    )
                )
            elif state.run is not None and not isinstance(outcome, Yielded):
                session.put(
                    e.RunEndedEntry(run=state.run, status=_STATUS[type(outcome).__name__], result=_detail(outcome))
                )
            await session.sync()
        return outcome

    def _with_way_out(self, failed: Failed) -> Failed:
        """A failure for want of room under a policy that makes none: where a compaction by hand would, that is named."""
        if failed.kind not in {"over_budget", "overflow"} or self.manifest.policy in ACTING:
            return failed
        if self.compactor.refused("hand"):
            return failed
        more = f"{failed.message.rstrip()} A compaction by hand (`pod compact`, `Pod.compact()`) makes room here."
        return replace(failed, message=more, details={**failed.details, "compactable": True})

    def _oversized(self) -> Oversized | None:
        parts, limits = self.compactor.parts, self.compactor.limits()
        acts = self.manifest.policy in ACTING
        room = limits.lowest if acts else limits.available
        # What a new segment may have at most is what it is accepted under.
        segment = int(limits.available * FULLEST) if acts else None
        return oversized(self.session.state, parts.sender, parts.factor(), room, segment)

    def _withdrawable(self, item: str) -> bool:
        history = self.session.state.history
        last = history.last()
        return item in history.queue or (last is not None and last.id == item)


def _trace() -> str | None:
    """The trace that tells of what is under way, as it goes on record; None where nothing does."""
    return tracing.outgoing().get("traceparent")


_STATUS = {
    "Finished": "finished", "Failed": "failed", "LimitReached": "limit", "Cancelled": "cancelled", "Yielded": "yielded"
}  # fmt: skip


def _detail(outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    return {k: v for k, v in asdict(outcome).items() if v not in (None, "", {}, ())}


async def _maybe(value: Any) -> Any:
    import inspect

    return await value if inspect.isawaitable(value) else value
