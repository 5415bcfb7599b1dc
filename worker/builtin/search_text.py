"""The tool `search_text`: lines that hold a text or match an expression, below a folder or in one file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field

from worker.builtin.blocking import give_up_if_cancelled, in_thread
from worker.builtin.glob import Glob
from worker.builtin.matchers import Hit, Search, find_hits
from worker.builtin.path_filter import Visible
from worker.builtin.sandbox import lent
from worker.builtin.scope import Scope
from worker.builtin.walk import SECONDS, Walk, folder_in_scope, safe_name, skipped_words
from worker.items import ToolOutput
from worker.tools import ToolContext, ToolFault, tool

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes above which a file is skipped."""

MOST_BYTES = 1024 * 1024 * 1024
"""Bytes that one search reads in all."""

MOST_FILES = 50_000
"""Files that one search reads."""


@dataclass
class _Chosen:
    root: Path
    paths: list[str] = field(default_factory=list[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    stopped: str = ""


@tool(effect="read", idempotent=True)
async def search_text(
    pattern: Annotated[str, Field(min_length=1, max_length=4_000)],
    context: ToolContext,
    path: str = ".",
    regex: bool = False,
    ignore_case: bool = False,
    files: str | None = None,
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100,
    ignored: bool = False,
) -> ToolOutput:
    """Finds lines in text files, in a folder and all below it, or in one file. Answers PATH:LINE: TEXT.

    Args:
        pattern: the text to find, or a regular expression if regex is set
        path: the folder or file to search
        regex: take pattern as a regular expression, matched line by line
        ignore_case: capital and small letters are the same
        files: search only files that match this glob, such as *.py
        limit: the most lines to show
        ignored: also search what .gitignore leaves out
    """
    scope = context.get(Scope)
    if "\n" in pattern and not regex:
        raise ToolFault("pattern holds a line end, and lines are searched one by one: search for one of its lines")
    chosen = await in_thread(_choose, scope, Visible.of(context), path, files, ignored)
    hits: list[Hit] = []
    with anyio.move_on_after(SECONDS) as within:
        search = Search(pattern, regex, ignore_case)
        sandbox = lent(context.services)
        if not await find_hits(search, chosen.root, chosen.paths, hits, limit, chosen.skipped, sandbox):
            chosen.stopped = f"stopped at {limit} lines"
    if within.cancelled_caught:
        chosen.stopped = f"stopped after {SECONDS:g} s"
    return _as_output(scope, pattern, path, chosen, hits)


def _choose(scope: Scope, visible: Visible, path: str, files: str | None, ignored: bool) -> _Chosen:
    """The files to read; everything else is counted (case B102)."""
    visible.check(scope, path)
    resolved = scope.resolve(path, "read")
    if not resolved.is_dir():
        with scope.open_read(path) as opened:
            if opened.info.st_size > LARGEST_FILE:
                raise ToolFault(
                    f"{opened.name} is above the {LARGEST_FILE >> 20} MiB that are searched. Use shell with grep."
                )
            return _Chosen(opened.path.parent, [opened.path.name])
    glob = Glob(files) if files is not None else None
    folder = folder_in_scope(scope, path)
    walk = Walk(scope, folder, ignored=ignored, check=give_up_if_cancelled, visible=visible)
    chosen = _Chosen(folder, skipped=walk.skipped)
    total = 0
    for entry in walk:
        if glob is not None and not glob.matches(entry.path):
            continue
        if entry.info.st_size > LARGEST_FILE:
            walk.skipped["large files"] += 1
            continue
        if entry.info.st_size == 0:
            continue
        total += entry.info.st_size
        if len(chosen.paths) == MOST_FILES or total > MOST_BYTES:
            chosen.stopped = f"stopped after {len(chosen.paths)} files"
            break
        chosen.paths.append(entry.path)
    chosen.stopped = chosen.stopped or walk.stopped
    return chosen


def _as_output(scope: Scope, pattern: str, path: str, chosen: _Chosen, hits: list[Hit]) -> ToolOutput:
    lines: list[str] = []
    clipped = 0
    for hit in hits:
        name = safe_name(scope.show(chosen.root / hit.path))
        clipped += hit.clipped
        lines.append(f"{name}:{hit.line}: {hit.text}{' [line clipped]' if hit.clipped else ''}")
    many = len({hit.path for hit in hits})
    found = (
        f"{len(hits)} line{'' if len(hits) == 1 else 's'} in {many} file{'' if many == 1 else 's'}"
        if hits
        else "nothing found"
    )
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    summary = f"search_text {shown!r} in {path}: {found} ({len(chosen.paths)} searched)"
    if chosen.stopped:
        summary += f"; {chosen.stopped}, there may be more"
    if clipped:
        summary += f"; {clipped} long line{'' if clipped == 1 else 's'} clipped"
    if chosen.skipped.total():
        summary += f"; skipped: {skipped_words(chosen.skipped)}"
    return ToolOutput(summary=summary[:400], content="\n".join(lines) or None)
