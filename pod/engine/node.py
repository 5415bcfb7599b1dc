"""A node: serves queues with the pods of a home, wakes those whose human answered, and has a process for what brings processes down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from pod.engine.activation import QUARANTINE, PodRuns
from pod.engine.child import ChildNode
from pod.engine.firing import Firing
from pod.engine.orders import Orders
from pod.engine.port import Engine, QueueSpec
from pod.errors import PodError
from pod.log.folder import PodFolder
from pod.log.inbox import left_over
from pod.standing import standing_of

LOOK = 0.5
"""Seconds between two looks at what waits."""

HALT_SECONDS = 20.0
"""How long runs may take to come to a request boundary when the node is asked to end."""


@dataclass
class NodeWork:
    """One node, and what it does for the schedules of its queues. `command` are the words behind `pod node` that start the process of
    the quarantine; empty where this is that one.
    """

    engine: Engine
    home: Path
    queues: Sequence[QueueSpec]
    command: Sequence[str]
    until_empty: bool = False
    tell: Callable[[str], object] = lambda text: None
    _child: ChildNode = field(default_factory=ChildNode)
    _marks: dict[str, object] = field(default_factory=dict[str, object])
    _deaths: int = 0
    _rests: float = 0.0
    _over: anyio.Event = field(default_factory=anyio.Event)
    _firing: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self) -> None:
        """Serves until `end`, or until nothing is left to do where that is wanted. Cancelled, it ends now; all is resumable."""
        try:
            async with PodRuns(self.home, tell=self.tell) as runs, anyio.create_task_group() as group:
                group.start_soon(self._look)
                group.start_soon(self._fire)
                await self.engine.serve(runs, queues=self.queues)
                self._over.set()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._child.end()

    async def end(self, within: float = HALT_SECONDS) -> None:
        """Comes to a halt: nothing more begins, each run ends before its next request."""
        self._firing.cancel()
        await self.engine.drain(within)

    async def _fire(self) -> None:
        """Looks after the schedules of its queues until it comes to a halt; then that is for other nodes."""
        with self._firing:
            await Firing(self.engine, Orders(self.home), {spec.name for spec in self.queues}, self.tell).run()

    async def _look(self) -> None:
        empty = 0
        while True:
            await anyio.sleep(LOOK)
            await self._wake_answered()
            if self.command:
                await self._quarantine()
            if self.until_empty:
                # Twice: what one activation hands on to the next is on no queue for a moment.
                empty = empty + 1 if await self._is_empty() else 0
                if empty == 2:
                    await self.engine.drain(0.0)
                    return

    async def _wake_answered(self) -> None:
        """Makes those due that waited for a human, and do no more. A log is read again only when it has changed."""
        parked = [s async for s in self.engine.list(phases=["delayed"]) if s.activation.reason == "parked"]
        marks: dict[str, object] = {}
        for status in parked:
            id_, folder = status.activation.id, PodFolder(self.home, status.activation.session)
            mark = marks[id_] = await anyio.to_thread.run_sync(_mark, folder)
            if self._marks.get(id_) != mark and await anyio.to_thread.run_sync(_answered, folder):
                await self.engine.wake(id_)
        self._marks = marks

    async def _quarantine(self) -> None:
        """Starts a process for the quarantine where something waits there and no node has it."""
        if self._child.runs or anyio.current_time() < self._rests:
            return
        waits = [s async for s in self.engine.list(queue=QUARANTINE, phases=["queued"], limit=1)]
        if waits and not any(QUARANTINE in node.queues for node in await self.engine.nodes()):
            self._deaths = self._deaths + 1 if self._child.exit_code else 0
            self._rests = anyio.current_time() + min(2.0 ** min(self._deaths, 10) - 1.0, 60.0)
            await self._child.end()
            self.tell("a process of its own begins with what brought others down, one after the other")
            await self._child.start(self.command)

    async def _is_empty(self) -> bool:
        names = {spec.name for spec in self.queues} | {QUARANTINE}
        async for status in self.engine.list(phases=["queued", "running", "delayed"]):
            if status.queue in names and not (status.phase == "delayed" and status.activation.reason == "parked"):
                return False
        return True


def _mark(folder: PodFolder) -> object:
    """What changes when something is answered. Blocks."""
    try:
        found = folder.segment_path(folder.pointer().segment).stat()
    except (PodError, OSError):
        return None
    return found.st_size, found.st_mtime_ns, left_over(folder)


def _answered(folder: PodFolder) -> bool:
    """Whether a pod can go on: it waits for nobody, or something lies in its inbox. Blocks."""
    standing = standing_of(folder)
    return standing is None or not standing.waits or left_over(folder)
