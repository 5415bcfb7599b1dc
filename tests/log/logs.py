"""Pods and logs for the tests of the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from pod.log import entries as e
from pod.log.files import Files
from pod.log.lines import Line
from pod.log.segment import Damage, scan
from pod.session import Session
from worker.ids import uuid7
from worker.items import AssistantItem, Item, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Usage
from worker.records import Admitted, Input, ReplyRecord, ToolResult, ToolStarted

ROOT = Path(__file__).parents[2]


def create(home: Path, name: str = "a", **more: Any) -> Session:
    return Session.create(home, name, blobs={"system": "Be exact.\r\nAnd brief."}, manifest="m", **more)


def reopen(home: Path, name: str = "a", files: Files | None = None) -> Session:
    return Session.open(home, name, files=files)


def say(session: Session, text: str, *, admit: bool = True, inbox: str | None = None) -> str:
    item = UserItem(text=text)
    session.put(Input(item=item, inbox=inbox))
    if admit:
        session.put(Admitted(ids=(item.id,)))
    return item.id


def reply(session: Session, text: str, *items: Any) -> ReplyRecord:
    record = ReplyRecord(
        items=(AssistantItem(text=text, reply="r"), *items),
        usage=Usage(input_tokens=10, output_tokens=2),
        model="offline:x",
    )
    session.put(record)
    return record


def call(label: str, name: str = "read_file", arguments: str = "{}") -> ToolCallItem:
    return ToolCallItem(call_id=label, name=name, arguments=arguments)


def result(label: str, text: str = "fine", *, name: str = "read_file", content: str | None = None) -> ToolResultItem:
    return ToolResultItem(call_id=label, name=name, status="ok", summary=text, content=content)


def batch(session: Session, label: str, content: str = "content", *, name: str = "read_file") -> tuple[str, str]:
    """A reply with one call and its result; the ids of both items."""
    item, answer = call(label, name), result(label, f"read {label}", name=name, content=content)
    reply(session, f"I call {label}.", item)
    session.put(ToolStarted(call_id=label))
    session.put(ToolResult(item=answer))
    return item.id, answer.id


def started(session: Session, kind: e.LineageKind = "compacted_from", **more: Any) -> e.SegmentStarted:
    """The start of a new segment that descends from the active one."""
    state = session.state
    lineage = e.Lineage(kind_=kind, segment=session.pointer.segment, seq=state.last_seq)
    values: dict[str, Any] = {
        "pending_inputs": tuple(state.queued),
        "carry": state.carry(),
        "open_run": state.open_run(),
    }
    return e.SegmentStarted(
        session=state.start.session, segment=uuid7(), lineage=lineage, blobs=state.start.blobs, tag=state.start.tag,
        **(values | more),
    )  # fmt: skip


def lines_of(path: Path) -> list[Line]:
    found = list(scan(path))
    assert not [f for f in found if isinstance(f, Damage)], found
    return [f for f in found if isinstance(f, Line)]


def kinds(path: Path) -> list[str]:
    return [line.kind for line in lines_of(path)]


def assert_paired(view: list[Item]) -> None:
    """Each call has exactly one result, and all results of a reply stand directly behind it (I1)."""
    at = 0
    while at < len(view):
        calls: list[str] = []
        while at < len(view) and isinstance(item := view[at], ToolCallItem | AssistantItem):
            calls += [item.call_id] if isinstance(item, ToolCallItem) else []
            at += 1
            if isinstance(item, ToolCallItem) and not (at < len(view) and isinstance(view[at], ToolCallItem)):
                break
        results: list[str] = []
        while at < len(view) and isinstance(item := view[at], ToolResultItem):
            results.append(item.call_id)
            at += 1
        assert results == calls, (results, calls)
        if at < len(view) and not isinstance(view[at], ToolCallItem | AssistantItem | ToolResultItem):
            at += 1


def python(code: str, *args: object) -> subprocess.Popen[str]:
    """A process of its own that runs `code`, with the project and these helpers to import."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *(str(a) for a in args)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
    )
