"""What a pod lends to its tools: scope, artifacts, jobs, seen files, tool state, history, pins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from interceptors.deciding import Rule, address_filter, path_filter
from pod.guarding import protected_places, sandbox_of
from pod.log import entries as e
from pod.log.lines import Line
from pod.manifest import Manifest
from pod.reading import SessionReader
from pod.session import Session
from pod.state import PodState
from pod.tools.lent import Pins, Window
from worker.addresses import AddressFilter
from worker.builtin.artifacts import Artifacts
from worker.builtin.file_range import read_range
from worker.builtin.path_filter import PathFilter
from worker.builtin.processes import Processes
from worker.builtin.sandbox import Sandbox
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.builtin.tool_state import PROCESSES_KEY, ToolState
from worker.records import Record, ToolResult
from worker.tools import ToolFault

READ_AGAIN_BYTES = 256 * 1024
"""Bytes of one marked range that are read again into a new segment, at most."""


class Followed(SeenFiles):
    """Seen files, as the active segment's state holds them."""

    def __init__(self, state: PodState) -> None:
        super().__init__()
        self.state = state

    def get(self, path: str) -> str | None:
        """The hash last seen."""
        return self.state.seen.get(path) or None


def processes_of(session: Session) -> Processes:
    """The background jobs that a pod's log tells of. Blocks.

    One without a folder here was started by the pod that this one is an export of: it counts as gone, and is not ended.
    """
    folder = session.folder.path / "jobs"
    processes = Processes(folder, owner=session.pointer.owner, masker=session.gate.masker)
    told: list[Any] = session.state.tool_state.get(PROCESSES_KEY) or []
    jobs = [cast("dict[str, Any]", job) for job in told if isinstance(job, dict)]
    processes.adopt([_as_here(job, folder) for job in jobs])
    return processes


def _as_here(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    running = job.get("status", "running") == "running"
    return {**job, "status": "gone"} if running and not (folder / str(job.get("id"))).is_dir() else job


@dataclass
class Services:
    """All services of one pod. `follow` points those that look at state to a new segment's. `window_refused` says why no new
    window would begin, if the agent asked for one now.
    """

    session: Session
    scope: Scope
    artifacts: Artifacts
    processes: Processes
    pin_budget: int = 4000
    window_refused: Callable[[], str] = lambda: ""
    filter: PathFilter = field(default_factory=PathFilter)
    sandbox: Sandbox | None = None
    addresses: AddressFilter = field(default_factory=AddressFilter)
    _seen: Followed = field(init=False)
    _state: ToolState = field(init=False)

    @classmethod
    def of(cls, manifest: Manifest, session: Session, cwd: Path, files: Sequence[Path] = ()) -> Services:
        """The services that a manifest asks for, in a working folder. `files` are those that it was read from."""
        folder = session.folder
        protected = protected_places(manifest, folder.home, cwd, files)
        scope = Scope(cwd, read=manifest.scope.read, write=manifest.scope.write, protected=protected)
        sandbox = sandbox_of(manifest, folder.home, cwd, scope)
        pins = manifest.prune.pin_budget_tokens
        rules = tuple(Rule(tool=r.tool, match=r.match, action=r.action) for r in manifest.permissions.rules)
        kept_back = path_filter(rules, cwd)
        scope.hidden = partial(kept_back.hides, "read_file")
        artifacts = Artifacts(folder.artifacts, session.gate.masker)
        return cls(
            session, scope, artifacts, processes_of(session), pins,
            filter=kept_back, addresses=address_filter(rules), sandbox=sandbox,
        )  # fmt: skip

    def follow(self, state: PodState) -> None:
        """From now on `state` is what tools see."""
        self._seen = Followed(state)
        self._state = ToolState(state.tool_state)

    def by_type(self) -> Mapping[type, object]:
        """The services, keyed as `ToolContext.get` asks for them."""
        session = self.session
        pins = Pins(
            history=lambda: session.state.history,
            pinned=lambda: frozenset(session.state.pins),
            set=lambda item, on: session.put(e.Pin(item=item, on=on)),
            budget=self.pin_budget,
        )
        return {
            Scope: self.scope,
            **({} if self.sandbox is None else {Sandbox: self.sandbox}),
            PathFilter: self.filter,
            AddressFilter: self.addresses,
            Artifacts: self.artifacts,
            Processes: self.processes,
            SeenFiles: self._seen,
            ToolState: self._state,
            SessionReader: SessionReader(session.folder, taken_back=lambda: session.state.taken_back),
            Pins: pins,
            Window: Window(self.window_refused),
        }

    def told(self, line: Line, record: Record) -> None:
        """A listener of the session: what a result says of the tools' state is what tools see next."""
        if isinstance(record, ToolResult) and record.item.state:
            self._state.fold(record.item.state)

    def read_again(self, path: str, first: int, count: int | None) -> tuple[str, int, int, str]:
        """Lines of a file for a new segment, masked: text, first, last, SHA-256. Raises `ToolFault`, also for binary
        content.
        """
        found = read_range(self.scope, path, first, count, READ_AGAIN_BYTES)
        if found.binary:
            raise ToolFault(f"{path} is not text: {found.binary}")
        return self.session.gate.masked(found.text), found.first, found.last, found.sha256 or ""
