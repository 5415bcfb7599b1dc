"""The files of a background job: its last output in two pieces, and how its command ended.

Uses the standard library alone: the supervisor of a job runs it outside of the package's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

JOB_LIMIT = 8 * 1024 * 1024
"""Bytes of a background job's output that stay on disk."""

_STATUS = "ended.json"


class JobOutput(NamedTuple):
    """A part of a job's output: `start` and `end` are byte positions in all that it wrote, `total` is all of it.

    What stood before `first` is no longer kept (case B091).
    """

    text: str
    start: int
    end: int
    first: int
    total: int


class JobWriter:
    """Writes a job's output into files named by their first byte, and keeps the newest two: at most `limit` bytes.

    A disk that fails costs output, which is counted, never the job.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._half = max(limit // 2, 1)
        self._position = 0
        self._names: list[Path] = []
        self._fd = -1
        self._room = 0
        self.lost = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._room:
                self._next()
            piece = view[: self._room]
            try:
                written = os.write(self._fd, piece)
            except OSError:
                self.lost += len(view)
                return
            self._room -= written
            self._position += written
            view = view[written:]

    def _next(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        name = self._folder / f"out.{self._position}"
        self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._names.append(name)
        self._room = self._half
        while len(self._names) > 2:
            self._names.pop(0).unlink(missing_ok=True)

    def end(self, code: int, not_text: int) -> None:
        """Records the end of the command."""
        temporary = self._folder / (_STATUS + ".tmp")
        temporary.write_text(json.dumps({"code": code, "lost": self.lost, "not_text": not_text}))
        temporary.replace(self._folder / _STATUS)


def exit_code(folder: Path) -> int | None:
    """The exit code that the supervisor recorded, or None where there is none (yet)."""
    try:
        return int(json.loads((folder / _STATUS).read_text())["code"])
    except (OSError, ValueError, KeyError):
        return None


def _pieces(folder: Path) -> list[tuple[int, Path]]:
    found = [(name.rpartition(".")[2], name) for name in map(str, folder.glob("out.*"))]
    return sorted((int(start), Path(name)) for start, name in found if start.isdigit())


def read_output(folder: Path, since: int | None, limit: int) -> JobOutput:
    """At most `limit` bytes from position `since` on, or the last ones. Blocks."""
    data, first = b"", 0
    # A piece may go away between the listing and the reading; the next listing knows.
    for _ in range(3):
        pieces = _pieces(folder)
        first = pieces[0][0] if pieces else 0
        with contextlib.suppress(FileNotFoundError):
            total = pieces[-1][0] + pieces[-1][1].stat().st_size if pieces else 0
            start = max(total - limit if since is None else min(since, total), first)
            data = b"".join(_part(name, start - begin, limit) for begin, name in pieces)[:limit]
            text = data.decode(errors="ignore") if start + len(data) < total else data.decode(errors="replace")
            used = len(text.encode()) if start + len(data) < total else len(data)
            return JobOutput(text, start, start + used, first, total)
    return JobOutput("", first, first, first, first)


def _part(name: Path, skip: int, limit: int) -> bytes:
    with name.open("rb") as file:
        if skip > 0:
            file.seek(skip)
        return file.read(limit)
