"""An engine in this process alone: nothing of it outlives the process. For tests, and where one process is enough."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from pod.engine.port import NORMAL, Activation, ActivationStatus, Ended, Node, Phase, QueueSpec, Runs
from pod.engine.serving import never_cut_off
from pod.errors import UsageProblem


@dataclass
class _Row:
    status: ActivationStatus
    number: int


class MemoryEngine:
    """Activations in a table of this process."""

    def __init__(self, worker: str = "memory") -> None:
        self.worker = worker
        self._rows: dict[str, _Row] = {}
        self._numbers = itertools.count()
        self._queued: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._delayed: list[tuple[float, str]] = []
        self._running: Counter[str] = Counter()
        self._changed = anyio.Event()
        self._serving: tuple[Runs, Sequence[QueueSpec]] | None = None
        self._draining = False
        self._over = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def submit(
        self, activations: Sequence[Activation], *, queue: str, priority: int = NORMAL, delay: float | None = None
    ) -> None:
        """As the port says."""
        now = time.time()
        for each in activations:
            if each.id not in self._rows:
                status = ActivationStatus(
                    each,
                    queue,
                    "delayed" if delay else "queued",
                    priority,
                    created=now,
                    due=now + delay if delay else None,
                )
                self._rows[each.id] = row = _Row(status, next(self._numbers))
                self._wait(row)
        self._wake()

    async def cancel(self, ids: Sequence[str]) -> None:
        """As the port says."""
        for id_ in ids:
            row = self._rows.get(id_)
            if row is None or row.status.phase == "ended":
                continue
            running = row.status.phase == "running"
            self._end(row, Ended("cancelled"))
            if running and self._serving is not None:
                self._serving[0].cancel(id_)

    async def wake(self, activation_id: str) -> None:
        """As the port says."""
        row = self._rows.get(activation_id)
        if row is not None and row.status.phase == "delayed":
            self._due(row)
            self._wake()

    async def status(self, ids: Collection[str]) -> list[ActivationStatus]:
        """As the port says."""
        return [self._rows[id_].status for id_ in ids if id_ in self._rows]

    async def list(
        self,
        *,
        queue: str | None = None,
        phases: Collection[Phase] = (),
        session: str | None = None,
        limit: int | None = None,
        since: float | None = None,
    ) -> AsyncIterator[ActivationStatus]:
        """As the port says."""
        found = (
            row.status
            for row in reversed(self._rows.values())
            if queue in (None, row.status.queue)
            and (not phases or row.status.phase in phases)
            and session in (None, row.status.activation.session)
            and (since is None or row.status.created >= since)
        )
        for status in itertools.islice(found, limit):
            yield status

    async def nodes(self) -> list[Node]:
        """This process, while it serves."""
        return [] if self._serving is None else [Node(self.worker, tuple(q.name for q in self._serving[1]), 0.0)]

    # -- serving ----------------------------------------------------------------------------------------------

    async def serve(self, runs: Runs, *, queues: Sequence[QueueSpec]) -> None:
        """As the port says."""
        if self._serving is not None:
            raise UsageProblem("this engine serves already")
        self._serving, self._draining, self._over = (runs, queues), False, anyio.Event()
        try:
            await never_cut_off(partial(self._serve, runs, queues), partial(self.drain, 0.0))
        finally:
            self._serving = None

    async def drain(self, within: float) -> None:
        """As the port says."""
        if self._serving is None:
            return
        self._draining = True
        self._wake()
        await self._serving[0].drain(within)
        await self._over.wait()

    async def _serve(self, runs: Runs, queues: Sequence[QueueSpec]) -> None:
        try:
            async with anyio.create_task_group() as group:
                while not self._draining:
                    for spec in queues:
                        self._begin(spec, runs, group)
                    with anyio.move_on_after(self._rest()):
                        await self._changed.wait()
        finally:
            self._over.set()

    def _wait(self, row: _Row) -> None:
        status = row.status
        if status.due is not None:
            heapq.heappush(self._delayed, (status.due, status.activation.id))
        else:
            heapq.heappush(self._queued[status.queue], (status.priority, row.number, status.activation.id))

    def _due(self, row: _Row) -> None:
        row.status = replace(row.status, phase="queued", due=None)
        self._wait(row)

    def _begin(self, spec: QueueSpec, runs: Runs, group: TaskGroup) -> None:
        """Begins what is due of a queue, as far as there is room."""
        waiting = self._queued[spec.name]
        while waiting and self._running[spec.name] < spec.concurrency:
            row = self._rows[heapq.heappop(waiting)[2]]
            if row.status.phase == "queued":
                self._running[spec.name] += 1
                row.status = replace(row.status, phase="running", started=time.time(), worker=self.worker)
                group.start_soon(self._run, row, runs)

    async def _run(self, row: _Row, runs: Runs) -> None:
        ended = await runs.run(row.status.activation)
        self._running[row.status.queue] -= 1
        if ended.following is not None:
            f = ended.following
            await self.submit([f.activation], queue=f.queue, priority=f.priority, delay=f.delay)
        if row.status.phase != "ended":
            self._end(row, ended)
        self._wake()

    def _end(self, row: _Row, ended: Ended) -> None:
        row.status = replace(row.status, phase="ended", outcome=ended.outcome, detail=ended.detail, ended=time.time())

    def _rest(self) -> float:
        """Seconds until the next delayed one is due; those that are due now are queued."""
        while self._delayed:
            due, id_ = self._delayed[0]
            row = self._rows[id_]
            if row.status.phase == "delayed" and due > time.time():
                return due - time.time()
            heapq.heappop(self._delayed)
            if row.status.phase == "delayed":
                self._due(row)
                return 0.0
        return 3600.0

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
