"""A pod as JSON values: what `pod show`, `pod context` and `pod compact --dry-run` give programs, and a service its readers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pod.carry import whole_counts
from pod.errors import LogDamaged
from pod.log.folder import PodFolder
from pod.losses import losses
from pod.manifest import Manifest
from pod.peek import Glance, row_of
from pod.session import load
from pod.state import PodState
from pod.stored import kept
from worker.builtin.tool_state import PROCESSES_KEY
from worker.items import AssistantItem
from worker.memory import memory_of
from worker.memory import provenance as memory_provenance

if TYPE_CHECKING:
    from pod.foresight import Origin
    from pod.outlook import Outlook


class InstructionFile(NamedTuple):
    """An instruction file as the newest run has it. `bytes` are those that are taken (None where the text is lost), `of` all
    that the file had.
    """

    path: str
    sha256: str
    bytes: int | None
    cut: bool
    of: int | None


def instruction_files(folder: PodFolder, state: PodState) -> list[InstructionFile]:
    """The instruction files of the newest run, root first."""
    found: list[InstructionFile] = []
    for path, label in state.instructions.items():
        size, whole = _size(folder, label), state.instructions_cut.get(path)
        found.append(InstructionFile(path, label, size, whole is not None, size if whole is None else whole))
    return found


def _size(folder: PodFolder, label: str) -> int | None:
    try:
        return (folder.path / "blobs" / label).stat().st_size
    except OSError:
        return None


def whole_of(folder: PodFolder, look: Glance, states: Callable[[Path], PodState] = load) -> dict[str, Any]:
    """A pod as a page about it shows it, also one whose log is damaged. Blocks. `states` gives the state of a log. Raises `PodNotFound`."""
    try:
        state = states(folder.segment_path(folder.pointer().segment))
        return facts_of(folder, look, state) | {"lost": [str(loss) for loss in losses(folder)]}
    except LogDamaged as damage:
        return row_of(look) | {"lost": [str(damage)]}


def facts_of(folder: PodFolder, look: Glance, state: PodState) -> dict[str, Any]:
    """What there is to say of a pod."""
    totals, memory = state.totals, memory_of(state.history.view)
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
        "instructions": [each._asdict() for each in instruction_files(folder, state)],
        "run": state.run,
        "totals": {**totals.model_dump(), "by": whole_counts(totals.by)},
        "cost_usd": None if totals.unpriced else totals.cost_usd,
        "items": len(state.history.view),
        "native": None if memory is None else memory_provenance(memory, state.history.tokens[0]),
        "queued": [item.text for item in state.queued],
        "rejected": [{"id": record.id, "reason": record.reason} for record in state.rejected],
        "inbox": look.waiting,
        "approvals": [asked.model_dump() for asked in state.approvals.values()],
        "tasks": state.tool_state.get("tasks") or [],
        "processes": state.tool_state.get(PROCESSES_KEY) or [],
        "servers": [told.model_dump() for told in state.servers.values()],
        "ended": None if state.ended is None else {"status": state.ended.status, "result": state.ended.result},
        "last_text": last_text(state),
        "settings": settings(kept(folder).manifest),
        "denials": [each.model_dump() for each in state.denials],
    }


def last_text(state: PodState) -> str:
    """What the model said last."""
    return next((item.text for item in reversed(state.history.view) if isinstance(item, AssistantItem)), "")


def settings(manifest: Manifest | None) -> dict[str, Any] | None:
    """What an agent may do, with each rule; None where the manifest is lost."""
    if manifest is None:
        return None
    dumped = manifest.model_dump(mode="json")
    return {key: dumped[key] for key in ("permissions", "scope", "sandbox", "hooks")}


def context_of(view: Outlook, now: float | None = None) -> dict[str, Any]:
    """What fills the context, its limits, and what would go next at a time (UTC seconds; this moment where None is given)."""
    # What decides for a run: who looks at what is on record alone loads none of it.
    from pod.foresight import foresee, origins, policy_origin, provenance

    plan, made = view.plan(), provenance(view)
    return {
        **view.as_dict(),
        "policy_origin": policy_origin(view),
        "trigger_origins": {origin.name: origin_text(origin) for origin in origins(view)},
        "summary_made": None if made is None else asdict(made),
        "expected": plan.expected,
        "compaction_reason": plan.reason,
        "next": [asdict(one) for one in foresee(view, plan, time.time() if now is None else now)],
    }


def origin_text(origin: Origin) -> str:
    """Where a trigger is written, and what is written there."""
    written = f'"{origin.written}"' if isinstance(origin.written, str) else str(origin.written)
    return f"[{origin.table}] {origin.key} = {written}"


def compaction_of(view: Outlook) -> dict[str, Any]:
    """What a compaction would do now. Changes nothing."""
    plan = view.plan()
    return {
        "possible": plan.possible,
        "reason": plan.reason,
        "occupancy": plan.before.tokens,
        "provenance": plan.before.provenance,
        "overhead": plan.before.overhead,
        "available": plan.limits.available,
        "lowest_trigger": plan.limits.lowest,
        "target": plan.limits.most,
        "summarised_items": plan.summarised_items,
        "summarised_tokens": plan.summarised_tokens,
        "retained_items": plan.retained_items,
        "retained_tokens": plan.retained_tokens,
        "expected": plan.expected,
        "least": view.least(plan),
        "accepted": view.acceptance(plan),
        "checkpoint": view.checkpoint,
        "native": view.native,
    }
