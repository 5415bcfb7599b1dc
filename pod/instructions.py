"""Instruction files: found from the project's root down to the working folder, bounded, hashed, frozen for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.text import byte_prefix, decode, sha256

FILE_LIMIT = 32 * 1024
"""Bytes of one file that are taken."""

TOTAL_LIMIT = 128 * 1024
"""Bytes of all files together."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The texts in order (root first), each with its path; `hashes` maps path to SHA-256 of what was taken."""

    files: tuple[tuple[str, str], ...] = ()

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
    """The first of `names` that exists in each folder from the project's root to `cwd`. Unreadable files are passed over."""
    root = project_root(cwd)
    folders = [cwd, *[f for f in cwd.parents if f.is_relative_to(root)]] if cwd != root else [cwd]
    found: list[tuple[str, str]] = []
    left = TOTAL_LIMIT
    for folder in reversed(folders):
        for name in names:
            path = folder / name
            try:
                if not path.is_file():
                    continue
                with path.open("rb") as file:
                    data = file.read(FILE_LIMIT + 4)
            except OSError:
                continue
            text = byte_prefix(decode(data)[0], min(FILE_LIMIT, left))
            left -= len(text.encode())
            if text.strip():
                found.append((str(path), text))
            break
    return Instructions(tuple(found))
