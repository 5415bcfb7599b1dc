"""`pod show`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pod.cli.failing import note
from pod.cli.items import show_artifact, show_item
from pod.cli.listing import status_of
from pod.cli.output import show as print_text
from pod.cli.output import show_json
from pod.cli.permitted import denials, permits
from pod.cli.sending import folder_of
from pod.cli.text import age, count, figures, memory_line, money, one_line, question_lines, share, ways_out, why_ended
from pod.errors import LogDamaged, UsageProblem
from pod.log.entries import ServerTold
from pod.log.files import label_of
from pod.log.folder import PodFolder
from pod.losses import losses
from pod.peek import Glance, glance, row_of
from pod.server_words import warning_of
from pod.session import load
from pod.state import PodState
from pod.stored import kept
from pod.views import InstructionFile, facts_of, instruction_files, last_text
from worker.builtin.tool_state import PROCESSES_KEY
from worker.memory import memory_of, provenance
from worker.text import visible


def show(args: argparse.Namespace) -> int:
    """One pod: state, figures, what waits."""
    folder = folder_of(args.name)
    if args.item is not None:
        return show_item(folder, args.item, as_json=args.json)
    if args.artifact is not None:
        return show_artifact(folder, args.artifact)
    look = glance(folder)
    try:
        state = load(folder.segment_path(folder.pointer().segment))
    except LogDamaged as damage:
        note(f"pod: warning: {damage}")
        return _glanced(folder, look, as_json=args.json)
    if args.summary:
        return _summary(args.name, state, as_json=args.json)
    lost = _lost(folder)
    if args.json:
        show_json(facts_of(folder, look, state) | {"lost": lost})
    else:
        print_text(_text(folder, look, state, lost))
    return 1 if lost else 0


def _summary(name: str, state: PodState, *, as_json: bool) -> int:
    """The summary that the active segment began with."""
    text = state.summary
    if as_json:
        show_json({"pod": name, "segment": state.start.segment, "summary": text})
    elif text is None:
        raise UsageProblem(f"the active segment of pod {name!r} began without a summary")
    else:
        print_text(text)
    return 0


def _glanced(folder: PodFolder, look: Glance, *, as_json: bool) -> int:
    """What can be said of a pod whose log is damaged."""
    try:
        lost = _lost(folder)
    except LogDamaged:
        lost = []  # the active log itself, which is told already
    if as_json:
        show_json(row_of(look) | {"lost": lost})
        return 1
    more = " at least" if look.partial else ""
    rows = _head(folder, look, look.segments)
    if look.requests is not None:
        rows.append(("requests", f"{look.requests}{more}"))
    if look.cost_usd is not None:
        rows.append(("cost", f"{money(look.cost_usd)}{more}"))
    if look.compactions is not None:
        rows.append(("context", count(look.compactions, "compaction")))
    if look.waiting:
        rows.append(("messages", f"{look.waiting} in the inbox"))
    if look.problem:
        rows.append(("problem", look.problem))
    rows += _lost_rows(lost)
    rows.append(("damage", f"not all of the log can be read: pod doctor {look.name} says where"))
    print_text(figures(rows))
    return 1


def _lost(folder: PodFolder) -> list[str]:
    return [str(loss) for loss in losses(folder)]


def _lost_rows(lost: Sequence[str]) -> list[tuple[str, str]]:
    return [("lost", one_line(text, 400)) for text in lost]


def _log_of(folder: PodFolder, segment: str) -> str:
    """Where the active log lies: of a shared home, the copy here is gone in a moment."""
    path, shared = folder.segment_path(segment), label_of(folder.home)
    return str(path) if shared == str(folder.home) else f"{path.name} in {shared}"


def _head(folder: PodFolder, look: Glance, segments: int | None) -> list[tuple[str, str]]:
    """What is said of any pod, whole or damaged; what is not known is left out."""
    active = look.lineage.replace("_", " ") or look.segment
    many = "" if segments is None else f", {count(segments, 'segment')} (the active one: {active})"
    rows = [
        ("pod", look.name),
        ("status", f"{status_of(look)}, active {age(look.at)}" if look.at else status_of(look)),
        ("session", f"{look.session}{many}"),
        ("created", f"{look.created} ({age(look.created)})" if look.created else ""),
        ("folder", look.cwd),
        ("log", _log_of(folder, look.segment) if look.segment else ""),
    ]
    return [row for row in rows if row[1]]


def _instruction_row(each: InstructionFile) -> str:
    size = "lost" if each.bytes is None else f"{each.bytes:,} bytes"
    cut = f", cut: the file had {each.of:,}" if each.cut else ""
    return f"{each.path} ({size}{cut}; {each.sha256[:12]})"


def _server_row(told_of: ServerTold) -> str:
    """How a server of tools stood last."""
    waiting = "; it lists other tools by now, offered from the next segment on" if told_of.waiting else ""
    wrong = warning_of(told_of)
    return f"{told_of.server}: {told_of.state}, {count(told_of.tools, 'tool')}{waiting}{f'; {wrong}' if wrong else ''}"


def _rejected(name: str, state: PodState) -> str:
    """The messages of the last run that no request will ever hold, and why."""
    newest = state.rejected[-1]
    what = f"{count(len(state.rejected), 'message')}, never to be sent"
    return f"{what} (pod show {name} --item {newest.id}): {newest.reason}"


def _text(folder: PodFolder, look: Glance, state: PodState, lost: Sequence[str]) -> str:
    totals = state.totals
    cached = share(totals.cached_tokens, totals.prompt_tokens)
    tokens = f"{totals.prompt_tokens:,} tokens in ({cached} cached), {totals.output_tokens:,} out"
    rows = [
        *_head(folder, look, totals.segments),
        ("requests", f"{totals.requests}, {tokens}"),
        ("cost", money(None if totals.unpriced else totals.cost_usd)),
        ("context", f"{count(totals.prunes, 'prune')}, {count(totals.compactions, 'compaction')}"),
    ]  # fmt: skip
    for number, each in enumerate(instruction_files(folder, state)):
        rows.append(("instructions" if number == 0 else "", _instruction_row(each)))
    memory = memory_of(state.history.view)
    if memory is not None:
        facts = provenance(memory, state.history.tokens[0])
        rows.append(("memory", f"native, {memory_line(facts)}; pod show {look.name} --summary"))
    for label, by in totals.by.items():
        figure = f"{by.get('prompt_tokens', 0):,.0f} in, {by.get('output_tokens', 0):,.0f} out"
        rows.append(("", f"  {label}: {count(int(by.get('requests', 0)), 'request')}, {figure}"))
    found = kept(folder)
    if found.manifest is not None and found.cwd is not None:
        rows += permits(found.manifest, found.cwd)
    rows += denials(state, look.name)
    if state.ended is not None:
        result = state.ended.result
        why = why_ended(str(result.get("kind") or result.get("limit") or ""), str(result.get("message") or ""))
        rows.append(("last run", one_line(state.ended.status + why, 300)))
    if state.rejected:
        rows.append(("rejected", one_line(_rejected(look.name, state), 400)))
    for number, told_of in enumerate(state.servers.values()):
        rows.append(("servers" if number == 0 else "", one_line(_server_row(told_of), 400)))
    rows += _lost_rows(lost)
    if look.waiting or state.queued:
        rows.append(("messages", f"{len(state.queued)} queued, {look.waiting} in the inbox"))
    text = [figures(rows)]
    tasks: Any = state.tool_state.get("tasks") or []
    if tasks:
        from pod.context.opening import describe_task

        text += ["tasks:", *(f"  {one_line(describe_task(task), 160)}" for task in tasks)]
    jobs: Any = state.tool_state.get(PROCESSES_KEY) or []
    if jobs:
        text += [
            "processes in the background, as the log last told of them:",
            *(f"  {one_line(_job(job), 200)}" for job in jobs),
        ]
    for asked in state.approvals.values():
        first, *rest = question_lines(asked)
        text += [f"asks: {first}", *rest]
        text += [f"  {line}" for line in ways_out(look.name, asked.id, state.approvals)]
    if len(state.approvals) > 1:
        text += ["all of them:", *(f"  {line}" for line in ways_out(look.name, "--all"))]
    said = last_text(state)
    if said:
        text += ["last words:", *(f"  {line}" for line in visible(said[:2000]).splitlines())]
    return "\n".join(text)


def _job(job: dict[str, Any]) -> str:
    ended = "" if job.get("exit_code") is None else f", exit code {job['exit_code']}"
    return f"{job.get('id')}: {job.get('status', 'running')}{ended}, pid {job.get('pid')}: {job.get('command')}"
