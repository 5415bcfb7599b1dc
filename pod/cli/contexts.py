"""`pod context`: what fills the context, its limits, and what would go next."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from pod.cli.output import show, show_json
from pod.cli.progress import worker_figures
from pod.cli.sending import folder_of
from pod.cli.text import balance, count, figures, memory_line, one_line, share, span
from pod.context.policy import BREAKER_FAILURES, Plan, resting, utc
from pod.foresight import Next, Provenance, foresee, origins, policy_origin, provenance
from pod.outlook import Outlook, outlook
from pod.views import context_of, origin_text
from worker.occupancy import Occupancy


def context(args: argparse.Namespace) -> int:
    """What fills the context, its limits, and what would go next."""
    view = outlook(folder_of(args.name))
    if args.json:
        show_json(context_of(view))
        return 0
    plan = view.plan()
    coming = foresee(view, plan, time.time())
    show(_text(args.name, view, plan, coming))
    return 0


def _text(name: str, view: Outlook, plan: Plan, coming: tuple[Next, ...]) -> str:
    facts, occupancy, available = view.as_dict(), view.occupancy, view.budget.available
    queued = f", {occupancy.pending:,} of it queued" if occupancy.pending else ""
    rows = [
        ("pod", name),
        ("model", f"{view.model.name}, window {view.budget.window:,} ({view.window_origin})"),
        ("ceiling", f"{available:,} (the window less a reserve of {facts['reserve']:,})"),
        ("policy", f"{view.manifest.policy} ({policy_origin(view)})"),
        *_triggers(view),
        *_breaker(view, time.time()),
        ("occupancy", f"{occupancy.tokens:,} ({share(occupancy.tokens, available)} of the ceiling), "
                      f"{occupancy.provenance}, {_margin(occupancy)}{queued}"),
        ("overhead", f"{occupancy.overhead:,} that no compaction can lower"),
    ]  # fmt: skip
    parts = [figures(rows), "", _categories(view), "", figures(_history(name, view, facts)), "", "what would go next:"]
    return "\n".join([*parts, *(f"  {line}" for line in figures(_coming(coming, plan)).splitlines())])


def _margin(occupancy: Occupancy) -> str:
    return f"may be {occupancy.margin:,} too low" if occupancy.margin else "its margin is in it"


def _estimates(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How good the estimates were, where some were compared with reports. Here as elsewhere, above 0: estimated too high."""
    rows: list[tuple[str, str]] = []
    for label, key in (("estimates", "estimates"), ("first estimates", "first_estimates")):
        found = facts[key]
        if found["compared"]:
            text = f"{found['mean']:+.1f} % on average, {found['lowest']:+.1f} to {found['highest']:+.1f} %"
            rows.append((label, f"{found['compared']} against reports: {text}"))
    if (found := facts["doubted_reports"])["compared"]:
        text = f"the estimates were {found['lowest']:+.1f} to {found['highest']:+.1f} % off them"
        rows.append(("disbelieved", f"{count(found['compared'], 'report')} of this model; {text}"))
    if facts["estimates_barred"]:
        rows.append(("barred", "too low too often: automatic compaction acts only on what was reported"))
    return rows


def _triggers(view: Outlook) -> list[tuple[str, str]]:
    found = origins(view)
    if not found:
        return [("triggers", "none set ([compaction])")]
    available = view.budget.available
    inert = "" if view.manifest.acting_triggers else f"; starts nothing under {view.manifest.policy!r}"
    lines = [
        f"{one.name} {one.tokens:,} ({share(one.tokens, available)} of the ceiling), {origin_text(one)}{inert}"
        for one in found
    ]
    return [("triggers" if not at else "", line if not at else f"{'':11} {line}") for at, line in enumerate(lines)]


def _breaker(view: Outlook, now: float) -> list[tuple[str, str]]:
    """The circuit breaker of the rungs that ask a model, where it counts anything."""
    breaker = view.state.breaker
    if not breaker.failures:
        return []
    if resting(breaker, now):
        assert breaker.open_until is not None
        left = span(breaker.open_until - now)
        return [("breaker", f"open until {utc(breaker.open_until)} ({left} left): {breaker.failures} failures in a row of the "
                            "rungs that ask a model; `pod compact` asks one all the same")]  # fmt: skip
    half_open = breaker.failures >= BREAKER_FAILURES
    then = "half open: one attempt is let through" if half_open else f"{BREAKER_FAILURES} in a row open it"
    return [("breaker", f"{count(breaker.failures, 'failure')} in a row of the rungs that ask a model; {then}")]


def _categories(view: Outlook) -> str:
    """The parts of the next request as estimated, with their share of it."""
    whole = sum(line.tokens for line in view.categories if line.category != "reserve")
    lines = ["categories (estimates):"]
    for line in view.categories:
        part = "" if line.category == "reserve" else share(line.tokens, whole)
        lines.append(f"  {line.category:<16}{line.tokens:>12,}{part:>8}".rstrip())
    return "\n".join(lines)


def checkpoint_line(facts: Mapping[str, Any]) -> str:
    """Where a checkpoint comes from, in one line."""
    stale = f"; STALE: {facts['stale']}" if facts["stale"] else ""
    return (
        f"{facts['messages']} messages of {one_line(str(facts['segment']), 60)} and before, to entry {facts['last']}; "
        f"{facts['tokens']:,} tokens, {facts['strategy']}, source sha256 {str(facts['source_hash'])[:12]}, made {facts['at']}, "
        f"{', '.join(facts['labels'])}{stale}"
    )


def native_line(facts: Mapping[str, Any]) -> str:
    """A provider's own memory, in one line."""
    unread = "" if facts["read"] else "; another model made it: its text is sent in its place"
    return f"{memory_line(facts)}{unread}"


def _history(name: str, view: Outlook, facts: dict[str, Any]) -> list[tuple[str, str]]:
    by = f", by {view.state.made_by}" if view.state.made_by else ""
    rows = [
        ("items", f"{facts['items']}, {facts['pinned']} pinned"),
        ("prunable", f"{facts['prunable']:,} at most"),
        ("retained", f"{facts['retained']:,} at the end, whatever a compaction summarises"),
        ("segment", f"{facts['segment']} ({facts['lineage'].replace('_', ' ')}{by})"),
    ]
    made = provenance(view)
    if made is not None:
        rows.append(("summary", f"{_made(made)}; pod show {name} --summary"))
    if facts["native"]:
        rows.append(("native memory", native_line(facts["native"])))
    if facts["checkpoint"]:
        rows.append(("checkpoint", checkpoint_line(facts["checkpoint"])))
    if facts["reported_last"]:
        off = facts["estimate_last"] - facts["reported_last"]
        rows.append(("last request", f"{facts['estimate_last']:,} estimated, {facts['reported_last']:,} reported "
                                     f"({_signed(off, facts['reported_last'])})"))  # fmt: skip
    rows.append(("calibration", f"{facts['calibration']:g} (reported growth over estimated growth)"))
    rows += _estimates(facts)
    if facts["accepted"] and facts["reported_first"]:
        off = facts["accepted"] - facts["reported_first"]
        rows.append(("last compaction", f"{facts['accepted']:,} expected, {facts['reported_first']:,} reported "
                                        f"({_signed(off, facts['reported_first'])})"))  # fmt: skip
    for what, label in (("prune", "pruning"), ("compaction", "compaction")):
        if facts[f"{what}s"]:
            rows.append((label, f"{count(facts[f'{what}s'], what)}, {balance(facts[f'{what}_saved_usd'])}"))
    if facts["last_prune"]:
        rows.append(("last prune", _effect(facts["last_prune"])))
    return rows


def _effect(facts: Mapping[str, Any]) -> str:
    """What the request behind a prune showed."""
    return (
        f"{facts['tokens_saved']:,} tokens out; {facts['rewritten']:,} sent anew ({facts['expected_rewritten']:,} expected), "
        f"{facts['read_after']:,} read from the cache ({facts['read_before']:,} before)"
    )


def _signed(off: int, whole: int) -> str:
    return f"{off:+,}, {100 * off / whole:+.1f} %"


def _made(made: Provenance) -> str:
    """A summary with its provenance."""
    source = one_line(made.source or made.rung, 80)
    parts = [f"{made.tokens:,} tokens", source if source.startswith("compacted by ") else f"by {source}"]
    if (model := made.figures.get("model")) and not source.endswith(f" {model}"):
        parts.append(f"{one_line(str(model), 60)}{worker_figures(made.figures)}")
    if made.before is not None and made.after is not None:
        parts.append(f"at {made.trigger}, from {made.before:,} to {made.after:,}")
    return ", ".join(parts)


def _coming(coming: tuple[Next, ...], plan: Plan) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for one in coming:
        saves = f", {one.tokens:,} tokens saved" if one.happens and one.rule == "prune" else ""
        rows.append((one.rule, f"{'yes' if one.happens else 'no'}: {one.reason}{saves}"))
    if plan.possible:
        rows.append(("plan", f"a compaction would summarise {count(plan.summarised_items, 'item')} ({plan.summarised_tokens:,} "
                                     f"tokens), keep {count(plan.retained_items, 'item')} ({plan.retained_tokens:,}), "
                                     f"and come to {plan.expected:,} at most"))  # fmt: skip
    else:
        rows.append(("plan", plan.reason))
    return rows
