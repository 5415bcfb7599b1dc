"""Settled points: where a session can change hands. No call is open there, and no input waits for its reply.

A point that is not settled is rounded down to the last one that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pod.errors import LogLost, UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import entries
from pod.reading import Chain, Segment, SessionReader
from pod.session import start_of
from pod.state import PodState


@dataclass(frozen=True, slots=True)
class Point:
    """A settled point: the state as it was behind entry `seq` of a segment. `asked` is the entry that was asked for.

    `end` is how many bytes of the segment's log there are up to the point; `past` are the segments from this one back,
    newest first, those of the sessions that the pod was forked from included.
    """

    segment: str
    seq: int
    asked: int
    state: PodState
    end: int
    past: tuple[Segment, ...]

    @property
    def rounded(self) -> bool:
        """Whether the point lies before the one that was asked for."""
        return self.seq < self.asked


def settled_point(folder: PodFolder, at: int | None = None) -> Point:
    """The last settled point at or before entry `at` (None: the last entry). Blocks; needs no lock, and changes
    nothing.

    Raises `UsageProblem` for an entry that the session does not have or that lies before a `pod clear`, `LogDamaged`, `LogLost`.
    """
    start_of(folder)  # an active log that is lost is told as such
    chain = SessionReader(folder).chain(origins=True)
    newest, *older = _segments_back(folder, chain, at)
    settled, last = _replay(newest, at)
    asked = last if at is None else at
    for segment in (newest, *older):
        if segment is not newest:
            settled, _ = _replay(segment, segment.upto)
        if settled is not None:
            state, end = _state_at(segment.path, settled)
            return Point(segment.id, settled, asked, state, end, chain.segments[chain.segments.index(segment) :])
    raise UsageProblem(f"pod {folder.name!r} has no settled point at or before entry {asked}; `pod log` shows entries")


def _segments_back(folder: PodFolder, chain: Chain, at: int | None) -> Sequence[Segment]:
    """The segment of the pod's own session that holds entry `at`, and those before it, newest first."""
    own = tuple(segment for segment in chain.segments if not segment.origin)
    if not own:
        raise UsageProblem(f"pod {folder.name!r} has no readable segment; `pod doctor {folder.name}` looks into it")
    if at is None:
        return own
    for place, segment in enumerate(own):
        if segment.seq <= at and (segment.upto is None or at <= segment.upto):
            if segment.seq == 0:
                break
            return own[place:]
    first, oldest = own[-1].seq, own[-1].lineage
    forked = oldest is not None and oldest.kind_ == "forked_from"
    if chain.end in {"missing", "unreadable"} and not forked and own[-1] is chain.segments[-1]:
        raise UsageProblem(
            f"entry {at} can't be reached in the session of pod {folder.name!r}: an older log is missing or does not read, "
            f"and what is left begins with entry {first}; `pod doctor {folder.name}` says which"
        )
    began = {"cleared_from": "the session was cleared there", "forked_from": "the pod was forked there"}
    why = began.get(oldest.kind_ if oldest else "", "the session begins there")
    raise UsageProblem(f"entry {at} is not in the session of pod {folder.name!r}: its first entry is {first} ({why})")


def _replay(segment: Segment, at: int | None) -> tuple[int | None, int]:
    """The number of the last settled entry up to `at` (None: the segment began with an input that waits for its reply,
    and none followed), and of the last entry there is.
    """
    state: PodState | None = None
    settled: int | None = None
    last = 0
    for line in entries(segment.path):
        last = line.seq
        if at is not None and line.seq > at:
            last = at
            break
        record = e.record_of(line, segment.path)
        if state is None:
            if not isinstance(record, e.SegmentStarted):
                raise LogLost(segment.path, f"its first entry is {line.kind}, not segment_started")
            state = PodState.begin(record)
        elif record is not None:
            state.apply(record, line.at, line.seq)
            state.history.apply(record)
        if not state.history.open and not state.history.unanswered and not state.history.held:
            settled = line.seq
    if at is not None and last < at:
        raise UsageProblem(f"there is no entry {at}; the last one is {last}")
    return settled, last


def _state_at(path: Path, seq: int) -> tuple[PodState, int]:
    """The state behind an entry, and where the entry ends in the file."""
    state: PodState | None = None
    end = 0
    for line in entries(path):
        if line.seq > seq:
            break
        end = line.offset + line.length
        record = e.record_of(line, path)
        if state is None:
            assert isinstance(record, e.SegmentStarted)
            state = PodState.begin(record)
            state.last_seq = line.seq
        elif record is not None:
            state.apply(record, line.at, line.seq)
            state.history.apply(record)
    assert state is not None
    return state, end
