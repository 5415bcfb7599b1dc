"""One entry, one line: the envelope of a log entry, written and read byte for byte.

    {"v":1,"seq":7,"id":"…","at":"2026-01-31T12:00:00.123456Z","kind":"reply","body":{…},"crc":"9ae0daaf"}

The newline is the commit mark; `crc` is CRC-32 over the raw bytes before `,"crc"`. Bodies are JSON: `jq` reads a log.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime

from worker.ids import uuid7

FORMAT = 1
"""The version of the envelope."""

_HEAD = re.compile(
    rb'\{"v":(\d{1,6}),"seq":(\d{1,15}),"id":"([^"\\]{1,64})","at":"([^"\\]{1,40})",'
    rb'"kind":"([a-z_.]{1,40})","body":'
)
_TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')
_TAIL_LENGTH = len(b',"crc":"00000000"}')


@dataclass(frozen=True, slots=True)
class Line:
    """A valid entry as it stands in a file: its envelope, its body as JSON bytes, where it begins, how long it is."""

    seq: int
    id: str
    at: str
    kind: str
    body: bytes
    offset: int
    length: int
    number: int
    version: int = FORMAT


def now() -> str:
    """The time as logs hold it: UTC with its mark, in microseconds (case B143)."""
    return datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def render(seq: int, kind: str, body: bytes, at: str) -> tuple[str, bytes]:
    """The id and the bytes of a new entry, newline included."""
    label = uuid7()
    head = b'{"v":%d,"seq":%d,"id":"%s","at":"%s","kind":"%s","body":%s' % (
        FORMAT, seq, label.encode(), at.encode(), kind.encode(), body
    )  # fmt: skip
    return label, head + b',"crc":"%08x"}\n' % zlib.crc32(head)


class Invalid(ValueError):
    """Why a line is not an entry."""


def parse(data: bytes, offset: int, number: int) -> Line:
    """The entry in one line (without its newline). Raises `Invalid` with the reason."""
    head = _HEAD.match(data)
    if head is None:
        raise Invalid("not a log entry")
    tail = _TAIL.search(data, max(len(data) - _TAIL_LENGTH, 0))
    if tail is None:
        raise Invalid("no checksum at the end")
    if zlib.crc32(data[: tail.start()]) != int(tail[1], 16):
        raise Invalid("the checksum does not match")
    version, seq, label, at, kind = head.groups()
    return Line(
        seq=int(seq), id=label.decode(), at=at.decode(), kind=kind.decode(), body=data[head.end() : tail.start()],
        offset=offset, length=len(data) + 1, number=number, version=int(version),
    )  # fmt: skip
