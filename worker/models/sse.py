"""Server-sent events, read incrementally from raw bytes (the WHATWG event stream format)."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one unfinished event; a stream that exceeds it is broken, not patient."""


class Event(NamedTuple):
    """One event: `name` is its type (empty where the server gives none), `data` its lines joined by newlines."""

    name: str
    data: str


class EventTooLarge(ValueError):
    """One event is larger than `MAX_EVENT` bytes."""


class SSEParser:
    """Turns chunks of bytes, cut anywhere, into events.

    Lines end in LF, CR or CRLF, also where a chunk ends between the two. Characters split over chunks are whole again,
    since only complete lines are decoded. Comments, ids and retry hints are skipped.
    """

    __slots__ = ("_data", "_data_size", "_held", "_name", "_partial", "_size", "_started")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._size = 0
        self._held = False
        self._started = False
        self._name = ""
        self._data: list[str] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes. Raises `EventTooLarge`."""
        if self._held:
            chunk = b"\r" + chunk
            self._held = False
        if chunk.endswith(b"\r"):
            self._held = True
            chunk = chunk[:-1]
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end:
            self._keep(chunk)
            return []
        whole = b"".join((*self._partial, chunk[:end]))
        self._partial.clear()
        self._size = 0
        if end < len(chunk):
            self._keep(chunk[end:])
        if not self._started:
            self._started = True
            whole = whole.removeprefix(b"\xef\xbb\xbf")
        events: list[Event] = []
        for line in whole.splitlines():
            self._line(line, events)
        return events

    def close(self) -> list[Event]:
        """The event that the end of the body completes: some servers leave out the last blank line."""
        events: list[Event] = []
        if self._partial:
            self._line(b"".join(self._partial), events)
            self._partial.clear()
        self._line(b"", events)
        return events

    def _keep(self, rest: bytes) -> None:
        self._partial.append(rest)
        self._size += len(rest)
        if self._size > MAX_EVENT:
            raise EventTooLarge(f"one event is larger than {MAX_EVENT} bytes")

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name, "\n".join(self._data)))
                self._data.clear()
                self._data_size = 0
            self._name = ""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            self._data_size += len(value)
            if self._data_size > MAX_EVENT:
                raise EventTooLarge(f"one event is larger than {MAX_EVENT} bytes")
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
