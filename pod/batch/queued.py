"""A batch on an engine: submits what is due, waits for it, and writes the same results. The logs of the pods are what counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from pod.batch.batch import KEY, Batch
from pod.batch.summary import Summary
from pod.batch.tasks import Task
from pod.engine.child import ChildNode
from pod.engine.orders import Order, Orders
from pod.engine.placing import place
from pod.engine.port import BATCH, GOES_ON, ActivationStatus, Engine
from pod.errors import PodError
from pod.log.folder import PodFolder
from pod.result import RunResult, result_without_run
from pod.standing import poisoned, standing_of, waiting

QUEUE = "batch"
"""The queue where none is named."""

LOOK = 0.2
"""Seconds between two looks at the queue, at least; a look takes at most a fifth of the time."""

NODE_STARTS = 20
"""How often in a row a node of this command's own may fail before anything ends."""


@dataclass
class QueuedBatch(Batch):
    """One run of a batch on an engine. `partitions` are those of the tasks, by their indexes; empty, none are named. `node` are further
    words for the node that it starts itself where none serves the queue.
    """

    engine: Engine = field(init=False)
    queue: str = QUEUE
    priority: int = BATCH
    partitions: Sequence[str] = ()
    node: Sequence[str] = ()
    say: Callable[[str], object] = lambda text: None
    _child: ChildNode = field(default_factory=ChildNode)
    _starts: int = 0

    @property
    def bound(self) -> str:
        """As the nodes have it."""
        return "as many at once as the nodes take"

    @property
    def halting(self) -> str:
        """As in a batch of this process; but nodes of others go on."""
        return (
            f"what is on the queue {self.queue!r} stays there, and nodes go on with it (`pod queue cancel` takes it off); "
            "the same command collects the results."
        )

    async def _run(self) -> Summary:
        """Has what is due on the queue, and waits for it. Cancelled, the queue goes on without this command."""
        began = anyio.current_time()
        tasks = [*self._due, *self._suspects]
        self._due.clear()
        self._suspects.clear()
        try:
            await self._wait(await self._submit(tasks))
        finally:
            with anyio.CancelScope(shield=True):
                await self._child.end()
        return self.summary(anyio.current_time() - began)

    async def halt(self, within: float) -> None:
        """Waits no longer; a node of this command's own comes to a halt."""
        self._halting = True
        with anyio.move_on_after(within):
            await self._child.end()

    # -- submitting -------------------------------------------------------------------------------------------

    async def _submit(self, tasks: Sequence[Task]) -> dict[str, Task]:
        """Has the tasks on the queue; which activation each has now."""
        s = self.settings
        orders = Orders(s.folder.home)
        digest = await anyio.to_thread.run_sync(orders.keep_manifest, s.manifest)
        wanted: dict[str, Task] = {}
        made: list[Order] = []
        for task in tasks:
            name = s.folder.pod(task.index)
            known = await anyio.to_thread.run_sync(self._known, task)
            if known is None:
                try:
                    cwd = await anyio.to_thread.run_sync(s.workspaces.make, task.index)
                except PodError as error:
                    known = result_without_run(name, "failed", type(error).__name__, error=str(error))
                else:
                    wanted[name] = task
                    made.append(
                        Order(
                            session=name, queue=self.queue, priority=self.priority, task=task.text, key=KEY, manifest=digest,
                            base=str(s.workspaces.base), cwd=str(cwd), attempts=s.attempts,
                            partition=self.partitions[task.index] if self.partitions else "",
                        )
                    )  # fmt: skip
            if known is not None:
                await self._told(task, known)
        placed = await place(self.engine, orders, made)
        return {order.activation.id: wanted[order.session] for order in placed}

    # -- waiting ----------------------------------------------------------------------------------------------

    async def _wait(self, pending: dict[str, Task]) -> None:
        """Until each has come to an end, or waits for a human."""
        running: set[str] = set()
        while pending and not self._halting:
            began = anyio.current_time()
            for status in await self.engine.status(pending):
                id_ = status.activation.id
                task = pending[id_]
                if status.phase == "running" and id_ not in running:
                    running.add(id_)
                    self.watcher.began(task, None)
                if status.phase == "ended" and status.outcome in GOES_ON:
                    del pending[id_]
                    order = await anyio.to_thread.run_sync(
                        Orders(self.settings.folder.home).require, status.activation.session
                    )
                    pending[order.activation.id] = task
                elif status.phase == "ended" or (status.phase == "delayed" and status.activation.reason == "parked"):
                    del pending[id_]
                    self._starts = 0
                    await self._told(task, await anyio.to_thread.run_sync(self._result, status))
            if pending and not self._halting:
                await self._serve()
                await anyio.sleep(max(LOOK, 4 * (anyio.current_time() - began)))

    def _result(self, status: ActivationStatus) -> RunResult:
        """What came of a task, as its log tells it. Blocks."""
        name = status.activation.session
        folder = PodFolder(self.settings.folder.home, name)
        standing = standing_of(folder)
        if standing is not None:
            if status.outcome == "poisoned":
                return poisoned(folder, standing.starts)
            if standing.ended is not None:
                return standing.ended
            if standing.waits:
                return waiting(folder)
        if status.outcome == "cancelled":
            return result_without_run(name, "cancelled", status.detail)
        kind = status.detail.partition(":")[0]
        return result_without_run(name, "failed", kind, error=status.detail)

    # -- a node of its own ------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Starts a node where none serves the queue. Raises `PodError` where that fails again and again."""
        if self._child.runs or any(self.queue in node.queues for node in await self.engine.nodes()):
            return
        if self._child.exit_code is None:
            self.say(
                f"no node serves the queue {self.queue!r}: this command does, at most {self.settings.concurrency} at once, until it "
                f"ends (`pod node --queue {self.queue}` serves it from anywhere that shares this home)"
            )
        elif self._child.exit_code:
            self._starts += 1
            if self._starts >= NODE_STARTS:
                raise PodError(
                    f"the node of this command ended {self._starts} times before anything came of it (exit code "
                    f"{self._child.exit_code}); `pod node --queue {self.queue}` says why"
                )
        words = ["--queue", self.queue, "--concurrency", str(self.settings.concurrency), "--until-empty", "--quiet"]
        await self._child.start([*words, *self.node])
