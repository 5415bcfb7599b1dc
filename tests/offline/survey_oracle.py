"""What a survey must find, computed with `ast` over whole files: shares nothing with the surveyor."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath


@dataclass
class Truth:
    definitions: list[str] = field(default_factory=list)
    todos: list[tuple[int, str]] = field(default_factory=list)
    importer: tuple[str, int] | None = None


def definitions(tree: ast.Module) -> list[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def todos(text: str) -> list[tuple[int, str]]:
    lines = text.split("\n")
    return [(n, line.strip()) for n, line in enumerate(lines, 1) if re.search(r"\b(TODO|FIXME)\b", line)]


@cache
def parsed(text: str) -> tuple[list[str], list[ast.Import | ast.ImportFrom]]:
    """The definitions and import statements of a file: many surveys look at the same ones."""
    tree = ast.parse(text)
    return definitions(tree), [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def survey(root: Path, folders: list[str]) -> dict[str, Truth]:
    """Path (as seen from `root`) to what is true of the file, in the order of paths."""
    paths = sorted(
        {
            file.relative_to(root).as_posix()
            for folder in folders
            for file in (root / folder).rglob("*.py")
            if file.is_file() and "__pycache__" not in file.parts
        }
    )
    names: dict[str, str] = {}
    known = set(paths)
    for path in paths:
        name = module_name(path, known)
        names.setdefault(name, path)
    found: dict[str, Truth] = {}
    tallies: dict[str, Counter[str]] = {path: Counter() for path in paths}
    for path in paths:
        text = (root / path).read_bytes().decode("utf-8-sig", "replace")
        defined, imports = parsed(text)
        found[path] = Truth([*defined], todos(text))
        for node in imports:
            for target in imported(node, path, known, names) - {path}:
                tallies[target][path] += 1
    for path, tally in tallies.items():
        if tally:
            found[path].importer = min(tally.items(), key=lambda pair: (-pair[1], pair[0]))
    return found


def module_name(path: str, paths: set[str]) -> str:
    parts = list(PurePosixPath(path).with_suffix("").parts)
    folder = PurePosixPath(path).parent
    start = len(parts) - 1
    while start > 0 and f"{folder}/__init__.py" in paths:
        start -= 1
        folder = folder.parent
    if parts[-1] == "__init__" and len(parts) - start > 1:
        parts.pop()
    return ".".join(parts[start:])


def imported(node: ast.Import | ast.ImportFrom, path: str, paths: set[str], names: dict[str, str]) -> set[str]:
    """The files that one import statement names."""
    if isinstance(node, ast.Import):
        return {names[alias.name] for alias in node.names if alias.name in names}
    if node.level == 0:
        module = node.module or ""
        whole = [names.get(f"{module}.{alias.name}") or names.get(module) for alias in node.names]
        return {target for target in whole if target}
    folder = PurePosixPath(path).parent
    for _ in range(node.level - 1):
        folder = folder.parent
    base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder

    def file(place: PurePosixPath) -> str | None:
        options = (f"{place}.py" if place != PurePosixPath(".") else "", (place / "__init__.py").as_posix())
        return next((option for option in options if option in paths), None)

    whole = [file(base / alias.name) or file(base) for alias in node.names]
    return {target for target in whole if target}
