"""What a survey keeps of a file: one line of JSON for each part that was read, for notes and for findings alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, cast

from worker.offline.python_scan import Import, scan

TODO_CHARS = 160
"""Characters that are kept of a marked line."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Lines `first` to `last` of a file of `total` lines: what they define, import and mark, and what they leave open.

    `imports` counts import statements by the file of the set that they name. A `total` of -1 says that the file could
    not be read. In notes each fact has the `number` of Python files before its file, its imports are those of all of
    the file so far, and `flags` say what else a later part must know.
    """

    path: str
    first: int
    last: int
    total: int
    carry: str = ""
    definitions: tuple[str, ...] = ()
    imports: tuple[tuple[str, int], ...] = ()
    todos: tuple[tuple[int, str], ...] = ()
    flags: int = 0
    number: int | None = None

    @property
    def final(self) -> bool:
        """Whether nothing of the file follows."""
        return self.last >= self.total

    @property
    def unreadable(self) -> bool:
        """Whether the file could not be read; `carry` then says why."""
        return self.total < 0

    def line(self) -> str:
        """The fact as one line of JSON."""
        targets = " ".join(
            imported_name(path, self.path).replace(" ", "%20") + (f"*{count}" if count > 1 else "")
            for path, count in self.imports
        )
        row: list[Any] = [self.path, self.first, self.last, self.total, self.carry]
        row += [" ".join(self.definitions), targets, [list(todo) for todo in self.todos], self.flags]
        while row[-1] in ("", []) or (row[-1] == 0 and len(row) == _ROW):
            row.pop()
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        return text if self.number is None else f"{self.number} {text}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """The directives that were met in a file; none says that the file was met and asks for nothing."""

    source: str
    texts: tuple[str, ...]

    def line(self) -> str:
        """The instruction as one line of JSON, with the file behind a mark as its first element."""
        return json.dumps([f"!{self.source}", *self.texts], ensure_ascii=False, separators=(",", ":"))


def joined(facts: Sequence[Fact]) -> Fact:
    """Facts of consecutive parts of a file as one."""
    first, last = facts[0], facts[-1]
    imports: Counter[str] = Counter()
    for fact in facts:
        imports.update(dict(fact.imports))
    return Fact(
        path=first.path,
        first=first.first,
        last=last.last,
        total=last.total,
        carry=last.carry,
        definitions=tuple(name for fact in facts for name in fact.definitions),
        imports=tuple(sorted(imports.items())),
        todos=tuple(todo for fact in facts for todo in fact.todos),
    )


@lru_cache(maxsize=4096)
def read_fact(line: str) -> Fact | Instruction | None:
    """The fact or instruction in a line, whatever stands around it; None where there is none, or only a part of one."""
    start = line.find('["')
    if start < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(line[start:])
        row = cast("list[Any]", value)
        if row[0].startswith("!"):
            return Instruction(row[0][1:], tuple(str(text) for text in row[1:]))
        row += ["", "", "", [], 0][len(row) - 4 :]
        path, first, last, total, carry, names, targets, todos, flags = row
        number = int(line[:start]) if line[:start].strip().isdecimal() else None
        counted = (part.partition("*") for part in targets.split())
        imports = tuple((imported_path(name.replace("%20", " "), path), int(count or 1)) for name, _, count in counted)
        marked = tuple((int(number), str(text)) for number, text in todos)
        read = Fact(path, int(first), int(last), int(total), carry, tuple(names.split()), imports, marked)
        return replace(read, flags=int(flags), number=number)
    except (ValueError, TypeError, IndexError, AttributeError):
        return None


NAMED = 1
"""Flag of a fact: an earlier part of the file defines something."""

MARKED = 2
"""Flag of a fact: an earlier part of the file has marked lines."""

LARGE = 4
"""Flag of a fact: the set of files is too large to be listed at once."""

_ROW = 9


class Modules:
    """Which file of a set an import statement names.

    A relative import is resolved from its file's folder. An absolute one is compared with the module names of the
    files: the path from the outermost folder that is a package of the set. `from a import b` names the module `a.b`
    if there is one, else `a`.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self._by_name: dict[str, str] = {}
        for path in sorted(self.paths):
            self._by_name.setdefault(self._name(path), path)

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, paths: tuple[str, ...]) -> Modules:
        """The modules of these files; of a set that is asked for again, those made before."""
        return cls(paths)

    def count(self, path: str, statements: Sequence[Sequence[Import]]) -> Counter[str]:
        """For each other file of the set, how many of these statements of the file `path` name it."""
        tally: Counter[str] = Counter()
        for statement in statements:
            named = {target for each in statement for target in self._targets(path, each)}
            tally.update(named - {path})
        return tally

    def _targets(self, path: str, item: Import) -> set[str]:
        if not item.module.startswith("."):
            whole = self.named(item.module)
            if not item.names:
                return {whole} if whole else set()
            found = [self.named(f"{item.module}.{name}") or whole for name in item.names]
            return {target for target in found if target}
        module = item.module.lstrip(".")
        folder = PurePosixPath(path).parent
        for _ in range(len(item.module) - len(module) - 1):
            folder = folder.parent
        parts = tuple(module.split(".")) if module else ()
        whole = self.file(folder, parts)
        found = [self.file(folder, (*parts, *name.split("."))) or whole for name in item.names]
        return {target for target in found if target}

    def named(self, name: str) -> str | None:
        """The file with this module name."""
        return self._by_name.get(name)

    def file(self, folder: PurePosixPath, parts: Sequence[str]) -> str | None:
        """The module or package at a place."""
        place = folder.joinpath(*parts)
        candidates = (f"{place}.py", str(place / "__init__.py"))
        return next((each for each in candidates if each in self.paths), None)

    def _name(self, path: str) -> str:
        place = PurePosixPath(path)
        parts = [] if place.name == "__init__.py" and str(place.parent) != "." else [place.stem]
        folder = place.parent
        while str(folder) != "." and str(folder / "__init__.py") in self.paths:
            parts.insert(0, folder.name)
            folder = folder.parent
        return ".".join(parts)


def study(path: str, lines: Sequence[str], first: int, total: int, carry: str, modules: Modules) -> Fact:
    """What these lines of a file say, without what other lines said."""
    piece = scan(lines, first, carry)
    imports = tuple(sorted(modules.count(path, piece.imports).items()))
    todos = tuple((number, text[:TODO_CHARS]) for number, text in piece.todos)
    last = first + len(lines) - 1
    return Fact(path, first, last, total, piece.carry, tuple(piece.definitions), imports, todos)


def imported_name(path: str, beside: str) -> str:
    """The path of a Python file as a short name, as seen from the file beside which it is named."""
    name, folder = path.removesuffix(".py"), _folder(beside)
    return "./" + name.removeprefix(folder) if folder and name.startswith(folder) else name


def imported_path(name: str, beside: str) -> str:
    """The path that such a name says."""
    return (_folder(beside) + name[2:] if name.startswith("./") else name) + ".py"


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]
