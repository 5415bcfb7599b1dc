"""`pod inspect`: the whole session as a timeline with figures, as text or as a page."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from pod.cli.failing import note
from pod.cli.listing import status_of
from pod.cli.output import show, show_bytes, show_json
from pod.cli.pages import write_page
from pod.cli.progress import Lines, begins, ends, hook_line, native_line, worker_figures
from pod.cli.sending import folder_of
from pod.cli.text import count, money, one_line, share, span, table, told, why_ended
from pod.events import Event, event_of
from pod.log.folder import PodFolder
from pod.log.segment import Damage
from pod.losses import losses
from pod.page import Page
from pod.peek import glance
from pod.reading import SessionReader
from pod.retrace import Entry, Stored, entries_of
from pod.timeline import Step, Stretch, Timeline
from worker.masking import Masker, secrets_in
from worker.text import size

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


WANTING = 5
"""Losses and damage that a page names one by one."""

AS_TOLD = frozenset(
    {
        "approval.asked",
        "approval.answered",
        "permission.denied",
        "run.yielded",
        "retry",
        "paced",
        "warning",
        "model.switched",
        "context.window_learned",
        "context.size_refused",
        "process.orphan_killed",
        "log.repaired",
    }
)
"""Events that stand here in the words of `pod log`."""


def inspect(args: argparse.Namespace) -> int:
    """Prints the timeline, or writes it as a page."""
    folder = folder_of(args.name)
    if args.html is not None:
        return _page(folder, args.html)
    timeline = Timeline(Stored(folder))
    told = _Told(Lines(verbose=True, width=200))
    steps: list[Step] = []
    wanting: list[str] = []
    for line, record in _entries(folder, wanting):
        told.add(event_of(line, record))
        if (step := timeline.add(line, record)) is not None:
            steps.append(step)
    if args.json:
        show_json(
            {"pod": args.name, "segments": [vars(s) for s in timeline.segments], "timeline": steps, "wanting": wanting}
        )
        return 0
    for step in steps:
        text = told.line(step)
        if text:
            show(f"{step['seq']:>6}  {step['at'][:19]}Z  {text}")
    show("")
    show(_sums(timeline))
    return 0


def _entries(folder: PodFolder, wanting: list[str]) -> Iterator[Entry]:
    """The session's entries; damage is passed over. What is wanting is said, and added to `wanting`."""

    def say(text: str) -> None:
        wanting.append(text)
        note(f"pod: warning: {text}")

    def damaged(segment: str, damage: Damage) -> None:
        say(f"{folder.segment_path(segment)}:{damage.number} (byte {damage.offset}): {damage.reason}; passed over")

    for loss in losses(folder):
        of_origin = "of the past that this fork took along, which is never in these figures"
        say(f"{loss}; {of_origin if loss.origin else 'not in these figures'}")
    return entries_of(folder, damaged, lambda seq, reason: say(f"entry {seq}: {reason}"))


# -- the page -------------------------------------------------------------------------------------------------


class _Told:
    """The lines of steps; those of some events are in the words that they have elsewhere."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._by_entry: dict[int, str] = {}

    def add(self, event: Event | None) -> None:
        denied = event is not None and event.type == "tool.completed" and event.status == "denied"
        if event is not None and (denied or event.type in AS_TOLD):
            self._by_entry[event.seq] = self._lines.of(event) or ""

    def line(self, step: Step) -> str:
        found = self._by_entry.get(step["seq"])
        return _line(step) if found is None else found

    def words(self, step: Step) -> str:
        """What a step says beside its figures."""
        if step["type"] == "request.completed":
            return ", ".join(step["calls"]) or one_line(step["text"])
        return self.line(step).strip()


def _page(folder: PodFolder, target: str) -> int:
    """Writes the timeline as one page of HTML."""
    timeline = Timeline(Stored(folder))
    told = _Told(Lines(verbose=True, width=200))
    page = Page(told.words, Masker(secrets_in(os.environ)))
    wanting: list[str] = []
    for line, record in _entries(folder, wanting):
        told.add(event_of(line, record))
        step = timeline.add(line, record)
        if step is not None:
            page.add(step, line, record)
    ended = [_ENDS.get(SessionReader(folder).chain().end, ""), *(f"Wanting: {text}." for text in wanting[:WANTING])]
    if len(wanting) > WANTING:
        ended.append(f"{len(wanting) - WANTING} more places of the log do not read.")
    text = page.html(folder.name, _facts(folder, timeline), timeline.segments, " ".join(filter(None, ended)))
    if target == "-":
        show_bytes(text.encode())
        return 0
    path = Path(target)
    write_page(path, text, "--html")
    requests = count(timeline.requests, "request")
    note(f"pod {folder.name}: {path}: {requests}, {size(len(text.encode()))}; open it in a browser")
    return 0


def _facts(folder: PodFolder, timeline: Timeline) -> dict[str, str]:
    look = glance(folder)
    segments = timeline.segments
    prompt, cached = sum(s.prompt for s in segments), sum(s.cached for s in segments)
    prunes, saved = sum(s.prunes for s in segments), sum(s.saved for s in segments)
    unknown = f" and {count(timeline.unpriced, 'request')} without a known price" if timeline.unpriced else ""
    return {
        "status": status_of(look),
        "model": look.model or "-",
        "created": look.created[:19].replace("T", " "),
        "folder": look.cwd,
        "segments": f"{len(segments):,}",
        "requests": f"{timeline.requests:,}",
        "input": f"{prompt:,} tokens, {share(cached, prompt)} cached",
        "output": f"{sum(s.output for s in segments):,} tokens",
        "pruned": f"{saved:,} tokens in {count(prunes, 'prune')}",
        "cost": money(timeline.cost) + unknown,
    }


_ENDS = {
    "cleared": "The session was cleared: nothing of before can be shown.",
    "forked": "The pod was forked there: what came before is not a part of these figures.",
    "missing": "An older segment is missing.",
    "unreadable": "An older segment does not read.",
}


# -- lines ----------------------------------------------------------------------------------------------------


def _line(step: Step) -> str:
    match step["type"]:
        case "segment.started":
            lineage = step["lineage"].replace("_", " ")
            return f"=== segment {step['segment']} ({lineage}), {count(step['items'], 'item')}"
        case "input.received":
            return f"input{' [rejected]' if 'rejected' in step else ''}: {one_line(step['text'])}"
        case "input.rejected":
            return one_line(f"input rejected, never to be sent: {step['reason']}", 600)
        case "run.started":
            return "run started"
        case "run.ended":
            return one_line(f"run {step['status']}{why_ended(step['error_kind'], step['error'])}", 600)
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
            return begins(step["rung"], step["trigger"], step["tokens"], step["items"])
        case "compaction.rung":
            reason = f": {one_line(step['reason'], 200)}" if step["reason"] else ""
            return f"  {step['rung']} {step['state']}{worker_figures(step['figures'])}{reason}"
        case "compaction.native":
            return f"  {native_line(step)}"
        case "compaction.completed":
            notes = "".join(f"; {one_line(note, 100)}" for note in step["notes"][:3])
            return f"{ends(step['rung'], step['before'], step['after'])}{notes}"
        case "compaction.failed":
            return f"compaction failed{' (mandatory)' if step['mandatory'] else ''}: {one_line(step['reason'], 300)}"
        case "hook.ran":
            return f"  {one_line(hook_line(step), 300)}"
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


def _tools(segment: Stretch) -> str:
    """How many calls there were, and how many of them came to nothing."""
    parts = ", ".join(f"{n} {word}" for n, word in ((segment.errors, "failed"), (segment.denied, "denied")) if n)
    return f"{segment.tools}" + (f" ({parts})" if parts else "")


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
         _tools(s),
         f"{s.saved:,} in {s.prunes}" if s.prunes else "-", "-" if s.cost is None else money(s.cost))
        for s in timeline.segments
    ]  # fmt: skip
    return table(rows, heads)
