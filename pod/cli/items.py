"""Single things of a session, whole: an item, an artifact."""

from __future__ import annotations

import json
from typing import Any

from pod.cli.output import show, show_bytes, show_json
from pod.errors import LogDamaged, UsageProblem
from pod.log import entries as e
from pod.log.files import open_file
from pod.log.folder import PodFolder
from pod.log.items import ITEM_KINDS, items_of
from pod.log.lines import Line
from pod.losses import losses
from pod.reading import SessionReader
from worker.estimate import estimate_item
from worker.items import Item, OpaqueItem, ToolCallItem, ToolResultItem
from worker.memory import provenance


def show_item(folder: PodFolder, wanted: str, *, as_json: bool) -> int:
    """Prints the items that are meant, as they were made, whatever was pruned since.

    `wanted` is the number of an entry (`pod log` shows it), an item's id or the beginning of one, or the id of a call. An entry
    about a call (a question, a denial, a start) stands for the call and its result.
    Raises `UsageProblem` where there is none.
    """
    found = _by_entry(folder, int(wanted)) if wanted.isdecimal() else _by_id(folder, wanted)
    if not found and wanted.isdecimal() and (call := _call_of(folder, int(wanted))):
        found = _by_id(folder, call)
    if not found and wanted.isdecimal() and (line := _entry(folder, int(wanted))) is not None:
        raise UsageProblem(
            f"entry {line.seq} of pod {folder.name!r} ({line.kind}) holds no item: no text that a model sees"
        )
    if not found:
        lost = "".join(f"; {loss}" for loss in losses(folder))
        raise UsageProblem(
            f"pod {folder.name!r} has no item {wanted!r}; `pod log {folder.name}` shows the numbers of entries{lost}"
        )
    if as_json:
        show_json([item.model_dump(mode="json") for item in found])
    else:
        show("\n\n".join(_text(item) for item in found))
    return 0


def _by_entry(folder: PodFolder, seq: int) -> list[Item]:
    line = _entry(folder, seq)
    return [] if line is None else list(_items(line))


def _entry(folder: PodFolder, seq: int) -> Line | None:
    line = next(iter(SessionReader(folder).lines(seq - 1, origins=True)), None)
    return line if line is not None and line.seq == seq else None


def _call_of(folder: PodFolder, seq: int) -> str:
    """The id of the call that an entry is about; empty where it is about none."""
    line = _entry(folder, seq)
    try:
        record = None if line is None else e.record_of(line)
    except LogDamaged:
        return ""
    call = getattr(record, "call_id", "")
    return call if isinstance(call, str) else ""


def _by_id(folder: PodFolder, wanted: str) -> list[Item]:
    """The item of this id, else the one whose id begins so, else the call of this id with its result."""
    exact: dict[str, Item] = {}
    begins: dict[str, Item] = {}
    of_call: dict[str, Item] = {}
    mark = wanted.encode()
    for line in SessionReader(folder).lines(origins=True):
        if line.kind not in ITEM_KINDS or mark not in line.body:
            continue
        for item in _items(line):
            if item.id == wanted:
                exact.setdefault(item.id, item)
            elif item.id.startswith(wanted):
                begins.setdefault(item.id, item)
            elif isinstance(item, ToolCallItem | ToolResultItem) and item.call_id == wanted:
                of_call.setdefault(item.id, item)
    if not exact and len(begins) > 1:
        raise UsageProblem(
            f"{wanted!r} may be {len(begins)} items of pod {folder.name!r}: {', '.join(list(begins)[:5])}"
        )
    return list((exact or begins or of_call).values())


def _items(line: Line) -> tuple[Item, ...]:
    try:
        record = e.record_of(line)
    except LogDamaged:
        return ()
    return () if record is None else items_of(record)


def _text(item: Item) -> str:
    """What it is, then its text; what has none is shown as JSON."""
    values: dict[str, Any] = item.model_dump(mode="json", exclude_none=True)
    if isinstance(item, ToolCallItem):
        return f"[{item.type} {item.id}, call {item.call_id}] {item.name}\n{item.arguments}"
    if isinstance(item, ToolResultItem):
        kept = f", artifact {item.artifact}" if item.artifact else ""
        head = f"[{item.type} {item.id}, call {item.call_id}, {item.status}{kept}] {item.summary}"
        return f"{head}\n{item.text()}"
    if isinstance(item, OpaqueItem) and item.is_memory:
        facts = provenance(item, estimate_item(item))
        head = f"[{item.type} native memory {item.id}] {facts['model']}, {facts['tokens']:,} tokens, sha256 {facts['payload_sha256']}"
        return f"{head}, of items with sha256 {item.source_hash}\n{item.readable}"
    text = values.get("text")
    kind = f" {values['kind']}" if "kind" in values else ""
    body = text if isinstance(text, str) else json.dumps(values, ensure_ascii=False, indent=2)
    return f"[{item.type}{kind} {item.id}]\n{body}"


def show_artifact(folder: PodFolder, name: str) -> int:
    """Prints an artifact as it is. Raises `UsageProblem` where the pod has none of this name."""
    path = folder.artifacts / name
    known = sorted(child.name for child in folder.artifacts.iterdir()) if folder.artifacts.is_dir() else []
    if name not in known or not path.is_file():
        listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "") if known else "it has none"
        raise UsageProblem(f"pod {folder.name!r} has no artifact {name!r} ({listed})")
    with open_file(path) as file:
        while chunk := file.read(1 << 20):
            show_bytes(chunk)
    return 0
