"""A segment's log: read as a stream, cut where it is torn, appended to by one writer.

Sequence numbers grow by one from entry to entry. The one exception is a `repaired` entry in the place of lost
entries: it has the first of their numbers, and its body says how many `numbers` it stands for. So a repaired log is
as strictly checked as any other, and nothing is numbered anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread

from pod.errors import LogDamaged, NewerFormat, NotALog, StoreError
from pod.log.files import Files, odd_kind, open_file
from pod.log.lines import FORMAT, Invalid, Line, now, parse, render
from worker.records import Abandoned, Syncing

CHUNK = 1 << 18
"""Bytes read at a time."""

EMPTY, MISSING = "it holds no whole entry", "the log of this segment is missing"
"""Why nothing can be replayed from a log."""

_SYNCER = ThreadPoolExecutor(max_workers=4, thread_name_prefix="pod-sync")


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log that are no entry: where they begin, how long they are (newline included), why.

    Where entries are missing there are no bytes: `length` is 0, `first` is the first missing sequence number,
    `numbers` how many. `sha256` is set for a torn tail that was cut off.
    """

    offset: int
    length: int
    number: int
    reason: str
    first: int = 0
    numbers: int = 0
    sha256: str = ""


def open_log(path: Path) -> BufferedReader:
    """Opens a log to read. Raises `NotALog` where no file stands in its place, `OSError`."""
    if (kind := odd_kind(path)) is not None:
        raise NotALog(path, kind)
    return open_file(path)


def raw_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes, bool]]:
    """Offset, bytes (without newline) and whether a newline follows, of each line.

    Memory follows the longest line only. Raises `NotALog`, `OSError`.
    """
    with open_log(path) as file:
        file.seek(start)
        offset, rest = start, bytearray()
        while chunk := file.read(CHUNK):
            begin = 0
            while (at := chunk.find(b"\n", begin)) >= 0:
                rest += chunk[begin:at]
                yield offset, bytes(rest), True
                offset += len(rest) + 1
                rest.clear()
                begin = at + 1
            rest += chunk[begin:]
        if rest:
            yield offset, bytes(rest), False


def scan(path: Path, start: int = 0, first_seq: int | None = None) -> Iterator[Line | Damage]:
    """Entries and damage of a log, in order. Blank lines are passed over.

    An entry whose number is too small (written twice, or by a second writer) is damage itself; where numbers are
    missing, a `Damage` says so before the entry that comes after them, and that entry counts. Raises `NewerFormat`.
    """
    expected = first_seq
    for number, (offset, data, whole) in enumerate(raw_lines(path, start), 1):
        if not data.strip():
            continue
        length = len(data) + whole
        try:
            line = parse(data, offset, number)
        except Invalid as e:
            yield Damage(offset, length, number, str(e))
            continue
        if line.version > FORMAT:
            raise NewerFormat(path, line.version, FORMAT)
        if expected is not None and line.seq < expected:
            yield Damage(offset, length, number, f"entry {line.seq} stands where {expected} should be")
            continue
        if expected is not None and line.seq > expected:
            yield Damage(offset, 0, number, missing(expected, line.seq), first=expected, numbers=line.seq - expected)
        expected = line.seq + stands_for(line)
        yield line


def missing(first: int, after: int) -> str:
    """That entries are missing, from `first` up to the one before `after`, in words."""
    return f"entry {first} is missing" if after == first + 1 else f"entries {first} to {after - 1} are missing"


def stands_for(line: Line) -> int:
    """How many sequence numbers an entry takes: 1, and more for a `repaired` entry in the place of lost ones."""
    if line.kind != "repaired":
        return 1
    try:
        count: object = json.loads(line.body).get("numbers", 1)
    except (ValueError, AttributeError):
        return 1
    return count if isinstance(count, int) and count > 1 else 1


@dataclass(frozen=True, slots=True)
class Checked:
    """What a whole pass over a log found: valid end in bytes, next number, torn tail, damage before valid entries."""

    end: int
    next_seq: int
    lines: int
    torn: Damage | None
    damage: tuple[Damage, ...]
    needs_newline: bool


def entries(path: Path) -> Iterator[Line]:
    """The valid entries of a log for a run.

    Raises `LogDamaged` at damage that has a valid entry behind it; a torn tail ends it.
    """
    held: Damage | None = None
    for found in scan(path):
        if isinstance(found, Damage):
            held = held or found
            continue
        if held is not None:
            raise LogDamaged(path, held.number, held.offset, held.reason)
        yield found


def check(path: Path) -> Checked:
    """Reads a log to its end. An invalid suffix with no valid entry after it is a torn tail."""
    last: Line | None = None
    damage: list[Damage] = []
    since: list[Damage] = []
    count = 0
    for found in scan(path):
        if isinstance(found, Damage):
            since.append(found)
            continue
        damage += since
        since.clear()
        last = found
        count += 1
    end = last.offset + last.length if last else 0
    size = path.stat().st_size
    torn = None
    if since:
        torn = Damage(since[0].offset, size - since[0].offset, since[0].number, since[0].reason)
    elif end < size:
        torn = Damage(end, size - end, last.number + 1 if last else 1, "blank bytes at the end")
    needs_newline = last is not None and end == size + 1
    next_seq = last.seq + stands_for(last) if last else 1
    return Checked(min(end, size), next_seq, count, torn, tuple(damage), needs_newline)


def hash_range(path: Path, offset: int, length: int) -> str:
    """SHA-256 of a range of a file, read in pieces."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        file.seek(offset)
        while length > 0 and (chunk := file.read(min(length, CHUNK))):
            digest.update(chunk)
            length -= len(chunk)
    return digest.hexdigest()


Mend: TypeAlias = Callable[[Damage, bytes], tuple[str, bytes]]
"""What stands in the place of a torn tail: of it and its first bytes, the kind and body of an entry."""


@dataclass(slots=True)
class _Syncing:
    """A sync of a writer's file by another thread (`worker.records.Syncing`). `end` is how far the file reached."""

    writer: SegmentWriter
    fd: int
    begun: Future[None] | None
    end: int
    _done: bool = False
    _left: bool = False

    def wait(self) -> None:
        try:
            self.writer.finish(self.begun, self.fd)
        except BaseException as error:
            # A device may tell of an error once: whoever is there takes note.
            self.writer.lost = error
            raise
        self._done = True
        if self._left:
            raise Abandoned

    def settle(self) -> None:
        self._left = True
        self.writer.settle(self.begun, self.end if self._done else 0)

    def leave(self) -> None:
        self._left = True


@dataclass
class SegmentWriter:
    """Appends entries to one segment. `write` is immediate and ordered; `sync` makes all of it durable.

    A failed write or sync gives the descriptor up: after a write the file is cut back to where the entry began, after
    a sync to its last whole entry (what was written may have reached the disk: opening the log again finds it or does
    not). From then on every call raises the same `StoreError`.
    """

    path: Path
    files: Files
    next_seq: int
    durability: str = "fsync"
    _fd: int | None = field(default=None, repr=False)
    _durable: int = 0
    _end: int = 0
    _failed: StoreError | None = None
    _begun: Future[None] | None = field(default=None, repr=False)
    _reached: int = 0
    lost: BaseException | None = field(default=None, repr=False)
    """What a sync in another thread failed with, until that is taken note of."""
    _syncing: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True), repr=False)

    @classmethod
    def open(
        cls, path: Path, files: Files, *, durability: str = "fsync", mend: Mend | None = None
    ) -> tuple[SegmentWriter, Damage | None, bytes]:
        """Opens an existing segment for writing; a torn tail is cut off.

        `mend` gives the kind and body of the entry that takes the place of a torn tail, in one step with the cut: however
        often opening is interrupted, no tail is gone without a record. Returns the writer, the torn tail that was cut
        (or None) and its first 400 bytes. Raises `LogDamaged`, `NewerFormat`, `OSError`.
        """
        checked = check(path)
        if checked.damage:
            first = checked.damage[0]
            raise LogDamaged(path, first.number, first.offset, first.reason)
        torn, head, entry = checked.torn, b"", b""
        if torn is not None:
            with open_file(path) as file:
                file.seek(torn.offset)
                head = file.read(400)
            torn = replace(torn, sha256=hash_range(path, torn.offset, torn.length))
            if mend is not None:
                entry = render(checked.next_seq, *mend(torn, head), now())[1]
                files.overwrite(path, checked.end, entry)
        if not entry and path.stat().st_size > checked.end:
            files.truncate(path, checked.end)
        writer = cls(path, files, checked.next_seq + bool(entry), durability)
        writer._fd = files.open_append(path, create=False)
        writer._end = writer._durable = checked.end + len(entry)
        if checked.needs_newline:
            writer._raw(b"\n")
            writer.sync_now()
        return writer, torn, head

    @property
    def dirty(self) -> bool:
        """Whether something was written that is not yet durable; true also while a sync of it is under way."""
        return self._durable < self._end

    @property
    def end(self) -> int:
        """Bytes of the file that are whole entries."""
        return self._end

    def write(self, kind: str, body: bytes) -> Line:
        """Appends an entry. Raises `StoreError`; then nothing of it counts."""
        self._check()
        if self._fd is None:
            raise StoreError(self.path, "write", OSError(9, "the log is closed"))
        at, seq, offset = now(), self.next_seq, self._end
        label, data = render(seq, kind, body, at)
        self._raw(data)
        self.next_seq += 1
        return Line(seq, label, at, kind, body, offset, len(data), seq)

    def _raw(self, data: bytes) -> None:
        assert self._fd is not None
        try:
            self.files.write(self._fd, data)
        except OSError as e:
            raise self.give_up("write", e) from e
        self._end += len(data)

    def begin_sync(self) -> None:
        """Starts making durable what was written, without waiting: a `sync` after it waits for this one too."""
        if self._begun is not None or self._fd is None or self._failed is not None or self.durability == "os":
            return
        if self.dirty:
            self._begun = _SYNCER.submit(self.files.sync, self._fd)
            self._reached = self._end

    def syncing(self) -> Syncing | None:
        """A sync of what was written, for another thread to wait for; None where there is nothing to wait for, or an error
        that `sync` raises.
        """
        if (
            self._failed is not None
            or self.lost is not None
            or self._fd is None
            or self.durability == "os"
            or not self.dirty
        ):
            return None
        return _Syncing(self, self._fd, self._begun, self._end)

    def _check(self) -> None:
        """Raises where the log takes nothing more."""
        if self._failed is None and self.lost is not None:
            error, self.lost = self.lost, None
            if not isinstance(error, OSError):
                raise error
            raise self.give_up("sync", error) from error
        if self._failed is not None:
            raise self._failed

    async def sync(self) -> None:
        """Makes all that was written durable, shielded from cancellation. Raises `StoreError`."""
        self._check()
        if self.durability == "os":
            self._durable = self._end
            return
        if self._begun is not None and self._begun.done():
            self._end_begun()
        if not self.dirty:
            return
        with anyio.CancelScope(shield=True):
            async with self._syncing:
                if self._failed is not None:
                    raise self._failed
                if not self.dirty or self._fd is None:
                    return
                reached, begun = self._end, self._begun
                try:
                    # One trip to a thread: it waits for a sync under way and makes the rest durable.
                    await anyio.to_thread.run_sync(self.finish, begun, self._fd)
                except OSError as e:
                    raise self.give_up("sync", e) from e
                if self._failed is not None:
                    raise self._failed
                if self._begun is begun:
                    self._begun = None
                self._durable = max(self._durable, reached)

    def finish(self, begun: Future[None] | None, fd: int) -> None:
        """Waits for a sync under way and makes the rest durable, in another thread."""
        if begun is not None:
            begun.result()
        if begun is None or self._reached < self._end:
            self.files.sync(fd)

    def _end_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            return
        error = begun.exception()
        if isinstance(error, OSError):
            raise self.give_up("sync", error) from error
        if error is not None:
            raise error
        self._durable = max(self._durable, self._reached)

    def settle(self, begun: Future[None] | None, reached: int) -> None:
        """Takes note of a sync up to `reached` that another thread made. Raises `StoreError` where one failed."""
        self._check()
        if begun is not None and self._begun is begun:
            self._begun = None
        self._durable = max(self._durable, reached)

    def sync_now(self) -> None:
        """`sync` for the moments before an event loop runs, and for the end."""
        if self._begun is not None:
            _settled(self._begun)
            self._end_begun()
        if self.dirty and self._fd is not None and self._failed is None:
            reached = self._end
            try:
                self.files.sync(self._fd)
            except OSError as e:
                raise self.give_up("sync", e) from e
            self._durable = reached

    def give_up(self, what: str, cause: OSError) -> StoreError:
        """Accepts nothing more, and returns the error that every later call raises."""
        self._failed = StoreError(self.path, what, cause)
        if self._begun is not None:
            _settled(self._begun)
            self._begun = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                self.files.close(fd)
                end = self._end if what == "write" else check(self.path).end
                if self.path.stat().st_size > end:
                    self.files.truncate(self.path, end)
            except OSError as e:
                self._failed.add_note(f"the log could not be cut back to its last whole entry: {e}")
        return self._failed

    def close(self) -> None:
        """Gives the file up. What was written stays as durable as it is."""
        if self._begun is not None:
            _settled(self._begun)
            self._begun = None
        if self._fd is not None:
            self.files.close(self._fd)
            self._fd = None


def _settled(begun: Future[None]) -> None:
    wait([begun])


def hash_of(path: Path) -> str:
    """SHA-256 of a whole log file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
