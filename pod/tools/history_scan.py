"""What `session_history` looks at: the items of a session as rows, read in bounds, to be gone on with from any place.

Segments come newest first, the entries of one segment in order. A row stands where its item entered the view: user
input that was never admitted, was given back or was rejected has none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.lines import Invalid, Line, parse
from pod.log.segment import open_log
from pod.reading import ITEM_KINDS, Allowance, End, Segment, SessionReader, Spent, before
from pod.tools.history_cursor import PENDING, Passed, Place, mark_of
from worker import records as w
from worker.items import AssistantItem, ContextItem, Image, Item, ToolCallItem, ToolResultItem, UserItem
from worker.memory import read_by_others
from worker.records import Record

SCAN_BYTES = 2 << 20
"""Bytes of logs that one call reads at most."""

SCAN_ROWS = 500
"""Rows that one call looks at at most: entries, and items beyond the first of an entry."""

LINE_BYTES = 1 << 20
"""A longer line is passed over and counted."""

OWN = "session_history"
"""The tool's name: its own answers are never given again."""

SHOWN_CONTEXT = frozenset({"summary", "auto_read"})
"""Context items that hold something to look up; the others are the runtime's."""

UNSEEN = "its text is over 1 MiB, or stands much earlier in the log than its place in the conversation"
"""The mark of an admitted input whose text was not seen."""

STUB = "\n[pruned: the log that held its full text is not here, this is all that is left of it]"
"""Stands behind the text of a result that a segment began with in pruned form, where nothing older can be read."""

RowType: TypeAlias = Literal["user", "assistant", "tool_call", "tool_result", "context"]

BY_BYTES, BY_ROWS = f"{SCAN_BYTES >> 20} MiB", f"{SCAN_ROWS} rows"
"""How a bound that ended a call is named."""

_KINDS = ITEM_KINDS | {"admitted", "withdrawn", "input_rejected"}
_FOR_ANCHORS = 256
_CHUNK = 1 << 16
_PROBE = 1 << 18
_AT = re.compile(rb'\{"v":\d{1,6},"seq":\d{1,15},"id":"[^"\\]{1,64}","at":"([^"\\]{1,40})"')


@dataclass(frozen=True, slots=True)
class Row:
    """An item as history shows it.

    `text` is None for what is left out: `mark` says why; a marked text is not searched.
    """

    segment: str
    seq: int
    at: str
    item: str
    type: str
    text: str | None
    tool: str = ""
    status: str = ""
    mark: str = ""


@dataclass(slots=True)
class Bounds(Allowance):
    """What one call may still read, what it passed over, and which bound ended it (empty: none did)."""

    bytes: int = SCAN_BYTES - _FOR_ANCHORS
    rows: int = SCAN_ROWS
    too_long: int = 0
    damaged: int = 0
    ended_by: str = ""

    @property
    def passed(self) -> Passed:
        """What was passed over."""
        return Passed(self.too_long, self.damaged)

    def line(self, file: BinaryIO, at: int, most: int) -> bytes:
        """The bytes from `at` to the next newline, without it, at most `most`. Raises `Spent`."""
        found = bytearray()
        while len(found) < most and (chunk := self.read(file, at + len(found), _CHUNK)):
            part, newline, _ = chunk.partition(b"\n")
            found += part
            if newline:
                break
        return bytes(found)


# -- items as rows ------------------------------------------------------------------------------------------------


def row_of(item: Item, segment: str, seq: int, at: str) -> Row:
    """An item as a row: reasoning, provider items and the runtime's words left out, media and own answers marked."""
    item = read_by_others(item)
    match item:
        case UserItem():
            return Row(segment, seq, at, item.id, "user", item.text + _media(item.images))
        case AssistantItem():
            return Row(segment, seq, at, item.id, "assistant", item.text)
        case ToolCallItem():
            mark = "a question to session_history" if item.name == OWN else ""
            return Row(segment, seq, at, item.id, "tool_call", item.arguments, item.name, mark=mark)
        case ToolResultItem(name=name) if name == OWN:
            mark = "an answer of session_history"
            return Row(segment, seq, at, item.id, "tool_result", f"[{mark}: not repeated]", name, item.status, mark)
        case ToolResultItem():
            text = item.text() + _media(item.images) + (STUB if item.pruned else "")
            return Row(segment, seq, at, item.id, "tool_result", text, item.name, item.status)
        case ContextItem(kind=kind) if kind in SHOWN_CONTEXT:
            return Row(segment, seq, at, item.id, "context", item.text, kind)
        case ContextItem():
            return Row(segment, seq, at, item.id, "context", None, mark=f"the runtime's own {item.kind}")
        case _:
            return Row(segment, seq, at, item.id, item.type, None, mark=f"{item.type} is not shown")


def _media(images: tuple[Image, ...]) -> str:
    return "".join(f"\n[image, {image.media_type}: not shown]" for image in images)


# -- one segment --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """An input that is not yet admitted: where its entry begins, and itself unless it has to be read again."""

    offset: int
    item: UserItem | None = None


@dataclass(slots=True)
class Rows:
    """The rows of one segment from a place on. `place` is where to go on once `rows` has ended.

    `oldest`: nothing older can be read, so what the segment began with is shown here. `hidden` are ids of user inputs
    that are not shown.
    """

    segment: Segment
    oldest: bool
    bounds: Bounds
    place: Place
    hidden: Container[str] = ()
    _inputs: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])

    def rows(self) -> Iterator[tuple[Row, Place]]:
        """Each row with the place of it: to go on there gives it again.

        Ends where the segment ends or a bound is reached.
        """
        self._inputs = {mark: _Waiting(offset) for offset, mark in self.place.pending}
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
                record = e.record_of(line, self.segment.path) if line.kind in _KINDS else None
                parts = [] if record is None else self._of(record, line)
            except (Invalid, LogDamaged):
                bounds.damaged += whole  # a last line without its newline may be one that is just being written
                continue
            if self.segment.upto is not None and line.seq > self.segment.upto:
                return
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

    def _count(self, here: Place) -> bool:
        """Whether one row more may be looked at."""
        if self.bounds.rows <= 0:
            self.bounds.ended_by, self.place = BY_ROWS, here
            return False
        self.bounds.rows -= 1
        return True

    def _here(self, offset: int, skip: int) -> Place:
        pending = tuple((waiting.offset, mark) for mark, waiting in self._inputs.items())[-PENDING:]
        return Place(self.place.step, offset, skip, 0, pending)

    def _of(self, record: Record, line: Line) -> list[Row | str]:
        """The rows of an entry; for an admitted input its id."""
        match record:
            case e.SegmentStarted():
                if line.offset or self.segment.lineage is None:
                    raise Invalid("a beginning that cannot be believed")
                self._wait(line.offset, *record.pending_inputs)
                # Older segments hold the originals of what was retained; only what is new here is a row of its own.
                items = [
                    i for i in record.items if self.oldest or (isinstance(i, ContextItem) and i.kind in SHOWN_CONTEXT)
                ]
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
                    bounds.too_long += 1
                passing = False
            at += len(chunk)
            if not passing:
                rest += chunk[used:]
            if len(rest) > LINE_BYTES:
                bounds.too_long += 1
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
            self.place = Place(step)

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
        step = before(segment)
        oldest = self.end is not None or step is None or not step.log(self.reader.folder).is_file()
        return Rows(segment, oldest, self.bounds, self.place, self.reader.taken_back())


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
