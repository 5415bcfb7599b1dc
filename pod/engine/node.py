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
from pod.engine.port import ActivationStatus, Engine, QueueSpec
from pod.errors import PodError
from pod.log.files import files_of
from pod.log.folder import PodFolder
from pod.log.inbox import left_over
from pod.standing import standing_of
from worker.errors import told

LOOK = 0.5
"""Seconds between two looks at what waits, at least; a look takes at most a fifth of the time."""

WHOLE = 30.0
"""Seconds between two looks at all that is delayed; in between it is what came lately."""

LATELY = 60.0
"""Seconds before the newest delayed one that is known from which on those are listed that came lately: clocks differ."""

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
    _parked: dict[str, ActivationStatus] = field(default_factory=dict[str, ActivationStatus])
    _newest: float = 0.0
    _whole: float = float("-inf")
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
        empty, took = 0, 0.0
        while True:
            await anyio.sleep(max(LOOK, 4 * took))
            began = anyio.current_time()
            try:
                await self._wake_answered()
                if self.command:
                    await self._quarantine()
            except (PodError, OSError) as error:
                self.tell(f"{told(error)}; trying again")
                continue
            finally:
                took = anyio.current_time() - began
            if self.until_empty:
                # Twice: what one activation hands on to the next is on no queue for a moment.
                empty = empty + 1 if await self._is_empty() else 0
                if empty == 2:
                    await self.engine.drain(0.0)
                    return

    async def _wake_answered(self) -> None:
        """Makes those due that waited for a human, and do no more. What has not changed is not read again."""
        await self._learn_parked()
        folders = {id_: PodFolder(self.home, status.activation.session) for id_, status in self._parked.items()}
        paths = {folder.path: id_ for id_, folder in folders.items()}
        found = await anyio.to_thread.run_sync(files_of(self.home).marks, list(paths)) if paths else {}
        marks = {paths[path]: mark for path, mark in found.items()}
        for id_ in [id_ for id_, mark in marks.items() if id_ not in self._marks or self._marks[id_] != mark]:
            if await anyio.to_thread.run_sync(_answered, folders[id_]):
                await self.engine.wake(id_)
                del self._parked[id_]
        self._marks = marks

    async def _learn_parked(self) -> None:
        """Which wait for a human: all of them now and then, in between those alone that came lately."""
        whole = anyio.current_time() >= self._whole
        since = None if whole else self._newest - LATELY
        found = [status async for status in self.engine.list(phases=["delayed"], since=since)]
        self._newest = max((status.created for status in found), default=self._newest)
        if whole:
            self._parked.clear()
            self._whole = anyio.current_time() + WHOLE
        self._parked |= {status.activation.id: status for status in found if status.activation.reason == "parked"}

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


def _answered(folder: PodFolder) -> bool:
    """Whether a pod can go on: it waits for nobody, or something lies in its inbox. Blocks."""
    standing = standing_of(folder)
    return standing is None or not standing.waits or left_over(folder)
