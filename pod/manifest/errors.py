"""What is wrong with a manifest: each thing with its place and the way out, all of them at once.

ManifestError               exit code 2
└── problems: [Problem]     file, line, column, key, message, hint
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]

KeyPath: TypeAlias = tuple[str | int, ...]
"""A place in a manifest: table names, a key, and positions in arrays (from 0)."""


def key_label(path: KeyPath) -> str:
    """A place as a person writes it: `[tools.shell] timeout`, `[mcp #1] name`, `version`."""
    table, key = (path[:-1], path[-1]) if path and isinstance(path[-1], str) else (path, None)
    parts: list[str] = []
    for part in table:
        if isinstance(part, int) and parts:
            parts[-1] += f" #{part + 1}"
        else:
            parts.append(str(part))
    words = [f"[{'.'.join(parts)}]"] if parts else []
    return " ".join([*words, key] if key is not None else words)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    `file` is the file as it was named, or the environment variable or `--set` that the value came from; `line` and
    `column` count from 1; `key` is the place (`[compaction] retained_tokens`), empty for a file that cannot be
    read; `path` is the same place as data; `excerpt` shows the line of a file that can't be parsed.
    """

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: str = ""
    hint: str = ""
    severity: Severity = "error"
    path: KeyPath = field(default=(), compare=False, repr=False)
    excerpt: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None and not self.key:
                place += f":{self.column}"
        text = ": ".join(part for part in (place, self.key, self.message) if part)
        text = f"{text}; {self.hint}" if self.hint else text
        return f"{text}\n{self.excerpt}" if self.excerpt else text


class Finding(NamedTuple):
    """A contradiction, before it has a place. `keys` are the places that it is about, the one to change first; `rests_on`
    are others whose values it was reckoned with.
    """

    message: str
    keys: tuple[KeyPath, ...]
    severity: Severity = "error"
    hint: str = ""
    rests_on: tuple[KeyPath, ...] = ()


def in_order(problems: Iterable[Problem], files: Sequence[str] = ()) -> list[Problem]:
    """Problems as a person goes through them, each once: file by file in the order of `files`, from line to line, then what
    has no line; then what no file holds.
    """
    rank: dict[str | None, int] = {file: number for number, file in enumerate(files)}
    rank[None] = len(files) + 1

    def place(problem: Problem) -> tuple[int, bool, int, int]:
        return (
            rank.get(problem.file, len(files)),
            problem.line is None,
            problem.line or 0,
            problem.column or 0,
        )

    return sorted(dict.fromkeys(problems), key=place)


class ManifestError(Exception):
    """A manifest cannot be used. `problems` holds all that was found; `exit_code` is that of the command line."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
