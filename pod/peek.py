"""A bounded look at a pod: what stands in its pointer, at the head and at the tail of its active log. Needs no lock.

However large a log is, at most `HEAD` and `TAIL_MOST` bytes of it are read (case B072).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pod.errors import PodError
from pod.log.folder import PodFolder, pod_names
from pod.log.lines import Invalid, Line, parse
from pod.reading import last_lines

HEAD = 256 * 1024
"""Bytes read at the head of a log: its first entry says how the segment began."""

TAIL = 64 * 1024
"""Bytes read at the end of a log at first."""

TAIL_MOST = 1024 * 1024
"""Bytes read at the end where the first look shows no whole entry that says how things stand."""

Status: TypeAlias = Literal[
    "new", "running", "compacting", "idle", "finished", "failed", "limit", "cancelled", "waiting", "yielded",
    "stopped short", "queued", "unreadable",
]  # fmt: skip
"""How a pod stands. `running` and `compacting` have a living writer, `idle` has one without a run; `waiting` is for
a human; `stopped short` has an open run and no writer (`pod resume` goes on); `queued` has input that no run has
seen."""

_TELLING = frozenset(
    {
        "run_started", "run_ended", "yielded", "compaction_started", "compaction_completed", "compaction_failed",
        "compaction_interrupted", "approval_asked", "approval_answered", "segment_started",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Glance:
    """What the look shows. `at` is the time of the newest entry (UTC), `since` of the one that gave the status.

    `requests` and `cost_usd` are those of the session where the segment began, None where the head does not show them;
    `seconds` is the age of a compaction under way. `problem` says why a pod can't be read.
    """

    name: str
    status: Status
    at: str = ""
    since: str = ""
    created: str = ""
    session: str = ""
    segment: str = ""
    lineage: str = ""
    segments: int | None = None
    compactions: int | None = None
    requests: int | None = None
    cost_usd: float | None = None
    model: str = ""
    cwd: str = ""
    manifest: str = ""
    waiting: int = 0
    busy: bool = False
    size: int = 0
    problem: str = ""
    blobs: dict[str, str] = field(default_factory=dict[str, str])


def glances(home: Path) -> Iterator[Glance]:
    """All pods, by name."""
    for name in pod_names(home):
        yield glance(PodFolder(home, name))


def glance(folder: PodFolder) -> Glance:
    """How one pod stands. Never raises for what is in the pod: `status` is then `unreadable`. Raises `PodNotFound`."""
    pointer = None
    try:
        pointer = folder.pointer()
        return _look(folder, pointer.session, pointer.segment, pointer.created)
    except (PodError, OSError, ValueError) as error:
        if not folder.exists():
            raise
        return Glance(folder.name, "unreadable", problem=str(error), created=pointer.created if pointer else "")


def _look(folder: PodFolder, session: str, segment: str, created: str) -> Glance:
    path = folder.segment_path(segment)
    size = path.stat().st_size
    start = _first(path)
    lines = last_lines(path, TAIL)
    if size > TAIL and not any(line.kind in _TELLING for line in lines):
        lines = last_lines(path, TAIL_MOST)
    busy = folder.is_busy()
    waiting = _count(folder.inbox)
    status, since = _status(lines, start, busy=busy, waiting=waiting)
    carry = cast("dict[str, Any]", start.get("carry") or {})
    totals = cast("dict[str, Any]", carry.get("totals") or {})
    blobs = cast("dict[str, str]", start.get("blobs") or {})
    replies = [line for line in lines if line.kind == "reply"]
    known = bool(start)
    whole = known and size <= TAIL
    return Glance(
        name=folder.name, status=status, since=since, created=created, session=session, segment=segment,
        at=lines[-1].at if lines else created,
        lineage=str(cast("dict[str, Any]", start.get("lineage") or {}).get("kind", "")),
        segments=totals.get("segments", 1) if known else None,
        compactions=totals.get("compactions", 0) if known else None,
        requests=int(totals.get("requests", 0)) + len(replies) if whole else None,
        cost_usd=_cost(totals, replies) if whole else None,
        model=_model(replies),
        cwd=_blob(folder, blobs.get("cwd")),
        manifest=str(carry.get("manifest", "")),
        waiting=waiting, busy=busy, size=size, blobs=dict(blobs),
    )  # fmt: skip


def _first(path: Path) -> dict[str, Any]:
    """The body of the first entry, empty where it is longer than the look goes or does not read."""
    with path.open("rb") as file:
        data = file.readline(HEAD)
    if not data.endswith(b"\n"):
        return {}
    try:
        line = parse(data[:-1], 0, 1)
        value: object = json.loads(line.body)
    except (Invalid, ValueError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) and line.kind == "segment_started" else {}


def _status(lines: list[Line], start: dict[str, Any], *, busy: bool, waiting: int) -> tuple[Status, str]:
    compacting = ""
    withdrawn = False
    for line in reversed(lines):
        match line.kind:
            case "withdrawn":
                withdrawn = True
            case "input" if not withdrawn and not busy:
                return "queued", line.at
            case "compaction_completed" | "compaction_failed" | "compaction_interrupted":
                compacting = compacting or "no"
            case "compaction_started" if not compacting:
                return ("compacting" if busy else "stopped short"), line.at
            case "run_ended":
                status = str(json.loads(line.body).get("status", "failed"))
                ended: Status = (
                    cast("Status", status)
                    if status in {"finished", "failed", "limit", "cancelled", "yielded"}
                    else "failed"
                )
                return ("queued" if waiting and not busy else ended), line.at
            case "yielded":
                reason = str(json.loads(line.body).get("reason", ""))
                if reason == "approval":
                    return "waiting", line.at
                return _open(busy), line.at
            case "run_started" | "approval_answered":
                return _open(busy), line.at
            case "segment_started":
                if start.get("open_run"):
                    return _open(busy), line.at
                return ("queued" if waiting or start.get("pending_inputs") else "idle" if busy else "new"), line.at
            case _:
                pass
    return _open(busy), lines[-1].at if lines else ""


def _open(busy: bool) -> Status:
    return "running" if busy else "stopped short"


def _cost(totals: dict[str, Any], replies: list[Line]) -> float | None:
    if totals.get("unpriced"):
        return None
    costs = [json.loads(line.body).get("cost_usd") for line in replies]
    return None if any(cost is None for cost in costs) else float(totals.get("cost_usd", 0.0)) + sum(costs)


def _model(replies: list[Line]) -> str:
    return str(json.loads(replies[-1].body).get("model", "")) if replies else ""


def _blob(folder: PodFolder, label: str | None) -> str:
    if not label:
        return ""
    try:
        return folder.blob(label)
    except PodError:
        return ""


def _count(inbox: Path) -> int:
    try:
        return sum(1 for path in inbox.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except OSError:
        return 0
