"""Pages of HTML that a command writes."""

from __future__ import annotations

import os
from pathlib import Path

from pod.errors import UsageProblem
from worker.ids import uuid7


def write_page(path: Path, text: str, flag: str) -> None:
    """Writes a page, which only its owner reads: what agents said stands in it. Raises `UsageProblem`, which names the flag."""
    try:
        _put(path, text.encode())
    except OSError as error:
        raise UsageProblem(f"{flag}: {path} can't be written: {error.strerror or error}") from error


def _put(path: Path, data: bytes) -> None:
    """A file is replaced in one step, anything else is written to."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    new = path.with_name(f".{path.name[:200]}.{uuid7()}.tmp")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
