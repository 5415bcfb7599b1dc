"""A bounded look at a pod: what stands in its pointer, at the head and at the tail of its active log. Needs no lock.

However large a log is, at most `HEAD` and `TAIL_MOST` bytes of it are read (case B072).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pod.errors import LogLost, PodError
from pod.log.bounded import last_lines
from pod.log.files import files_of, json_of, read_file
from pod.log.folder import PodFolder, pod_names
from pod.log.lines import Invalid, Line, parse
from pod.log.segment import EMPTY, open_log

HEAD = 1024 * 1024
"""Bytes read at the head of a log at most: its first entry says how the segment began, and how the last run ended."""

TAIL = 64 * 1024
"""Bytes read at the end of a log that is longer than `TAIL_MOST`."""

TAIL_MOST = 1024 * 1024
"""Bytes up to which a log is read whole, and that are read at the end of a longer one where `TAIL` shows no whole
entry that says how things stand."""

Status: TypeAlias = Literal[
    "new", "running", "compacting", "idle", "finished", "failed", "limit", "cancelled", "waiting", "answered", "yielded",
    "stopped short", "queued", "unreadable",
]  # fmt: skip
"""How a pod stands; `STATUSES` says what each word means."""

STATUSES: dict[Status, str] = {
    "new": "it has had no run, or none since `pod clear`",
    "running": "a run is under way in a living process",
    "compacting": "a living process makes its context smaller, for how long in brackets",
    "idle": "a living process has it open, without a run",
    "queued": "a message is stored that no run has seen; `pod resume` takes it up",
    "waiting": "shown as `waiting for a human`: a call needs an answer; `pod show` says which, `pod approve` and "
    "`pod deny` give it",
    "answered": "all questions of its run are answered, and nobody goes on with it yet; `pod resume` does",
    "stopped short": "a run began and did not come to an end (its process is gone, or the pod was forked or taken back "
    "to a point inside it); `pod resume` goes on",
    "finished": "its last run finished",
    "limit": "a configured limit ended its last run; `pod resume` goes on",
    "cancelled": "its last run was stopped (`pod stop`, a signal, by its program); `pod resume` goes on, unless its message"
    " was given back",
    "yielded": "its last run handed over to a program that did not go on; `pod resume` does",
    "failed": "its last run failed; `pod show` says why, `pod resume` tries again",
    "unreadable": "it can't be read; `pod doctor NAME --repair` mends it, or says what is lost",
}
"""What each status means. Those of a run that ended tell of the last one, whatever segment it ended in."""

_ENDED = frozenset({"finished", "failed", "cancelled", "limit", "yielded", "stopped short"})

_TELLING = frozenset(
    {
        "run_started", "run_ended", "yielded", "compaction_started", "compaction_completed", "compaction_failed",
        "compaction_interrupted", "approval_asked", "approval_answered", "segment_started",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Glance:
    """What the look shows. `at` is the time of the newest entry (UTC), `since` of the one that gave the status.

    `tokens` are those of the newest request, as reported or else as estimated; None where the look shows none. `requests` and
    `cost_usd` are those of the session, None where the head does not show them or a price is unknown;
    `partial` says that there may be more of both: the log is too long to be counted. `problem` says why a pod can't
    be read.
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
    tokens: int | None = None
    partial: bool = False
    model: str = ""
    cwd: str = ""
    manifest: str = ""
    waiting: int = 0
    busy: bool = False
    size: int = 0
    problem: str = ""
    blobs: dict[str, str] = field(default_factory=dict[str, str])


def row_of(look: Glance) -> dict[str, Any]:
    """A pod as lists show it."""
    return {key: value for key, value in asdict(look).items() if key != "blobs"}


def glances(home: Path, meant: Callable[[str], bool] | None = None) -> Iterator[Glance]:
    """All pods, or those whose names are meant; by name."""
    with files_of(home).steady():
        for name in pod_names(home):
            if meant is None or meant(name):
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
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        return Glance(folder.name, "unreadable", problem=said, created=pointer.created if pointer else "")


def _look(folder: PodFolder, session: str, segment: str, created: str) -> Glance:
    path = folder.segment_path(segment)
    start = _first(path)
    size = path.stat().st_size
    lines = last_lines(path, TAIL_MOST if size <= TAIL_MOST else TAIL)
    if not lines and size <= TAIL_MOST:
        raise LogLost(path, EMPTY)
    if size > TAIL_MOST and not any(line.kind in _TELLING for line in lines):
        lines = last_lines(path, TAIL_MOST)
    busy = folder.is_busy()
    waiting = _count(folder.inbox)
    status, since = _status(lines, start, busy=busy, waiting=waiting)
    carry = cast("dict[str, Any]", start.get("carry") or {})
    totals = cast("dict[str, Any]", carry.get("totals") or {})
    blobs = dict(cast("dict[str, str]", start.get("blobs") or {}))
    for line in lines:
        if line.kind == "texts_restored":
            blobs |= cast("dict[str, str]", _body(line).get("blobs") or {})
        elif line.kind == "manifest" and (folder_now := _body(line).get("cwd")):
            blobs["cwd"] = str(folder_now)
    reply = next((_body(line) for line in reversed(lines) if line.kind == "reply"), dict[str, Any]())
    known = bool(start)
    spent = _spent(totals, lines) if known else None
    return Glance(
        name=folder.name, status=status, since=since, created=created, session=session, segment=segment,
        at=lines[-1].at if lines else created,
        lineage=str(cast("dict[str, Any]", start.get("lineage") or {}).get("kind", "")),
        segments=totals.get("segments", 1) if known else None,
        compactions=totals.get("compactions", 0) if known else None,
        requests=spent.requests if spent else None,
        cost_usd=spent.cost_usd if spent else None,
        tokens=_tokens(reply),
        partial=size > TAIL_MOST,
        model=str(reply.get("model", "")) or _named_model(folder, lines, blobs.get("manifest")),
        cwd=_blob(folder, blobs.get("cwd")),
        manifest=str(carry.get("manifest", "")),
        waiting=waiting, busy=busy, size=size, blobs=blobs,
    )  # fmt: skip


def _first(path: Path) -> dict[str, Any]:
    """The body of the first entry, empty where it is longer than the look goes or does not read."""
    with open_log(path) as file:
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
    status, since, queued = _stands(lines, start, busy=busy, waiting=waiting)
    if busy or status in {"waiting", "compacting"} or not queued:
        return status, since
    return "queued", queued


def _stands(lines: list[Line], start: dict[str, Any], *, busy: bool, waiting: int) -> tuple[Status, str, str]:
    """How the pod stands by its newest telling entry, since when, and when input came that nothing has taken up."""
    compacting = queued = ""
    taken: set[str] = set()
    answers: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        match line.kind:
            case "withdrawn" | "admitted":
                taken.update(_body(line).get("ids", ()))
            case "input" if str(_body(line).get("item", {}).get("id")) not in taken:
                queued = line.at
            case "compaction_completed" | "compaction_failed" | "compaction_interrupted":
                compacting = compacting or "no"
            case "compaction_started" if not compacting:
                return ("compacting" if busy else "stopped short"), line.at, queued
            case "run_ended":
                return _ended(_body(line).get("status")), line.at, queued or (line.at if waiting else "")
            case "approval_answered":
                body = _body(line)
                answers[str(body.get("id"))] = body
            case "yielded":
                body = _body(line)
                asked = set(cast("dict[str, Any]", body.get("detail") or {}).get("approvals", ()))
                if body.get("reason") != "approval":
                    return _open(busy), line.at, queued
                if not asked or _unanswered(lines, asked, answers):
                    return "waiting", line.at, queued
                return ("running" if busy else "answered"), line.at, queued
            case "run_started":
                return _open(busy), line.at, queued
            case "segment_started":
                if start.get("open_run"):
                    return _open(busy), line.at, queued
                queued = queued or (line.at if waiting or start.get("pending_inputs") else "")
                return ("idle" if busy else _carried(start)), line.at, queued
            case _:
                pass
    return _open(busy), lines[-1].at if lines else "", queued


def _unanswered(lines: list[Line], asked: set[str], answers: dict[str, dict[str, Any]]) -> set[str]:
    """The questions that are open: a yes for all writes of the run answers the others of its kind."""
    left = asked - answers.keys()
    if not left:
        return left
    bodies = (_body(line) for line in lines if line.kind == "approval_asked")
    scopes = {str(body.get("id")): body.get("scope", "once") for body in bodies}
    granted = any(
        answer.get("approved") and scopes.get(label) == "run" and (answer.get("scope") or "run") == "run"
        for label, answer in answers.items()
    )
    return {label for label in left if not (granted and scopes.get(label) == "run")}


def _body(line: Line) -> dict[str, Any]:
    value: object = json.loads(line.body)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _ended(status: object) -> Status:
    return cast("Status", status) if status in _ENDED else "failed"


def _carried(start: dict[str, Any]) -> Status:
    """How the last run of an earlier segment ended; `new` where there was none."""
    status = cast("dict[str, Any]", start.get("carry") or {}).get("last_status")
    return _ended(status) if status else "new"


def _open(busy: bool) -> Status:
    return "running" if busy else "stopped short"


@dataclass
class _Spent:
    requests: int
    cost_usd: float | None


def _spent(totals: dict[str, Any], lines: list[Line]) -> _Spent:
    """What the session had spent where the segment began, and what these entries add: replies and compactions."""
    found = _Spent(int(totals.get("requests", 0)), None if totals.get("unpriced") else float(totals.get("cost_usd", 0)))
    for line in lines:
        if line.kind == "reply":
            found.requests += 1
            cost = _body(line).get("cost_usd")
        elif line.kind == "compaction_rung":
            figures = cast("dict[str, Any]", _body(line).get("figures") or {})
            found.requests += int(figures.get("requests") or 0)
            cost = None if figures.get("unpriced") else figures.get("cost_usd") or 0.0
        elif line.kind == "native_made":
            body = _body(line)
            found.requests += int(body.get("attempts") or 0)
            cost = body.get("cost_usd")
        else:
            continue
        found.cost_usd = None if cost is None or found.cost_usd is None else found.cost_usd + float(cost)
    return found


def _tokens(reply: dict[str, Any]) -> int | None:
    usage = cast("dict[str, Any]", reply.get("usage") or {})
    found = usage.get("input_tokens") or reply.get("estimate")
    return found if isinstance(found, int) else None


def _named_model(folder: PodFolder, lines: list[Line], label: str | None) -> str:
    """The model that the manifest in force names, for a segment without a reply."""
    taken_up = [str(_body(line).get("digest", "")) for line in lines if line.kind == "manifest"]
    text = _blob(folder, taken_up[-1] if taken_up else label)
    try:
        manifest = json.loads(text or "{}")
        return str(manifest["model"]["name"] or "")
    except (ValueError, KeyError, TypeError):
        return ""


def _blob(folder: PodFolder, label: str | None) -> str:
    if not label:
        return ""
    try:
        return folder.blob(label)
    except PodError:
        return ""


def _count(inbox: Path) -> int:
    """What lies in the inbox for a pod to do. An order to stop is for the run that was under way when it came: none waits for it."""
    try:
        paths = [path for path in inbox.iterdir() if path.suffix == ".json" and not path.name.startswith(".")]
    except OSError:
        return 0
    return sum(_waits(path) for path in paths)


def _waits(path: Path) -> bool:
    try:
        value: object = json_of(read_file(path))
    except FileNotFoundError:  # it was taken since we looked
        return False
    except (OSError, ValueError):
        return True
    return not isinstance(value, dict) or cast("dict[str, Any]", value).get("kind") not in {"stop", "interrupt"}
