"""A session as a timeline: a pure fold of its entries, in order, into steps, requests and segments with figures.

What a request held by category is not in the log: the fold replays each segment's history once and keeps the sums up to
date as the view changes, so that no request costs a walk over the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from interceptors.ceiling import Overhead
from pod.events import Event, RequestCompleted, event_of
from pod.log import entries as e
from pod.log.lines import Line
from pod.state import PodState
from worker import records as w
from worker.budget import LearnedWindow
from worker.history import History
from worker.items import ContextItem, Item, ToolResultItem, UserItem
from worker.models.base import Family
from worker.records import Record

Step: TypeAlias = dict[str, Any]
"""What an entry tells: `seq`, `at`, `type` (that of its event) and figures."""

CATEGORIES = ("instructions", "tool schemas", "current request", "history", "tool results", "context items")
"""What a request is made of, in the order of the budget."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounded a request. Tokens."""

    window: int
    available: int
    reserve: int
    triggers: Mapping[str, int] = field(default_factory=dict[str, int])


class Setting(Protocol):
    """What the log names by a hash alone."""

    def family(self, manifest: str) -> Family:
        """The estimator of a manifest's model."""
        ...

    def overhead(self, system: str, schemas: str, family: Family) -> Overhead:
        """What system prompt and schemas cost."""
        ...

    def bounds(self, manifest: str, model: str, learned: LearnedWindow | None) -> Bounds | None:
        """What bounds requests to a model, None where it is not known."""
        ...


@dataclass
class Stretch:
    """One segment's figures. `largest` is its largest request in tokens; sums of what was sent are in `prompt`. A call that was refused
    counts in `denied`, one that failed or was interrupted in `errors`.
    """

    segment: str
    lineage: str
    first: int
    at: str
    requests: int = 0
    tools: int = 0
    errors: int = 0
    denied: int = 0
    prunes: int = 0
    saved: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    largest: int = 0
    cost: float | None = 0.0
    began_by: str = ""


@dataclass
class Filling:
    """The tokens of a view by category. `follow` it after each record."""

    kinds: list[str] = field(default_factory=list[str])
    tokens: list[int] = field(default_factory=list[int])
    users: list[int] = field(default_factory=list[int])
    sums: dict[str, int] = field(default_factory=dict[str, int])
    _changes: int = 0

    def follow(self, history: History) -> None:
        """Takes over what changed in the view since the last call."""
        for at in history.changes[self._changes :]:
            if at < 0:
                self._drop(~at)
            elif at < len(self.tokens):
                self._count(at, -1)
                self.kinds[at], self.tokens[at] = _kind(history.view[at]), history.tokens[at]
                self._count(at, 1)
        self._changes = len(history.changes)
        for at in range(len(self.tokens), len(history.view)):
            self.kinds.append(_kind(history.view[at]))
            self.tokens.append(history.tokens[at])
            if self.kinds[at] == "user":
                self.users.append(at)
            self._count(at, 1)

    def categories(self, overhead: Overhead, unanswered: int) -> dict[str, int]:
        """Estimates by category, as `interceptors.ceiling.budget_table` gives them."""
        newest = self.users[-1] if self.users else -1
        since = min(newest, unanswered - 1) if unanswered else newest
        current = 0
        for at in reversed(self.users):
            if at < since:
                break
            current += self.tokens[at]
        sums = self.sums
        other = sums.get("history", 0) + sums.get("user", 0) - current
        found = (
            overhead.instructions, overhead.schemas, current, other, sums.get("tool results", 0),
            sums.get("context items", 0),
        )  # fmt: skip
        return dict(zip(CATEGORIES, found, strict=True))

    def _count(self, at: int, sign: int) -> None:
        kind = self.kinds[at]
        self.sums[kind] = self.sums.get(kind, 0) + sign * self.tokens[at]

    def _drop(self, at: int) -> None:
        if at >= len(self.tokens):
            return
        self._count(at, -1)
        del self.kinds[at], self.tokens[at]
        self.users = [user - (user > at) for user in self.users if user != at]


def _kind(item: Item) -> str:
    match item:
        case UserItem():
            return "user"
        case ToolResultItem():
            return "tool results"
        case ContextItem():
            return "context items"
        case _:
            return "history"


def scaled(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """Parts in the same proportions whose sum is `total`; what rounding leaves goes to the largest."""
    whole = sum(parts.values())
    if not whole:
        return dict(parts)
    found = {name: value * total // whole for name, value in parts.items()}
    largest = max(found, key=lambda name: found[name])
    found[largest] += total - sum(found.values())
    return found


@dataclass
class Timeline:
    """What happened, entry by entry: `add` gives the steps, `segments` are sums.

    The step of an input gets `rejected`, the reason, once it is known that no request will ever hold it.
    A request's step has `input` (tokens as reported, else as estimated), `categories` (estimates, scaled so that their
    sum is `input`), what bounded it, and `cost_so_far`: the session's known cost behind it, compactions included.
    """

    setting: Setting
    segments: list[Stretch] = field(default_factory=list[Stretch])
    request: int = 0
    requests: int = 0
    cost: float = 0.0
    unpriced: int = 0
    _state: PodState | None = None
    _filling: Filling = field(default_factory=Filling)
    _manifest: str = ""
    _run: str = ""
    _inputs: dict[str, Step] = field(default_factory=dict[str, Step])
    _overhead: Overhead = field(default_factory=Overhead)

    @property
    def now(self) -> Stretch:
        """The segment that the last entry belongs to."""
        if not self.segments:
            self.segments.append(Stretch("?", "?", 0, ""))
        return self.segments[-1]

    def add(self, line: Line, record: Record) -> Step | None:
        """Follows an entry; its step, where it has one."""
        if isinstance(record, e.SegmentStarted):
            self._begin(record)
        event = event_of(line, record)
        what = None if event is None else self._told(event, record)
        self._follow(record)
        if event is None or what is None:
            return None
        step: Step = {"seq": event.seq, "at": event.at, "type": event.type, **what}
        if event.type == "input.received":
            self._inputs[event.id] = step
        elif event.type == "input.rejected" and event.id in self._inputs:
            self._inputs[event.id]["rejected"] = event.reason
        return step

    # -- the replay -------------------------------------------------------------------------------------------

    def _begin(self, start: e.SegmentStarted) -> None:
        self._manifest = start.blobs.get("manifest", "")
        self._state = PodState.begin(start, self.setting.family(self._manifest))
        self._filling = Filling()
        self._filling.follow(self._state.history)
        self._weigh(start.blobs.get("system", ""), start.blobs.get("schemas", ""))

    def _weigh(self, system: str, schemas: str) -> None:
        assert self._state is not None
        self._overhead = self.setting.overhead(system, schemas, self._state.history.family)

    def _follow(self, record: Record) -> None:
        if self._state is None or isinstance(record, e.SegmentStarted):
            return
        history = self._state.history
        history.apply(record)
        self._filling.follow(history)
        match record:
            case e.ManifestChanged():
                self._manifest = record.digest
            case w.ToolsChanged():
                self._weigh(record.system, record.tools)
            case _:
                pass

    # -- the telling ------------------------------------------------------------------------------------------

    def _told(self, event: Event, record: Record) -> Step | None:
        match event.type:
            case "segment.started":
                self.segments.append(Stretch(event.segment, event.lineage, event.seq, event.at))
                return {"segment": event.segment, "lineage": event.lineage, "items": event.items}
            case "input.received":
                return {"id": event.id, "text": event.text}
            case "input.rejected":
                return {"id": event.id, "reason": event.reason}
            case "run.started":
                self.request, self._run = 0, event.run
                return {"run": event.run}
            case "run.ended":
                return {"run": event.run, "status": event.status, "error_kind": event.error_kind, "error": event.error}
            case "run.yielded":
                return {"reason": event.reason}
            case "request.completed":
                return self._request(event, record)
            case "tool.completed":
                self.now.tools += 1
                self.now.denied += event.status == "denied"
                self.now.errors += event.status not in {"ok", "denied"}
                return {"tool": event.name, "status": event.status, "summary": event.summary, "seconds": event.seconds}
            case "context.pruned":
                self.now.prunes += 1
                self.now.saved += event.tokens_saved
                return {
                    "results": event.results, "saved": event.tokens_saved, "before": event.tokens_before,
                    "reason": event.reason,
                }  # fmt: skip
            case _:
                return self._compaction(event)

    def _compaction(self, event: Event) -> Step | None:
        match event.type:
            case "compaction.started":
                return {"trigger": event.trigger, "tokens": event.tokens, "items": event.items, "rung": event.rung}
            case "compaction.rung":
                self._worker(event.figures, event.state)
                return {"rung": event.rung, "state": event.state, "reason": event.reason, "figures": event.figures}
            case "compaction.native":
                self.cost += event.cost_usd or 0
                self.unpriced += event.cost_usd is None
                return event.model_dump(exclude={"seq", "at", "type", "compaction"})
            case "compaction.completed":
                self.now.began_by = event.rung
                return {
                    "rung": event.rung, "trigger": event.trigger, "before": event.before, "after": event.after,
                    "notes": list(event.notes),
                }  # fmt: skip
            case "compaction.failed":
                return {"reason": event.reason, "mandatory": event.mandatory}
            case "segment.verified":
                return {"reported": event.reported, "estimated": event.estimated, "accepted": event.accepted}
            case _:
                return _other(event)

    def _worker(self, figures: Mapping[str, Any], state: str) -> None:
        """What a compact worker cost, counted as the session counts it."""
        if state in {"done", "failed"} and figures.get("requests"):
            self.cost += float(figures.get("cost_usd") or 0)
            self.unpriced += int(figures.get("unpriced") or 0)

    def _request(self, event: RequestCompleted, record: Record) -> Step:
        here = self.now
        tokens = event.input_tokens or event.estimate
        here.requests += 1
        self.request += 1
        self.requests += 1
        here.prompt += tokens
        here.cached += event.cached_tokens
        here.output += event.output_tokens
        here.largest = max(here.largest, tokens)
        if event.cost_usd is None:
            here.cost = None
            self.unpriced += 1
        else:
            here.cost = None if here.cost is None else here.cost + event.cost_usd
            self.cost += event.cost_usd
        return {
            "request": self.request, "input": tokens, "estimate": event.estimate, "cached": event.cached_tokens,
            "output": event.output_tokens, "calls": [call.name for call in event.calls], "text": event.text,
            "cost_usd": event.cost_usd, "seconds": event.seconds, "attempts": event.attempts, "stop": event.stop,
            "number": self.requests, "run": self._run, "segment": here.segment, "model": event.model,
            "reported": bool(event.input_tokens), "cost_so_far": self.cost, **self._held(event.model, tokens),
        }  # fmt: skip

    def _held(self, model: str, tokens: int) -> Step:
        """What the request was made of, and what bounded it."""
        if self._state is None:
            return {"categories": {}, "window": None, "available": None, "reserve": None, "triggers": {}}
        history = self._state.history
        parts = self._filling.categories(self._overhead, history.unanswered)
        bounds = self.setting.bounds(self._manifest, model, history.windows.get(model))
        return {
            "categories": scaled(parts, tokens),
            "window": bounds.window if bounds else None,
            "available": bounds.available if bounds else None,
            "reserve": bounds.reserve if bounds else None,
            "triggers": dict(bounds.triggers) if bounds else {},
        }


def _other(event: Event) -> Step | None:
    match event.type:
        case "retry":
            return {"error": event.error, "attempt": event.attempt, "wait": event.wait}
        case "paced":
            return {"reason": event.reason, "wait": event.wait, "waiting": event.waiting}
        case "warning":
            return {"code": event.code, "message": event.message}
        case "approval.asked":
            return {"tool": event.tool, "summary": event.summary, "id": event.id}
        case "approval.answered":
            return {"approved": event.approved, "by": event.by}
        case "permission.denied":
            return {"tool": event.tool, "reason": event.reason}
        case (
            "model.switched"
            | "context.window_learned"
            | "context.size_refused"
            | "context.counted"
            | "hook.ran"
            | "process.orphan_killed"
            | "log.repaired"
        ):
            return event.model_dump(exclude={"seq", "at", "type"})
        case _:
            return None
