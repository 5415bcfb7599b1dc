"""The tools `list_files` and `find_files`: names, no content."""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field

from worker.builtin.blocking import give_up_if_cancelled, in_thread
from worker.builtin.glob import Glob
from worker.builtin.path_filter import KEPT_BACK, Visible
from worker.builtin.scope import Scope, kind_of
from worker.builtin.walk import Entry, Walk, folder_in_scope, list_folder, safe_name, skipped_words
from worker.items import ToolOutput
from worker.text import size
from worker.tools import ToolContext, ToolFault, tool


@tool(effect="read", idempotent=True)
async def list_files(
    context: ToolContext,
    path: str = ".",
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000,
) -> ToolOutput:
    """Lists one folder: names in order, folders with a slash at the end, sizes of files, targets of links.

    Args:
        path: the folder, relative to the working folder
        limit: the most entries to show
    """
    return await in_thread(_list, context.get(Scope), Visible.of(context), path, limit)


def _list(scope: Scope, visible: Visible, path: str, limit: int) -> ToolOutput:
    folder = folder_in_scope(scope, path)
    visible.check(scope, path)
    try:
        there = list_folder(scope, folder)
        entries = [e for e in there if not _hidden(visible, folder / e.path, e)]
        lines = [_line(folder / e.path, e) for e in entries[:limit]]
    except OSError as e:
        raise ToolFault(f"{scope.show(folder)}: {e.strerror or e}") from e
    name = scope.show(folder)
    kept_back = Counter({KEPT_BACK: len(there) - len(entries)})
    skipped = f"; skipped: {skipped_words(kept_back)}" if kept_back.total() else ""
    if not entries:
        empty = "nothing that may be shown" if skipped else "the folder is empty"
        return ToolOutput(summary=f"list_files {name}: {empty}{skipped}")
    folders = sum(stat.S_ISDIR(e.info.st_mode) for e in entries)
    what = f"{len(entries)} entries, {folders} of them folders"
    if len(entries) == 1:
        what = "1 entry, a folder" if folders else "1 entry"
    summary = f"list_files {name}: {what}"
    if len(entries) > limit:
        summary += f"; only the first {limit} are shown, find_files finds by pattern"
    return ToolOutput(summary=summary + skipped, content="\n".join(lines))


def _hidden(visible: Visible, full: Path, entry: Entry) -> bool:
    """Whether an entry is left out; a link is, where it leads to what is: its line would name it."""
    if visible.hides(full):
        return True
    return stat.S_ISLNK(entry.info.st_mode) and visible.hides(Path(os.path.realpath(full)))


def _line(full: Path, entry: Entry) -> str:
    name, mode = safe_name(entry.path), entry.info.st_mode
    if stat.S_ISDIR(mode):
        return f"{name}/"
    if stat.S_ISREG(mode):
        return f"{name}  {size(entry.info.st_size)}"
    if stat.S_ISLNK(mode):
        try:
            return f"{name} -> {safe_name(str(full.readlink()))}"
        except OSError:
            return f"{name} -> ?"
    return f"{name}  ({kind_of(mode)})"


@tool(effect="read", idempotent=True)
async def find_files(
    pattern: str,
    context: ToolContext,
    path: str = ".",
    limit: Annotated[int, Field(ge=1, le=10_000)] = 500,
    ignored: bool = False,
    after: str = "",
) -> ToolOutput:
    """Finds files by a glob pattern, in a folder and all below it, in the order of their paths. Links are not followed,
    .git is left out.

    Args:
        pattern: such as *.py (any depth), src/**/test_*.py or *.{ts,tsx}
        path: the folder to start from; a pattern with a slash is relative to it
        limit: the most paths to show
        ignored: also find what .gitignore leaves out
        after: only paths that come after this one, as an earlier answer showed it
    """
    return await in_thread(_find, context.get(Scope), Visible.of(context), pattern, path, limit, ignored, after)


def _find(scope: Scope, visible: Visible, pattern: str, path: str, limit: int, ignored: bool, after: str) -> ToolOutput:
    glob = Glob(pattern)
    folder = folder_in_scope(scope, path)
    visible.check(scope, path)
    walk = Walk(scope, folder, ignored=ignored, check=give_up_if_cancelled, visible=visible)
    found = sorted(safe_name(scope.show(folder / entry.path)) for entry in walk if glob.matches(entry.path))
    total = len(found)
    rest = found[bisect_right(found, after) :] if after else found
    summary = f"find_files {pattern} in {scope.show(folder)}: {total or 'no'} file{'' if total == 1 else 's'}"
    if after and found:
        summary += f", {len(rest) or 'none'} after {safe_name(after)}"
    if len(rest) > limit:
        summary += f'; only the first {limit} are shown, after="{rest[limit - 1]}" shows what follows'
    if walk.stopped:
        summary += f"; {walk.stopped}, more may exist"
    if walk.skipped.total():
        summary += f"; skipped: {skipped_words(walk.skipped)}"
    return ToolOutput(summary=summary, content="\n".join(rest[:limit]) or None)
