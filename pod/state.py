"""The state of a pod: a pure fold of its active segment. Live and after a restart the same entries give the same state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from interceptors.approvals import ApprovalAnswered, ApprovalAsked, PermissionDenied
from interceptors.window import WindowWarning
from pod import codes
from pod.carry import BreakerState, Carry, NotesMark, OpenRun, Totals
from pod.context.facts import Checkpoint, trigger_of
from pod.driven import Driven
from pod.log import entries as e
from pod.log.texts import follow
from pod.savings import Cause, Savings
from worker import records as w
from worker.history import History
from worker.items import AssistantItem, ContextItem, Item, OpaqueItem, ReasoningItem, ToolCallItem, UserItem
from worker.memory import maker_of, read_by_others
from worker.models.base import Family
from worker.records import Record

RECENT_FILES = 20
"""Touched files that are remembered, newest last."""

NEWEST_DENIALS = 5
"""Denials that are remembered with their reasons, newest last; `totals.denied` counts all of the session."""

GROWTH = 1.1
"""After a compaction that came to nothing, the next is tried only after this growth."""

NEW_CONTEXT = "new_context"
"""The tool by which the agent asks for a new window."""

KNOWN_COMMANDS = 200
"""Ids of inbox commands that are remembered across segments."""

TAKEN_BACK = 1_000
"""Ids of inputs given back or rejected that are remembered."""


FRUIT = (e.NativeMade, e.CheckpointMade, e.CompactionCompleted, e.RunEndedEntry, e.YieldedEntry)
"""What shows, beside the result of a tool that ran, that a start of the pod came to something."""

STOPPED_SHORT = "stopped short"
"""The last status where a segment begins inside a run that did not go along: its task is unfinished."""


@dataclass
class PodState:
    """What the active segment says. Change it through `apply` only; `history` is folded by the ledger beside it.

    `ended` is the last run's end, `last_word` the newest reply where it has no calls and nothing entered the view since: what it
    means for the run is not yet on record. `ordered` is a compaction that was asked for through the inbox and has not come to an end,
    `window_asked` one that the agent asked for in a run that nobody stopped since. `checkpoint` is the one that the segment
    began with, `attempt` the last one that was made of it, `native` the last memory that a provider made of it. `warned` is
    the item that warned this window of its end, `notes` the agent's notes as the last clear left them. `held_tokens` is the
    occupancy that a compaction between requests could not bring below the trigger, so that the run went on,
    `uncleared_tokens` the size of the whole history when that was last a reason for one. `fruitless` are the triggers that made no
    new segment since the last reply or message. `fruitless_starts` counts how often the pod was opened since anything came of it, `starts_before` is
    that figure as the newest of them found it.
    """

    start: e.SegmentStarted
    history: History
    run: str | None = None
    last_run: str | None = None
    last_status: str = ""
    run_started: float = 0.0
    driven: Driven = field(default_factory=Driven)
    instructions: dict[str, str] = field(default_factory=dict[str, str])
    instructions_cut: dict[str, int] = field(default_factory=dict[str, int])
    totals: Totals = field(default_factory=Totals)
    breaker: BreakerState = field(default_factory=BreakerState)
    pins: dict[str, None] = field(default_factory=dict[str, None])
    seen: dict[str, str] = field(default_factory=dict[str, str])
    recent: dict[str, None] = field(default_factory=dict[str, None])
    tool_state: dict[str, Any] = field(default_factory=dict[str, Any])
    inbox: dict[str, None] = field(default_factory=dict[str, None])
    manifest: str = ""
    generation: int = 0
    compaction: str | None = None
    rung: str = ""
    approvals: dict[str, ApprovalAsked] = field(default_factory=dict[str, ApprovalAsked])
    ended: e.RunEndedEntry | None = None
    last_word: w.ReplyRecord | None = None
    ordered: e.Commanded | None = None
    window_asked: bool = False
    checkpoint: Checkpoint | None = None
    attempt: Checkpoint | None = None
    native: e.NativeMade | None = None
    paused: e.YieldedEntry | None = None
    last_reply_at: float = 0.0
    failed_at_tokens: int = 0
    held_tokens: int = 0
    fruitless: frozenset[str] = frozenset()
    passed_over: bool = False
    uncleared_tokens: int = 0
    first_input: str | None = None
    replies: int = 0
    inputs: int = 0
    last_seq: int = 0
    verified: bool = False
    last_estimate: int = 0
    run_inputs: tuple[str, ...] = ()
    fresh_run: bool = False
    omitted_words: int = 0
    made_by: str = ""
    accepted: e.CompactionCompleted | None = None
    first_reported: int = 0
    schemas: str = ""
    blobs: dict[str, str] = field(default_factory=dict[str, str])
    asked: dict[str, str] = field(default_factory=dict[str, str])
    denials: tuple[PermissionDenied, ...] = ()
    unknown_windows: dict[str, None] = field(default_factory=dict[str, None])
    small_window: bool = False
    warned: str | None = None
    notes: NotesMark | None = None
    taken_back: dict[str, None] = field(default_factory=dict[str, None])
    rejected: tuple[e.InputRejected, ...] = ()
    servers: dict[str, e.ServerTold] = field(default_factory=dict[str, e.ServerTold])
    runs: int = 0
    run_requests: int = 0
    trace: str | None = None
    fruitless_starts: int = 0
    starts_before: int = 0
    savings: Savings = field(default_factory=Savings)

    @classmethod
    def begin(cls, start: e.SegmentStarted, family: Family = "unknown") -> PodState:
        """The state at the first entry of a segment."""
        carry = start.carry
        history = History(family=family)
        history.windows.update(carry.windows)
        history.refusals.update(carry.refusals)
        history.calibration = carry.calibration
        history.extend(start.items)
        history.unanswered = first_unanswered(start.items)
        for item in start.pending_inputs:
            history.queue[item.id] = item
        state = cls(
            start=start,
            history=history,
            totals=carry.totals,
            breaker=carry.breaker,
            pins=dict.fromkeys(carry.pins),
            seen=dict(carry.seen),
            recent=dict.fromkeys(carry.recent),
            tool_state=dict(carry.state),
            inbox=dict.fromkeys(carry.inbox),
            manifest=carry.manifest,
            last_reply_at=carry.last_reply_at,
            failed_at_tokens=carry.failed_at_tokens,
            first_input=carry.first_input,
            run_inputs=carry.run_inputs,
            omitted_words=carry.omitted_words,
            schemas=start.blobs.get("schemas", ""),
            blobs=dict(start.blobs),
            unknown_windows=dict.fromkeys(carry.unknown_windows),
            taken_back=dict.fromkeys(carry.taken_back),
            checkpoint=carry.checkpoint,
            runs=carry.runs,
            run_requests=carry.run_requests,
            trace=carry.trace,
            warned=carry.warned,
            notes=carry.notes,
            servers={name: e.ServerTold.model_validate(told) for name, told in carry.servers.items()},
            instructions=dict(carry.instructions),
            instructions_cut=dict(carry.instructions_cut),
        )
        state.last_run, state.last_status = carry.last_run, carry.last_status
        if start.open_run is not None:
            state.run, state.run_started = start.open_run.run, start.open_run.started
            state.last_run = state.run
            state.driven, state.generation = _driven(start.open_run), start.open_run.generation
            state.instructions = dict(start.open_run.instructions)
            state.instructions_cut = dict(start.open_run.instructions_cut)
            state.small_window = start.open_run.small_window
            history.begin_run(start.open_run.counters)
        return state

    @property
    def whole_inputs(self) -> tuple[str, ...]:
        """The inputs whose words stay whole in any new segment: the session's first, and those of the run under way. A run that
        has admitted nothing yet has none, and those of the run before it are free.
        """
        return tuple(filter(None, (self.first_input, *(() if self.fresh_run else self.run_inputs))))

    def carry(self) -> Carry:
        """What a new window takes over."""
        return Carry(
            totals=self.totals,
            windows=dict(self.history.windows),
            refusals=dict(self.history.refusals),
            calibration=self.history.calibration,
            breaker=self.breaker,
            pins=tuple(self.pins),
            seen=dict(self.seen),
            recent=tuple(self.recent),
            state=dict(self.tool_state),
            inbox=tuple(self.inbox)[-KNOWN_COMMANDS:],
            manifest=self.manifest,
            last_reply_at=self.last_reply_at,
            failed_at_tokens=self.failed_at_tokens,
            summary=self.summary,
            first_input=self.first_input,
            run_inputs=() if self.fresh_run else self.run_inputs,
            omitted_words=self.omitted_words,
            last_run=self.last_run,
            last_status=self.last_status,
            unknown_windows=tuple(self.unknown_windows),
            taken_back=tuple(self.taken_back),
            checkpoint=self.checkpoint,
            runs=self.runs,
            run_requests=self.run_requests,
            trace=self.trace,
            notes=self.notes,
            servers={name: told.model_dump() for name, told in self.servers.items()},
            instructions=dict(self.instructions),
            instructions_cut=dict(self.instructions_cut),
        )

    def open_run(self, guards: dict[str, dict[str, Any]] | None = None) -> OpenRun | None:
        """The run that goes on in a new segment."""
        if self.run is None:
            return None
        return OpenRun(
            run=self.run,
            started=self.run_started,
            driven=self.driven.before,
            since=self.driven.since,
            generation=self.generation,
            counters=self.history.counters,
            guards=guards or {},
            instructions=dict(self.instructions),
            instructions_cut=dict(self.instructions_cut),
            small_window=self.small_window,
        )

    @property
    def summary(self) -> str | None:
        """The summary that this segment began with, or what others read of the memory that it began with."""
        for item in map(read_by_others, self.start.items):
            if isinstance(item, ContextItem) and item.kind == "summary":
                return item.text
        return None

    @property
    def progressed(self) -> bool:
        """Whether real work was done in this segment: a reply or a user input."""
        return self.replies > 0 or self.inputs > 0

    # -- the fold ---------------------------------------------------------------------------------------------

    def apply(self, record: Record, at: str, seq: int) -> None:
        """Folds one record into everything but the history (which the ledger folds)."""
        self.last_seq = seq
        follow(self.blobs, record)
        self._time(record, seconds(at))
        if isinstance(record, FRUIT) or (isinstance(record, w.ToolResult) and record.item.status != "interrupted"):
            self.fruitless_starts = 0
        match record:
            case w.ReplyRecord():
                self._reply(record, at)
            case w.ToolResult():
                self._tool_result(record)
            case w.Input():
                self._input(record)
            case w.ContextAdded():
                self.last_word = None
                if record.by == WindowWarning.name and record.items:
                    self.warned = record.items[0].id
            case w.Admitted():
                self.last_word = None
                if self.fresh_run or not self.run_inputs:
                    self.run_inputs, self.fresh_run = record.ids, False
            case w.Withdrawn():
                self._took_back(*record.ids)
            case e.InputRejected():
                self._took_back(record.id)
                self.rejected = (*self.rejected, record)
            case w.Pruned():
                self.totals = self.totals.model_copy(update={"prunes": self.totals.prunes + 1})
                self.savings.pruned(seq, record)
            case e.Measured():
                self._saved(self.savings.measured(record))
            case ApprovalAsked():
                self.approvals[record.id] = record
                self.asked[record.call_id] = record.id
            case ApprovalAnswered():
                self._answered(record)
            case PermissionDenied():
                self.denials = (*self.denials[1 - NEWEST_DENIALS :], record)
            case e.RunStarted():
                self.run, self.last_run, self.run_started = record.run, record.run, seconds(at)
                self.last_status, self.trace = "", record.trace
                self.instructions = dict(record.instructions)
                self.instructions_cut = dict(record.instructions_cut)
                self.ended, self.paused, self.last_word, self.fresh_run = None, None, None, True
                self.rejected = ()
                self.small_window = False
                self.history.begin_run()
            case e.YieldedEntry():
                self.paused = record
                if record.detail.get("trigger") == "uncleared":
                    self.uncleared_tokens = int(record.detail.get("tokens", 0))
            case e.RunEndedEntry():
                self.runs, self.run_requests = self.runs + 1, self.run_requests + self.history.counters.requests
                self.run, self.ended, self.paused, self.last_word = None, record, None, None
                # A run whose input was given back, or can never be sent, leaves nothing to go on with.
                details: dict[str, Any] = record.result.get("details") or {}
                self.last_status = "" if record.result.get("withdrawn") or details.get("rejected") else record.status
                # Whoever stops a run stops what was due in it: what comes next may be another piece of work.
                self.window_asked = self.window_asked and record.status != "cancelled"
            case _:
                self._supervision(record)

    def _time(self, record: Record, at: float) -> None:
        """How long the run is driven. A compaction is a part of it; any other yield leaves it waiting."""
        match record:
            case e.RunStarted():
                self.driven = Driven()
                self.driven.begin(at)
            case e.RunContinued():
                self.driven.begin(at)
                self.trace = record.trace or self.trace
            case e.RunEndedEntry():
                self.driven.end(at)
            case e.YieldedEntry() if record.reason != "compact":
                self.driven.end(at)
            case e.Lease() if self.generation and record.generation > self.generation:
                self.driven.end()
            case e.Lease() | e.Repaired():
                pass
            case _:
                self.driven.follow(at)

    def _opened(self, lease: e.Lease) -> None:
        """A process has opened the pod. One that died inside of a call came to nothing, whatever it did before."""
        if lease.generation > self.generation:
            died = any(call.started for call in self.history.unresolved)
            before = max(self.fruitless_starts, self.starts_before) if died else self.fruitless_starts
            self.starts_before = self.fruitless_starts = before + 1
        self.generation = lease.generation

    def _supervision(self, record: Record) -> None:
        match record:
            case e.Lease():
                self._opened(record)
            case e.CompactionStarted():
                self.compaction, self.rung = record.compaction, ""
            case e.CompactionRung():
                self._rung(record)
            case e.CheckpointMade():
                self.attempt = record.checkpoint
            case e.NativeMade():
                self.native = record
                self._compacted(maker_of(record.item), record.spent)
            case e.CompactionFailed():
                self.compaction, self.ordered, self.window_asked = None, None, False
                self._in_vain()
                if record.held:
                    self.held_tokens = int(record.figures.get("tokens", 0))
                elif not record.mandatory:
                    self.failed_at_tokens = int(record.figures.get("tokens", 0))
            case e.CompactionCompleted():
                self.totals = self.totals.model_copy(update={"compactions": self.totals.compactions + 1})
                self.history.count(compactions=1)
                self.made_by, self.accepted = record.rung, record
                self.held_tokens, self.failed_at_tokens = record.after if record.held else 0, 0
                self.savings.compacted(self.last_seq, record)
            case e.CompactionInterrupted():
                self.compaction, self.uncleared_tokens = None, 0
            case e.Breaker():
                self.breaker = BreakerState(failures=record.failures, open_until=record.open_until)
            case e.Pin():
                if record.on:
                    self.pins[record.item] = None
                else:
                    self.pins.pop(record.item, None)
            case w.ToolsChanged():
                self.schemas = record.tools
            case e.TextsRestored():
                self.manifest = record.blobs.get("manifest", self.manifest)
            case e.ManifestChanged():
                # Another manifest may have mended what failed: the breaker lets one attempt through, and what a server
                # refused is asked of it again.
                self.manifest, self.breaker = record.digest, BreakerState(failures=self.breaker.failures)
                self.held_tokens, self.failed_at_tokens, self.fruitless = 0, 0, frozenset()
                self.history.refusals.clear()
            case e.Commanded():
                self._known(record.id)
                if record.command == "compact":
                    self.ordered = record
            case w.Warned(code=codes.COMPACTION_NOT_POSSIBLE):
                self.ordered, self.window_asked = None, False
                self._in_vain()
            case w.Warned(code=codes.YIELD_PASSED_OVER):
                self.passed_over = True
            case e.InputRejected():
                self.first_input = None if self.first_input == record.id else self.first_input
                self.run_inputs = tuple(i for i in self.run_inputs if i != record.id)
            case w.Warned(code=codes.UNKNOWN_WINDOW):
                self.unknown_windows[str(record.figures.get("model", ""))] = None
            case w.Warned(code=codes.SMALL_WINDOW):
                self.small_window = True
            case e.ServerTold():
                self.servers[record.server] = record
            case e.Verified():
                self.verified = True
            case _:
                pass

    def _in_vain(self) -> None:
        """A compaction made no new segment; where a yield asked for it, that one need not be followed again at once."""
        if self.paused is not None and self.paused.reason == "compact":
            self.fruitless |= {trigger_of(self.paused.detail)}

    def _input(self, record: w.Input) -> None:
        self.inputs += 1
        self.fruitless = frozenset()
        if self.first_input is None:
            self.first_input = record.item.id
        if record.inbox:
            self._known(record.inbox)

    def _took_back(self, *ids: str) -> None:
        self.taken_back |= dict.fromkeys(ids)
        while len(self.taken_back) > TAKEN_BACK:
            self.taken_back.pop(next(iter(self.taken_back)))

    def _known(self, label: str) -> None:
        self.inbox[label] = None
        while len(self.inbox) > 2 * KNOWN_COMMANDS:
            self.inbox.pop(next(iter(self.inbox)))

    def _reply(self, record: w.ReplyRecord, at: str) -> None:
        self.replies += 1
        self.fruitless = frozenset()
        self.last_word = None if any(isinstance(item, ToolCallItem) for item in record.items) else record
        self.last_reply_at = seconds(at)
        self.last_estimate = record.estimate
        if not self.first_reported:
            self.first_reported = record.usage.input_tokens or 0
        self._spend("worker", record.model, **paid(record))
        self._saved(self.savings.replied(record))

    def _saved(self, by_cause: Mapping[Cause, float]) -> None:
        for cause, usd in by_cause.items():
            name = f"{cause}_saved_usd"
            self.totals = self.totals.model_copy(update={name: getattr(self.totals, name) + usd})
            self.history.count(**{name: usd})

    def _rung(self, record: e.CompactionRung) -> None:
        self.rung = record.rung if record.state == "tried" else ""
        figures = record.figures
        if record.state in {"done", "failed"} and figures.get("requests"):
            self._compacted(str(figures.get("model", "")), {k: float(figures.get(k, 0) or 0) for k in _SPENT})

    def _compacted(self, model: str, spent: Mapping[str, float]) -> None:
        """What a model was paid for a compaction."""
        self._spend("compaction", model, **spent)
        self.history.count(
            worker_requests=int(spent["requests"]),
            worker_tokens=int(spent["prompt_tokens"] + spent["output_tokens"]),
            worker_cost_usd=spent["cost_usd"],
            worker_unpriced=int(spent["unpriced"]),
        )
        self._saved({"compaction": -spent["cost_usd"]})

    def _spend(self, purpose: str, model: str, **figures: float) -> None:
        total = {
            key: getattr(self.totals, key) + type(getattr(self.totals, key))(figures.get(key, 0)) for key in _SPENT
        }
        label = f"{purpose}:{model}"
        by = dict(self.totals.by)
        old = by.get(label, {})
        by[label] = {key: old.get(key, 0) + figures.get(key, 0) for key in _SPENT}
        self.totals = self.totals.model_copy(update={**total, "by": by})

    def _answered(self, answer: ApprovalAnswered) -> None:
        """The question is closed; a yes for all writes of the run closes the others of its kind."""
        asked = self.approvals.pop(answer.id, None)
        if asked is not None and answer.approved and (answer.scope or asked.scope) == "run" and asked.scope == "run":
            self.approvals = {key: other for key, other in self.approvals.items() if other.scope != "run"}

    def _tool_result(self, record: w.ToolResult) -> None:
        item = record.item
        if (question := self.asked.pop(item.call_id, None)) is not None:
            self.approvals.pop(question, None)
        for touched in (item.reads, item.writes):
            if touched is not None:
                self.seen[touched.path] = touched.sha256
                self.recent.pop(touched.path, None)
                self.recent[touched.path] = None
                while len(self.recent) > RECENT_FILES:
                    self.recent.pop(next(iter(self.recent)))
        if item.status == "denied":
            self.totals = self.totals.model_copy(update={"denied": self.totals.denied + 1})
        if item.name == NEW_CONTEXT and item.status == "ok":
            self.window_asked = True
        if item.state:
            self.tool_state.update(item.state)

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def least_trigger(self) -> int:
        """Tokens up to which a trigger between requests rests, whatever is set: a tenth above what the last compaction could
        not make smaller."""
        return int(self.held_tokens * GROWTH)

    @property
    def least_uncleared(self) -> int:
        """The same for the trigger that looks at the history as it is without what its provider clears: a tenth above the
        last try in this segment."""
        return int(self.uncleared_tokens * GROWTH)

    @property
    def queued(self) -> list[UserItem]:
        """Inputs that have arrived and are not yet in the view."""
        return list(self.history.queue.values())

    @property
    def unanswered(self) -> bool:
        """Whether something waits for the model: an open run, queued input, an admitted input without a reply, an open call."""
        ended_badly = self.last_status not in {"", "finished"}
        return bool(self.run or self.history.queue or self.history.unresolved or ended_badly or self.history.unanswered)


_SPENT = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost_usd", "unpriced")


def paid(reply: w.ReplyRecord) -> dict[str, float]:
    """What a reply counts for in the totals."""
    usage = reply.counts
    figures = (
        1, usage.input_tokens or 0, usage.cached_tokens, usage.output_tokens, reply.cost_usd or 0.0,
        1 if reply.cost_usd is None else 0,
    )  # fmt: skip
    return dict(zip(_SPENT, figures, strict=True))


def _driven(run: OpenRun) -> Driven:
    since = run.started if run.driven is None else run.since
    return Driven(run.driven or 0.0, since, since or 0.0)


def first_unanswered(items: Sequence[Item]) -> int:
    """The place, counted from 1, of the first input behind the last reply in a segment's starting items; 0 for none."""
    place = 0
    for at in range(len(items), 0, -1):
        item = items[at - 1]
        if isinstance(item, UserItem):
            place = at
        elif isinstance(item, OpaqueItem) and item.is_memory:
            continue
        elif isinstance(item, AssistantItem | ToolCallItem | ReasoningItem | OpaqueItem):
            break
    return place


def seconds(at: str) -> float:
    """UTC seconds of an entry's time."""
    return datetime.fromisoformat(at).timestamp()


_BEGAN = {
    "forked_from": "it was forked from another pod, and has had no run of its own",
    "cleared_from": "its session was cleared, and has had no run since",
    "rewound_from": "it was taken back to an earlier point, and has had no run since",
}


def nothing_left(state: PodState) -> str:
    """Why there is nothing to go on with, as far as the active segment tells."""
    if state.last_run == state.start.carry.last_run and (began := _BEGAN.get(state.start.lineage.kind_)):
        return began
    if state.last_status == "finished":
        return "its last run finished"
    if state.last_run is not None:
        return "its last run gave its message back"
    return "it has had no run yet"
