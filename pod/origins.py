"""What a fork takes along of the past: the logs that its origin's session can look back on, and the artifacts they name.

They lie in the fork's own folder (`PodFolder.origin`), so they stay when the origin is removed. What the origin can't
look back on (before a `pod clear`), what a rewind left and what comes behind the point of the fork are not among them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from pod.log.files import Files, named, open_file, present
from pod.log.folder import PodFolder
from pod.log.items import named_artifacts
from pod.log.segment import CHUNK, Damage, raw_lines, scan
from pod.points import Point
from pod.reading import Segment


def take_along(source: PodFolder, fork: PodFolder, point: Point) -> set[str]:
    """Puts the logs up to a settled point into a fork's folder, durably. Returns the names of artifacts in them. Blocks.

    A log that is over is a link to the origin's; the part of one that may still grow, or of which only a part belongs to
    the past, is a copy. Raises `OSError`.
    """
    named: set[str] = set()
    fork.files.make_folder(fork.origin)
    for segment in point.past:
        if segment.lineage is None:  # its beginning does not read: nothing can be shown of it
            continue
        path = fork.origin_path(segment.id)
        if segment is point.past[0]:
            _copy(fork.files, segment.path, path, point.end)
        elif segment.upto is not None:
            _copy(fork.files, segment.path, path, _end_of(segment, segment.upto))
        else:
            _link(fork.files, segment.path, path)
        if source.artifacts.is_dir():
            named.update(name for _, line, _ in raw_lines(path) for name in named_artifacts(line))
    fork.files.sync_folder(fork.origin)
    return named


def link_artifacts(source: PodFolder, fork: PodFolder, names: Iterable[str]) -> None:
    """Gives a fork its own names for artifacts of its origin, durably; those that are gone are passed over."""
    made = False
    for label in sorted(names):
        origin = source.artifacts / label
        if not origin.is_file():
            continue
        fork.files.make_folder(fork.artifacts)
        made = True
        try:
            os.link(present(origin), fork.artifacts / label)
        except OSError:
            shutil.copyfile(origin, fork.artifacts / label)
            (fork.artifacts / label).chmod(0o600)
    if made:
        fork.files.sync_folder(fork.artifacts)


def _end_of(segment: Segment, seq: int) -> int:
    """Where the last entry up to `seq` ends."""
    end = 0
    for line in scan(segment.path):
        if isinstance(line, Damage):
            continue
        if line.seq > seq:
            break
        end = line.offset + line.length
    return end


def _link(files: Files, source: Path, target: Path) -> None:
    try:
        os.link(present(source), target)
    except OSError:  # another file system, or one without links
        _copy(files, source, target, source.stat().st_size)
        return
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def _copy(files: Files, source: Path, target: Path, length: int) -> None:
    """The first `length` bytes of a log, whole lines: a last newline that is missing is added."""
    fd = files.open_append(target, create=True)
    try:
        last = b"\n"
        with open_file(source) as file, named(target):
            while length > 0 and (chunk := file.read(min(length, CHUNK))):
                files.write(fd, chunk)
                length -= len(chunk)
                last = chunk[-1:]
        with named(target):
            if last != b"\n":
                files.write(fd, b"\n")
            files.sync(fd)
    finally:
        files.close(fd)
