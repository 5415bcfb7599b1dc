"""Events: one stream for the terminal, embedders and machines. Most are entries of the log, told again the same way later.

`seq` is the number of the log entry that an event tells of; it never falls. Events that pass (`text.delta`, `init`, ...) carry
the number of the last entry before them and are not told again. `at` is never empty: the entry's time, else that of the telling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from interceptors.approvals import ApprovalAnswered, ApprovalAsked, ApprovalScope, PermissionDenied
from pod.log import entries as e
from pod.log.lines import Line, now
from worker import records as w
from worker.history import ON_REPORTS
from worker.items import AssistantItem, ToolCallItem
from worker.memory import maker_of
from worker.records import Record

SCHEMA = 1
"""Version of the events' schema, told in `init`."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)

    seq: int = 0
    at: str = Field(default_factory=now)


class CallMade(BaseModel):
    """A call in a reply."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    name: str
    arguments: str


class Init(_Event):
    """The first event of a stream: what runs, and from where. `tokens` are those of the next request, `requests` those so far of a
    run that goes on, `calls` those of an earlier reply that wait for their result.
    """

    type: Literal["init"] = "init"
    schema_version: int = SCHEMA
    pod: str
    session: str
    segment: str
    manifest: str = ""
    model: str
    window: int
    window_source: str
    available: int
    triggers: dict[str, int | None] = Field(default_factory=dict[str, int | None])
    tokens: int = 0
    requests: int = 0
    calls: tuple[CallMade, ...] = ()


class InputReceived(_Event):
    """A user message was stored."""

    type: Literal["input.received"] = "input.received"
    id: str
    text: str


class InputRejected(_Event):
    """An input is too large for any request: it stands in the log, and is never sent again."""

    type: Literal["input.rejected"] = "input.rejected"
    id: str
    reason: str


class RunStarted(_Event):
    """A run began."""

    type: Literal["run.started"] = "run.started"
    run: str


class InstructionChange(BaseModel):
    """An instruction file: the SHA-256 of what was taken of it in the run before (None: nothing), and now."""

    model_config = ConfigDict(frozen=True)

    path: str
    before: str | None = None
    now: str | None = None


class InstructionsChanged(_Event):
    """The instruction files of the run that just began are not those of the run before."""

    type: Literal["instructions.changed"] = "instructions.changed"
    run: str
    changes: tuple[InstructionChange, ...]


class RunYielded(_Event):
    """The worker left its loop; the run stays open (a compaction follows, or a human is asked)."""

    type: Literal["run.yielded"] = "run.yielded"
    run: str
    reason: str
    detail: dict[str, Any] = Field(default_factory=dict[str, Any])


class RunEnded(_Event):
    """A run is over. `error_kind` and `error` say why where it did not finish, as the result does."""

    type: Literal["run.ended"] = "run.ended"
    run: str
    status: str
    error_kind: str = ""
    error: str = ""


class RequestStarted(_Event):
    """A request is about to leave. Tokens are the occupancy, `ceiling` what is available. Not told again."""

    type: Literal["request.started"] = "request.started"
    model: str
    request: int
    tokens: int
    provenance: str
    ceiling: int
    trigger: int | None = None


class RequestCompleted(_Event):
    """A reply is on record. `input_tokens` is None where the provider reported nothing.

    `estimate_error` compares the estimate with the first report after a start, resume, new segment or change of the model, as a
    share of the report (above 0: estimated too high); None for other requests. `doubt` says why the provider's report, or a figure of
    it, is not believed: what is not stands in no other figure, and `cost_usd` is then reckoned from the larger of report and estimate.
    """

    type: Literal["request.completed"] = "request.completed"
    model: str
    text: str
    calls: tuple[CallMade, ...] = ()
    stop: str
    input_tokens: int | None
    cached_tokens: int
    output_tokens: int
    estimate: int
    provenance: str
    estimate_error: float | None = None
    cost_usd: float | None
    doubt: str = ""
    attempts: int
    seconds: float


class TextDelta(_Event):
    """A piece of text while it streams; state only once `request.completed` holds it. Not told again."""

    type: Literal["text.delta"] = "text.delta"
    text: str


class ToolStarted(_Event):
    """A call is about to run."""

    type: Literal["tool.started"] = "tool.started"
    call_id: str


class ToolCompleted(_Event):
    """A call has its result."""

    type: Literal["tool.completed"] = "tool.completed"
    call_id: str
    name: str
    status: str
    summary: str
    seconds: float


class ContextPruned(_Event):
    """Old tool output was taken out of the view. Estimated tokens."""

    type: Literal["context.pruned"] = "context.pruned"
    results: int
    tokens_saved: int
    tokens_before: int
    reason: str


class ContextMeasured(_Event):
    """What a report shows of prunes, or of the compaction that began the segment: `rewritten` tokens were sent anew though
    the cache had held them. `cost_usd` is what that request cost more for it (below 0: less).
    """

    type: Literal["context.measured"] = "context.measured"
    cause: str
    entries: tuple[int, ...]
    tokens_saved: int
    read_before: int
    read_after: int
    expected_rewritten: int
    rewritten: int
    expected_usd: float | None
    cost_usd: float | None


class ContextAdded(_Event):
    """The runtime put items into the view."""

    type: Literal["context.added"] = "context.added"
    by: str
    kinds: tuple[str, ...]


class WindowLearned(_Event):
    """A refusal taught the model's real window; or, as `declared`, the window was declared anew and what was learned is dropped."""

    type: Literal["context.window_learned"] = "context.window_learned"
    model: str
    window: int
    source: str
    message: str = ""


class SizeRefused(_Event):
    """A request was refused for its size in words that say nothing of the window: a rate tier, or a limit that can't be one."""

    type: Literal["context.size_refused"] = "context.size_refused"
    model: str
    limit: int | None = None
    requested: int | None = None
    message: str = ""


class ContextCounted(_Event):
    """The next request was counted, near a threshold. `estimate` is the number that stood before."""

    type: Literal["context.counted"] = "context.counted"
    model: str
    tokens: int
    provenance: str
    estimate: int
    seconds: float


class CompactionStarted(_Event):
    """A compaction begins, with the rung that is tried first (empty: none is left, or an older log)."""

    type: Literal["compaction.started"] = "compaction.started"
    compaction: str
    trigger: str
    tokens: int
    items: int
    rung: str = ""


class CompactionRung(_Event):
    """A rung of the ladder: tried, done, failed or skipped."""

    type: Literal["compaction.rung"] = "compaction.rung"
    compaction: str
    rung: str
    state: str
    reason: str = ""
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])


class CompactionNative(_Event):
    """A provider compacted the history itself, and was paid. `tokens` are what its item takes by its own word (0: not said)."""

    type: Literal["compaction.native"] = "compaction.native"
    compaction: str
    model: str
    way: str
    tokens: int
    payload_sha256: str
    source_hash: str
    attempts: int
    input_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class CompactionProgress(_Event):
    """The compact worker at work. Not told again."""

    type: Literal["compaction.progress"] = "compaction.progress"
    compaction: str
    stage: str
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])


class CompactionCompleted(_Event):
    """A compaction ended in a new segment. Tokens are occupancies."""

    type: Literal["compaction.completed"] = "compaction.completed"
    compaction: str
    rung: str
    trigger: str
    before: int
    after: int
    notes: tuple[str, ...] = ()


class CompactionFailed(_Event):
    """A compaction came to nothing; the segment stays. `held`: it had to be, but the requests fit, and the run goes on."""

    type: Literal["compaction.failed"] = "compaction.failed"
    compaction: str
    reason: str
    mandatory: bool
    held: bool = False


class SegmentStarted(_Event):
    """A segment began."""

    type: Literal["segment.started"] = "segment.started"
    segment: str
    lineage: str
    from_segment: str | None = None
    items: int = 0


class SegmentVerified(_Event):
    """The provider's first report in a new segment against what was accepted."""

    type: Literal["segment.verified"] = "segment.verified"
    reported: int
    estimated: int
    accepted: bool


class Retrying(_Event):
    """A request is sent again after `wait` seconds."""

    type: Literal["retry"] = "retry"
    error: str
    message: str
    attempt: int
    max_attempts: int
    wait: float
    model: str


class Paced(_Event):
    """A request waits for its turn, since the account's requests are limited: `wait` seconds at least (0: not known), one of
    `waiting` in this process. `reason` is the limit, the refusal (`rate_limited`, `overloaded`) or `in_flight`: the end of
    another request."""

    type: Literal["paced"] = "paced"
    model: str
    reason: str
    wait: float
    waiting: int


class ModelSwitched(_Event):
    """A fallback model takes over, or was passed over."""

    type: Literal["model.switched"] = "model.switched"
    from_model: str
    to_model: str
    reason: str
    skipped: bool


class Warning_(_Event):
    """Something a human should know; the run goes on."""

    type: Literal["warning"] = "warning"
    code: str
    message: str
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])


class ApprovalAskedEvent(_Event):
    """A call waits for a human: `pod approve NAME ID` or `pod deny NAME ID`. `details` are the arguments that neither `summary` nor
    `diff` shows whole; `scope` is how far a yes reaches."""

    type: Literal["approval.asked"] = "approval.asked"
    id: str
    call_id: str
    tool: str
    summary: str
    details: str | None = None
    diff: str | None = None
    scope: ApprovalScope = "once"


class ApprovalAnsweredEvent(_Event):
    """A human answered. `scope` of None is that of the question; `message` is what the model is told."""

    type: Literal["approval.answered"] = "approval.answered"
    id: str
    approved: bool
    by: str = ""
    scope: ApprovalScope | None = None
    message: str = ""


class PermissionDeniedEvent(_Event):
    """A call was refused by a rule, the profile or a human. `summary` names it, with its file or command."""

    type: Literal["permission.denied"] = "permission.denied"
    call_id: str
    tool: str
    reason: str
    summary: str = ""


class HookRan(_Event):
    """A hook was asked at an event: it `passed`, `blocked`, or `failed` (gave no answer). `blocked`: it stopped what it was asked
    about, by its word or because it gave no answer; `reason` says why.
    """

    type: Literal["hook.ran"] = "hook.ran"
    event: str
    name: str
    outcome: str
    blocked: bool = False
    ms: int = 0
    reason: str = ""
    tool: str = ""
    call_id: str = ""


class McpServer(_Event):
    """How a server of tools stands: `up`, `failed` (it did not start) or `down` (it was lost; a call starts it again), and `why`. `tools`
    counts those that the agent has of it, `unfit` maps others that can't be offered to the reason; `waiting`: it lists other tools by
    now, which the agent gets with the next segment."""

    type: Literal["mcp.server"] = "mcp.server"
    server: str
    state: str
    why: str = ""
    tools: int = 0
    unfit: dict[str, str] = Field(default_factory=dict[str, str])
    waiting: bool = False


class OrphanKilled(_Event):
    """A process that a killed runtime had left behind was ended."""

    type: Literal["process.orphan_killed"] = "process.orphan_killed"
    call_id: str
    pids: tuple[int, ...]


class LogRepaired(_Event):
    """A torn tail was cut off, or damage put aside."""

    type: Literal["log.repaired"] = "log.repaired"
    offset: int
    length: int
    reason: str


class Result(_Event):
    """The last event of a run's stream: the whole result."""

    type: Literal["result"] = "result"
    result: dict[str, Any]


Event: TypeAlias = Annotated[
    Init | InputReceived | InputRejected | RunStarted | InstructionsChanged
    | RunYielded | RunEnded | RequestStarted | RequestCompleted | TextDelta | ToolStarted
    | ToolCompleted | ContextPruned | ContextMeasured | ContextAdded | WindowLearned | SizeRefused | ContextCounted | CompactionStarted
    | CompactionRung | CompactionNative | CompactionProgress | CompactionCompleted | CompactionFailed | SegmentStarted | SegmentVerified
    | Retrying | Paced | ModelSwitched | Warning_
    | ApprovalAskedEvent | ApprovalAnsweredEvent | PermissionDeniedEvent | HookRan | McpServer | OrphanKilled | LogRepaired | Result,
    Field(discriminator="type"),
]  # fmt: skip
event_adapter: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(defer_build=True))


def _estimate_error(r: w.ReplyRecord) -> float | None:
    reported = r.usage.input_tokens
    return round(r.estimate / reported - 1, 4) if reported and r.estimate and r.provenance not in ON_REPORTS else None


def _reply(r: w.ReplyRecord) -> _Event:
    return RequestCompleted(
        model=r.model,
        text="".join(i.text for i in r.items if isinstance(i, AssistantItem)),
        calls=tuple(
            CallMade(call_id=i.call_id, name=i.name, arguments=i.arguments)
            for i in r.items
            if isinstance(i, ToolCallItem)
        ),
        stop=r.stop,
        input_tokens=r.usage.input_tokens,
        cached_tokens=r.usage.cached_tokens,
        output_tokens=r.usage.output_tokens,
        estimate=r.estimate,
        provenance=r.provenance,
        estimate_error=_estimate_error(r),
        cost_usd=r.cost_usd,
        doubt=r.doubt or "",
        attempts=r.attempts,
        seconds=r.seconds,
    )


_MAKERS: dict[type[Record], Callable[[Any], _Event]] = {
    w.Input: lambda r: InputReceived(id=r.item.id, text=r.item.text),
    e.InputRejected: lambda r: InputRejected(id=r.id, reason=r.reason),
    w.ReplyRecord: _reply,
    w.ToolStarted: lambda r: ToolStarted(call_id=r.call_id),
    w.ToolResult: lambda r: ToolCompleted(
        call_id=r.item.call_id, name=r.item.name, status=r.item.status, summary=r.item.summary, seconds=r.seconds
    ),
    w.Pruned: lambda r: ContextPruned(
        results=len(r.items), tokens_saved=r.tokens_saved, tokens_before=r.tokens_before, reason=r.reason
    ),
    e.Measured: lambda r: ContextMeasured(
        cause=r.cause,
        entries=r.entries,
        tokens_saved=r.tokens_saved,
        read_before=r.read_before,
        read_after=r.read_after,
        expected_rewritten=r.expected_rewritten,
        rewritten=r.rewritten,
        expected_usd=r.expected_usd,
        cost_usd=r.cost_usd,
    ),
    w.ContextAdded: lambda r: ContextAdded(by=r.by, kinds=tuple(getattr(i, "kind", i.type) for i in r.items)),
    w.WindowLearned: lambda r: WindowLearned(model=r.model, window=r.window, source=r.source, message=r.message),
    w.SizeRefused: lambda r: SizeRefused(model=r.model, limit=r.limit, requested=r.requested, message=r.message),
    w.TokensCounted: lambda r: ContextCounted(
        model=r.model, tokens=r.tokens, provenance=r.provenance, estimate=r.estimate, seconds=r.seconds
    ),
    w.Retry: lambda r: Retrying(
        error=r.error, message=r.message, attempt=r.attempt, max_attempts=r.max_attempts, wait=r.wait, model=r.model
    ),
    w.Paced: lambda r: Paced(model=r.model, reason=r.reason, wait=r.wait, waiting=r.waiting),
    w.ModelSwitched: lambda r: ModelSwitched(
        from_model=r.from_model, to_model=r.to_model, reason=r.reason, skipped=r.skipped
    ),
    w.Warned: lambda r: Warning_(code=r.code, message=r.message, figures=r.figures),
    e.RunStarted: lambda r: RunStarted(run=r.run),
    e.InstructionsChanged: lambda r: InstructionsChanged(
        run=r.run, changes=tuple(InstructionChange(**change.model_dump()) for change in r.changes)
    ),
    e.YieldedEntry: lambda r: RunYielded(run=r.run, reason=r.reason, detail=r.detail),
    e.RunEndedEntry: lambda r: RunEnded(
        run=r.run,
        status=r.status,
        error_kind=str(r.result.get("kind") or r.result.get("limit") or ""),
        error=str(r.result.get("message") or r.result.get("reason") or ""),
    ),
    e.CompactionStarted: lambda r: CompactionStarted(
        compaction=r.compaction, trigger=r.trigger, tokens=r.tokens, items=r.items, rung=r.rung
    ),
    e.CompactionRung: lambda r: CompactionRung(
        compaction=r.compaction, rung=r.rung, state=r.state, reason=r.reason, figures=r.figures
    ),
    e.NativeMade: lambda r: CompactionNative(
        compaction=r.compaction,
        model=maker_of(r.item),
        way=r.way,
        tokens=r.item.tokens,
        payload_sha256=r.item.digest,
        source_hash=r.item.source_hash,
        attempts=r.attempts,
        input_tokens=r.usage.input_tokens,
        cached_tokens=r.usage.cached_tokens,
        output_tokens=r.usage.output_tokens,
        cost_usd=r.cost_usd,
        seconds=r.seconds,
    ),
    e.CompactionCompleted: lambda r: CompactionCompleted(
        compaction=r.compaction, rung=r.rung, trigger=r.trigger, before=r.before, after=r.after, notes=r.notes
    ),
    e.CompactionFailed: lambda r: CompactionFailed(
        compaction=r.compaction, reason=r.reason, mandatory=r.mandatory, held=r.held
    ),
    e.CompactionInterrupted: lambda r: CompactionFailed(
        compaction=r.compaction, reason="interrupted: the process ended", mandatory=False
    ),
    e.SegmentStarted: lambda r: SegmentStarted(
        segment=r.segment, lineage=r.lineage.kind_, from_segment=r.lineage.segment, items=len(r.items)
    ),
    e.Verified: lambda r: SegmentVerified(reported=r.reported, estimated=r.estimated, accepted=r.accepted),
    e.HookRan: lambda r: HookRan(
        event=r.event,
        name=r.name,
        outcome=r.outcome,
        blocked=r.blocked,
        ms=r.ms,
        reason=r.reason,
        tool=r.tool,
        call_id=r.call_id,
    ),
    e.ServerTold: lambda r: McpServer(
        server=r.server, state=r.state, why=r.why, tools=r.tools, unfit=r.unfit, waiting=r.waiting
    ),
    e.OrphanKilled: lambda r: OrphanKilled(call_id=r.call_id, pids=r.pids),
    e.Repaired: lambda r: LogRepaired(offset=r.offset, length=r.length, reason=r.reason),
    ApprovalAsked: lambda r: ApprovalAskedEvent(
        id=r.id, call_id=r.call_id, tool=r.tool, summary=r.summary, details=r.details, diff=r.diff, scope=r.scope
    ),
    ApprovalAnswered: lambda r: ApprovalAnsweredEvent(
        id=r.id, approved=r.approved, by=r.by, scope=r.scope, message=r.message
    ),
    PermissionDenied: lambda r: PermissionDeniedEvent(
        call_id=r.call_id, tool=r.tool, reason=r.reason, summary=r.summary
    ),
}


def event_of(line: Line, record: Record) -> Event | None:
    """The event that an entry is told as; None for entries that are bookkeeping."""
    maker = _MAKERS.get(type(record))
    if maker is None:
        return None
    made: Any = maker(record).model_copy(update={"seq": line.seq, "at": line.at})
    return made
