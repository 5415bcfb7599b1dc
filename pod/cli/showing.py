"""`pod show` and `pod context`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pod.cli.failing import note
from pod.cli.items import show_artifact, show_item
from pod.cli.listing import status_of
from pod.cli.output import show as print_text
from pod.cli.output import show_json
from pod.cli.progress import why_ended
from pod.cli.sending import folder_of
from pod.cli.text import age, clean, count, figures, money, one_line, share, told
from pod.errors import LogDamaged, UsageProblem
from pod.log.folder import PodFolder
from pod.outlook import Outlook, outlook
from pod.peek import Glance, glance
from pod.result import whole_counts
from pod.session import load
from pod.state import PodState
from worker.items import AssistantItem
from worker.occupancy import Occupancy


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
        return _glanced(look, as_json=args.json)
    if args.summary:
        return _summary(args.name, state, as_json=args.json)
    if args.json:
        show_json(_facts(look, state))
        return 0
    print_text(_text(folder, look, state))
    return 0


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


def _glanced(look: Glance, *, as_json: bool) -> int:
    """What can be said of a pod whose log is damaged."""
    facts = {key: value for key, value in asdict(look).items() if key != "blobs"}
    if as_json:
        show_json(facts)
    else:
        print_text(figures([(key, str(value)) for key, value in facts.items() if value not in ("", None)]))
    return 1


def _facts(look: Glance, state: PodState) -> dict[str, Any]:
    totals = state.totals
    return {
        "name": look.name,
        "status": look.status,
        "session": look.session,
        "segment": look.segment,
        "lineage": look.lineage,
        "created": look.created,
        "active": look.at,
        "cwd": look.cwd,
        "manifest": state.manifest,
        "run": state.run,
        "totals": {**totals.model_dump(), "by": whole_counts(totals.by)},
        "cost_usd": None if totals.unpriced else totals.cost_usd,
        "items": len(state.history.view),
        "queued": [item.text for item in state.queued],
        "inbox": look.waiting,
        "approvals": [asked.model_dump() for asked in state.approvals.values()],
        "tasks": state.tool_state.get("tasks") or [],
        "ended": None if state.ended is None else {"status": state.ended.status, "result": state.ended.result},
        "last_text": _last_text(state),
    }


def _last_text(state: PodState) -> str:
    return next((item.text for item in reversed(state.history.view) if isinstance(item, AssistantItem)), "")


def _text(folder: PodFolder, look: Glance, state: PodState) -> str:
    totals, lineage = state.totals, look.lineage.replace("_", " ")
    cached = share(totals.cached_tokens, totals.prompt_tokens)
    tokens = f"{totals.prompt_tokens:,} tokens in ({cached} cached), {totals.output_tokens:,} out"
    rows = [
        ("pod", look.name),
        ("status", f"{status_of(look)}, active {age(look.at)}"),
        ("session", f"{look.session}, {count(totals.segments, 'segment')} (the active one: {lineage})"),
        ("created", f"{look.created} ({age(look.created)})"),
        ("folder", look.cwd),
        ("log", str(folder.segment_path(look.segment))),
        ("requests", f"{totals.requests}, {tokens}"),
        ("cost", money(None if totals.unpriced else totals.cost_usd)),
        ("context", f"{count(totals.prunes, 'prune')}, {count(totals.compactions, 'compaction')}"),
    ]  # fmt: skip
    for label, by in totals.by.items():
        figure = f"{by.get('prompt_tokens', 0):,.0f} in, {by.get('output_tokens', 0):,.0f} out"
        rows.append(("", f"  {label}: {count(int(by.get('requests', 0)), 'request')}, {figure}"))
    if state.ended is not None:
        result = state.ended.result
        why = why_ended(str(result.get("kind") or result.get("limit") or ""), str(result.get("message") or ""))
        rows.append(("last run", one_line(state.ended.status + why, 300)))
    if look.waiting or state.queued:
        rows.append(("messages", f"{len(state.queued)} queued, {look.waiting} in the inbox"))
    text = [figures(rows)]
    tasks: Any = state.tool_state.get("tasks") or []
    if tasks:
        from pod.context.opening import describe_task

        text += ["tasks:", *(f"  {one_line(describe_task(task), 160)}" for task in tasks)]
    for asked in state.approvals.values():
        text.append(f"asks: {one_line(told(asked.tool, asked.summary), 300)}")
        text += [f"  {line}" for line in clean(asked.diff or "").splitlines()[:40]]
        text.append(f"  pod approve {look.name} {asked.id} --resume     or: pod deny {look.name} {asked.id} --resume")
    said = _last_text(state)
    if said:
        text += ["last words:", *(f"  {line}" for line in clean(said[:2000]).splitlines())]
    return "\n".join(text)


# -- context --------------------------------------------------------------------------------------------------


def context(args: argparse.Namespace) -> int:
    """What fills the context, and its limits."""
    view = outlook(folder_of(args.name))
    if args.json:
        show_json(view.as_dict())
        return 0
    print_text(_context(args.name, view))
    return 0


def _margin(occupancy: Occupancy) -> str:
    return f"may be {occupancy.margin:,} too low" if occupancy.margin else "its margin is in it"


def _estimates(view: Outlook, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """How good the estimates were, where some were compared with reports."""
    rows: list[tuple[str, str]] = []
    for label, key in (("estimates", "estimates"), ("first estimates", "first_estimates")):
        found = facts[key]
        if found["compared"]:
            text = f"{found['mean']:+.1f} % on average, {found['lowest']:+.1f} to {found['highest']:+.1f} %"
            rows.append((label, f"{found['compared']} against reports: {text}"))
    if facts["estimates_barred"]:
        rows.append(("barred", "too low too often: automatic compaction acts only on what was reported"))
    return rows


def _context(name: str, view: Outlook) -> str:
    facts = view.as_dict()
    state, occupancy = view.state, view.occupancy
    triggers = ", ".join(f"{key} {value:,}" for key, value in view.triggers.items()) or "none set ([compaction])"
    rows = [
        ("pod", name),
        ("model", f"{view.model.name}, window {view.budget.window:,} ({view.window_origin})"),
        ("ceiling", f"{view.budget.available:,} (the window less a reserve of {facts['reserve']:,})"),
        ("policy", f"{view.manifest.policy}; triggers: {triggers}"),
        ("occupancy", f"{occupancy.tokens:,} ({share(occupancy.tokens, view.budget.available)} of the ceiling), "
                      f"{occupancy.provenance}, {_margin(occupancy)}"),
        ("overhead", f"{occupancy.overhead:,} that no compaction can lower"),
    ]  # fmt: skip
    text = [figures(rows), "categories (estimates):"]
    by = f", by {state.made_by}" if state.made_by else ""
    text += [f"  {line.category:<16}{line.tokens:>12,}" for line in view.categories]
    more = [
        ("items", f"{facts['items']}, {facts['pinned']} pinned"),
        ("prunable", f"{facts['prunable']:,} at most"),
        ("a compaction", f"would summarise {facts['summarisable']:,} and keep {facts['retained']:,}"
                         if facts["compaction_possible"] else view.plan().reason),
        ("segment", f"{facts['segment']} ({facts['lineage'].replace('_', ' ')}{by})"),
    ]  # fmt: skip
    if facts["summary"]:
        more.append(("summary", f"one of an earlier segment stands at the start: pod show {name} --summary"))
    if facts["reported_last"]:
        more.append(("last request", f"{facts['estimate_last']:,} estimated, {facts['reported_last']:,} reported; "
                                     f"calibration {facts['calibration']:g}"))  # fmt: skip
    more += _estimates(view, facts)
    if facts["accepted"] and facts["reported_first"]:
        more.append(("last compaction", f"{facts['accepted']:,} expected, {facts['reported_first']:,} reported"))
    return "\n".join([*text, figures(more)])
