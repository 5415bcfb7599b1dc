"""The tool `edit_file`: exact replacement in a file that the model has seen."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from worker.builtin.blocking import in_thread
from worker.builtin.changes import LARGEST, change, changed_since, names_kept, old_file, written
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.items import ToolOutput
from worker.masking import marks_in
from worker.text import byte_prefix, sha256, size
from worker.tools import ToolContext, ToolFault, tool

_LINES_COMPARED = 5_000
_PLACES_NAMED = 8


class _Edited(NamedTuple):
    data: bytes
    places: list[int]


def _preview(arguments: Mapping[str, Any], before: bytes) -> bytes:
    asked = arguments["old"], arguments["new"]
    return _replaced(str(arguments["path"]), before, *asked, replace_all=arguments["replace_all"]).data


@tool(effect="write", resource="path", preview=_preview)
async def edit_file(path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> ToolOutput:
    """Replaces an exact piece of a file by another. The file must have been read before, and be unchanged since.

    Args:
        path: the file, relative to the working folder
        old: the text to replace, exactly as it stands in the file; it must occur once
        new: the text to put there
        replace_all: replace every occurrence of old
    """
    return await in_thread(_edit, context.get(Scope), context.get(SeenFiles), path, old, new, replace_all)


def _edit(scope: Scope, seen: SeenFiles, path: str, old: str, new: str, replace_all: bool) -> ToolOutput:
    _check(old, new)
    scope.resolve(path, "write")
    before = old_file(scope, path)
    if before.data is None:
        raise ToolFault(
            f"{before.name} has {size(before.info.st_size)}: above {size(LARGEST)} files are not edited. Use shell."
        )
    last_seen = seen.get(str(before.path))
    if last_seen is None:
        raise ToolFault(
            f"{before.name} has not been read yet: read_file it first, so that the change is made on what it holds"
        )
    if last_seen != sha256(before.data):
        raise changed_since(before.name)
    data, places = _replaced(before.name, before.data, old, new, replace_all=replace_all)
    with scope.open_write(path, unchanged=before.info) as file:
        file.write(data)
    where = f"line {places[0]}" if len(places) == 1 else f"{len(places)} places (lines {_listed(places)})"
    summary = f"edit_file {before.name}: replaced at {where} ({change(before.data, data)})"
    summary += names_kept(before.info)
    return ToolOutput(summary=summary, writes=written(before.path, data))


def _check(old: str, new: str) -> None:
    if not old:
        raise ToolFault("old is empty: use write_file for a whole file, append_file to add at the end")
    if old == new:
        raise ToolFault("old and new are the same: nothing to change")


def _replaced(name: str, data: bytes, old: str, new: str, *, replace_all: bool) -> _Edited:
    """What the file will hold, and the lines where something is replaced. Raises `ToolFault`."""
    _check(old, new)
    wanted, replacement = _with_line_ends(data, old, new)
    places = _lines_of(data, wanted)
    if not places and (marks := marks_in(old)):
        raise ToolFault(
            f"{name}: old does not occur in it: it holds {', '.join(marks)}, which stands for a secret that you are not shown. "
            "Take a piece of the file without it as old, or change that line with shell"
        )
    if not places:
        raise ToolFault(f"{name}: old does not occur in it.{_nearest(data, old)}")
    if len(places) > 1 and not replace_all:
        raise ToolFault(
            f"{name}: old occurs {len(places)} times (lines {_listed(places)}). "
            "Give more of the text around it, or set replace_all."
        )
    return _Edited(data.replace(wanted, replacement), places)


def _with_line_ends(data: bytes, old: str, new: str) -> tuple[bytes, bytes]:
    """`old` and `new` as bytes; with the file's CR LF where it has only those, and `old` was given with LF."""
    wanted, replacement = old.encode(), new.encode()
    only_crlf = b"\r\n" in data and data.count(b"\r\n") == data.count(b"\n")
    if only_crlf and "\r" not in old:
        wanted = wanted.replace(b"\n", b"\r\n")
        replacement = replacement.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return wanted, replacement


def _lines_of(data: bytes, wanted: bytes) -> list[int]:
    """The line in which each occurrence starts."""
    places: list[int] = []
    position, line, counted = data.find(wanted), 1, 0
    while position >= 0:
        line += data.count(b"\n", counted, position)
        counted = position
        places.append(line)
        position = data.find(wanted, position + len(wanted))
    return places


def _listed(places: list[int]) -> str:
    more = f", and {len(places) - _PLACES_NAMED} more" if len(places) > _PLACES_NAMED else ""
    return ", ".join(map(str, places[:_PLACES_NAMED])) + more


def _nearest(data: bytes, old: str) -> str:
    """Where something like `old` stands."""
    lines = data.decode(errors="replace").splitlines()
    wanted = [line.split() for line in old.strip().splitlines()]
    folded = [line.split() for line in lines]
    for number in range(len(lines) - len(wanted) + 1):
        if wanted and folded[number : number + len(wanted)] == wanted:
            return f" At line {number + 1} it stands with other white space: copy it from there exactly."
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    some = [line.strip() for line in lines[:_LINES_COMPARED]]
    near = difflib.get_close_matches(first[:500], [line for line in some if 0 < len(line) <= 500], 3, 0.5)
    if not near:
        return " Nothing in it is like the first line of old. Read it again."
    found = "\n".join(f"line {some.index(line) + 1}: {byte_prefix(lines[some.index(line)], 200)}" for line in near)
    return f" The nearest lines:\n{found}"
