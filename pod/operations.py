"""Changes to a session between runs: fork, rewind, clear. What removes pods is in `pod.removing`, answers in `pod.questions`.

Each opens the pod itself where it needs to write, and raises `PodBusy` while another process does. A fork only
reads its source. A session changes hands at settled points only: no call open, no input without a reply. A point
that is not settled is rounded down to the last one that is, and the result says so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pod.carry import Carry, Totals
from pod.context.notebook import NOTES, mark_of
from pod.errors import NotSettled
from pod.log import entries as e
from pod.log.files import open_file
from pod.log.folder import PodFolder, Pointer, check_name
from pod.log.items import named_artifacts
from pod.log.lines import now
from pod.log.making import making
from pod.log.segment import entries
from pod.names import SET_ASIDE
from pod.origins import link_artifacts, take_along
from pod.points import Point, settled_point
from pod.removing import Collected, Held, collect, remove
from pod.services import processes_of
from pod.session import Session, write_segment
from pod.state import STOPPED_SHORT, PodState
from pod.stored import kept
from worker.builtin.tool_state import PROCESSES_KEY
from worker.ids import uuid7
from worker.items import ContextItem, Item, ToolResultItem

__all__ = [
    "Changed",
    "Collected",
    "Held",
    "clear",
    "collect",
    "fork",
    "remove",
    "rewind",
]

READ_STEP = 1 << 20
"""Bytes read at a time when a file that was seen is looked at again."""


def _carry_at(state: PodState, totals: Totals) -> Carry:
    """What the new segment takes over: no queued input, approvals or processes; seen files only where they are
    unchanged.
    """
    tools = {key: value for key, value in state.tool_state.items() if key != PROCESSES_KEY}
    seen = {path: digest for path, digest in state.seen.items() if _hash(Path(path)) == digest}
    changed: dict[str, Any] = {"totals": totals, "seen": seen, "state": tools, "failed_at_tokens": 0}
    changed["warned"] = state.warned
    if state.run is not None:
        changed["last_status"] = _where_it_stood(state)
    return state.carry().model_copy(update=changed)


def _where_it_stood(state: PodState) -> str:
    """What a point inside a run says of the task: unfinished (a resume goes on with it), answered, or not yet begun.

    The run itself does not go along: its counters and permissions start anew.
    """
    newest = next((item for item in reversed(state.history.view) if not isinstance(item, ContextItem)), None)
    begun = state.last_word is None and state.history.counters.requests > 0
    if begun or isinstance(newest, ToolResultItem):
        return STOPPED_SHORT
    return "" if newest is None else "finished"


def _hash(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        digest = hashlib.sha256()
        with open_file(path) as file:
            while chunk := file.read(READ_STEP):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


# -- fork -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changed:
    """What a fork, rewind or clear did: the new segment, the point it starts from, what was left behind, and whether
    a task is unfinished there (`resume` goes on with it). `notes` is the file with the agent's notes that a clear found:
    it stays.
    """

    name: str
    segment: str
    point: int
    asked: int
    items: int
    left_behind: tuple[str, ...] = ()
    unfinished: bool = False
    notes: Path | None = None

    @property
    def rounded(self) -> bool:
        """Whether the point that was asked for was not settled."""
        return self.point < self.asked


def fork(home: Path, name: str, new: str, at: int | None = None) -> Changed:
    """A new pod that begins where another one stood; the source stays as it is, and may run meanwhile. Blocks; durable.

    The fork has its own session, which counts requests and cost from nothing, and whose entries go on from the point's
    number. The logs before the point and the artifacts that they and its items name are in its own folder (removing the
    source does not take them away): its agent can look back as that of the source could. Inside a run, `resume` goes on
    with its task. Raises `PodNotFound`, `PodExists`, `UsageProblem`, `LogDamaged`, `StoreError`.
    """
    source = PodFolder(home, check_name(name))
    point = settled_point(source, at)
    state = point.state
    folder = PodFolder(home, check_name(new))
    with making(folder):
        for label in {*state.blobs.values(), state.manifest, *state.instructions.values()}:
            if source.holds(label):  # a lost one stays lost: the fork's next run says so and makes it anew
                folder.put_blob(source.blob(label))
        items = tuple(state.history.view)
        past = take_along(source, folder, point)
        link_artifacts(source, folder, past | _artifacts_of(items))
        start = e.SegmentStarted(
            session=uuid7(),
            segment=uuid7(),
            lineage=e.Lineage(kind="forked_from", segment=point.segment, seq=point.seq, session=state.start.session),
            items=items,
            blobs=dict(state.blobs),
            carry=_carry_at(state, Totals()).model_copy(update={"inbox": ()}),
            tag=state.start.tag,
        )
        write_segment(folder, start, point.seq + 1)
        folder.set_pointer(Pointer(name=new, session=start.session, segment=start.segment, created=now()))
    folder.unlock()
    unfinished = PodState.begin(start).unanswered
    return Changed(new, start.segment, point.seq, point.asked, len(items), _left(state), unfinished)


def _artifacts_of(items: tuple[Item, ...]) -> set[str]:
    results = (item.model_dump_json().encode() for item in items if isinstance(item, ToolResultItem))
    return {name for result in results for name in named_artifacts(result)}


def _left(*states: PodState) -> tuple[str, ...]:
    """What does not go along, in words."""
    queued = {label for state in states for label in state.history.queue}
    asked = {label for state in states for label in state.approvals}
    jobs = any(state.tool_state.get(PROCESSES_KEY) for state in states)
    found = [f"{len(queued)} message{'s' * (len(queued) != 1)} that no request had seen"] if queued else []
    found += [f"{len(asked)} open question{'s' * (len(asked) != 1)}"] if asked else []
    return (*found, *(["background processes"] if jobs else []))


# -- rewind and clear -----------------------------------------------------------------------------------------


async def rewind(home: Path, name: str, to: int) -> Changed:
    """Takes a pod back to an earlier point: a new segment of the same session begins there. The log before stays as
    it is, and so do the files of the working folder. Inside a run, `resume` goes on with its task.

    Totals do not fall. Cancelled, either the old segment or the new one is active, whole. Raises `PodNotFound`,
    `PodBusy`, `UsageProblem`, `NotSettled` where nothing would change, `OSError`.
    """
    _point_before(PodFolder(home, check_name(name)), to)  # what is refused leaves no trace of a writer
    session = Session.open(home, name)
    try:
        point = _point_before(session.folder, to)
        state, current = point.state, session.state
        await _end_everything(session, "rewound")
        totals = current.totals.model_copy(update={"segments": current.totals.segments + 1})
        carry = _carry_at(state, totals).model_copy(
            update={
                "inbox": current.carry().inbox,
                "windows": dict(current.history.windows),
                "refusals": dict(current.history.refusals),
                "calibration": current.history.calibration,
                "breaker": current.breaker,
                "last_reply_at": current.last_reply_at,
            }
        )
        start = e.SegmentStarted(
            session=current.start.session,
            segment=uuid7(),
            lineage=e.Lineage(kind="rewound_from", segment=point.segment, seq=point.seq),
            items=tuple(state.history.view),
            blobs=dict(state.blobs),
            carry=carry,
            tag=state.start.tag,
        )
        left = _left(state, current)
        session.folder.expire_cursors()
        await session.switch(start)
        session.writer.sync_now()
        unfinished = session.state.unanswered
        return Changed(name, start.segment, point.seq, point.asked, len(start.items), left, unfinished)
    finally:
        session.close()


def _point_before(folder: PodFolder, to: int) -> Point:
    """The settled point to go back to. Raises `NotSettled` where the pod stands there, and what `settled_point` does."""
    point = settled_point(folder, to)
    active = folder.pointer().segment
    if point.segment == active and not _changes_after(folder.segment_path(active), point.seq):
        raise NotSettled(f"pod {folder.name!r} stands at entry {point.seq} already: nothing to take back")
    return point


def _changes_after(log: Path, seq: int) -> bool:
    """Whether anything but a change of writer was recorded behind an entry."""
    return any(line.seq > seq and line.kind not in {"lease", "repaired"} for line in entries(log))


async def clear(home: Path, name: str) -> Changed:
    """Begins the session anew in the same pod. A floor for privacy: nothing of before is carried over but totals,
    what is seen of the session from now on stops there, and artifacts of before can't be read any more. The old logs, those
    that a fork took along too, stay on disk until `remove`. So do the agent's notes, a file of its working folder: what stands in them now is shown
    at the start of no later window, only what is added behind it.

    Messages that were stored and that no run has seen are left behind as well; those still in the inbox come after.
    Cancelled, either the old segment or the new one is active. Raises `PodNotFound`, `PodBusy`, `OSError`.
    """
    session = Session.open(home, check_name(name))
    try:
        state = session.state
        await _end_everything(session, "cleared")
        left = _left(state)
        folder = kept(session.folder).cwd
        notes = None if folder is None else Path(folder) / NOTES
        mark = None if notes is None else mark_of(notes)
        start = e.SegmentStarted(
            session=state.start.session,
            segment=uuid7(),
            lineage=e.Lineage(kind="cleared_from", segment=state.start.segment, seq=state.last_seq),
            blobs=dict(state.blobs),
            carry=Carry(
                totals=state.totals.model_copy(update={"segments": state.totals.segments + 1}),
                inbox=state.carry().inbox,
                manifest=state.manifest,
                notes=mark or state.notes,
            ),
            tag=state.start.tag,
        )
        session.folder.expire_cursors()
        await _switch_without_artifacts(session, start)
        session.writer.sync_now()
        found = None if mark is None else notes
        return Changed(name, start.segment, state.last_seq, state.last_seq, 0, left, notes=found)
    finally:
        session.close()


async def _switch_without_artifacts(session: Session, start: e.SegmentStarted) -> None:
    """The artifacts of before go aside first: a crash between the two steps then hides too much, never too little."""
    folder, files = session.folder, session.folder.files
    aside = folder.path / f"{SET_ASIDE}{start.segment}"
    moved = folder.artifacts.is_dir()
    if moved:
        files.rename(folder.artifacts, aside)
        files.sync_folder(folder.path)
    try:
        await session.switch(start)
    except OSError:
        if moved:
            files.rename(aside, folder.artifacts)
        raise


async def _end_everything(session: Session, why: str) -> None:
    """An open run is ended on record, and processes that it left running are ended."""
    state = session.state
    await processes_of(session).end_all()
    if state.run is not None:
        session.put(e.RunEndedEntry(run=state.run, status="cancelled", result={"reason": why}))
    session.writer.sync_now()
