"""Progress on standard error: plain lines, or a live display on a terminal.

What comes from a model or a tool is cleaned first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from interceptors.approvals import reach_of
from pod.cli.failing import note
from pod.cli.output import Output
from pod.cli.text import count, money, one_line, share, span, told, why_ended
from pod.events import Event, Init, Paced
from pod.result import RunResult

TURNS = {
    "requests": "the limit on requests",
    "tokens": "the limit on tokens",
    "input_tokens": "the limit on input tokens",
    "output_tokens": "the limit on output tokens",
    "rate_limited": "the provider refused others for their rate",
    "overloaded": "the provider is overloaded",
    "in_flight": "fewer requests go at a time after a refusal",
}
"""What a request waits for before its turn, in words."""


def turn_line(event: Paced) -> str:
    """A request that waits for its turn."""
    least = f", {span(event.wait)} at least" if event.wait else ""
    others = f", {count(event.waiting, 'request')} wait" if event.waiting > 1 else ""
    return f"waits for its turn: {TURNS.get(event.reason, event.reason)}{least}{others}"


class Progress(Protocol):
    """What shows a run's progress. No method waits or raises."""

    def begin(self, init: Init, *, fresh: bool) -> None: ...
    def event(self, event: Event) -> None: ...
    def waiting(self, owner: str) -> None: ...
    def pause(self) -> None: ...
    def go_on(self) -> None: ...
    def close(self) -> None: ...


def progress_of(output: Output, told: tuple[str, ...] = ()) -> Progress:
    """The display that fits. `told` are warnings that it does not show again."""
    if output.quiet:
        return Silent()
    if output.live:
        from pod.cli.live import Live

        return Live(verbose=output.verbose, told=told)
    return Plain(verbose=output.verbose, told=told)


class Silent:
    """`-q`: nothing but what waits for a human."""

    def begin(self, init: Init, *, fresh: bool) -> None:
        """Nothing."""

    def event(self, event: Event) -> None:
        """Nothing."""

    def waiting(self, owner: str) -> None:
        """Nothing."""

    def pause(self) -> None:
        """Nothing."""

    def go_on(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain(Silent):
    """One short line for each request, tool and compaction."""

    def __init__(self, *, verbose: bool = False, told: tuple[str, ...] = ()) -> None:
        self.lines = Lines(verbose=verbose, width=_width(), told=told)
        self._told = False

    def begin(self, init: Init, *, fresh: bool) -> None:
        """Says what runs."""
        note(headline(init, fresh=fresh))

    def event(self, event: Event) -> None:
        """The event as a line, where it has one."""
        line = self.lines.of(event)
        if line:
            note(line)

    def waiting(self, owner: str) -> None:
        """Says once that another process writes."""
        if not self._told:
            self._told = True
            note(f"pod: waiting for process {owner}, which writes to the pod")


def headline(init: Init, *, fresh: bool) -> str:
    """What runs, in one line."""
    triggers = ", ".join(f"{key} {value:,}" for key, value in init.triggers.items() if value is not None)
    ends = f"; {triggers}" if triggers else ""
    new = "" if fresh else " goes on"
    window = f"{init.available:,} tokens for input of {init.window:,} ({init.window_source})"
    return f"pod {init.pod}{new}: {init.model}, {window}{ends}"


def summary(result: RunResult) -> str:
    """A run's figures in one line."""
    own = count(result.requests, "request")
    more = result.compaction_requests
    parts = [f"{own} (and {more} for compactions)" if more else own, f"{result.input_tokens:,} tokens in"]
    if result.cached_tokens:
        parts[-1] += f" ({share(result.cached_tokens, result.input_tokens)} cached)"
    parts.append(f"{result.output_tokens:,} out")
    if result.tool_calls:
        parts.append(count(result.tool_calls, "call"))
    if result.denials:
        parts.append(f"{result.denials} denied")
    if result.prunes:
        parts.append(count(result.prunes, "prune"))
    if result.compactions:
        parts.append(count(result.compactions, "compaction"))
    parts += [*([money(result.cost_usd)] if result.cost_usd is not None else []), span(result.duration_s)]
    return ", ".join(parts)


def begins(rung: str, trigger: str, tokens: int, items: int) -> str:
    """A compaction that begins with a rung, in one line: a rollover summarises nothing."""
    verb, fate = ("rolling over", "stay behind") if rung == "rollover" else ("compacting", "to summarise")
    return f"{verb} ({trigger}): {tokens:,} tokens, {count(items, 'item')} {fate}"


def ends(rung: str, before: int, after: int) -> str:
    """A compaction that a rung made, in one line."""
    verb = "rolled over" if rung == "rollover" else f"compacted by {rung}"
    return f"{verb}: {before:,} -> {after:,} tokens"


def _change(change: Any) -> str:
    """What became of an instruction file, with the beginnings of its hashes."""
    if change.before is None:
        return f"{change.path} (new, {change.now[:8]})"
    if change.now is None:
        return f"{change.path} (gone, {change.before[:8]})"
    return f"{change.path} ({change.before[:8]} -> {change.now[:8]})"


class Lines:
    """Events as lines. Remembers what a line needs from earlier events. `told` are warnings that were shown already."""

    def __init__(self, *, verbose: bool = False, width: int = 100, told: tuple[str, ...] = ()) -> None:
        self.verbose = verbose
        self.width = width
        self.request = 0
        self.ceiling = 0
        self.cost: float | None = 0.0
        self._compacting = 0.0
        self.told = told
        self._asked: dict[str, Any] = {}
        self._denied: set[str] = set()

    def of(self, event: Event) -> str | None:
        """The line of an event; None for one that is not shown, nothing for one that another line has told."""
        match event.type:
            case "request.started":
                self.request, self.ceiling = event.request, event.ceiling
                return None
            case "request.completed":
                return self._request(event)
            case "tool.completed" if event.call_id in self._denied:
                return ""
            case "tool.completed":
                status = "" if event.status == "ok" else f" [{event.status}]"
                took = f" ({span(event.seconds)})" if event.seconds >= 0.1 else ""
                return self._cut(f"  {told(event.name, event.summary, status)}", took)
            case "context.pruned":
                saved = f"{event.tokens_saved:,} of {event.tokens_before:,} tokens saved"
                return f"pruned {count(event.results, 'result')}: {saved}"
            case "compaction.started":
                self._compacting = time.monotonic()
                return begins(event.rung, event.trigger, event.tokens, event.items)
            case "compaction.completed":
                took = span(time.monotonic() - self._compacting) if self._compacting else ""
                self._compacting = 0.0
                tail = f" ({took})" if took else ""
                return f"{ends(event.rung, event.before, event.after)}{tail}"
            case "compaction.failed":
                self._compacting = 0.0
                return self._cut(f"compaction failed: {event.reason}")
            case "compaction.rung" if self.verbose or event.state in {"failed", "skipped"}:
                reason = f": {event.reason}" if event.reason else ""
                return self._cut(
                    f"  {RUNG_STATES.get(event.state, event.state)} {event.rung}{worker_figures(event.figures)}{reason}"
                )
            case "compaction.native":
                return self._cut(f"  {native_line(event.model_dump())}")
            case "compaction.progress":
                return self._progress(event)
            case "retry":
                return self._cut(
                    f"retry {event.attempt} of {event.max_attempts} in {span(event.wait)}: "
                    f"{event.error}: {event.message}"
                )
            case "paced":
                return self._cut(turn_line(event))
            case "model.switched":
                verb = "passed over" if event.skipped else "takes over"
                return self._cut(f"{event.to_model} {verb}: {event.reason}")
            case "warning" if any(text.endswith(event.message) for text in self.told):
                return ""
            case "warning":
                return self._cut(f"warning: {event.message}", room=400)
            case "instructions.changed":
                return self._cut(f"instructions changed since the run before: {', '.join(map(_change, event.changes))}")
            case "permission.denied":
                by = event.reason.removeprefix("denied ")
                return self._denial(event.call_id, told(event.tool, event.summary) if event.summary else event.tool, by)
            case "hook.ran" if self.verbose or event.outcome != "passed":
                return self._cut(f"  {hook_line(event.model_dump())}", room=400 if event.outcome != "passed" else 0)
            case "approval.asked":
                self._asked[event.id] = event
                return self._cut(f"  asks: {told(event.tool, event.summary)}")
            case "context.size_refused":
                return self._cut(f"{event.model} refused the request for its size, not for its window: {event.message}")
            case "context.window_learned":
                return f"window of {event.model} learned: {event.window:,} tokens ({event.source})"
            case "log.repaired" | "process.orphan_killed":
                what = (
                    f"{event.length} bytes ({event.reason})"
                    if event.type == "log.repaired"
                    else f"processes {event.pids}"
                )
                return self._cut(f"{'repaired the log' if event.type == 'log.repaired' else 'ended'}: {what}")
            case _:
                return self._more(event) if self.verbose else None

    def _request(self, event: Any) -> str:
        tokens = event.input_tokens if event.input_tokens is not None else event.estimate
        if event.cost_usd is None:
            self.cost = None
        elif self.cost is not None:
            self.cost += event.cost_usd
        of = f" of {self.ceiling:,} ({share(tokens, self.ceiling)})" if self.ceiling else ""
        calls = f", {count(len(event.calls), 'call')}" if event.calls else ""
        said = f": {one_line(event.text, 200)}" if self.verbose and event.text else ""
        number = f" {self.request}" if self.request else ""
        head = f"request{number}: {tokens:,}{of} tokens in, {event.output_tokens:,} out{calls}, {span(event.seconds)}"
        return self._cut(head + said)

    def _answer(self, event: Any) -> str:
        """A no stands for the denial that follows from it."""
        asked = self._asked.get(event.id)
        what = told(asked.tool, asked.summary) if asked else "a call"
        by = f"by {one_line(event.by, 60) or 'a human'}"
        if not event.approved:
            said = f": {event.message}" if event.message else ""
            return self._denial(asked.call_id if asked else "", what, by + said)
        reach = f" ({reach_of(asked.scope, event.scope)})" if asked else ""
        return f"  approved: {one_line(what, WHAT)}; {by}{reach}"

    def _denial(self, call_id: str, what: str, by: str) -> str:
        """What was denied, and by whom: one line for a call."""
        if call_id in self._denied:
            return ""
        if call_id:
            self._denied.add(call_id)
        return self._cut(f"  denied: {one_line(what, WHAT)}; {by}", room=400)

    def _progress(self, event: Any) -> str | None:
        elapsed = event.figures.get("elapsed")
        if elapsed is not None:
            return f"  compacting: {event.stage.removeprefix('compaction.')}, {span(float(elapsed))}"
        return self._cut(f"  compaction: {event.stage} {_named(event.figures)}") if self.verbose else None

    def _more(self, event: Event) -> str | None:
        match event.type:
            case "input.received":
                return self._cut(f"input: {event.text}")
            case "input.rejected":
                return self._cut(f"input rejected, never to be sent: {event.reason}", room=600)
            case "context.added":
                return f"added by {event.by}: {', '.join(event.kinds)}"
            case "segment.started":
                lineage = event.lineage.replace("_", " ")
                return f"segment {event.segment} ({lineage}), {count(event.items, 'item')}"
            case "segment.verified":
                return f"new segment: {event.reported:,} tokens reported, {event.estimated:,} estimated"
            case "approval.answered":
                return self._answer(event)
            case "run.yielded":
                return f"the run waits: {YIELDS.get(event.reason, one_line(event.reason, 200))}"
            case "run.started":
                return "run started"
            case "run.ended":
                return self._cut(f"run {event.status}{why_ended(event.error_kind, event.error)}", room=600)
            case _:
                return None

    def _cut(self, text: str, tail: str = "", room: int = 0) -> str:
        lead = text[: len(text) - len(text.lstrip(" "))]
        return lead + one_line(text, max(room or self.width, 20) - len(tail) - len(lead)) + tail


WHAT = 120
"""Characters of a call's tool and file or command in a line that says more."""

RUNG_STATES = {"tried": "tries", "done": "done by", "failed": "failed:", "skipped": "skipped:"}
"""What became of a rung of the ladder, before its name."""

YIELDS = {"compact": "its context is compacted first", "approval": "a human is asked"}
"""Why a run left its loop, in words."""


def worker_figures(figures: dict[str, Any]) -> str:
    """What a compact worker took, as the rest of a line."""
    requests = figures.get("requests")
    if not requests:
        return ""
    tokens = f"{figures.get('prompt_tokens', 0):,.0f} in, {figures.get('output_tokens', 0):,.0f} out"
    return f" ({count(int(requests), 'request')}, {tokens})"


def native_line(figures: Mapping[str, Any]) -> str:
    """What a provider's own compaction took, and what it is known by."""
    asked = count(int(figures["attempts"]), "request")
    tokens = f"{figures['input_tokens'] or 0:,} in, {figures['output_tokens']:,} out"
    return (
        f"memory by {figures['model']} ({figures['way']}): {asked}, {tokens}, sha256 {figures['payload_sha256'][:12]}"
    )


def hook_line(facts: Mapping[str, Any]) -> str:
    """What a hook said, in one line."""
    about = " ".join(filter(None, (facts["event"], facts["tool"])))
    passed = facts["outcome"] == "failed" and not facts["blocked"]
    why = f": {facts['reason']}" if facts["reason"] else ""
    return f"hook {facts['name']} ({about}) {facts['outcome']}{' and was passed over' if passed else ''} in {facts['ms']} ms{why}"


def _named(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in figures.items()
    )


def _width() -> int:
    try:
        return max(os.get_terminal_size(2).columns, 40)
    except OSError:
        return 160
