"""What `session_history` looks at: the items of a session as rows, read in bounds and gone on with by a cursor.

Segments come newest first, the entries of one segment in order. A row stands where its item entered the view: user
input that was never admitted (queued, rejected, given back) has none.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.files import open_file
from pod.log.lines import Invalid, Line, parse
from pod.reading import Segment
from worker import records as w
from worker.items import AssistantItem, ContextItem, Image, Item, ToolCallItem, ToolResultItem, UserItem
from worker.records import Record
from worker.tools import ToolFault

SCAN_BYTES = 2 << 20
"""Bytes of logs that one call reads at most."""

SCAN_ROWS = 500
"""Rows that one call looks at at most."""

LINE_BYTES = 1 << 20
"""A longer line is passed over and counted."""

PENDING = 8
"""Inputs not yet admitted that a cursor remembers the place of."""

OWN = "session_history"
"""The tool's name: its own answers are never given again."""

SHOWN_CONTEXT = frozenset({"summary", "auto_read"})
"""Context items that hold something to look up; the others are the runtime's."""

UNSEEN = "its text is over 1 MiB, or stands much earlier in the log than its place in the conversation"
"""The mark of an admitted input whose text was not seen."""

RowType: TypeAlias = Literal["user", "assistant", "tool_call", "tool_result", "context"]

_CHUNK = 1 << 16
_ANCHOR = 64
_PROBE = 1 << 18
_AT = re.compile(rb'\{"v":\d{1,6},"seq":\d{1,15},"id":"[^"\\]{1,64}","at":"([^"\\]{1,40})"')


class Place(NamedTuple):
    """Where to go on: an offset in a segment, rows of that line already given, the lines of inputs not yet admitted."""

    segment: str
    offset: int = 0
    skip: int = 0
    pending: tuple[int, ...] = ()


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
class Bounds:
    """What one call may still read, what it passed over, and which bound ended it (empty: none did)."""

    bytes: int = SCAN_BYTES
    rows: int = SCAN_ROWS
    too_long: int = 0
    damaged: int = 0
    ended_by: str = ""


# -- items as rows ------------------------------------------------------------------------------------------------


def row_of(item: Item, segment: str, seq: int, at: str) -> Row:
    """An item as a row: reasoning, provider items and the runtime's words left out, media and own answers marked."""
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
            text = item.text() + _media(item.images)
            return Row(segment, seq, at, item.id, "tool_result", text, item.name, item.status)
        case ContextItem(kind=kind) if kind in SHOWN_CONTEXT:
            return Row(segment, seq, at, item.id, "context", item.text, kind)
        case ContextItem():
            return Row(segment, seq, at, item.id, "context", None, mark=f"the runtime's own {item.kind}")
        case _:
            return Row(segment, seq, at, item.id, item.type, None, mark=f"{item.type} is not shown")


def _media(images: tuple[Image, ...]) -> str:
    return "".join(f"\n[image, {image.media_type}: not shown]" for image in images)


@dataclass(slots=True)
class Rows:
    """The rows of one segment from a place on. `place` is where to go on once `rows` has ended."""

    segment: Segment
    oldest: bool
    bounds: Bounds
    place: Place
    stop: int | None = None
    _inputs: dict[str, tuple[UserItem, int]] = field(default_factory=dict[str, tuple[UserItem, int]])

    def rows(self) -> Iterator[tuple[Row, Place]]:
        """Each row with the place of it: to go on there gives it again.

        Ends where the segment ends or a bound is reached.
        """
        bounds, label, skip = self.bounds, self.segment.id, self.place.skip
        with open_file(self.segment.path) as file:
            self._remember(file)
            for offset, data, whole in self._lines(file):
                if self.stop is not None and offset >= self.stop:
                    return
                try:
                    line = parse(data, offset, 0)
                    record = e.record_of(line, self.segment.path)
                except (Invalid, LogDamaged):
                    bounds.damaged += whole  # a last line without its newline may be one that is just being written
                    continue
                if self.segment.upto is not None and line.seq > self.segment.upto:
                    return
                pending = tuple(at for _, at in self._inputs.values())[-PENDING:]
                for number, row in enumerate(() if record is None else self._of(record, line)):
                    if number < skip:
                        continue
                    here = Place(label, offset, number, pending)
                    if bounds.rows <= 0:
                        bounds.ended_by, self.place = f"{SCAN_ROWS} rows", here
                        return
                    bounds.rows -= 1
                    yield row, here
                skip = 0

    def _of(self, record: Record, line: Line) -> Iterator[Row]:
        label = self.segment.id
        match record:
            case e.SegmentStarted():
                for item in record.pending_inputs:
                    self._inputs[item.id] = (item, line.offset)
                for item in record.items:
                    # Older segments hold the originals of what was retained; only what is new here is a row of its own.
                    if self.oldest or (isinstance(item, ContextItem) and item.kind in SHOWN_CONTEXT):
                        yield row_of(item, label, line.seq, line.at)
            case w.Input():
                self._inputs[record.item.id] = (record.item, line.offset)
            case w.Admitted():
                for known in record.ids:
                    item, _ = self._inputs.pop(known, (None, 0))
                    if item is not None:
                        yield row_of(item, label, line.seq, line.at)
                    else:
                        yield Row(label, line.seq, line.at, known, "user", "", mark=UNSEEN)
            case w.Withdrawn():
                for known in record.ids:
                    self._inputs.pop(known, None)
            case e.InputRejected():
                self._inputs.pop(record.id, None)
            case w.ReplyRecord() | w.ContextAdded():
                for item in record.items:
                    yield row_of(item, label, line.seq, line.at)
            case w.ToolResult():
                yield row_of(record.item, label, line.seq, line.at)
            case _:
                return

    def _remember(self, file: BinaryIO) -> None:
        for offset in self.place.pending:
            file.seek(offset)
            data = file.readline(LINE_BYTES + 1)
            self.bounds.bytes -= len(data)
            try:
                line = parse(data.rstrip(b"\n"), offset, 0)
                record = e.record_of(line, self.segment.path)
            except (Invalid, LogDamaged):
                continue
            if isinstance(record, w.Input):
                self._inputs[record.item.id] = (record.item, offset)
            elif isinstance(record, e.SegmentStarted):
                self._inputs |= {item.id: (item, offset) for item in record.pending_inputs}

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
        """Offset and bytes of the lines from the place on, and whether a newline follows.

        Where the bytes run out, `place` says how far it came.
        """
        bounds, label = self.bounds, self.segment.id
        begin = at = self.place.offset
        passing = False
        if begin:
            file.seek(begin - 1)
            passing = file.read(1) != b"\n"
        file.seek(begin)
        rest = bytearray()
        while True:
            if self.stop is not None and (at if passing else begin) >= self.stop:
                return
            if bounds.bytes <= 0:
                pending = tuple(place for _, place in self._inputs.values())[-PENDING:]
                skip = self.place.skip if begin == self.place.offset else 0
                bounds.ended_by, self.place = (
                    f"{SCAN_BYTES >> 20} MiB",
                    Place(label, at if passing else begin, skip, pending),
                )
                return
            chunk = file.read(min(_CHUNK, bounds.bytes))
            if not chunk:
                if rest:
                    yield begin, bytes(rest), False
                return
            bounds.bytes -= len(chunk)
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


# -- finding by time ----------------------------------------------------------------------------------------------


def near(path: Path, at: str, bounds: Bounds) -> int:
    """The start of a line of which no earlier line was written at `at` or later, found by bisection.

    Times of a log grow but for changes of the clock, so what is looked for may also stand before it. Leaves more than
    the longest line of what one call may read.
    """
    low, high = 0, path.stat().st_size
    least = bounds.bytes - 2 * _PROBE
    with open_file(path) as file:
        while high - low > _CHUNK and bounds.bytes > least:
            middle = (low + high) // 2
            file.seek(middle)
            rest = file.readline(_PROBE)
            start = file.tell()
            head = file.read(256)
            bounds.bytes -= len(rest) + len(head)
            found = _AT.match(head) if rest.endswith(b"\n") and start < high else None
            if found is not None and found[1].decode() < at:
                low = start
            else:
                high = middle
    return low


# -- cursors ------------------------------------------------------------------------------------------------------


def write_cursor(place: Place, path: Path, binding: str, bounds: Bounds) -> str:
    """A place as opaque text, bound to the question and to the bytes before it, with what was passed over so far."""
    passed = [bounds.too_long, bounds.damaged]
    values = [place.segment, place.offset, place.skip, place.pending, passed, _anchor(path, place.offset), binding]
    return base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(text: str, segments: tuple[Segment, ...], binding: str, bounds: Bounds) -> Place:
    """The place in a cursor.

    Raises `ToolFault`: `bad_cursor` for another question's, `stale_cursor` where the log was rewritten.
    """
    try:
        raw: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        label, offset, skip, pending, passed, anchor, bound = raw
        too_long, damaged = (max(int(count), 0) for count in passed)
        place = Place(str(label), int(offset), int(skip), tuple(int(p) for p in pending)[:PENDING])
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise ToolFault("bad_cursor: this is not a cursor; leave it out to begin again") from None
    if bound != binding or min(place.offset, place.skip, *place.pending, 0) < 0:
        raise ToolFault(
            "bad_cursor: the cursor is for another question or another session; leave it out to begin again"
        )
    path = next((s.path for s in segments if s.id == place.segment), None)
    if path is None or _anchor(path, place.offset) != anchor:
        raise ToolFault("stale_cursor: the history was rewritten or cleared since; leave the cursor out to begin again")
    bounds.too_long, bounds.damaged = too_long, damaged
    return place


def _anchor(path: Path, offset: int) -> int:
    """A checksum of the bytes before an offset: it stands as long as the log is only appended to."""
    start = max(offset - _ANCHOR, 0)
    with open_file(path) as file:
        file.seek(start)
        data = file.read(offset - start)
    return zlib.crc32(data) if len(data) == offset - start else -1
