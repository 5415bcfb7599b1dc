"""Whole outputs, kept beside the log: what a result could not hold."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from worker.builtin.scope import Scope
from worker.masking import MaskedStream, Masker
from worker.tools import ToolFault

PREFIX = "artifact:"
"""A path that starts so names an artifact in `read_file`."""

SPOOL_LIMIT = 64 * 1024 * 1024
"""Bytes that one spooled output may take on disk."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class ArtifactWriter:
    """An artifact that grows: at most `limit` bytes are kept, the rest is counted in `dropped`. What may be the beginning of
    a secret, or of a character, is written with what comes after it; bytes that are no text stay as they are.
    """

    def __init__(self, name: str, fd: int, limit: int, masker: Masker | None = None) -> None:
        self.name = name
        self._masked = MaskedStream(masker) if masker else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.size = 0
        self.dropped = 0
        self._file = os.fdopen(fd, "wb", buffering=0)
        self._limit = limit

    def write(self, data: bytes) -> None:
        """Appends `data` as far as the limit allows. Blocks unless `full`; raises `OSError`."""
        if self.full:
            self.dropped += len(data)
            return
        if self._masked is not None:
            data = _bytes(self._masked.feed(self._decoder.decode(data)))
        self._keep(data)

    @property
    def full(self) -> bool:
        """Whether nothing more is kept."""
        return self.size >= self._limit

    def _keep(self, data: bytes) -> None:
        kept = memoryview(data)[: max(self._limit - self.size, 0)]
        self.dropped += len(data) - len(kept)
        while kept:
            written = self._file.write(kept)
            self.size += written
            kept = kept[written:]

    def end(self) -> None:
        """Writes what was held back, where nothing more comes. Blocks; raises `OSError`."""
        if self._masked is not None:
            rest = self._masked.feed(self._decoder.decode(b"", final=True))
            self._keep(_bytes(rest + self._masked.end()))

    def close(self) -> None:
        """Ends the writing; what was written stays, also after a power cut. Blocks."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self.end()
                os.fsync(self._file.fileno())
            self._file.close()


class Artifacts:
    """A folder of outputs by name. Names come from the call, and are never used twice.

    The folder is made when it is first needed (mode 0700, files 0600). Secrets that `masker` knows are replaced in what is
    kept. Methods block.
    """

    def __init__(self, folder: str | Path, masker: Masker | None = None) -> None:
        self.folder = Path(folder).absolute()
        self._masker = masker

    def store(self, call_id: str, name: str, data: bytes | str) -> str:
        """Keeps `data` and returns the artifact's name. Raises `OSError`; a failed write leaves nothing."""
        writer = self.writer(call_id, name, limit=1 << 62)
        try:
            writer.write(data.encode() if isinstance(data, str) else data)
            writer.end()
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / writer.name).unlink()
            raise
        finally:
            writer.close()
        return writer.name

    def writer(self, call_id: str, name: str, *, limit: int = SPOOL_LIMIT) -> ArtifactWriter:
        """A new artifact to be written piece by piece; the caller closes it. Raises `OSError`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for label in _names(call_id, name):
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                return ArtifactWriter(label, os.open(self.folder / label, flags, 0o600), limit, self._masker)
        raise AssertionError("unreachable: the names do not end")

    def path(self, name: str) -> Path:
        """Where an artifact stands. Raises `ToolFault` for an unknown name, with the nearest one."""
        name = name.removeprefix(PREFIX)
        if name == _UNSAFE.sub("_", name) and name.strip(".") and (self.folder / name).is_file():
            return self.folder / name
        near = difflib.get_close_matches(name, self.names(), 1, 0.5)
        hint = f" Did you mean {PREFIX}{near[0]}?" if near else ""
        raise ToolFault(f"no such artifact: {name}.{hint}")

    def names(self) -> list[str]:
        """All artifacts, sorted."""
        return sorted(p.name for p in self.folder.iterdir() if p.is_file()) if self.folder.is_dir() else []

    def scope(self) -> Scope:
        """The scope that artifacts are read through."""
        return Scope(self.folder, read=(".",))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _names(call_id: str, name: str) -> Iterator[str]:
    stem, dot, ending = _UNSAFE.sub("_", f"{call_id}-{name}").lstrip(".-").rpartition(".")
    stem, ending = (stem[-80:], (dot + ending)[:12]) if stem else (ending[-80:] or "output", "")
    yield stem + ending
    for number in count(2):
        yield f"{stem}-{number}{ending}"
