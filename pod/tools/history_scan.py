"""What `session_history` looks at: the entries of a session, read in bounds, to be gone on with from any place.

Segments come newest first, the entries of one segment in order. A row stands where its item entered the view: user
input that was never admitted, was given back or was rejected has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.bounded import Allowance, Spent
from pod.log.items import ITEM_KINDS
from pod.log.lines import Invalid, Line, parse
from pod.log.segment import open_log, stands_for
from pod.reading import End, Segment, SessionReader, before
from pod.tools.history_cursor import PENDING, Met, Passed, Place, mark_of
from pod.tools.history_rows import Older, Row, is_shown, row_of
from worker import records as w
from worker.items import UserItem
from worker.records import Record

SCAN_BYTES = 2 << 20
"""Bytes of logs that one call reads at most."""

SCAN_ROWS = 500
"""Rows that one call looks at at most: entries, and items beyond the first of an entry."""

LINE_BYTES = 1 << 20
"""A longer line is passed over and counted."""

UNSEEN = "its text is over 1 MiB, or stands much earlier in the log than its place in the conversation"
"""The mark of an admitted input whose text was not seen."""

BY_BYTES, BY_ROWS = f"{SCAN_BYTES >> 20} MiB", f"{SCAN_ROWS} rows"
"""How a bound that ended a call is named."""

_KINDS = ITEM_KINDS | {"admitted", "withdrawn", "input_rejected", "repaired"}
_SEQ = re.compile(rb'\{"v":\d{1,6},"seq":(\d{1,15}),')
_HEAD = 64
_FOR_ANCHORS = 256
_CHUNK = 1 << 16
_PROBE = 1 << 18
_AT = re.compile(rb'\{"v":\d{1,6},"seq":\d{1,15},"id":"[^"\\]{1,64}","at":"([^"\\]{1,40})"')


@dataclass(slots=True)
class Bounds(Allowance):
    """What one call may still read, what it passed over, and which bound ended it (empty: none did).

    `lost` counts entries that are missing in the logs, `gaps` says where this call met that.
    """

    bytes: int = SCAN_BYTES - _FOR_ANCHORS
    rows: int = SCAN_ROWS
    too_long: int = 0
    damaged: int = 0
    lost: int = 0
    gaps: list[str] = field(default_factory=list[str])
    ended_by: str = ""

    @property
    def passed(self) -> Passed:
        """What was passed over."""
        return Passed(self.too_long, self.damaged, self.lost)

    def begin_from(self, passed: Passed) -> None:
        """Goes on counting from what was passed over before, nothing where it is come to again."""
        self.too_long, self.damaged, self.lost = passed
        self.gaps.clear()

    def lose(self, segment: Segment, first: int, numbers: int, how: str = "") -> None:
        """Takes note of entries that are missing in a segment."""
        self.lost += numbers
        what = f"{first}" if numbers == 1 else f"{first} to {first + numbers - 1}"
        self.gaps.append(f"{what} of window {segment.id}{how}")

    def line(self, file: BinaryIO, at: int, most: int) -> bytes:
        """The bytes from `at` to the next newline, without it, at most `most`. Raises `Spent`."""
        found = bytearray()
        while len(found) < most and (chunk := self.read(file, at + len(found), _CHUNK)):
            part, newline, _ = chunk.partition(b"\n")
            found += part
            if newline:
                break
        return bytes(found)


# -- one segment --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """An input that is not yet admitted: where its entry begins, and itself unless it has to be read again."""

    offset: int
    item: UserItem | None = None


@dataclass(slots=True)
class Rows:
    """The rows of one segment from a place on. `place` is where to go on once `rows` has ended.

    `older` says what can be read before it: only where that is not all is what the segment began with shown here. `hidden`
    are ids of user inputs that are not shown.
    """

    segment: Segment
    older: Callable[[], Older]
    bounds: Bounds
    place: Place
    hidden: Container[str] = ()
    _inputs: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])
    _met: Met = field(default_factory=Met)

    def rows(self) -> Iterator[tuple[Row, Place]]:
        """Each row with the place of it: to go on there gives it again.

        Ends where the segment ends or a bound is reached.
        """
        self._inputs = {mark: _Waiting(offset) for offset, mark in self.place.pending}
        self._met = self.place.met
        with open_log(self.segment.path) as file:
            try:
                yield from self._rows(file)
            except Spent:
                self.bounds.ended_by = BY_BYTES

    def _rows(self, file: BinaryIO) -> Iterator[tuple[Row, Place]]:
        bounds, first, skip = self.bounds, self.place.offset, self.place.skip
        for offset, data, whole in self._lines(file):
            skipped = skip if offset == first else 0
            if not self._count(self._here(offset, skipped)):
                return
            try:
                line = parse(data, offset, 0)
            except Invalid:
                # A last line without its newline may be one that is just being written; in a log that is over it is not.
                if whole or self.segment.last is not None:
                    self._broken()
                continue
            if self.segment.upto is not None and line.seq > self.segment.upto:
                break
            if 0 < line.seq <= self._met.last:  # written twice, or by a second writer
                bounds.damaged += 1
                continue
            self._missing_before(line.seq)
            try:
                record = e.record_of(line, self.segment.path) if line.kind in _KINDS else None
                parts = [] if record is None else self._of(record, line)
            except (Invalid, LogDamaged):
                bounds.damaged += 1
                self._met = Met(line.seq)
                continue
            for number, part in enumerate(parts[skipped:], skipped):
                here = self._here(offset, number)
                if number > skipped and not self._count(here):
                    return
                self.place = here
                row = self._admitted(file, part, line) if isinstance(part, str) else part
                if row.item not in self.hidden:
                    yield row, here
            if isinstance(record, w.Admitted):
                self._forget(*record.ids)
            self._met = Met(line.seq + stands_for(line) - 1)
        if self.segment.last is not None:
            self._missing_before(self.segment.last + 1)

    # -- numbers --------------------------------------------------------------------------------------------------

    def _missing_before(self, seq: int) -> None:
        """Tells what is missing before an entry, once: from here on all before it counts as met."""
        first, numbers = self._met.gap(seq)
        if numbers:
            self.bounds.lose(self.segment, first, numbers)
        self._met = Met(seq - 1)

    def _broken(self) -> None:
        self.bounds.damaged += 1
        self._met = self._met._replace(broken=self._met.broken + 1)

    def _too_long(self, head: bytes) -> None:
        """Passes over a line by its number; its checksum is not looked at."""
        self.bounds.too_long += 1
        found = _SEQ.match(head)
        if found is None:
            self._met = self._met._replace(broken=self._met.broken + 1)
        elif (seq := int(found[1])) > self._met.last:
            self._missing_before(seq)
            self._met = Met(seq)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _count(self, here: Place) -> bool:
        """Whether one row more may be looked at."""
        if self.bounds.rows <= 0:
            self.bounds.ended_by, self.place = BY_ROWS, here
            return False
        self.bounds.rows -= 1
        return True

    def _here(self, offset: int, skip: int) -> Place:
        pending = tuple((waiting.offset, mark) for mark, waiting in self._inputs.items())[-PENDING:]
        return Place(self.place.step, offset, skip, 0, pending, False, self._met, self.bounds.passed)

    def _of(self, record: Record, line: Line) -> list[Row | str]:
        """The rows of an entry; for an admitted input its id."""
        match record:
            case e.SegmentStarted():
                if line.offset or self.segment.lineage is None:
                    raise Invalid("a beginning that cannot be believed")
                self._wait(line.offset, *record.pending_inputs)
                # Older segments hold the originals of what was retained; only what is new here is a row of its own.
                older = self.older()
                items = [i for i in record.items if is_shown(i, older)]
            case e.Repaired():
                if record.lost:
                    self.bounds.lose(self.segment, line.seq, record.lost, ", put aside by a repair")
                return []
            case w.Admitted():
                return [*record.ids]
            case w.Input():
                self._wait(line.offset, record.item)
                return []
            case w.Withdrawn():
                self._forget(*record.ids)
                return []
            case e.InputRejected():
                self._forget(record.id)
                return []
            case w.ReplyRecord() | w.ContextAdded():
                items = record.items
            case w.ToolResult():
                items = (record.item,)
            case _:
                return []
        return [row_of(item, self.segment.id, line.seq, line.at) for item in items]

    def _wait(self, offset: int, *items: UserItem) -> None:
        self._inputs |= {mark_of(item.id): _Waiting(offset, item) for item in items}

    def _forget(self, *ids: str) -> None:
        for known in ids:
            self._inputs.pop(mark_of(known), None)

    def _admitted(self, file: BinaryIO, known: str, line: Line) -> Row:
        waiting = self._inputs.get(mark_of(known))
        if waiting is not None and waiting.item is None:
            self._read_again(file, waiting.offset)
            waiting = self._inputs.get(mark_of(known))
        item = waiting.item if waiting is not None else None
        if item is None or item.id != known:
            return Row(self.segment.id, line.seq, line.at, known, "user", "", mark=UNSEEN)
        return row_of(item, self.segment.id, line.seq, line.at)

    def _read_again(self, file: BinaryIO, offset: int) -> None:
        """Reads the inputs of an entry that was passed in an earlier call."""
        try:
            line = parse(self.bounds.line(file, offset, LINE_BYTES + 1), offset, 0)
            record = e.record_of(line, self.segment.path)
        except (Invalid, LogDamaged):
            return
        match record:
            case w.Input():
                self._wait(offset, record.item)
            case e.SegmentStarted():
                self._wait(offset, *record.pending_inputs)
            case _:
                return

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
        """Offset and bytes of the lines from the place on, and whether a newline follows. Raises `Spent`."""
        bounds, first, skip = self.bounds, self.place.offset, self.place.skip
        begin = at = first
        passing = bool(begin) and bounds.read(file, begin - 1, 1) != b"\n"
        rest = bytearray()
        while True:
            self.place = self._here(at if passing else begin, skip if begin == first else 0)
            chunk = bounds.read(file, at, _CHUNK)
            if not chunk:
                if rest:
                    yield begin, bytes(rest), False
                return
            used = 0
            while (newline := chunk.find(b"\n", used)) >= 0:
                rest += chunk[used:newline]
                line, start = bytes(rest), begin
                rest.clear()
                used = newline + 1
                begin = at + used
                if not passing and len(line) <= LINE_BYTES:
                    if line.strip():
                        yield start, line, True
                elif not passing:
                    self._too_long(line[:_HEAD])
                passing = False
            at += len(chunk)
            if not passing:
                rest += chunk[used:]
            if len(rest) > LINE_BYTES:
                self._too_long(bytes(rest[:_HEAD]))
                passing = True
                rest.clear()


# -- a whole session ----------------------------------------------------------------------------------------------


@dataclass
class Scan:
    """A session from a place on, segment by segment, each looked at when it is come to.

    `place` is where to go on, `end` why there is nothing before the last segment that was met (None: there may be),
    `met` whether a segment's rows were looked at.
    """

    reader: SessionReader
    session: str
    bounds: Bounds
    place: Place
    end: End | None = None
    met: bool = False

    def segments(self) -> Iterator[Segment]:
        """The segments, newest first, until the session or a bound ends."""
        while True:
            if self.bounds.rows <= 0:
                self.bounds.ended_by = BY_ROWS
                return
            self.bounds.rows -= 1
            try:
                segment, self.end = self.reader.look(self.place.step, self.session, self.bounds)
            except Spent:
                self.bounds.ended_by = BY_BYTES
                return
            if segment is None:
                return
            yield segment
            step = before(segment) if self.end is None else None
            if step is None:
                return
            self.place = Place(step, passed=self.bounds.passed)

    def rows(self, window: str | None = None) -> Iterator[tuple[Row, Place]]:
        """All rows, or those of one segment, each with its place."""
        for segment in self.segments():
            if window not in {None, segment.id}:
                continue
            self.met = True
            rows = self.of(segment)
            yield from rows.rows()
            if self.bounds.ended_by:
                self.place = rows.place
                return
            if window is not None:
                return

    def of(self, segment: Segment) -> Rows:
        """The rows of the segment that `segments` gave last, from the place on."""
        return Rows(segment, lambda: self._older(segment), self.bounds, self.place, self.reader.taken_back())

    def _older(self, segment: Segment) -> Older:
        step = before(segment)
        if self.end is not None or step is None or not step.log(self.reader.folder).is_file():
            return "gone"
        reached = self.reader.reaches(step, self.bounds, LINE_BYTES)
        return "whole" if reached is None or step.last is None or reached >= step.last else "cut"

    def cut(self, segment: Segment) -> tuple[int, int]:
        """The first entry that is missing at the end of the log of the segment that `segments` gave last, and how many are.

        Raises `Spent`.
        """
        if segment.last is None or not segment.seq:
            return 0, 0
        reached = self.reader.reaches(self.place.step, self.bounds, LINE_BYTES)
        if reached is None or reached >= segment.last:
            return 0, 0
        return reached + 1, segment.last - reached


def near(path: Path, at: str, bounds: Bounds) -> int:
    """The start of a line of which no earlier line was written at `at` or later, found by bisection.

    Times of a log grow but for changes of the clock, so what is looked for may also stand before it. Leaves more than
    the longest line of what one call may read. Raises `Spent`.
    """
    low, high = 0, path.stat().st_size
    least = bounds.bytes - 2 * _PROBE
    with open_log(path) as file:
        while high - low > _CHUNK and bounds.bytes > least:
            middle = (low + high) // 2
            start = middle + len(bounds.line(file, middle, _PROBE)) + 1
            found = _AT.match(bounds.read(file, start, 256)) if start < high else None
            if found is not None and found[1].decode() < at:
                low = start
            else:
                high = middle
    return low
