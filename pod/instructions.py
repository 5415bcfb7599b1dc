"""Instruction files: found from the project's root down to the working folder, bounded, hashed, frozen for a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pod import codes
from worker.builtin.scope import Scope
from worker.records import Warned
from worker.text import byte_prefix, decode, sha256
from worker.tools import ToolFault

FILE_LIMIT = 32 * 1024
"""Bytes of one file that are taken."""

TOTAL_LIMIT = 128 * 1024
"""Bytes of all files together."""


@dataclass(frozen=True, slots=True)
class Note:
    """What of an instruction file was not taken, and why. `size` and `limit` are in bytes, where the size was the reason."""

    path: str
    message: str
    size: int | None = None
    limit: int | None = None

    def warning(self) -> Warned:
        """The note for a human."""
        figures: dict[str, Any] = {"path": self.path, "size": self.size, "limit": self.limit}
        return Warned(
            code=codes.INSTRUCTIONS,
            message=f"{self.path}: {self.message}",
            figures={key: value for key, value in figures.items() if value is not None},
        )


@dataclass(frozen=True, slots=True)
class Instructions:
    """The texts in order (root first), each with its path; `hashes` maps path to SHA-256 of what was taken.

    `notes` say what was left out or cut.
    """

    files: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each text by path."""
        return {path: sha256(text) for path, text in self.files}

    def text(self) -> str:
        """All files under headings, as they stand in the system prompt."""
        return "\n\n".join(f"# Instructions from {path}\n\n{text.strip()}" for path, text in self.files)


def project_root(cwd: Path) -> Path:
    """The nearest folder at or above `cwd` that holds `.git`, else `cwd`."""
    return next((f for f in (cwd, *cwd.parents) if (f / ".git").exists()), cwd)


def collect(cwd: Path, names: Sequence[str]) -> Instructions:
    """The first of `names` that can be taken in each folder from the project's root to `cwd`. Blocks.

    Only regular files whose real place is below the project's root are: a link that leads out of it is not followed,
    and nothing else (a folder, a pipe, a device) is opened. What is there and is not taken, or not whole, has a note.
    """
    cwd = Path(os.path.realpath(cwd))
    root = project_root(cwd)
    scope = Scope(root, read=["."])
    folders = [cwd, *[f for f in cwd.parents if f.is_relative_to(root)]] if cwd != root else [cwd]
    found: list[tuple[str, str]] = []
    notes: list[Note] = []
    left = TOTAL_LIMIT
    for folder in reversed(folders):
        for name in names:
            path = folder / name
            if not os.path.lexists(path):
                continue
            try:
                with scope.open_read(path) as opened:
                    data = opened.file.read(FILE_LIMIT + 4)
                    whole = max(opened.info.st_size, len(data))
            except (ToolFault, OSError) as e:
                notes.append(Note(str(path), f"not read as instructions: {_reason(e)}"))
                continue
            text, note = _taken(str(path), data, whole, left)
            if note is not None:
                notes.append(note)
            left = max(left - min(whole, FILE_LIMIT), 0)
            if text.strip():
                found.append((str(path), text))
            break
    return Instructions(tuple(found), tuple(notes))


def _reason(error: ToolFault | OSError) -> str:
    text = str(error)
    return "it leads outside of the project, and is not followed" if text.startswith("outside the read scope") else text


def _taken(path: str, data: bytes, whole: int, left: int) -> tuple[str, Note | None]:
    """What is taken of a file, with a mark where that is not all of it."""
    limit = min(FILE_LIMIT, left)
    text = decode(data)[0]
    if whole <= limit:
        return text, None
    what = f"{limit:,} of its {whole:,} bytes"
    why = f"{FILE_LIMIT:,} bytes of one file" if limit == FILE_LIMIT else f"{TOTAL_LIMIT:,} bytes of all files together"
    bound = FILE_LIMIT if limit == FILE_LIMIT else TOTAL_LIMIT
    mark = f"[cut here: {what} are shown; at most {why} are taken as instructions]"
    note = Note(path, f"only {what} are taken as instructions: the limit is {why}", whole, bound)
    return f"{byte_prefix(text, limit)}\n\n{mark}", note
