"""A pod as one portable file: a tar archive that begins with the hashes of all that follows.

    contents.json                 format, session, and name, length and SHA-256 of each part, in order
    pod.json                      the pointer
    SEGMENT.jsonl                 each segment of the session, the active one first, down to the privacy floor
    origin/SEGMENT.jsonl          for a fork: those of the sessions that it was forked from
    SEGMENT.compact-N.jsonl       the logs of its compact workers
    blobs/HASH  artifacts/NAME    what these logs refer to

What `pod clear` and `pod rewind` left behind stays behind, with the blobs and artifacts that only it refers to. So do
background jobs, commands in the inbox, and the lock.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pod.contents import CONTENTS, POINTER, Contents, Part, allowed, is_origin, part_of, segment_of
from pod.errors import LogDamaged, NotSettled, UsageProblem
from pod.importing import Imported, import_pod
from pod.log import entries as e
from pod.log.files import open_file
from pod.log.folder import PodFolder, Pointer, check_name
from pod.log.items import named_artifacts
from pod.log.segment import entries, hash_range
from pod.log.texts import NEEDED, USES, follow, lost_texts, way_out
from pod.losses import cut
from pod.reading import Chain, End, Segment, SessionReader
from pod.session import start_of
from pod.target import Target
from worker.records import Record, ToolsChanged

__all__ = ["Exported", "Imported", "export_pod", "import_pod"]

TRIES = 5
"""How often the parts are gathered anew because the pod began another segment meanwhile."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds: segments of its session, files, bytes. `origins` are the segments that a fork took along of the
    sessions it descends from. `left_behind` says in words what does not travel."""

    name: str
    session: str
    segments: int
    files: int
    size: int
    left_behind: tuple[str, ...] = ()
    origins: int = 0


def export_pod(home: Path, name: str, target: Path | BinaryIO) -> Exported:
    """Writes a pod into one file, or into a binary stream. Blocks; needs no lock, and the pod may run meanwhile.

    The pointer is read first, then whole entries only: the file holds the pod as it stood at one moment. A file is
    written beside its final name, mode 0600, and replaces what stood there in one step, behind a link too; a FIFO or a
    device is written through. A stream that breaks leaves an incomplete export, which no import takes. Raises
    `PodNotFound`, `UsageProblem` where the target can't be written or a text of the active segment is missing or
    altered, `LogDamaged`, `NewerFormat`, `NotSettled` where the pod changes too fast, `OSError`.
    """
    folder = PodFolder(home, check_name(name))
    file = Target(target, 0o600, home=home) if isinstance(target, Path) else None
    gathered = _settled(folder)
    if file is not None:
        _write_file(folder, gathered, file)
    elif not isinstance(target, Path):
        _write(folder, gathered, target)
    return gathered.told()


def _write_file(folder: PodFolder, gathered: _Gathered, target: Target) -> None:
    try:
        with os.fdopen(target.open(), "wb", closefd=False) as stream:
            _write(folder, gathered, stream)
        target.keep()
    finally:
        target.close()


@dataclass
class _Gathered:
    """What is to be written: the parts in order, each with where its bytes are."""

    contents: Contents
    sources: dict[str, Path | bytes]
    left: list[str] = field(default_factory=list[str])

    def told(self) -> Exported:
        c = self.contents
        logs = sum(segment_of(part.name) is not None for part in c.parts)
        size = sum(part.size for part in c.parts)
        origins = sum(is_origin(part.name) for part in c.parts)
        return Exported(c.pod, c.session, logs, len(c.parts), size, tuple(self.left), origins)


@dataclass
class _Wanted:
    """What the logs refer to: blobs (those `in_force` by use are the active segment's), artifacts, compactions."""

    blobs: dict[str, None] = field(default_factory=dict[str, None])
    in_force: dict[str, str] = field(default_factory=dict[str, str])
    artifacts: set[str] = field(default_factory=set[str])
    compactions: set[str] = field(default_factory=set[str])

    def add(self, record: Record | None, *, active: bool) -> None:
        if active:
            follow(self.in_force, record)
        match record:
            case e.SegmentStarted():
                carry, run = record.carry, record.open_run
                self.blobs |= dict.fromkeys((*record.blobs.values(), carry.manifest, *carry.instructions.values()))
                self.blobs |= dict.fromkeys(() if run is None else run.instructions.values())
            case e.TextsRestored():
                self.blobs |= dict.fromkeys(record.blobs.values())
            case e.ManifestChanged():
                self.blobs |= dict.fromkeys((record.digest, *(() if record.cwd is None else (record.cwd,))))
            case ToolsChanged():
                self.blobs |= dict.fromkeys((record.system, record.tools))
            case e.RunStarted():
                self.blobs |= dict.fromkeys(record.instructions.values())
            case e.CompactionStarted():
                self.compactions.add(record.compaction)
            case _:
                pass


# -- gathering ------------------------------------------------------------------------------------------------


def _settled(folder: PodFolder) -> _Gathered:
    for _ in range(TRIES):
        pointer = folder.pointer()
        start_of(folder)  # an active log that is lost is told as such
        chain = SessionReader(folder).chain(origins=True)
        if chain.segments and chain.segments[0].id == pointer.segment:
            found = _gather(folder, pointer, chain)
            if folder.pointer().segment == pointer.segment:
                return found
    raise NotSettled(f"pod {folder.name!r} begins new segments faster than it can be read; export it again")


def _gather(folder: PodFolder, pointer: Pointer, chain: Chain) -> _Gathered:
    text = pointer.model_dump_json().encode() + b"\n"
    sources: dict[str, Path | bytes] = {POINTER: text}
    parts = [Part(name=POINTER, size=len(text), sha256=hashlib.sha256(text).hexdigest())]
    left: list[str] = []
    wanted = _Wanted()

    def add(name: str, path: Path, size: int) -> None:
        sources[name] = path
        parts.append(Part(name=name, size=size, sha256=hash_range(path, 0, size)))

    segments, end = _readable(folder, chain)
    for segment in segments:
        add(part_of(segment), segment.path, _read(segment.path, wanted, segment, active=segment is segments[0]))
    damaged = 0
    for name, path in _side_logs(folder, segments):
        try:
            size = _side(path, wanted)
        except LogDamaged:
            damaged += 1
            continue
        if size:
            add(name, path, size)
    lost = lost_texts(folder, {use: label for use, label in wanted.in_force.items() if use in NEEDED})
    if lost:
        said = " and its ".join(USES[use] for use in lost)
        raise UsageProblem(
            f"pod {folder.name!r} has lost its {said}, and can't go on without; {way_out(folder.name, lost)} makes that "
            "anew, then export it again"
        )
    for label in wanted.blobs:
        path = folder.path / "blobs" / label
        if not allowed(f"blobs/{label}") or not folder.holds(label):
            continue
        add(f"blobs/{label}", path, path.stat().st_size)
    for name in sorted(wanted.artifacts):
        path = folder.artifacts / name
        if allowed(f"artifacts/{name}") and path.is_file() and not path.is_symlink():
            add(f"artifacts/{name}", path, path.stat().st_size)
    if end in {"missing", "unreadable"}:
        left.append("older segments that can't be read")
    left += [f"what is lost of {loss.path.name} ({loss.text})" for segment in segments if (loss := cut(segment))]
    left += _left(folder, damaged)
    contents = Contents(pod=folder.name, session=pointer.session, segment=pointer.segment, end=end, parts=tuple(parts))
    return _Gathered(contents, sources, left)


def _readable(folder: PodFolder, chain: Chain) -> tuple[list[Segment], End]:
    """The segments whose first entry reads. The last of a chain may not; then it counts as missing."""
    segments = [segment for segment in chain.segments if segment.seq]
    if not segments:
        path = chain.segments[0].path
        raise UsageProblem(
            f"{path}: the log does not begin with segment_started; `pod doctor {folder.name}` looks into it"
        )
    return segments, chain.end if len(segments) == len(chain.segments) else "missing"


def _read(path: Path, wanted: _Wanted, segment: Segment, *, active: bool) -> int:
    """Bytes of the whole entries that belong to the session, and what they refer to."""
    size = 0
    for line in entries(path):
        if segment.upto is not None and line.seq > segment.upto:
            break
        wanted.add(e.record_of(line, path), active=active)
        wanted.artifacts.update(named_artifacts(line.body))
        size = line.offset + line.length
    return min(size, path.stat().st_size)


def _side_logs(folder: PodFolder, segments: list[Segment]) -> Iterator[tuple[str, Path]]:
    for segment in (s for s in segments if not s.origin):
        for path in sorted(folder.path.glob(f"{segment.id}.compact-*.jsonl")):
            if allowed(path.name):
                yield path.name, path


def _side(path: Path, wanted: _Wanted) -> int:
    """Bytes of the whole entries of a compact worker's log; 0 where its compaction is not of the session."""
    size = 0
    for line in entries(path):
        record = e.record_of(line, path)
        if not size and not (isinstance(record, e.Extension) and record.data.get("compaction") in wanted.compactions):
            return 0
        wanted.artifacts.update(named_artifacts(line.body))
        size = line.offset + line.length
    return min(size, path.stat().st_size)


def _left(folder: PodFolder, damaged: int) -> Iterator[str]:
    waiting = sum(1 for path in folder.inbox.glob("*.json") if not path.name.startswith("."))
    if waiting:
        yield f"{waiting} command{'s' * (waiting != 1)} in the inbox"
    jobs = folder.path / "jobs"
    if jobs.is_dir() and any(jobs.iterdir()):
        yield "background jobs"
    if damaged:
        yield f"{damaged} damaged log{'s' * (damaged != 1)} of compact workers"


# -- writing --------------------------------------------------------------------------------------------------


def _write(folder: PodFolder, gathered: _Gathered, stream: BinaryIO) -> None:
    first = gathered.contents.model_dump_json(indent=1).encode() + b"\n"
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(_info(CONTENTS, len(first)), io.BytesIO(first))
        for part in gathered.contents.parts:
            source = gathered.sources[part.name]
            if isinstance(source, bytes):
                tar.addfile(_info(part.name, part.size), io.BytesIO(source))
                continue
            try:
                with open_file(source) as file:
                    hashed = _Hashed(file, part.size)
                    tar.addfile(_info(part.name, part.size), hashed)
            except FileNotFoundError:
                raise _changed(folder, part.name) from None
            if hashed.digest.hexdigest() != part.sha256:
                raise _changed(folder, part.name)


def _changed(folder: PodFolder, part: str) -> NotSettled:
    return NotSettled(f"{part} of pod {folder.name!r} was changed or taken away while it was read; export it again")


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Hashed(io.RawIOBase):
    """A file that is read once, at most `limit` bytes, and hashed on the way. What is missing at its end is filled."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.digest = hashlib.sha256()
        self._file, self._left = file, limit

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self.digest.update(data)
        self._left -= wanted
        return data + bytes(wanted - len(data))
