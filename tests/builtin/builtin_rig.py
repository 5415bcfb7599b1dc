"""A folder with the services that tools need, and what a pod does with each result: fold it, cap it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worker.builtin.artifacts import Artifacts
from worker.builtin.process_table import look_at
from worker.builtin.processes import Processes
from worker.builtin.registry import builtin_tool
from worker.builtin.sandbox import Sandbox
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.builtin.tool_state import ToolState
from worker.items import ToolOutput
from worker.tool_output import cap
from worker.tools import ToolContext


class Rig:
    def __init__(self, base: Path) -> None:
        self.root = base / "work"
        self.home = base / "home"
        self.root.mkdir(exist_ok=True)
        self.scope = Scope(self.root, write=["."], protected=[self.root / ".pod"])
        self.seen = SeenFiles()
        self.artifacts = Artifacts(self.home / "artifacts")
        self.processes = Processes(self.home / "jobs", owner=f"test-{base.name}")
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.state = ToolState(now=lambda: self.now)
        self.calls = 0
        self.sandbox: Sandbox | None = None

    def file(self, path: str, content: str | bytes = b"") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def context(self, name: str) -> ToolContext:
        self.calls += 1
        services = (self.scope, self.seen, self.artifacts, self.processes, self.state, self.sandbox)
        lent = {type(s): s for s in services if s is not None}
        return ToolContext(f"call{self.calls}", name, self.root, services=lent)

    async def call(self, tool_name: str, settings: dict[str, Any] | None = None, /, **arguments: Any) -> ToolOutput:
        """One call, validated, run, folded and capped."""
        made = builtin_tool(tool_name, **(settings or {}))
        assert made.check(dict(arguments)) is None, made.check(dict(arguments))
        context = self.context(tool_name)
        output = await cap(await made.run(arguments, context), made.max_output, self.artifacts, context.call_id)
        for seen in (output.reads, output.writes):
            if seen is not None:
                self.seen.note(seen)
        self.state.fold(output.state or {})
        return output


def working_in(folder: Path) -> list[int]:
    """Processes whose working folder this is, whatever environment they have. Blocks."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and look_at(int(entry.name)):
            try:
                cwd = os.readlink(entry / "cwd")
            except OSError:
                continue
            if cwd == str(folder):
                found.append(int(entry.name))
    return found
