"""A session to export: two segments, a compact worker's log, blobs, artifacts, a background job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pod.journal import SideLog
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.manifest import Manifest
from pod.reading import SessionReader
from pod.session import Session, load
from worker.ids import uuid7
from worker.items import AssistantItem, ContextItem, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Usage
from worker.records import Admitted, Input, ReplyRecord, ToolResult, ToolStarted

FIRST = "words of the first segment"
SIDE = "words of the compact worker"
JOB = {
    "id": "p1", "pid": 1, "pgid": 1, "command": "sleep 9", "started_at": "2026-01-01T00:00:00Z", "call_id": "c1",
    "start_ticks": 1, "status": "running", "exit_code": None,
}  # fmt: skip


def manifest() -> Manifest:
    return Manifest.model_validate({"model": {"name": "offline:surveyor"}, "log": {"durability": "os"}})


async def make(home: Path, work: Path, name: str = "a", *, open_call: bool = False) -> PodFolder:
    """The session; with `open_call` its last call was started and has no result."""
    made = manifest()
    blobs = {"system": "be good", "schemas": "[]", "manifest": made.model_dump_json(), "cwd": str(work)}
    session = Session.create(home, name, blobs=blobs, manifest=made.digest, durability="os")
    folder = session.folder
    try:
        folder.artifacts.mkdir()
        for label in ("c1-shell.txt", "c1-replaced.txt", "nobody-names-this.txt"):
            (folder.artifacts / label).write_bytes(b"\x00\xff of " + label.encode())
        _turn(session, "c1", FIRST)
        session.put(e.CompactionStarted(compaction="k1", trigger="hand", tokens=9))
        with SideLog.beside(session, "k1") as side:
            side.write(Input(item=UserItem(text=SIDE)))
        await _next_segment(session)
        session.put(e.Pin(item="x"))
        if open_call:
            _turn(session, "c2", "and now?", closed=False)
        else:
            _turn(session, "c2", "and now?")
        (folder.path / "jobs" / "p1").mkdir(parents=True)
        (folder.path / "jobs" / "p1" / "out").write_text("output of a job")
    finally:
        session.close()
    return folder


def _turn(session: Session, label: str, text: str, *, closed: bool = True) -> None:
    asked = UserItem(text=text)
    call = ToolCallItem(call_id=label, name="shell", arguments="{}")
    usage = Usage(input_tokens=100, output_tokens=10)
    session.put(Input(item=asked))
    session.put(e.RunStarted(run=uuid7()))
    session.put(Admitted(ids=(asked.id,)))
    session.put(ReplyRecord(items=(call,), usage=usage, stop="tool_calls", model="m:x", cost_usd=0.5))
    session.put(ToolStarted(call_id=label))
    if not closed:
        return
    summary = "done; the old content is kept as artifact:c1-replaced.txt." if label == "c1" else "done"
    result = ToolResultItem(
        call_id=label, name="shell", status="ok", summary=summary, content="out", artifact="c1-shell.txt",
        state={"processes": [JOB]},
    )  # fmt: skip
    session.put(ToolResult(item=result))
    session.put(ReplyRecord(items=(AssistantItem(text="said"),), usage=usage, model="m:x", cost_usd=0.25))
    session.put(e.RunEndedEntry(run="r", status="finished"))


async def _next_segment(session: Session) -> None:
    state, old = session.state, session.state.start
    start = e.SegmentStarted(
        session=old.session,
        segment=uuid7(),
        lineage=e.Lineage(kind="compacted_from", segment=old.segment, seq=state.last_seq, compaction="k1"),
        items=(ContextItem(kind="summary", text="what was done", source="compact worker"),),
        blobs={**old.blobs, "system": session.folder.put_blob("be better")},
        carry=state.carry(),
        tag=old.tag,
    )
    await session.switch(
        start, e.CompactionCompleted(compaction="k1", trigger="hand", rung="compact", before=9, after=3, limit=5)
    )


def state_of(folder: PodFolder) -> Any:
    return load(folder.segment_path(folder.pointer().segment))


def entries_of(folder: PodFolder) -> list[tuple[int, str, bytes]]:
    return [(line.seq, line.id, line.body) for line in SessionReader(folder).lines()]


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
