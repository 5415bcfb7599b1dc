"""Reading a session without writing to it: which segments it has, where each should end, its entries in order.

Nothing here takes the lock or loads a log whole. A `cleared_from` lineage is a floor: what lies before it cannot be
reached from here, and a first entry that does not read beyond doubt is a floor as well. Whoever may read only so many
bytes goes from segment to segment by `look`, and reads by `Allowance`.

A fork has the logs of its origin in its own folder. They are its past, not its session: only `look`, and who asks for
`origins`, goes on into them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, ValidationError, field_validator

from pod.errors import NewerFormat, NotALog
from pod.log import entries as e
from pod.log.bounded import Allowance, Spent, last_number
from pod.log.files import odd_kind
from pod.log.folder import PodFolder
from pod.log.lines import FORMAT, Invalid, Line, parse
from pod.log.segment import CHUNK, Damage, open_log, scan

End: TypeAlias = Literal["start", "cleared", "forked", "missing", "unreadable"]
"""Why there is nothing before the oldest readable segment.

The session begins there; it was cleared; it was forked from another session, whose logs are not here or were not asked
for; the file is gone; its first entry does not read.
"""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a session: its lineage, and `seq` and `at` of its first entry (0 and empty where it does not read).

    `upto` is the last entry that belongs to the session (a rewind or a fork left what came after it), None for all of
    them. `last` is the entry that its log should end with or reach, as the newer segment says; None for the active one.
    `origin` is the session that it is of where that is not the pod's own but one that the pod was forked from.
    """

    id: str
    path: Path
    seq: int
    at: str
    lineage: e.Lineage | None
    upto: int | None = None
    origin: str = ""
    last: int | None = None


class Chain(NamedTuple):
    """The segments of a session, newest first, and why there are no more."""

    segments: tuple[Segment, ...]
    end: End


class Step(NamedTuple):
    """A segment to look at: its id, and what the newer one says of it.

    Its first entry has a lower number than `before`; `upto` and `origin` are as a `Segment` has them.
    """

    segment: str
    before: int | None = None
    upto: int | None = None
    origin: str = ""

    @property
    def last(self) -> int | None:
        """The entry that its log should reach; None for the active segment."""
        return self.upto if self.upto is not None or self.before is None else self.before - 1

    def log(self, folder: PodFolder) -> Path:
        """Where its log lies."""
        return folder.origin_path(self.segment) if self.origin else folder.segment_path(self.segment)


class Located(NamedTuple):
    """An entry with the segment that it stands in."""

    segment: str
    line: Line


_Key: TypeAlias = tuple[str, str, int, int]
"""A file that holds a segment: the segment's id and origin, the file's inode and device."""


class _Start(BaseModel):
    session: str
    segment: str
    lineage: e.Lineage

    @field_validator("lineage", mode="before")
    @classmethod
    def _named_once(cls, value: object) -> object:
        """The kind is under its own name and no other: of two, none can be believed."""
        if not isinstance(value, dict) or "kind" not in value or "kind_" in value:
            raise ValueError("a lineage without one kind")
        return cast("dict[str, Any]", value)


def _nothing() -> frozenset[str]:
    return frozenset()


@dataclass
class SessionReader:
    """Reads the session of one pod, from its active segment back to where it began or was cleared.

    Safe beside a writer in this or another process. First entries are remembered: a segment's never changes.
    `taken_back` gives the ids of user inputs that were given back or rejected.
    """

    folder: PodFolder
    taken_back: Callable[[], Container[str]] = _nothing
    _heads: dict[_Key, tuple[Segment | None, End | None]] = field(
        default_factory=dict["_Key", tuple[Segment | None, End | None]], repr=False
    )
    _begun: dict[_Key, bytes] = field(default_factory=dict["_Key", bytes], repr=False)
    _ends: dict[tuple[int, int, int], int | None] = field(
        default_factory=dict[tuple[int, int, int], "int | None"], repr=False
    )

    def walk(self, *, origins: bool = False) -> Iterator[Segment]:
        """The segments, newest first, with `origins` also those that the pod was forked from; each file's first entry is
        read when it is come to.

        Raises `PodNotFound`, `UsageProblem`.
        """
        for segment, _ in self._walk(origins):
            if segment is not None:
                yield segment

    def chain(self, *, origins: bool = False) -> Chain:
        """All segments and why there are no more. Raises `PodNotFound`, `UsageProblem`."""
        segments: list[Segment] = []
        end: End = "start"
        for segment, reason in self._walk(origins):
            if segment is not None:
                segments.append(segment)
            end = reason or end
        return Chain(tuple(segments), end)

    def located(
        self, after_seq: int = 0, on_damage: Callable[[str, Damage], None] | None = None, *, origins: bool = False
    ) -> Iterator[Located]:
        """The entries of the session with a number above `after_seq`, in order, each with its segment.

        Older segments than the one that holds `after_seq` are not opened beyond their first entry. Damage before a
        valid entry is passed over and told to `on_damage` with its segment; an unfinished last line is not damage.
        Raises `PodNotFound`, `NewerFormat`.
        """
        chosen: list[Segment] = []
        for segment in self.walk(origins=origins):
            chosen.append(segment)
            if segment.seq <= after_seq + 1:
                break
        for segment in reversed(chosen):
            held: list[Damage] = []
            for found in scan(segment.path):
                if isinstance(found, Damage):
                    held.append(found)
                    continue
                if segment.upto is not None and found.seq > segment.upto:
                    break
                if on_damage is not None:
                    for damage in held:
                        on_damage(segment.id, damage)
                held.clear()
                if found.seq > after_seq:
                    yield Located(segment.id, found)

    def lines(
        self, after_seq: int = 0, on_damage: Callable[[str, Damage], None] | None = None, *, origins: bool = False
    ) -> Iterator[Line]:
        """`located` without the segments."""
        for found in self.located(after_seq, on_damage, origins=origins):
            yield found.line

    # -- lineage ----------------------------------------------------------------------------------------------

    def look(self, step: Step, session: str, allowance: Allowance) -> tuple[Segment | None, End | None]:
        """The segment of a step, and why there is nothing before it; no segment where the session ends before it.

        Raises `Spent` where its first entry is longer than what may be read: the next look goes on where this one
        ended. Raises `NewerFormat`, `OSError`.
        """
        if not _is_named(step.segment):
            return None, "unreadable"
        segment, end = self._head(step, step.origin or session, allowance)
        if segment is not None and step.before is not None and segment.seq >= step.before:
            return None, "unreadable"
        if segment is not None:
            segment = replace(segment, upto=step.upto, origin=step.origin, last=step.last)
        return segment, end

    def reaches(self, step: Step, allowance: Allowance, most: int) -> int | None:
        """The last number in the log of a step; 0 where it holds no entry, or is none. None where its last `most` bytes
        don't tell.

        Told by its end alone, which is read once. Raises `Spent`, `OSError`.
        """
        path = step.log(self.folder)
        if not path.is_file():
            return 0
        stat = path.stat()
        key = (stat.st_ino, stat.st_dev, stat.st_size)
        if key not in self._ends:
            self._ends[key] = last_number(path, allowance, most)
        return self._ends[key]

    def _walk(self, origins: bool) -> Iterator[tuple[Segment | None, End | None]]:
        pointer = self.folder.pointer()
        active = self.folder.segment_path(pointer.segment)
        if (kind := odd_kind(active)) is not None:
            raise NotALog(active, kind)
        step: Step | None = Step(pointer.segment)
        while step is not None:
            segment, end = self.look(step, pointer.session, Allowance())
            older = before(segment) if segment is not None and end is None else None
            if older is not None and older.origin and not origins:
                older, end = None, "forked"
            yield segment, end
            step = older

    def _head(self, step: Step, session: str, allowance: Allowance) -> tuple[Segment | None, End | None]:
        label, path = step.segment, step.log(self.folder)
        try:
            stat = path.stat()
        except OSError:
            return None, "missing"
        if odd_kind(path) is not None:
            return None, "missing"
        key = (label, step.origin, stat.st_ino, stat.st_dev)
        if (known := self._heads.get(key)) is not None:
            return known
        found = _first(path, label, session, self._first_line(path, key, allowance))
        if found[0] is not None:
            self._heads[key] = found
        return found

    def _first_line(self, path: Path, key: _Key, allowance: Allowance) -> bytes:
        """The first line without its newline. What was read of it is kept where the allowance ends within it."""
        data = self._begun.pop(key, b"")
        with open_log(path) as file:
            try:
                while (chunk := allowance.read(file, len(data), CHUNK)) and b"\n" not in chunk:
                    data += chunk
            except Spent:
                self._begun[key] = data
                raise
        return data + chunk.partition(b"\n")[0]


def before(segment: Segment) -> Step | None:
    """The step to the segment that this one descends from."""
    lineage = segment.lineage
    if lineage is None or lineage.segment is None:
        return None
    upto = lineage.seq if lineage.kind_ in {"rewound_from", "forked_from"} else None
    origin = (lineage.session or "") if lineage.kind_ == "forked_from" else segment.origin
    return Step(lineage.segment, segment.seq, upto, origin)


def _first(path: Path, label: str, session: str, data: bytes) -> tuple[Segment | None, End | None]:
    unreadable: tuple[Segment, End] = (Segment(label, path, 0, "", None), "unreadable")
    try:
        line = parse(data, 0, 1)
        if line.version > FORMAT:
            raise NewerFormat(path, line.version, FORMAT)
        if line.kind != "segment_started":
            return unreadable
        start = _Start.model_validate(json.loads(line.body, object_pairs_hook=_no_twins))
    except (Invalid, ValidationError, ValueError, RecursionError):
        return unreadable
    if start.session != session or start.segment != label:
        return None, "unreadable"
    return Segment(label, path, line.seq, line.at, start.lineage), _end(start.lineage)


def _end(lineage: e.Lineage) -> End | None:
    match lineage.kind_:
        case "fresh":
            return "start"
        case "cleared_from":
            return "cleared"
        case "forked_from" if not lineage.session:
            return "forked"
        case "rewound_from" | "forked_from":
            return None if _is_named(lineage.segment) and lineage.seq is not None else "unreadable"
        case _:
            return None if _is_named(lineage.segment) else "unreadable"


def _is_named(segment: str | None) -> bool:
    return segment is not None and _SEGMENT.fullmatch(segment) is not None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different, however they are escaped: of two lineages, none can be believed."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
