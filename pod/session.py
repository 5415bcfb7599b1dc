"""A session open for writing: the folder, the active segment's writer and the state folded from it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pod.carry import Carry
from pod.errors import LogLost
from pod.journal import spent_unbooked
from pod.log import entries as e
from pod.log.files import Files, files_of
from pod.log.folder import PodFolder, Pointer, check_name
from pod.log.lines import Line, now, render
from pod.log.making import making
from pod.log.redacting import gate_of, redacts
from pod.log.segment import EMPTY, MISSING, Damage, SegmentWriter, entries
from pod.state import PodState
from worker import tracing
from worker.gate import Gate
from worker.ids import uuid7
from worker.interceptor import Interceptor
from worker.ledger import Ledger
from worker.models.base import Family
from worker.records import Record, Syncing

Listener = Callable[[Line, Record], None]


@dataclass
class Session:
    """The journal of one pod. Made by `create` or `open`; holds the lock until `close`.

    What is put passes the gate, is written, folded into the state and told to listeners; `sync` makes it durable.
    """

    folder: PodFolder
    pointer: Pointer
    writer: SegmentWriter
    state: PodState
    family: Family = "unknown"
    durability: str = "fsync"
    gate: Gate = field(default_factory=Gate)
    ledger: Ledger = field(init=False)
    listeners: list[Listener] = field(default_factory=list[Listener])

    def __post_init__(self) -> None:
        self.ledger = Ledger(self, self.state.history, gate=self.gate)

    # -- opening ----------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, home: Path, name: str, *, blobs: dict[str, str], manifest: str, family: Family = "unknown",
        durability: str = "fsync", files: Files | None = None, tag: str = "", label: str = "", gate: Gate | None = None,
    ) -> Session:  # fmt: skip
        """Makes a pod with a fresh session, or nothing. Raises what `pod.log.making` does, and `UsageProblem` for the name.

        `blobs` are texts by their use (system prompt, schemas, manifest, working folder); `tag` marks the runtime's orders,
        `label` is the session's id where it is known already.
        """
        folder = PodFolder(home, check_name(name), files or files_of(home))
        with making(folder):
            start = e.SegmentStarted(
                session=label or uuid7(), segment=uuid7(), lineage=e.Lineage(), tag=tag or uuid7()[-12:],
                blobs={use: folder.put_blob(text) for use, text in blobs.items()}, carry=Carry(manifest=manifest),
            )  # fmt: skip
            write_segment(folder, start, 1)
            pointer = Pointer(name=name, session=start.session, segment=start.segment, created=now())
            folder.set_pointer(pointer)
            return cls._attach(folder, pointer, family, durability, gate)

    @classmethod
    def open(
        cls, home: Path, name: str, *, family: Family = "unknown", durability: str = "fsync", files: Files | None = None,
        gate: Gate | None = None,
    ) -> Session:  # fmt: skip
        """Opens a pod for writing. A torn tail is cut and recorded; a compaction that died is marked.

        Without a `gate` it is the one that the manifest in force asks for.

        Raises `PodNotFound`, `PodBusy`, `LogDamaged`, `NewerFormat`.
        """
        folder = PodFolder(home, check_name(name), files or files_of(home))
        folder.pointer()
        folder.lock()
        try:
            return cls._attach(folder, folder.pointer(), family, durability, gate)
        except BaseException:
            folder.unlock()
            raise

    @classmethod
    def _attach(
        cls, folder: PodFolder, pointer: Pointer, family: Family, durability: str, gate: Gate | None
    ) -> Session:
        path = folder.segment_path(pointer.segment)
        durability = folder.files.lasting(durability)
        if not os.path.lexists(path):
            raise LogLost(path, MISSING)
        writer, _, _ = SegmentWriter.open(path, folder.files, durability=durability, mend=_repaired)
        state = load(path, family)
        gate = gate or gate_of(redacts(folder, state.blobs.get("manifest", "")))
        session = cls(folder, pointer, writer, state, family, durability, gate)
        session.put(_lease(max(state.generation, pointer.generation) + 1))
        if state.compaction is not None:
            session._died_compacting(state.compaction)
        writer.sync_now()
        return session

    def _died_compacting(self, label: str) -> None:
        """Marks a compaction that died, and books what its worker had spent by then."""
        spent = spent_unbooked(self.folder, self.pointer.segment, label) if self.state.rung else {}
        if spent:
            self.put(
                e.CompactionRung(
                    compaction=label, rung=self.state.rung, state="failed", reason="interrupted", figures=spent
                )
            )
        self.put(e.CompactionInterrupted(compaction=label))

    def close(self) -> None:
        """Gives the pod free for other writers."""
        try:
            self.writer.sync_now()
        finally:
            self.writer.close()
            self.folder.unlock()

    # -- the journal (worker.records.Journal) -----------------------------------------------------------------

    def begin_sync(self) -> None:
        """Starts making durable what was written, without waiting for it."""
        self.writer.begin_sync()

    def syncing(self) -> Syncing | None:
        """A sync of what was written, for another thread to wait for."""
        return self.writer.syncing()

    def write(self, record: Record) -> None:
        """Writes a record, folds it into the state (not the history: the ledger does) and tells the listeners."""
        line = self.writer.write(record.kind, e.body_of(record))
        self.state.apply(record, line.at, line.seq)
        self._tell(line, record)

    def _tell(self, line: Line, record: Record) -> None:
        for listener in self.listeners:
            listener(line, record)

    async def sync(self) -> None:
        """Makes all that was written durable."""
        await self.writer.sync()

    def put(self, record: Record) -> None:
        """Writes and folds a record everywhere."""
        self.ledger.put(record)

    def observe_with(self, interceptors: Sequence[Interceptor]) -> None:
        """From now on these interceptors observe; they are first told what the segment already holds."""
        ledger = Ledger(self, self.state.history, interceptors, self.gate)
        tell(ledger, interceptors, self.state, self.writer.path)
        self.ledger = ledger

    # -- a new segment ----------------------------------------------------------------------------------------

    async def switch(self, start: e.SegmentStarted, *records: Record) -> None:
        """Commits a new segment and goes on in it.

        The file is written whole under a temporary name, synced, renamed, the folder synced; then the pointer is replaced. A crash
        before that leaves the old segment active, after it the new one. `records` stand behind the start and are committed with it:
        the new segment is never active without them. Input that arrived after `start` was made is taken along (case B073).
        Raises `OSError`; then the old segment is still active. Raises `StoreError` where that is unknown because the pointer
        was replaced and its sync failed: then nothing more is accepted, and opening the pod again goes on.
        """
        await self.sync()
        start = self.gate.admit(self._with_late_input(start))
        records = tuple(self.gate.admit(record) for record in records)
        first = self.writer.next_seq
        write_segment(self.folder, start, first, records)
        pointer = self.pointer.model_copy(update={"segment": start.segment, "generation": self.state.generation})
        try:
            self.folder.set_pointer(pointer)
        except OSError as error:
            if self.folder.pointer().segment != self.pointer.segment:
                raise self.writer.give_up("the pointer's sync", error) from error
            raise
        self.writer.close()
        self.pointer = pointer
        self.writer, _, _ = SegmentWriter.open(
            self.folder.segment_path(start.segment), self.folder.files, durability=self.durability
        )
        self.state = load(self.writer.path, self.family)
        self.ledger = Ledger(self, self.state.history, gate=self.gate)
        for line, record in zip(self.lines(), (start, *records), strict=True):
            self._tell(line, record)
            tracing.told(record)
        self.put(_lease(pointer.generation))

    def _with_late_input(self, start: e.SegmentStarted) -> e.SegmentStarted:
        if start.lineage.kind_ not in {"compacted_from", "rolled_over_from"}:
            return start
        known = {item.id for item in (*start.pending_inputs, *start.items)}
        late = tuple(item for item in self.state.queued if item.id not in known)
        inbox = self.state.carry().inbox
        if not late and inbox == start.carry.inbox:
            return start
        return start.model_copy(
            update={
                "pending_inputs": (*start.pending_inputs, *late),
                "carry": start.carry.model_copy(update={"inbox": inbox}),
            }
        )

    def lines(self) -> Iterator[Line]:
        """The entries of the active segment."""
        return entries(self.writer.path)


def _repaired(torn: Damage, head: bytes) -> tuple[str, bytes]:
    text = head.decode(errors="replace")
    record = e.Repaired(offset=torn.offset, length=torn.length, sha256=torn.sha256, reason=torn.reason, text=text)
    return record.kind, e.body_of(record)


def _lease(generation: int) -> e.Lease:
    return e.Lease(generation=generation, pid=os.getpid(), host=socket.gethostname())


def write_segment(folder: PodFolder, start: e.SegmentStarted, seq: int, records: Sequence[Record] = ()) -> None:
    """Writes a whole new segment file (its first entry and those behind it), durably, under its final name."""
    at = now()
    lines = [render(seq + n, record.kind, e.body_of(record), at)[1] for n, record in enumerate((start, *records))]
    folder.files.put(folder.segment_path(start.segment), b"".join(lines))


def load(path: Path, family: Family = "unknown") -> PodState:
    """The state that a segment's log gives. Raises `LogDamaged`, `LogLost`."""
    state: PodState | None = None
    for line in whole(path):
        state = folded(state, line, path, family)
    if state is None:
        raise LogLost(path, EMPTY)
    return state


def folded(state: PodState | None, line: Line, path: Path, family: Family = "unknown") -> PodState:
    """The state with one more entry of its log; without a state, that which the first entry gives. Raises `LogDamaged`, `LogLost`."""
    record = e.record_of(line, path)
    if state is None:
        if not isinstance(record, e.SegmentStarted):
            raise LogLost(path, f"its first entry is {line.kind}, not segment_started")
        state = PodState.begin(record, family)
        state.last_seq = line.seq
    elif record is not None:
        state.apply(record, line.at, line.seq)
        state.history.apply(record)
    return state


def tell(ledger: Ledger, interceptors: Sequence[Interceptor], state: PodState, path: Path) -> None:
    """Tells the interceptors of a ledger what the segment holds already. Raises `LogDamaged`."""
    if state.start.open_run is not None:
        for interceptor in interceptors:
            if (known := state.start.open_run.guards.get(interceptor.name)) is not None:
                interceptor.restore(known)
    for line in entries(path):
        record = e.record_of(line, path)
        if isinstance(record, e.RunStarted):
            for interceptor in interceptors:
                interceptor.begin_run()
        if record is not None:
            ledger.tell(record)


def start_of(folder: PodFolder) -> e.SegmentStarted:
    """The first entry of a pod's active segment, read without the lock. Raises `PodNotFound`, `LogDamaged`, `LogLost`."""
    path = folder.segment_path(folder.pointer().segment)
    line = next(whole(path), None)
    record = None if line is None else e.record_of(line, path)
    if line is None or not isinstance(record, e.SegmentStarted):
        raise LogLost(path, EMPTY if line is None else f"its first entry is {line.kind}, not segment_started")
    return record


def whole(path: Path) -> Iterator[Line]:
    """The entries of a log that should be here. Raises `LogDamaged`, `LogLost` where it is missing."""
    try:
        yield from entries(path)
    except FileNotFoundError:
        raise LogLost(path, MISSING) from None
