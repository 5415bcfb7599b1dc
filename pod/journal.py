"""A compact worker's own log, beside the segment that it summarises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import SegmentWriter, entries
from pod.state import paid
from worker.records import Record, ReplyRecord

if TYPE_CHECKING:
    from pod.session import Session

_NAME = "compact_worker"


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
        path = _path(folder, segment, _count(folder, segment) + 1)
        fd = folder.files.open_append(path, create=True)
        folder.files.close(fd)
        writer, _, _ = SegmentWriter.open(path, folder.files, durability="os")
        log = cls(writer)
        log.write(e.Extension(name=_NAME, data={"compaction": label, "segment": segment}))
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


def spent_unbooked(folder: PodFolder, segment: str, compaction: str) -> dict[str, Any]:
    """What the newest compact worker had spent when its process died, as the figures of its rung; nothing where it is not of
    this compaction, or its log can't be read. What was on its way then is not known. Blocks.
    """
    number = _count(folder, segment)
    try:
        records = [e.record_of(line) for line in entries(_path(folder, segment, number))] if number else []
    except (LogDamaged, OSError):
        return {}
    match records:
        case [e.Extension(name=name, data={"compaction": label}), *_] if name == _NAME and label == compaction:
            replies = [record for record in records if isinstance(record, ReplyRecord)]
        case _:
            return {}
    spent: Counter[str] = Counter()
    for reply in replies:
        spent.update(paid(reply) | {"requests": reply.attempts})
    return {"model": replies[-1].model, "turns": len(replies), **spent} if replies else {}


def _count(folder: PodFolder, segment: str) -> int:
    return sum(1 for _ in folder.path.glob(f"{segment}.compact-*.jsonl"))


def _path(folder: PodFolder, segment: str, number: int) -> Path:
    return folder.path / f"{segment}.compact-{number}.jsonl"
