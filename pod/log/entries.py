"""Which record a log entry holds: the kinds of the worker and those of the pod, and how bodies are written and read."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from pod.carry import Carry, OpenRun
from pod.context.facts import Checkpoint
from pod.errors import LogDamaged
from pod.log.lines import Line
from worker import records as w
from worker.items import Item, OpaqueItem, UserItem
from worker.models.base import NativeWay, Usage
from worker.records import Record
from worker.text import clean

LineageKind: TypeAlias = Literal[
    "fresh", "compacted_from", "rolled_over_from", "forked_from", "cleared_from", "rewound_from"
]


class Lineage(Record):
    """How a segment descends. `seq` is the last entry of `segment` that it takes in. `session` is that of a fork's origin,
    whose logs lie in the fork's folder (None for a fork that took none along).
    """

    kind_: LineageKind = Field(alias="kind", default="fresh")
    segment: str | None = None
    run: str | None = None
    seq: int | None = None
    compaction: str | None = None
    session: str | None = None

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)


class Lease(Record):
    """A process became the writer."""

    kind = "lease"
    generation: int
    pid: int
    host: str


class SegmentStarted(Record):
    """The first entry of a segment: everything that a resume needs, so that it reads this segment alone."""

    kind = "segment_started"
    screened = True
    session: str
    segment: str
    lineage: Lineage
    items: tuple[Item, ...] = ()
    blobs: dict[str, str] = Field(default_factory=dict[str, str])
    pending_inputs: tuple[UserItem, ...] = ()
    open_run: OpenRun | None = None
    carry: Carry = Field(default_factory=Carry)
    tag: str = ""


class RunStarted(Record):
    """A run begins: from one user input until the pod needs the next one.

    `instructions` maps each instruction file to the blob of what is taken of it for the whole run, root first;
    `instructions_cut` those that were cut to the bytes that they have. `trace` is the `traceparent` of the trace that tells of it.
    """

    kind = "run_started"
    run: str
    trace: str | None = None
    instructions: dict[str, str] = Field(default_factory=dict[str, str])
    instructions_cut: dict[str, int] = Field(default_factory=dict[str, int])


class InstructionChange(BaseModel):
    """An instruction file whose text is another one than in the run before: its SHA-256 then (None: it was not taken) and
    now (None: it is not taken any more).
    """

    model_config = ConfigDict(frozen=True)

    path: str
    before: str | None = None
    now: str | None = None


class InstructionsChanged(Record):
    """The instruction files of the run that just began are not those of the run before."""

    kind = "instructions_changed"
    run: str
    changes: tuple[InstructionChange, ...]


class RunContinued(Record):
    """A process takes up a run that waited or that another one had left: from here on it is driven again."""

    kind = "run_continued"
    run: str
    trace: str | None = None


class YieldedEntry(Record):
    """The worker left its loop cleanly; the run stays open."""

    kind = "yielded"
    run: str
    reason: str
    detail: dict[str, Any] = Field(default_factory=dict[str, Any])


class RunEndedEntry(Record):
    """The run is over; `result` is what its result says."""

    kind = "run_ended"
    run: str
    status: str
    result: dict[str, Any] = Field(default_factory=dict[str, Any])


class CompactionStarted(Record):
    """A compaction begins, with the rung that is tried first. `upto` is the last entry that it summarises, `cut` the place in
    the view.
    """

    kind = "compaction_started"
    compaction: str
    trigger: str
    tokens: int
    rung: str = ""
    cut: int = 0
    items: int = 0
    upto: int = 0
    source_hash: str = ""
    focus: str | None = None


class CompactionRung(Record):
    """A rung of the ladder is tried, or was passed over."""

    kind = "compaction_rung"
    compaction: str
    rung: str
    state: Literal["tried", "done", "failed", "skipped"]
    reason: str = ""
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])


class CheckpointMade(Record):
    """A checkpoint of this segment, before it is known whether a new segment begins with it."""

    kind = "checkpoint"
    screened = True
    compaction: str
    checkpoint: Checkpoint


class NativeMade(Record):
    """A provider's own memory of the items before the cut, before it is known whether a new segment begins with it.

    The item has the hash of the ids that it stands for. It was paid for here, whatever becomes of it: `attempts` requests,
    with the `usage` and `cost_usd` of the last (None: the price is not known). `focus` is what the provider was told to look
    at above all.
    """

    kind = "native_made"
    screened = True
    compaction: str
    item: OpaqueItem
    way: NativeWay
    usage: Usage = Usage()
    cost_usd: float | None = None
    attempts: int = 1
    seconds: float = 0.0
    provider_id: str | None = None
    focus: str | None = None

    @property
    def spent(self) -> dict[str, float]:
        """What it cost, as the session's figures count it."""
        usage = self.usage
        return {
            "requests": self.attempts, "prompt_tokens": usage.input_tokens or 0, "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens, "cost_usd": self.cost_usd or 0.0, "unpriced": int(self.cost_usd is None),
        }  # fmt: skip


class CompactionFailed(Record):
    """A compaction came to nothing; the segment stays active. `held`: the run goes on in it all the same."""

    kind = "compaction_failed"
    compaction: str
    reason: str
    mandatory: bool
    held: bool = False
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])


class Reported(BaseModel):
    """What a model's provider reported of a request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    usage: Usage


class CompactionCompleted(Record):
    """First thing in a new segment: how it came about. Tokens are occupancies, before and as accepted. `held`: what must stand
    is above the trigger, which acts only after more growth.

    `reported` is the old segment's last report, `overhead` the tokens of system prompt and schemas, which both segments
    begin with, `cold` says that the provider's cache had run out by then.
    """

    kind = "compaction_completed"
    compaction: str
    trigger: str
    rung: str
    before: int
    after: int
    limit: int
    held: bool = False
    notes: tuple[str, ...] = ()
    figures: dict[str, Any] = Field(default_factory=dict[str, Any])
    reported: Reported | None = None
    overhead: int = 0
    cold: bool = False


class CompactionInterrupted(Record):
    """At a restart: a compaction that was under way when the process died."""

    kind = "compaction_interrupted"
    compaction: str


class Breaker(Record):
    """The breaker of the compact worker: failures in a row, and until when model rungs are skipped (UTC seconds)."""

    kind = "breaker"
    failures: int
    open_until: float | None = None


class Pin(Record):
    """An item is kept through prunes and compactions, or let go."""

    kind = "pin"
    item: str
    on: bool = True


class ManifestChanged(Record):
    """The pod goes on with another manifest, or in another working folder (`cwd`, the hash of its text)."""

    kind = "manifest"
    digest: str
    changes: tuple[str, ...] = ()
    cwd: str | None = None


class TextsRestored(Record):
    """Texts that the session went on with were lost; from here on these stand in their place. Both by use, as hashes."""

    kind = "texts_restored"
    blobs: dict[str, str]
    lost: dict[str, str]


class OrphanKilled(Record):
    """A process that a killed runtime had left behind was ended."""

    kind = "orphan_killed"
    call_id: str
    pids: tuple[int, ...]


class InputRejected(Record):
    """An input that can never be sent; kept for display, never sent again."""

    kind = "input_rejected"
    id: str
    reason: str


class Repaired(Record):
    """A torn tail was cut off, or damage put aside: `length` bytes from `offset` on, as the file then was.

    Where entries were lost, this one stands in their place and has the first of their numbers: `numbers` counts the
    sequence numbers that it stands for, its own among them (`pod.log.segment` reads it). `segment` names the log where
    it is another one than this. `kept_as` is the file in the pod's `quarantine` folder.
    """

    kind = "repaired"
    offset: int
    length: int
    sha256: str
    reason: str
    text: str = ""
    numbers: int = 1
    segment: str | None = None
    kept_as: str | None = None

    @property
    def lost(self) -> int:
        """How many entries a repair lost in this place; a torn tail that was cut off had never counted."""
        return self.numbers if self.segment is None and (self.kept_as or not self.length) else 0


class Commanded(Record):
    """A command from the inbox was taken; its id is known from now on."""

    kind = "commanded"
    id: str
    command: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])


class HookRan(Record):
    """A hook was asked at an event. `blocked`: it stopped what it was asked about, by its word or because it gave no answer
    (`failed`). `notice` is what the model is told of it with the next request.
    """

    kind = "hook_ran"
    event: str
    name: str
    outcome: Literal["passed", "blocked", "failed"]
    blocked: bool = False
    ms: int = 0
    reason: str = ""
    tool: str = ""
    call_id: str = ""
    run: str = ""
    notice: str = ""


class ServerTold(Record):
    """How a server of tools stands. `tools` counts those that the agent has of it, `unfit` maps others that can't be offered to the
    reason; `waiting`: it lists other tools by now, which the agent gets with the next segment.
    """

    kind = "mcp_server"
    server: str
    state: Literal["starting", "up", "failed", "down"]
    why: str = ""
    tools: int = 0
    unfit: dict[str, str] = Field(default_factory=dict[str, str])
    waiting: bool = False


class Verified(Record):
    """The provider's first report after a switch, compared with what was accepted."""

    kind = "segment_verified"
    reported: int
    estimated: int
    before: int
    accepted: bool


class Measured(Record):
    """What the next report of the provider shows of prunes, or of the compaction that began this segment.

    `entries` are the numbers of their entries. Tokens: `tokens_saved` left the request, `read_before` and `read_after`
    were read from the cache by the request before and by this one, `written` was written to it, `held` would have been read
    without, `rewritten` (and what was expected of it) had to be sent anew though it had been in the cache. US dollars:
    `cost_usd` is what this request cost more than it would have without (below 0: less); None where the price is not
    known. `read_mtok`, `write_mtok` and `input_mtok` price a million tokens that are read from the cache, written to
    it, or neither, in later requests.
    """

    kind = "measured"
    cause: Literal["prune", "compaction"]
    entries: tuple[int, ...]
    model: str
    tokens_saved: int
    read_before: int = 0
    read_after: int = 0
    written: int = 0
    held: int = 0
    expected_rewritten: int = 0
    rewritten: int = 0
    expected_usd: float | None = None
    cost_usd: float | None = None
    read_mtok: float | None = None
    write_mtok: float | None = None
    input_mtok: float | None = None


class Extension(Record):
    """For users' own records; the runtime keeps them and looks no further."""

    kind = "extension"
    name: str
    data: dict[str, Any] = Field(default_factory=dict[str, Any])


_POD: tuple[type[Record], ...] = (
    Lease, SegmentStarted, RunStarted, InstructionsChanged,
    RunContinued, YieldedEntry, RunEndedEntry, CompactionStarted, CompactionRung, CheckpointMade, NativeMade,
    CompactionFailed, CompactionCompleted, CompactionInterrupted, Breaker, Pin, ManifestChanged, TextsRestored, OrphanKilled, InputRejected,
    Repaired, Commanded, HookRan, ServerTold, Verified, Measured, Extension,
)  # fmt: skip
_WORKER: tuple[type[Record], ...] = (
    w.Input, w.Admitted, w.Withdrawn, w.ContextAdded, w.Edited, w.Pruned, w.ReplyRecord, w.ToolStarted, w.ToolResult,
    w.Retry, w.Paced, w.ModelSwitched, w.WindowLearned, w.ProviderRefused, w.SizeRefused, w.TokensCounted, w.ToolsChanged, w.Warned,
)  # fmt: skip


def _interceptors() -> tuple[type[Record], ...]:
    from interceptors.approvals import ApprovalAnswered, ApprovalAsked, PermissionDenied

    return (ApprovalAsked, ApprovalAnswered, PermissionDenied)


KINDS: dict[str, type[Record]] = {record.kind: record for record in (*_POD, *_WORKER, *_interceptors())}


def body_of(record: Record) -> bytes:
    """A record as the JSON bytes of an entry's body. Halves of characters, as a name on the disk may hold, are replaced (case B145)."""
    try:
        return record.model_dump_json(exclude_none=True).encode()
    except PydanticSerializationError:
        values = _clean(record.model_dump(mode="json", exclude_none=True))
        return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def record_of(line: Line, path: Any = "") -> Record | None:
    """The record in an entry; None for a kind of a newer version (kept and passed over).

    Raises `LogDamaged` for a wrong body.
    """
    model = KINDS.get(line.kind)
    if model is None:
        return None
    try:
        return model.model_validate_json(line.body)
    except ValueError as e:
        if (record := _with_valid_unicode(model, line.body)) is not None:
            return record
        why = first_problem(e) if isinstance(e, ValidationError) else " ".join(str(e).split())
        raise LogDamaged(path, line.number, line.offset, f"a {line.kind} entry that does not read: {why}") from e


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with a value, in one line: where it stands in the value, and what."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else found["msg"]


def _with_valid_unicode(model: type[Record], body: bytes) -> Record | None:
    """The record of a body with halves of characters in its escapes (case B145); None for other faults."""
    if rb"\u" not in body:
        return None
    try:
        return model.model_validate_json(json.dumps(_clean(json.loads(body))))
    except ValueError:
        return None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean(v) for v in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {clean(k): _clean(v) for k, v in cast("dict[str, Any]", value).items()}
    return value
