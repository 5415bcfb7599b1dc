"""Lines of files, read through the pod's own read scope and under its own rules."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import anyio.to_thread

from worker.builtin.scope import Scope
from worker.text import decode, size
from worker.tools import ToolFault

Permit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Asks whether a file may be read: None, or why not."""

SLICE_BYTES = 1_048_576
"""Bytes of one slice; a compact worker never needs more."""

COUNT_BYTES = 8 * SLICE_BYTES
"""Files up to this size have their lines counted."""


CHECKED_PATHS = 200
"""Paths in the prose of a summary that are looked up."""

_PATH = re.compile(r"(?<![\w/.:@-])(?:\.{0,2}/)?(?:[\w.+-]+/)+[\w+-][\w.+-]*\.\w{1,8}\b(?!/)")


async def anything(path: str) -> str | None:
    """Permits every file that is in scope."""
    return None


@dataclass(frozen=True, slots=True)
class Slice:
    """Lines `first` to `last` (1-based, both ends) of a file; `total` is None where the file is too large to count.

    `name` is the path as the model is told of it. `whole_end` says that the slice reaches the end of the file.
    """

    name: str
    first: int
    last: int
    total: int | None
    text: str
    whole_end: bool


class Files:
    """Reads through a `Scope` what `permit` lets through. Cancelled, nothing is left open."""

    def __init__(self, scope: Scope, permit: Permit = anything) -> None:
        self._scope = scope
        self._permit = permit

    async def name(self, path: str) -> str:
        """The name of an existing, readable file. Raises `ToolFault` for any other."""
        await self._ask(path)
        return await anyio.to_thread.run_sync(self._name, path)

    async def slice(self, path: str, offset: int = 1, limit: int | None = None) -> Slice:
        """Lines from `offset` (1-based), `limit` of them, or to the end. Raises `ToolFault`, also for a binary file."""
        if offset < 1 or (limit is not None and limit < 1):
            raise ToolFault(f"offset and limit count lines from 1; not offset={offset}, limit={limit}")
        await self._ask(path)
        return await anyio.to_thread.run_sync(self._slice, path, offset, limit)

    def show(self, path: str) -> str:
        """How the model is told of a path, whether or not it exists. Blocks; raises `ToolFault` out of scope."""
        return self._scope.show(self._scope.resolve(path))

    def missing(self, path: str) -> bool:
        """Whether a path in scope does not exist; False for what is out of scope, of which nothing is said. Blocks."""
        try:
            return not self._scope.resolve(path).exists()
        except (ToolFault, OSError):
            return False

    def count_missing(self, text: str) -> int:
        """How many of the paths that a text names do not exist. Blocks."""
        paths = list(dict.fromkeys(_PATH.findall(text)))[:CHECKED_PATHS]
        return sum(self.missing(path) for path in paths)

    async def _ask(self, path: str) -> None:
        refusal = await self._permit(path)
        if refusal is not None:
            raise ToolFault(refusal)

    def _name(self, path: str) -> str:
        with self._scope.open_read(path) as opened:
            return opened.name

    def _slice(self, path: str, offset: int, limit: int | None) -> Slice:
        with self._scope.open_read(path) as opened:
            if b"\0" in opened.file.read(8_192):
                raise ToolFault(f"{opened.name} is binary ({size(opened.info.st_size)}); its content is not text")
            opened.file.seek(0)
            count, lines = _lines(opened.name, opened.file, offset, limit)
            if not lines:
                raise ToolFault(f"{opened.name} has {count} lines; line {offset} does not exist")
            at_end = not opened.file.read(1)
            total: int | None = count
            if not at_end:
                opened.file.seek(0)
                total = sum(1 for _ in opened.file) if opened.info.st_size <= COUNT_BYTES else None
        text, _ = decode(b"".join(lines))
        return Slice(opened.name, offset, offset + len(lines) - 1, total, text, at_end)


def _lines(name: str, file: BinaryIO, offset: int, limit: int | None) -> tuple[int, list[bytes]]:
    """The lines, and how many lines of the file were passed."""
    lines: list[bytes] = []
    number = taken = 0
    while limit is None or len(lines) < limit:
        line = file.readline(SLICE_BYTES + 1)
        if not line:
            break
        number += 1
        if number >= offset:
            lines.append(line)
            taken += len(line)
        if len(line) > SLICE_BYTES or taken > SLICE_BYTES:
            raise ToolFault(f"{name}: these lines are larger than {size(SLICE_BYTES)}; ask for fewer")
    return number, lines
