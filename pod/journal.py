"""A compact worker's own log, beside the segment that it summarises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pod.log import entries as e
from pod.log.segment import SegmentWriter
from pod.session import Session
from worker.records import Record


class SideLog:
    """A journal (`worker.records.Journal`) in `SEGMENT.compact-N.jsonl`. Use it as a context manager; closed, it stays as it is.

    `counts` says how many records of each kind it holds.
    """

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self.counts: Counter[str] = Counter()

    @classmethod
    def beside(cls, session: Session, label: str) -> SideLog:
        """A new log beside the active segment; N counts from 1."""
        folder, segment = session.folder, session.pointer.segment
        number = sum(1 for _ in folder.path.glob(f"{segment}.compact-*.jsonl")) + 1
        path: Path = folder.path / f"{segment}.compact-{number}.jsonl"
        fd = folder.files.open_append(path, create=True)
        folder.files.close(fd)
        writer, _, _ = SegmentWriter.open(path, folder.files, durability="os")
        log = cls(writer)
        log.write(e.Extension(name="compact_worker", data={"compaction": label, "segment": segment}))
        return log

    def __enter__(self) -> SideLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def begin_sync(self) -> None:
        """Nothing to do: a compact worker's log is for looking at, and nothing is resumed from it."""

    def syncing(self) -> None:
        """Nothing to wait for."""

    def write(self, record: Record) -> None:
        """Writes a record."""
        self.counts[record.kind] += 1
        self.writer.write(record.kind, e.body_of(record))

    async def sync(self) -> None:
        """Nothing to wait for."""
