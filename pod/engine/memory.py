"""An engine in this process alone: nothing of it outlives the process. For tests, and where one process is enough."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from pod.engine.limits import NO_LIMITS, Limits
from pod.engine.port import NORMAL, Activation, ActivationStatus, Ended, Node, Phase, QueueSpec, Runs
from pod.engine.schedules import MemorySchedules
from pod.engine.serving import never_cut_off
from pod.errors import UsageProblem


@dataclass
class _Row:
    status: ActivationStatus
    number: int


@dataclass
class _Gate:
    """What of a queue runs and began lately, against its limits."""

    limits: Limits = NO_LIMITS
    running: Counter[str] = field(default_factory=Counter[str])
    began: deque[float] = field(default_factory=deque[float])

    def room(self, own: int) -> int:
        """How many more may begin now, whatever their partition."""
        room = self.limits.on_node(own) - self.running.total()
        return room if self.limits.starts is None else min(room, self.limits.starts - self._lately())

    def takes(self, partition: str) -> bool:
        """Whether one more of a partition may begin."""
        bound = self.limits.of_partition()
        return bound is None or self.running[partition] < bound

    def begin(self, partition: str) -> None:
        """One begins."""
        self.running[partition] += 1
        if self.limits.starts is not None:
            self.began.append(time.monotonic())

    def end(self, partition: str) -> None:
        """One is over."""
        self.running[partition] -= 1

    def rest(self) -> float:
        """Seconds until one more may start, as far as starts are counted."""
        if self.limits.starts is None or self._lately() < self.limits.starts:
            return 3600.0
        return self.began[0] + (self.limits.per or 0.0) - time.monotonic()

    def _lately(self) -> int:
        while self.began and self.began[0] <= time.monotonic() - (self.limits.per or 0.0):
            self.began.popleft()
        return len(self.began)


class MemoryEngine:
    """Activations in a table of this process."""

    def __init__(self, worker: str = "memory") -> None:
        self.worker = worker
        self.schedules = MemorySchedules()
        self._rows: dict[str, _Row] = {}
        self._numbers = itertools.count()
        self._queued: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._delayed: list[tuple[float, str]] = []
        self._gates: defaultdict[str, _Gate] = defaultdict(_Gate)
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
        self,
        activations: Sequence[Activation],
        *,
        queue: str,
        priority: int = NORMAL,
        delay: float | None = None,
        partitions: Mapping[str, str] | None = None,
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
                    partition=(partitions or {}).get(each.session, ""),
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

    async def limit(self, queue: str, limits: Limits) -> None:
        """As the port says."""
        self._gates[queue].limits = limits
        self._wake()

    async def limits(self) -> dict[str, Limits]:
        """As the port says."""
        return {name: gate.limits for name, gate in sorted(self._gates.items()) if gate.limits != NO_LIMITS}

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
                    with anyio.move_on_after(self._rest(queues)):
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
        waiting, gate = self._queued[spec.name], self._gates[spec.name]
        put_off: list[tuple[int, int, str]] = []
        while waiting and gate.room(spec.concurrency) > 0:
            first = heapq.heappop(waiting)
            row = self._rows[first[2]]
            if row.status.phase != "queued":
                continue
            if not gate.takes(row.status.partition):
                put_off.append(first)
                continue
            gate.begin(row.status.partition)
            row.status = replace(row.status, phase="running", started=time.time(), worker=self.worker)
            group.start_soon(self._run, row, runs)
        for each in put_off:
            heapq.heappush(waiting, each)

    async def _run(self, row: _Row, runs: Runs) -> None:
        ended = await runs.run(row.status.activation)
        self._gates[row.status.queue].end(row.status.partition)
        if ended.following is not None:
            f = ended.following
            partitions = {f.activation.session: f.partition}
            await self.submit([f.activation], queue=f.queue, priority=f.priority, delay=f.delay, partitions=partitions)
        if row.status.phase != "ended":
            self._end(row, ended)
        self._wake()

    def _end(self, row: _Row, ended: Ended) -> None:
        row.status = replace(row.status, phase="ended", outcome=ended.outcome, detail=ended.detail, ended=time.time())

    def _rest(self, queues: Sequence[QueueSpec]) -> float:
        """Seconds until the next delayed one is due, or more may start; those that are due now are queued."""
        starts = min((self._gates[spec.name].rest() for spec in queues if self._queued[spec.name]), default=3600.0)
        while self._delayed:
            due, id_ = self._delayed[0]
            row = self._rows[id_]
            if row.status.phase == "delayed" and due > time.time():
                return min(due - time.time(), starts)
            heapq.heappop(self._delayed)
            if row.status.phase == "delayed":
                self._due(row)
                return 0.0
        return starts

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
