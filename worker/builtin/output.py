"""The output of a command while it runs: head and tail in memory, all of it in an artifact, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from worker.builtin.artifacts import ArtifactWriter
from worker.builtin.terminal import PlainText
from worker.text import size
from worker.tool_output import head_and_tail, kept_as


class Collected(NamedTuple):
    """What a command wrote: `text` is whole or has a mark in its middle; `size` is that of the whole in bytes."""

    text: str
    size: int
    lines: int
    artifact: str | None
    not_text: int


class OutputCollector:
    """Takes a command's bytes and keeps a bounded amount of plain text (case B090).

    Up to `limit` bytes stay in memory. Above, `open_spool` is called once and everything goes there as well, as far
    as the spool's own limit allows; memory holds half of `limit` from the start and half from the end. A spool that
    fails costs the spool only. `feed` and `finish` block while `spooling` is true.
    """

    def __init__(self, limit: int, open_spool: Callable[[], ArtifactWriter] | None = None) -> None:
        self._limit = limit
        self._open_spool = open_spool
        self._spool: ArtifactWriter | None = None
        self._plain = PlainText()
        self._head = bytearray()
        self._tail: bytearray | None = None
        self._size = 0
        self._lines = 0
        self._ends_line = True
        self._spool_error = ""

    @property
    def spooling(self) -> bool:
        """Whether the next piece is written to disk."""
        return self._spool is not None and not self._spool.full

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._take(self._plain.feed(data))

    def _take(self, text: str) -> None:
        if not text:
            return
        data = text.encode()
        self._size += len(data)
        self._lines += data.count(b"\n")
        self._ends_line = data.endswith(b"\n")
        if self._tail is None:
            self._head += data
            if len(self._head) <= self._limit:
                return
            half = self._limit // 2
            self._start_spool()
            self._write(bytes(self._head))
            self._tail = self._head[-half:] if half else bytearray()
            del self._head[half:]
            return
        self._write(data)
        self._tail += data
        del self._tail[: max(len(self._tail) - self._limit // 2, 0)]

    def _start_spool(self) -> None:
        if self._open_spool is None:
            return
        try:
            self._spool = self._open_spool()
        except OSError as e:
            self._spool_error = e.strerror or str(e)

    def _write(self, data: bytes) -> None:
        if self._spool is None:
            return
        try:
            self._spool.write(data)
        except OSError as e:
            self._spool_error = e.strerror or str(e)
            self._spool.close()
            self._spool = None

    def close(self) -> None:
        """Ends the spool; what is on disk stays."""
        if self._spool is not None:
            self._spool.close()

    def finish(self) -> Collected:
        """Everything, after the last byte. Closes the spool."""
        self._take(self._plain.finish())
        self.close()
        lines = self._lines + (not self._ends_line)
        if self._tail is None:
            return Collected(self._head.decode(errors="ignore"), self._size, lines, None, self._plain.not_text)
        artifact = None if self._spool is None else self._spool.name
        where = kept_as(artifact)
        if self._spool_error:
            where = f"the whole output could not be kept: {self._spool_error}"
        elif self._spool is not None and self._spool.dropped:
            where = f'the first {size(self._spool.size)}: read_file(path="artifact:{artifact}")'
        head, tail = self._head.decode(errors="ignore"), self._tail.decode(errors="ignore")
        text = head_and_tail(head, tail, self._size, self._limit, where)
        return Collected(text, self._size, lines, artifact, self._plain.not_text)
