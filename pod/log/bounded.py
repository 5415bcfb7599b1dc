"""Reading a log in bounds: only so many bytes, or only its end."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pod.log.lines import Invalid, Line, parse
from pod.log.segment import open_log, stands_for

TAIL = 65_536
"""Bytes that `last_lines` reads at most."""

_PIECE = 4_096


class Spent(Exception):
    """The bytes of an `Allowance` are used up."""


@dataclass(slots=True)
class Allowance:
    """Bytes that may still be read."""

    bytes: int = sys.maxsize

    def read(self, file: BinaryIO, at: int, most: int) -> bytes:
        """At most `most` bytes from offset `at`; less at the end of the file, or where the allowance ends.

        Raises `Spent` where nothing is left of it, `OSError`.
        """
        if self.bytes <= 0:
            raise Spent
        data = os.pread(file.fileno(), min(most, self.bytes), at)
        self.bytes -= len(data)
        return data

    def exactly(self, file: BinaryIO, at: int, size: int) -> bytes:
        """`size` bytes from offset `at`, less only where the file ends. Raises `Spent` where the allowance ends before,
        `OSError`.
        """
        data = self.read(file, at, size)
        if len(data) < size and self.bytes <= 0:
            raise Spent
        return data


def last_lines(path: Path, limit: int = TAIL) -> list[Line]:
    """The valid entries in the last `limit` bytes of a log, in order; for a look at where it stands.

    Raises `OSError`.
    """
    size = path.stat().st_size
    start = max(size - limit, 0)
    found: list[Line] = []
    with open_log(path) as file:
        file.seek(start)
        data = file.read(limit)
    offset = start
    for number, part in enumerate(data.split(b"\n")):
        # The first part is the rest of a line that began before, unless this is the whole file.
        if part.strip() and (number or not start):
            with contextlib.suppress(Invalid):
                found.append(parse(part, offset, 0))
        offset += len(part) + 1
    return found


def last_number(path: Path, allowance: Allowance | None = None, most: int = sys.maxsize) -> int | None:
    """The last number that a log's entries stand for, read from its end backwards: 0 where it holds no entry.

    None where that can't be told by its last `most` bytes. Raises `Spent`, `NotALog`, `OSError`.
    """
    allowance = allowance or Allowance()
    with open_log(path) as file:
        at = os.fstat(file.fileno()).st_size
        least = max(at - most, 0)
        begun = b""  # the end of a line whose beginning was not read yet
        while at > least:
            size = min(max(_PIECE, len(begun)), at - least)
            at -= size
            *lines, last = (allowance.exactly(file, at, size) + begun).split(b"\n")
            # The first piece is the rest of a line that began before, unless this is where the file begins.
            whole = [*lines, last] if at == 0 else [*lines[1:], last] if lines else []
            for data in reversed(whole):
                with contextlib.suppress(Invalid):
                    line = parse(data, 0, 0)
                    return line.seq + stands_for(line) - 1
            begun = lines[0] if lines else last
    return None if least else 0
