"""What the tools that write have in common: reading the old content whole, and saying what changed."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from worker.builtin.scope import Scope
from worker.items import FileRange
from worker.text import sha256, size
from worker.tools import ToolFault

LARGEST = 64 * 1024 * 1024
"""Bytes up to which a file is edited, or its old content looked at before it is replaced."""


class OldFile(NamedTuple):
    """A file before a change. `data` is None where it is above `LARGEST`."""

    path: Path
    name: str
    data: bytes | None
    info: os.stat_result


def old_file(scope: Scope, path: str) -> OldFile:
    """The file as it is. Blocks; raises `ToolFault`."""
    with scope.open_read(path) as opened:
        data = opened.file.read(LARGEST + 1)
        return OldFile(opened.path, opened.name, data if len(data) <= LARGEST else None, opened.info)


def old_file_if_any(scope: Scope, path: str) -> OldFile | None:
    """The file as it is, None where there is none yet. Blocks; raises `ToolFault` for what is not a regular file."""
    resolved = scope.resolve(path, "write")
    with contextlib.suppress(OSError):
        if not os.path.lexists(resolved):
            return None
    return old_file(scope, path)


def written(path: Path, data: bytes) -> FileRange:
    """What a result says of a file that now holds `data`."""
    return FileRange(path=str(path), first=0, last=0, sha256=sha256(data))


def line_count(data: bytes) -> str:
    """`1 line`, `12 lines`."""
    lines = data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    return f"{lines} line{'' if lines == 1 else 's'}"


def change(old: bytes, new: bytes) -> str:
    """How many lines came and went, and the new size. A line that only moved counts as neither."""
    before, after = Counter(old.splitlines()), Counter(new.splitlines())
    return f"+{(after - before).total()} -{(before - after).total()} lines, {size(len(new))}"


def changed_since(name: str) -> ToolFault:
    """The refusal for a file that is not what the model last saw (case B100)."""
    return ToolFault(
        f"{name} changed since it was last read. Read it again, then make the change on what it holds now."
    )


def line_end(newlines: int, crlf: int) -> bytes:
    """The line end that most lines have: of `newlines`, `crlf` are CR LF. Empty where there are none."""
    if not newlines:
        return b""
    return b"\r\n" if 2 * crlf > newlines else b"\n"


def names_kept(before: os.stat_result) -> str:
    """What is said of a file with several names (hard links): they all show the change. Empty for any other file."""
    return f"; the file has {before.st_nlink} names (hard links), all of them show it" if before.st_nlink > 1 else ""
