"""Messages as lines: cut from bytes as they come, each of a bounded length, in linear time."""

from __future__ import annotations

from worker.text import size

LONGEST = 64 * 1024 * 1024
"""Bytes of one message; a server that sends a longer one is ended."""


class TooLong(ValueError):
    """A message has no end within the bound."""


class Lines:
    """Takes bytes and gives whole lines, without their ends."""

    def __init__(self, limit: int = LONGEST) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete. Raises `TooLong`."""
        *ends, rest = data.split(b"\n")
        found: list[bytes] = []
        for end in ends:
            found.append(self._joined(end))
        self._keep(rest)
        return found

    def _joined(self, end: bytes) -> bytes:
        self._keep(end)
        line = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return line

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLong(f"it sent a message of more than {size(self._limit)}")
        if piece:
            self._pieces.append(piece)


class Tail:
    """The last bytes of what a server writes to standard error."""

    def __init__(self, limit: int = 2_048) -> None:
        self._limit = limit
        self._data = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._data += data
        if len(self._data) > self._limit:
            self._cut = True
            del self._data[: len(self._data) - self._limit]

    def text(self) -> str:
        """What is kept, as plain text of whole lines as far as there are any."""
        from worker.builtin.terminal import PlainText

        data = bytes(self._data)
        if self._cut:
            # Where no line begins, the mark says so: what stands behind it may be the end of a secret.
            data = data.partition(b"\n")[2] or b"..." + data
        made = PlainText()
        return (made.feed(data) + made.finish()).strip()
