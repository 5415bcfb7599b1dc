"""Reading lines of a file with a bound on bytes: the part that `read_file` shares with whatever else reads files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from worker.builtin.scope import OpenFile, Scope
from worker.items import FileRange, ToolOutput
from worker.text import size as in_words
from worker.tool_output import serialised_prefix
from worker.tools import MAX_OUTPUT, ToolFault

SCAN_LIMIT = 1 << 30
"""Bytes up to which a file is read to its end for its hash and its count of lines; larger ones only as far as is
needed.
"""

_CHUNK = 262_144
_SNIFFED = 8_192
_SURROGATE = re.compile("[\udc80-\udcff]")
_SIGNATURES = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "ZIP archive (or a document in one)"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x7fELF", "ELF program"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\xff\xfe", "UTF-16 text (little endian)"),
    (b"\xfe\xff", "UTF-16 text (big endian)"),
)


@dataclass(frozen=True)
class FileSlice:
    """A part of a file.

    `text` is what stands there, line ends and all; joined in order, the pieces give the file (case B096). `first` and
    `last` are the lines it touches (0 for none). `cut` says that `max_bytes` ended it before the asked range did
    (case B097); `cut_line` names the line that is not shown whole. `next_offset` and `next_column` say where the rest
    starts, None at the end of the file. `total_lines` and `sha256` are None for a file above `SCAN_LIMIT`. `binary`
    describes a file that is not text (`text` is empty).
    """

    path: Path
    name: str
    text: str
    first: int
    last: int
    size: int
    sha256: str | None
    total_lines: int | None
    column: int = 1
    cut: bool = False
    cut_line: int | None = None
    next_offset: int | None = None
    next_column: int | None = None
    binary: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def seen(self) -> FileRange | None:
        """The whole lines that were shown. Where only parts of a line were, the range is empty (`last` below
        `first`).
        """
        if self.sha256 is None or self.binary is not None:
            return None
        first = self.first + (self.column > 1)
        last = self.last - (self.cut_line == self.last and self.last > 0)
        return FileRange(path=str(self.path), first=first, last=max(last, first - 1), sha256=self.sha256)


@dataclass
class _Scan:
    """What one pass over the file brings together."""

    offset: int
    skip: int
    room: int
    line: int = 1
    size: int = 0
    newlines: int = 0
    last_byte: bytes = b""
    start: int | None = None
    kept: bytearray = field(default_factory=bytearray)

    def take(self, chunk: bytes) -> None:
        begin = self.size
        self.size += len(chunk)
        self.newlines += chunk.count(b"\n")
        self.last_byte = chunk[-1:]
        if self.start is None:
            chunk, begin = self._to_start(chunk, begin)
            if not chunk:
                return
            self.start = begin
        self.kept += chunk[: max(self.room - len(self.kept), 0)]

    def _to_start(self, chunk: bytes, begin: int) -> tuple[bytes, int]:
        position = 0
        if self.line < self.offset:
            missing = self.offset - self.line
            if chunk.count(b"\n") < missing:
                self.line += chunk.count(b"\n")
                return b"", begin
            for _ in range(missing):
                position = chunk.index(b"\n", position) + 1
            self.line = self.offset
        if self.skip:
            line_end = chunk.find(b"\n", position, position + self.skip)
            if line_end >= 0:
                raise _PastLine
            taken = min(self.skip, len(chunk) - position)
            self.skip -= taken
            position += taken
        return chunk[position:], begin + position


class _PastLine(Exception):
    pass


def read_range(
    scope: Scope,
    path: str | Path,
    offset: int = 1,
    limit: int | None = None,
    max_bytes: int = MAX_OUTPUT,
    *,
    column: int = 1,
    check: Callable[[], object] | None = None,
) -> FileSlice:
    """Lines `offset` (1-based) to `offset + limit - 1` of a file, at most `max_bytes` measured as serialised.

    Where the bound cuts, it cuts behind a whole line; only a line that is above the bound by itself is cut inside, on
    a character border, and goes on with `column` (1-based, in bytes). `max_bytes` below 12 counts as 12, so that the
    cursor always moves. Blocks: call it in a thread; `check` is called between pieces and may raise to give up.
    Memory stays near `max_bytes` whatever the file's size. Raises `ToolFault`.
    """
    max_bytes = max(max_bytes, 12)
    with scope.open_read(path) as opened:
        head = opened.file.read(_SNIFFED)
        opened.file.seek(0)
        scan = _Scan(offset=offset, skip=column - 1, room=max_bytes + 8)
        digest = hashlib.sha256()
        whole = True
        try:
            for chunk in _chunks(opened, check):
                digest.update(chunk)
                scan.take(chunk)
                if opened.info.st_size > SCAN_LIMIT and len(scan.kept) >= scan.room:
                    whole = False
                    break
        except _PastLine:
            raise ToolFault(
                f"{opened.name}: line {offset} is shorter than column {column}. Read it from column 1."
            ) from None
        except OSError as e:
            raise ToolFault(f"{opened.name}: {e.strerror or e}") from e
    length = scan.size if whole else opened.info.st_size
    lines = scan.newlines + (scan.size > 0 and scan.last_byte != b"\n") if whole else None
    base = FileSlice(opened.path, opened.name, "", 0, 0, length, digest.hexdigest() if whole else None, lines, column)
    if b"\0" in head:
        return _described(base, head)
    if scan.start is None and (length or offset > 1 or column > 1):
        raise ToolFault(f"{opened.name} has {lines} line{'' if lines == 1 else 's'}: offset {offset} is past its end.")
    return _sliced(base, bytes(scan.kept), scan.start or 0, offset, limit, max_bytes)


def _chunks(opened: OpenFile, check: Callable[[], object] | None) -> Iterator[bytes]:
    while chunk := opened.file.read(_CHUNK):
        if check is not None:
            check()
        yield chunk


def _described(base: FileSlice, head: bytes) -> FileSlice:
    word = next((word for start, word in _SIGNATURES if head.startswith(start)), "binary data")
    return replace(base, binary=word, total_lines=None)


def _sliced(base: FileSlice, raw: bytes, start: int, offset: int, limit: int | None, max_bytes: int) -> FileSlice:
    exact = raw.decode("utf-8", "surrogateescape")
    asked = exact if limit is None else _first_lines(exact, limit)
    shown = _SURROGATE.sub("\ufffd", asked).replace("\0", "\ufffd")
    # More bytes were gathered than the bound lets through, so a range that goes on behind them is cut here too.
    fitting = len(serialised_prefix(shown, max_bytes))
    cut = fitting < len(asked)
    if cut:
        fitting = asked.rfind("\n", 0, fitting) + 1 or fitting
    kept = asked[:fitting]
    used = len(kept.encode("utf-8", "surrogateescape"))
    inside = bool(kept) and not kept.endswith("\n")
    touched = kept.count("\n") + inside
    last = offset + touched - 1 if touched else 0
    rest = start + used < base.size
    return replace(
        base,
        text=shown[:fitting],
        first=offset if touched else 0,
        last=last,
        cut=cut,
        cut_line=last if rest and inside else None,
        next_offset=(last if inside else last + 1) if rest else None,
        # A cut inside a line happens only where nothing but that line is shown.
        next_column=base.column + used if rest and inside else None,
        notes=_notes(kept, raw, start),
    )


def _first_lines(text: str, count: int) -> str:
    position = 0
    for _ in range(count):
        found = text.find("\n", position)
        if found < 0:
            return text
        position = found + 1
    return text[:position]


def _notes(kept: str, raw: bytes, start: int) -> tuple[str, ...]:
    notes: list[str] = []
    bad = len(_SURROGATE.findall(kept)) + kept.count("\0")
    if bad:
        notes.append(f"{bad} byte{'' if bad == 1 else 's'} that are not UTF-8 text are shown as \ufffd")
    if start == 0 and raw.startswith(b"\xef\xbb\xbf"):
        notes.append("starts with a byte-order mark")
    crlf, ends = kept.count("\r\n"), kept.count("\n")
    if crlf:
        notes.append("lines end in CR LF" if crlf == ends else "some lines end in CR LF, some in LF")
    return tuple(notes)


def as_read(part: FileSlice, label: str) -> ToolOutput:
    """A slice as the output of a tool: the summary says what was shown, of how much, and how to go on."""
    if part.binary is not None:
        return ToolOutput(summary=f"{label} {part.name}: {part.binary}, {in_words(part.size)}; not shown as text")
    if part.size == 0:
        return ToolOutput(summary=f"{label} {part.name}: the file is empty", reads=part.seen)
    lines = f"line {part.first}" if part.first == part.last else f"lines {part.first}-{part.last}"
    if part.column > 1:
        lines += f" from column {part.column}"
    total = f" of {part.total_lines}" if part.total_lines is not None else ""
    shown = len(part.text.encode())
    summary = f"{label} {part.name}: {lines}{total}, {in_words(shown)}"
    summary += f" of {in_words(part.size)}" if shown != part.size else ""
    if part.cut_line is not None:
        summary += f"; line {part.cut_line} is cut"
    elif part.cut:
        summary += "; cut by size"
    if part.next_offset is not None:
        column = f" column={part.next_column}" if part.next_column is not None else ""
        summary += f"; go on with offset={part.next_offset}{column}"
    if part.sha256 is None:
        summary += "; too large to be hashed, so it cannot be edited"
    for note in part.notes:
        summary += f"; {note}"
    return ToolOutput(summary=summary, content=part.text or None, reads=part.seen)
