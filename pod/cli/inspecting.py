"""`pod inspect`: the whole session as a timeline with figures."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from pod.cli.logs import events
from pod.cli.output import show, show_json
from pod.cli.progress import Lines, why_ended, worker_figures
from pod.cli.sending import folder_of
from pod.cli.text import count, money, one_line, share, span, table, told
from pod.events import Event

PRUNES = {
    "min_savings": "it saves enough to pay ([prune] min_savings)",
    "cold_cache": "the provider's cache had run out anyway",
    "model_changed": "the model changed, and with it the cache",
    "tools_changed": "the tools changed, and with them the cache",
    "new_segment": "a new segment has no cache yet",
    "trigger": "it takes the context back under its trigger",
    "ceiling": "the request would not have fitted otherwise",
}
"""Reasons of a prune, in words."""


@dataclass
class Stretch:
    """One segment's figures. Tokens are those of the largest request."""

    segment: str
    lineage: str
    first: int
    at: str
    requests: int = 0
    tools: int = 0
    errors: int = 0
    prunes: int = 0
    saved: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    largest: int = 0
    cost: float | None = 0.0
    began_by: str = ""


ASKED = frozenset({"approval.asked", "approval.answered", "permission.denied"})
"""Events about questions and denials."""


@dataclass
class Timeline:
    """What happened, in order: steps as rows, segments as sums. `asked` has the lines about questions and denials, by
    the step's number; one that another line tells is empty."""

    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    segments: list[Stretch] = field(default_factory=list[Stretch])
    request: int = 0
    asked: dict[int, str] = field(default_factory=dict[int, str])
    _lines: Lines = field(default_factory=lambda: Lines(verbose=True, width=200))

    @property
    def now(self) -> Stretch:
        """The segment that the last event belongs to."""
        if not self.segments:
            self.segments.append(Stretch("?", "?", 0, ""))
        return self.segments[-1]

    def add(self, event: Event) -> None:
        """Follows an event."""
        what: dict[str, Any] | None = None
        now = self.now if self.segments or event.type != "segment.started" else None
        if event.type in ASKED or (event.type == "tool.completed" and event.status == "denied"):
            self.asked[event.seq] = self._lines.of(event) or ""
        match event.type:
            case "segment.started":
                self.segments.append(Stretch(event.segment, event.lineage, event.seq, event.at))
                what = {"segment": event.segment, "lineage": event.lineage, "items": event.items}
            case "input.received":
                what = {"text": event.text}
            case "run.started":
                self.request = 0
                what = {"run": event.run}
            case "run.ended":
                what = {"run": event.run, "status": event.status, "error_kind": event.error_kind, "error": event.error}
            case "run.yielded":
                what = {"reason": event.reason}
            case "request.completed":
                what = self._request(event, now or self.now)
            case "tool.completed":
                here = now or self.now
                here.tools += 1
                here.errors += event.status != "ok"
                what = {"tool": event.name, "status": event.status, "summary": event.summary, "seconds": event.seconds}
            case "context.pruned":
                here = now or self.now
                here.prunes += 1
                here.saved += event.tokens_saved
                what = {
                    "results": event.results,
                    "saved": event.tokens_saved,
                    "before": event.tokens_before,
                    "reason": event.reason,
                }
            case "compaction.started":
                what = {"trigger": event.trigger, "tokens": event.tokens, "items": event.items}
            case "compaction.rung":
                what = {"rung": event.rung, "state": event.state, "reason": event.reason, "figures": event.figures}
            case "compaction.completed":
                self.now.began_by = event.rung
                what = {
                    "rung": event.rung,
                    "trigger": event.trigger,
                    "before": event.before,
                    "after": event.after,
                    "notes": list(event.notes),
                }
            case "compaction.failed":
                what = {"reason": event.reason, "mandatory": event.mandatory}
            case "segment.verified":
                what = {"reported": event.reported, "estimated": event.estimated, "accepted": event.accepted}
            case "retry":
                what = {"error": event.error, "attempt": event.attempt, "wait": event.wait}
            case "warning":
                what = {"code": event.code, "message": event.message}
            case "approval.asked":
                what = {"tool": event.tool, "summary": event.summary, "id": event.id}
            case "approval.answered":
                what = {"approved": event.approved, "by": event.by}
            case "permission.denied":
                what = {"tool": event.tool, "summary": event.summary, "reason": event.reason}
            case (
                "model.switched"
                | "context.window_learned"
                | "context.size_refused"
                | "process.orphan_killed"
                | "log.repaired"
            ):
                what = event.model_dump(exclude={"seq", "at", "type"})
            case _:
                return
        self.steps.append({"seq": event.seq, "at": event.at, "type": event.type, **what})

    def _request(self, event: Any, here: Stretch) -> dict[str, Any]:
        tokens = event.input_tokens if event.input_tokens is not None else event.estimate
        here.requests += 1
        self.request += 1
        here.prompt += tokens
        here.cached += event.cached_tokens
        here.output += event.output_tokens
        here.largest = max(here.largest, tokens)
        if event.cost_usd is None or here.cost is None:
            here.cost = None
        else:
            here.cost += event.cost_usd
        return {
            "request": self.request, "input": tokens, "estimate": event.estimate, "cached": event.cached_tokens,
            "output": event.output_tokens, "calls": [call.name for call in event.calls], "text": event.text,
            "cost_usd": event.cost_usd, "seconds": event.seconds, "attempts": event.attempts, "stop": event.stop,
        }  # fmt: skip


def inspect(args: argparse.Namespace) -> int:
    """Prints the timeline."""
    timeline = Timeline()
    for _, event in events(folder_of(args.name)):
        if event is not None:
            timeline.add(event)
    if args.json:
        show_json({"pod": args.name, "segments": [vars(s) for s in timeline.segments], "timeline": timeline.steps})
        return 0
    for step in timeline.steps:
        if text := timeline.asked[step["seq"]] if step["seq"] in timeline.asked else _line(step):
            show(f"{step['seq']:>6}  {step['at'][:19]}Z  {text}")
    show("")
    show(_sums(timeline))
    return 0


def _line(step: dict[str, Any]) -> str:
    match step["type"]:
        case "segment.started":
            lineage = step["lineage"].replace("_", " ")
            return f"=== segment {step['segment']} ({lineage}), {count(step['items'], 'item')}"
        case "input.received":
            return f"input: {one_line(step['text'])}"
        case "run.started":
            return "run started"
        case "run.ended":
            return one_line(f"run {step['status']}{why_ended(step['error_kind'], step['error'])}", 600)
        case "run.yielded":
            return f"yielded: {one_line(step['reason'])}"
        case "request.completed":
            off = step["estimate"] - step["input"]
            cost = f", {money(step['cost_usd'])}" if step["cost_usd"] is not None else ""
            calls = f" -> {', '.join(step['calls'])}" if step["calls"] else f": {one_line(step['text'], 100)}"
            return (f"request {step['request']}: {step['input']:,} in ({share(step['cached'], step['input'])} cached, "
                    f"estimate {off:+,}), {step['output']:,} out, {span(step['seconds'])}{cost}{calls}")  # fmt: skip
        case "tool.completed":
            mark = "" if step["status"] == "ok" else f" [{step['status']}]"
            return f"  {one_line(told(step['tool'], step['summary'], mark), 160)}"
        case "context.pruned":
            part = share(step["saved"], step["before"])
            what = f"{step['saved']:,} of {step['before']:,} tokens saved ({part})"
            why = PRUNES.get(step["reason"], one_line(step["reason"]))
            return f"pruned {count(step['results'], 'result')}: {what}, because {why}"
        case "compaction.started":
            return f"compaction ({step['trigger']}): {step['tokens']:,} tokens, {count(step['items'], 'item')}"
        case "compaction.rung":
            reason = f": {one_line(step['reason'], 200)}" if step["reason"] else ""
            return f"  {step['rung']} {step['state']}{worker_figures(step['figures'])}{reason}"
        case "compaction.completed":
            notes = "".join(f"; {one_line(note, 100)}" for note in step["notes"][:3])
            return f"compacted by {step['rung']}: {step['before']:,} -> {step['after']:,} tokens{notes}"
        case "compaction.failed":
            return f"compaction failed{' (mandatory)' if step['mandatory'] else ''}: {one_line(step['reason'], 300)}"
        case "segment.verified":
            word = "as accepted" if step["accepted"] else "NOT as accepted"
            return f"first report: {step['reported']:,} tokens, {step['estimated']:,} estimated, {word}"
        case kind:
            rest = ", ".join(
                f"{k} {one_line(str(v), 120)}"
                for k, v in step.items()
                if k not in {"seq", "at", "type"} and v not in ("", None)
            )
            return f"{kind}: {rest}"


def _sums(timeline: Timeline) -> str:
    heads = (
        "SEGMENT",
        "BEGAN BY",
        "FROM",
        "REQUESTS",
        "LARGEST",
        "INPUT",
        "CACHED",
        "OUTPUT",
        "TOOLS",
        "PRUNED",
        "COST",
    )
    rows = [
        (s.segment[-12:], s.began_by or s.lineage.replace("_", " "), str(s.first), str(s.requests), f"{s.largest:,}",
         f"{s.prompt:,}", share(s.cached, s.prompt), f"{s.output:,}",
         f"{s.tools}" + (f" ({s.errors} failed)" if s.errors else ""),
         f"{s.saved:,} in {s.prunes}" if s.prunes else "-", "-" if s.cost is None else money(s.cost))
        for s in timeline.segments
    ]  # fmt: skip
    return table(rows, heads)
