"""The engine on DBOS Transact. Nothing else imports that library.

One workflow, `pod.activation`, whose function runs an activation in the node's event loop and returns what became of it. It has no
steps: recovery runs the function again, and the pod goes on from its log. The library is one to a process, so one engine of a process
serves at a time; any number may submit and look.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer
from dbos import WorkflowStatus as Status
from sqlalchemy.exc import DBAPIError, TimeoutError

from pod.alive import label
from pod.engine import tables
from pod.engine.bounding import put_bounds
from pod.engine.database import Nodes
from pod.engine.keeping import Keeper
from pod.engine.limits import NO_LIMITS, Limits
from pod.engine.outages import Patience, is_away, patiently, refused
from pod.engine.places import Place, SqliteFile
from pod.engine.port import CONTINUE, NORMAL, Activation, ActivationStatus, Node, Outcome, Phase, QueueSpec, Runs
from pod.engine.serving import Serving, never_cut_off
from pod.errors import UsageProblem
from worker.ids import uuid7

APPLICATION, VERSION, WORKFLOW = "pod-runtime", "pods-1", "pod.activation"
"""Fixed: rows of another version are not taken up. The version changes with the form of an activation's text alone."""

KEEP = 30.0
"""Days for which activations that ended stay in the table."""

CHUNK = 500
"""Rows in one transaction, and ids in one question."""

_PHASES: dict[Phase, tuple[str, ...]] = {
    "queued": ("ENQUEUED",),
    "delayed": ("DELAYED",),
    "running": ("PENDING",),
    "ended": ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"),
}
_PHASE: dict[str, Phase] = {status: phase for phase, statuses in _PHASES.items() for status in statuses}

T = TypeVar("T")


class DbosEngine:
    """Activations in a database. `tell` is told in one line each what an operator should know of the node."""

    def __init__(
        self, place: Path | Place, *, lease: float | None = None, keep: float = KEEP,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:  # fmt: skip
        self.place: Place = SqliteFile(place) if isinstance(place, Path) else place
        self.lease = self.place.lease if lease is None else lease
        self.worker = f"{socket.gethostname()}-{uuid7()}"
        self._keep = keep
        self._tell = tell
        self._limiter = anyio.CapacityLimiter(8)
        self._serving: Serving | None = None

    async def __aenter__(self) -> Self:
        await self._once(self._open)
        return self

    def _open(self) -> None:
        _quiet()
        try:
            self._database = self.place.connect()
            self._nodes = Nodes(self._database)
            self._queues = tables.QueueTable(self._database)
            self.schedules = tables.StoredSchedules(self._database, self._blocking)
            self._client = DBOSClient(
                system_database_engine=self._database, dbos_system_schema=self.place.schema or "dbos",
                serializer=DBOSPortableJSONSerializer(), retry_connection_errors=False,
            )  # fmt: skip
            self.place.make(self._database, self._make)
            # The client never makes tables, and what does has no public name for a database that is open already.
            self._client._sys_db.run_migrations()  # pyright: ignore[reportPrivateUsage]
        except (DBAPIError, OSError) as error:
            raise UsageProblem(
                f"{self.place.label}: no database of the engine can be opened there ({str(error).splitlines()[0]}){self.place.way_out}"
            ) from None

    def _make(self) -> None:
        # That of the nodes last: once it is there, all are.
        tables.make(self._database)
        self._nodes.make()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._once(self._close)

    def _close(self) -> None:
        self._client.destroy()
        self._database.dispose()

    async def _once(self, function: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=self._limiter)

    async def _blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Calls it in a thread; again, while the database is away: what is asked of it counts once however often it is asked."""
        patience = Patience()
        while True:
            try:
                return await self._once(function, *args)
            except (DBAPIError, TimeoutError) as error:
                await anyio.sleep(patience.pause(error))

    # -- submitting and looking -------------------------------------------------------------------------------

    async def submit(
        self,
        activations: Sequence[Activation],
        *,
        queue: str,
        priority: int = NORMAL,
        delay: float | None = None,
        partitions: Mapping[str, str] | None = None,
    ) -> None:
        """As the port says. Cancelled, some of many may be there already: submit them again."""
        for start in range(0, len(activations), CHUNK):
            some = activations[start : start + CHUNK]
            await self._blocking(self._submit, some, queue, priority, delay, partitions or {})

    def _submit(
        self,
        activations: Sequence[Activation],
        queue: str,
        priority: int,
        delay: float | None,
        partitions: Mapping[str, str],
    ) -> None:
        with self._database.begin() as connection:
            for each in activations:
                options: Any = {
                    "workflow_name": WORKFLOW, "queue_name": queue, "workflow_id": each.id, "app_version": VERSION,
                    "priority": priority, "application_name": APPLICATION,
                    # Always one: where a queue's partitions have a limit, the library begins nothing that has none.
                    "queue_partition_key": partitions.get(each.session, ""),
                }  # fmt: skip
                if delay:
                    options["delay_seconds"] = delay
                self._client.enqueue_in_transaction(connection, options, each.text())

    async def cancel(self, ids: Sequence[str]) -> None:
        """As the port says."""
        if ids:
            await self._blocking(self._client.cancel_workflows, list(ids))

    async def wake(self, activation_id: str) -> None:
        """As the port says."""
        await self._blocking(partial(self._client.set_workflow_delay, activation_id, delay_until_epoch_ms=0))

    async def status(self, ids: Collection[str]) -> list[ActivationStatus]:
        """As the port says."""
        wanted, found = list(ids), dict[str, ActivationStatus]()
        for start in range(0, len(wanted), CHUNK):
            rows = await self._blocking(partial(self._rows, workflow_ids=wanted[start : start + CHUNK]))
            found |= {row.activation.id: row for row in rows}
        return [found[id_] for id_ in wanted if id_ in found]

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
        statuses = [status for phase in phases for status in _PHASES[phase]]
        left, offset = limit, 0
        while left is None or left > 0:
            many = CHUNK if left is None else min(CHUNK, left)
            rows = await self._blocking(
                partial(
                    self._rows, queue_name=queue, status=statuses or None, sort_desc=True, limit=many, offset=offset,
                    workflow_id_prefix=None if session is None else f"{session}@",
                    start_time=None if since is None else datetime.fromtimestamp(since, UTC).isoformat(),
                )
            )  # fmt: skip
            for row in rows:
                yield row
            if len(rows) < many:
                return
            offset += many
            left = None if left is None else left - many

    def _rows(self, **filters: Any) -> list[ActivationStatus]:
        return list(_statuses(self._client.list_workflows(name=WORKFLOW, **filters)))

    async def limit(self, queue: str, limits: Limits) -> None:
        """As the port says."""
        await self._blocking(self._queues.limit, queue, limits)
        await self._blocking(put_bounds, self._client.register_queue, self._queues, queue)

    async def limits(self) -> dict[str, Limits]:
        """As the port says."""
        rows = await self._blocking(self._queues.rows)
        return {name: row.limits for name, row in rows.items() if row.limits != NO_LIMITS}

    async def nodes(self) -> list[Node]:
        """As the port says."""
        signs = await self._blocking(self._nodes.signs)
        return [Node(sign.id, sign.queues, sign.ago) for sign in signs if not sign.is_dead(self.lease)]

    # -- serving ----------------------------------------------------------------------------------------------

    async def serve(self, runs: Runs, *, queues: Sequence[QueueSpec]) -> None:
        """As the port says. Raises `UsageProblem` where this process serves already."""
        if not _ONE.acquire(blocking=False):
            raise UsageProblem("this process serves a queue already: one engine of a process does at a time")
        try:
            self._serving = serving = Serving(runs, tuple(queues))
            await never_cut_off(partial(self._serve, serving), partial(self.drain, 0.0))
        except DBAPIError as error:
            raise error if is_away(error) else refused(error) from error
        finally:
            self._serving = None
            _ONE.release()

    async def drain(self, within: float) -> None:
        """As the port says."""
        serving = self._serving
        if serving is not None:
            serving.within = min(serving.within, within)
            serving.draining.set()
            await serving.over.wait()

    async def _serve(self, serving: Serving) -> None:
        keeper = Keeper(
            self.worker, label(), [q.name for q in serving.queues], self._nodes, _DbosTable(self._client, self._database, self._keep),
            self.lease, serving.local, serving.cancel, self._tell,
        )  # fmt: skip
        try:
            async with anyio.create_task_group() as group:
                serving.token = anyio.lowlevel.current_token()
                group.start_soon(_beat, keeper)
                # The first sign of life comes before the first activation: else another node would take this one for dead.
                await self._once(keeper.start)
                try:
                    library = await self._once(self._launch, serving)
                    await serving.draining.wait()
                    for (
                        event
                    ) in library.background_thread_stop_events:  # before a place gets free: nobody takes it any more
                        event.set()
                    group.start_soon(serving.runs.drain, serving.within)
                    await anyio.to_thread.run_sync(_end, library, serving.within, limiter=anyio.CapacityLimiter(1))
                finally:
                    await self._once(keeper.stop)
                    group.cancel_scope.cancel()
        finally:
            serving.over.set()

    def _launch(self, serving: Serving) -> DBOS:
        library = DBOS(
            config={
                "name": APPLICATION, "system_database_engine": self._database, "application_version": VERSION, "executor_id": self.worker,
                "dbos_system_schema": self.place.schema or "dbos",
                "serializer": DBOSPortableJSONSerializer(), "enable_otlp": False, "use_listen_notify": False,
                "scheduler_polling_interval_sec": 1.0,
                # Nothing here waits for its notifications; but its end does, for the poller's sleep.
                "notification_listener_polling_interval_sec": 0.1,
            }
        )  # fmt: skip

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=1000)
        def activation(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
            return self._one(serving, text)

        DBOS.listen_queues([spec.name for spec in serving.queues])
        for spec in serving.queues:
            self._queues.served(spec.name, spec.concurrency, spec.interval)
            put_bounds(self._client.register_queue, self._queues, spec.name)
        DBOS.launch()
        return library

    def _one(self, serving: Serving, text: str) -> str:
        """Runs one activation in the loop, from a thread of the library. Raises nothing: what is raised here is never run again."""
        activation = Activation.of(text)
        with serving.here(activation.id):
            ended = anyio.from_thread.run(serving.runs.run, activation, token=serving.token)
        if ended.following is not None:
            f = ended.following
            following = {f.activation.session: f.partition}
            patiently(partial(self._submit, [f.activation], f.queue, f.priority, f.delay, following))
        return ended.text()


_ONE = threading.Lock()
"""Held while an engine of this process serves."""


_FIRST = sa.text(
    "UPDATE workflow_status SET priority = :first WHERE status = 'PENDING' AND executor_id IN :nodes AND priority > :first"
).bindparams(sa.bindparam("nodes", expanding=True))


@dataclass(frozen=True, slots=True)
class _DbosTable:
    """The library's table, for the keeper."""

    client: DBOSClient
    database: sa.Engine
    keep: float

    def holders(self) -> dict[str, list[str]]:
        holders: dict[str, list[str]] = {}
        for row in self.client.list_workflows(status="PENDING", name=WORKFLOW, load_input=False, load_output=False):
            if row.executor_id:
                holders.setdefault(row.executor_id, []).append(row.workflow_id)
        return holders

    def recover(self, nodes: Sequence[str]) -> None:
        with self.database.begin() as connection:  # what was begun goes before what is new
            connection.execute(_FIRST, {"first": CONTINUE, "nodes": list(nodes)})
        # The library's own way: conditional on the row being theirs still, keeps queue and priority. A test holds that it is there.
        DBOS._recover_pending_workflows(list(nodes))  # pyright: ignore[reportPrivateUsage]

    def cancelled(self, ids: Collection[str]) -> list[str]:
        rows = self.client.list_workflows(
            workflow_ids=list(ids), status="CANCELLED", load_input=False, load_output=False
        )
        return [row.workflow_id for row in rows]

    def put_back(self, activation_id: str) -> None:
        rows = self.client.list_workflows(
            workflow_ids=[activation_id], status="PENDING", load_input=False, load_output=False
        )
        for row in rows:
            self.client.resume_workflow(activation_id, queue_name=row.queue_name)

    def sweep(self) -> int:
        before = datetime.fromtimestamp(time.time() - self.keep * 86400.0, UTC).isoformat()
        many = 0
        while True:
            rows = self.client.list_workflows(
                completed_before=before, status=list(_PHASES["ended"]), limit=CHUNK, load_input=False, load_output=False
            )
            if not rows:
                return many
            self.client.delete_workflows([row.workflow_id for row in rows])
            many += len(rows)


async def _beat(keeper: Keeper) -> None:
    """Shows that the loop moves."""
    while True:
        keeper.pulse += 1
        await anyio.sleep(keeper.tick)


def _end(library: DBOS, within: float) -> None:
    """Ends the library: what runs gets its time, and a little more to be put on record. Blocks."""
    until = time.monotonic() + min(within, 1e6) + 30.0
    # It would look once a second itself.
    while library._active_workflows_set.activeList() and time.monotonic() < until:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.02)
    DBOS.destroy(destroy_registry=True)


def _statuses(rows: Sequence[Status]) -> Iterator[ActivationStatus]:
    for row in rows:
        activation = _activation(row)
        if activation is None:
            continue
        phase = _PHASE[row.status]
        outcome, detail = _outcome(row) if phase == "ended" else (None, "")
        yield ActivationStatus(
            activation, row.queue_name or "", phase, row.priority or 0, outcome, detail, created=_seconds(row.created_at) or 0.0,
            started=_seconds(row.dequeued_at), ended=_seconds(row.completed_at), due=_seconds(row.delay_until_epoch_ms),
            worker=row.executor_id, partition=row.queue_partition_key or "",
        )  # fmt: skip


def _activation(row: Status) -> Activation | None:
    try:
        return Activation.of(str((row.input or {"args": ("",)})["args"][0]))
    except (ValueError, IndexError):
        return None


def _outcome(row: Status) -> tuple[Outcome, str]:
    if row.status == "CANCELLED":
        return "cancelled", ""
    if row.status != "SUCCESS":
        return "failed", str(row.error or row.status)
    value: Any = json.loads(str(row.output))
    return value["outcome"], value["detail"]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


class _Handler(logging.Handler):
    """The library's own words go nowhere: what an operator should know is told by the node."""

    def emit(self, record: logging.LogRecord) -> None:
        return


def _quiet() -> None:
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(_Handler())
        logger.propagate = False
