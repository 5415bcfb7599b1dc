"""What a batch would do, told before anything is begun: `pod batch --dry-run`, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pod.batch.results import read_rows
from pod.cli.text import count, figures, money, one_line
from worker.builtin.registry import BUILTIN, builtin_tool

if TYPE_CHECKING:
    from pod.batch.batch import Settings

TASKS_SHOWN = 3
"""Tasks of which a preview shows the text."""

LINES_SHOWN = 12
"""Lines of a task's text in a preview."""


def preview(settings: Settings) -> str:
    """What would be run, where, and what the first tasks are told. Blocks; writes nothing."""
    s = settings
    _, rows = read_rows(s.out, s.folder.name)
    ended = sum(index in rows for index in s.chosen)
    places = {"none": "all in {}", "copy": "each in a copy of {}", "git-worktree": "each in a worktree of {}"}
    facts = [
        ("batch", s.folder.name),
        ("tasks", f"{len(s.chosen):,} of {len(s.tasks):,}" + (f"; {ended:,} have their line already" if ended else "")),
        ("manifest", f"{s.manifest.path} ({s.manifest.manifest.model.name})"),
        ("folder", places[s.workspaces.kind].format(s.workspaces.base)),
        *([("folders", str(s.workspaces.root))] if s.workspaces.kind != "none" else []),
        *([("cost", f"at most {money(s.max_cost_usd)} together")] if s.max_cost_usd is not None else []),
        ("results", str(s.out)),
    ]
    parts = [figures(facts)]
    for index in s.chosen[:TASKS_SHOWN]:
        task = s.tasks[index]
        lines = task.text.strip().splitlines()
        shown = [f"  {one_line(line, 400)}" for line in lines[:LINES_SHOWN]]
        if len(lines) > LINES_SHOWN:
            shown.append(f"  ... {count(len(lines) - LINES_SHOWN, 'line')} more")
        parts.append("\n".join([one_line(f"{s.folder.pod(index)} ({task.id}) is told:", 200), *shown]))
    if len(s.chosen) > TASKS_SHOWN:
        parts.append(f"... and {count(len(s.chosen) - TASKS_SHOWN, 'task')} more")
    return "\n\n".join(parts)


def preview_json(settings: Settings) -> dict[str, Any]:
    """The same for programs, with all chosen tasks."""
    s = settings
    tasks = [s.tasks[index] for index in s.chosen]
    return {
        "batch": s.folder.name,
        "tasks": [{"index": t.index, "id": t.id, "pod": s.folder.pod(t.index), "text": t.text} for t in tasks],
        "manifest": str(s.manifest.path),
        "model": s.manifest.manifest.model.name,
        "workspace": s.workspaces.kind,
        "results": str(s.out),
    }


def cautions(settings: Settings, *, chosen_folder: bool) -> Iterator[str]:
    """What is likely not meant. `chosen_folder` says that the command names where tasks work."""
    s = settings
    manifest = s.manifest.manifest
    roots = [Path(root) for root in manifest.scope.write]
    writing = [
        name
        for name in manifest.tools.enable
        if name in BUILTIN and builtin_tool(name).effect in ("write", "process") and roots
    ]
    together = min(s.concurrency, len(s.chosen))
    if writing and together > 1 and s.workspaces.kind == "none" and not chosen_folder:
        yield (
            f"{together} tasks at once write in the same folder, {s.workspaces.base} ({', '.join(writing)}): "
            "--workspace copy or git-worktree gives each its own, --workspace none says that it is meant"
        )
    file = None if s.grader is None else s.grader.file
    if (
        file is not None
        and writing
        and s.workspaces.kind == "none"
        and any(file.is_relative_to(each) for each in roots)
    ):
        yield (
            f"the agents may change {file}, and the next command would run what they wrote: keep graders out of their "
            "[scope] write, or give each task a folder of its own with --workspace"
        )
