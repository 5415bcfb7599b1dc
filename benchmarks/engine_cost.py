"""What an activation costs on the engine against a bare workflow of the library below it, on the same database.

python engine_cost.py sqlite|postgres PAIRS COUNT      prints a JSON row, or {} where the library or the server is not installed
python engine_cost.py run ours|raw COUNT PLACE      one run in a file or at a URL, in CPU seconds of this process from the first submission
                                                    to the last end

Both run nothing: what is left is submitting, dispatch, the event loop, and what becomes of each on record.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio

from pod.engine.port import Activation, Ended, QueueSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from store.pg_server import programs, server

if TYPE_CHECKING:
    from pod.engine.places import Place

QUEUE = QueueSpec("bench", concurrency=50, interval=0.05)


class Nothing:
    """Runs activations that do nothing."""

    async def run(self, activation: Activation) -> Ended:
        return Ended("done")

    def cancel(self, activation_id: str) -> None:
        return

    async def drain(self, within: float) -> None:
        return


def place_of(given: str) -> Place:
    """The database of a run."""
    from pod.engine.places import HomeDatabase, SqliteFile

    return HomeDatabase(given) if given.startswith("postgresql:") else SqliteFile(Path(given))


async def ours(place: Place, count: int) -> float:
    """The engine."""
    from pod.engine.dbos_engine import DbosEngine

    async with DbosEngine(place) as engine, anyio.create_task_group() as group:

        async def serve() -> None:
            await engine.serve(Nothing(), queues=[QUEUE])

        group.start_soon(serve)
        with anyio.fail_after(30):
            while not await engine.nodes():  # noqa: ASYNC110
                await anyio.sleep(0.05)
        await anyio.sleep(1.0)
        began = time.process_time()
        await engine.submit([Activation(f"s{n}") for n in range(count)], queue=QUEUE.name)
        with anyio.fail_after(300):
            while [status async for status in engine.list(phases=["queued", "running"], limit=1)]:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        spent = time.process_time() - began
        await engine.drain(0.0)
    return spent


def raw(place: Place, count: int) -> float:
    """The library alone, with the settings of the same place."""
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

    logging.getLogger("dbos").setLevel(logging.CRITICAL)
    database = place.connect()
    schema = place.schema or "dbos"
    client = DBOSClient(
        system_database_engine=database, dbos_system_schema=schema, serializer=DBOSPortableJSONSerializer()
    )
    place.make(database, lambda: None)
    client._sys_db.run_migrations()  # pyright: ignore[reportPrivateUsage]
    settings: Any = {
        "name": "pod-bench", "system_database_engine": database, "executor_id": "bench", "application_version": "1",
        "dbos_system_schema": schema, "serializer": DBOSPortableJSONSerializer(), "enable_otlp": False, "use_listen_notify": False,
    }  # fmt: skip
    DBOS(config=settings)

    @DBOS.workflow(name="nothing", max_recovery_attempts=1000)
    def nothing(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return text

    DBOS.listen_queues([QUEUE.name])
    client.register_queue(
        QUEUE.name,
        worker_concurrency=QUEUE.concurrency,
        polling_interval_sec=QUEUE.interval,
        on_conflict="always_update",
    )
    DBOS.launch()
    time.sleep(1.0)
    began = time.process_time()
    for first in range(0, count, 500):
        with database.begin() as connection:
            for n in range(first, min(first + 500, count)):
                options: Any = {
                    "workflow_name": "nothing", "queue_name": QUEUE.name, "workflow_id": f"s{n}", "app_version": "1",
                    "priority": 100, "application_name": "pod-bench",
                }  # fmt: skip
                client.enqueue_in_transaction(connection, options, json.dumps({"session": f"s{n}", "n": 1}))
    deadline = time.monotonic() + 300
    while client.list_workflows(status=["ENQUEUED", "PENDING"], limit=1):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    spent = time.process_time() - began
    DBOS.destroy()
    return spent


def one(kind: str, count: int, place: str) -> float:
    """One run in a process of its own: the library is one to a process."""
    command = [sys.executable, __file__, "run", kind, str(count), place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compared(pairs: int, count: int, place: Callable[[str], str]) -> str:
    """The row of so many pairs, each run in a database of its own."""
    found = [(one("ours", count, place(f"ours{n}")), one("raw", count, place(f"raw{n}"))) for n in range(pairs)]
    ratios = sorted(mine / bare for mine, bare in found)
    by_itself = median(bare for _, bare in found) / count * 1e3
    note = f"{pairs} pairs of {count}, {ratios[0]:.2f} to {ratios[-1]:.2f}; {by_itself:.2f} ms of CPU by itself"
    return json.dumps({"ratio": median(ratios), "note": note})


def in_sqlite(pairs: int, count: int) -> str:
    """In files."""
    with tempfile.TemporaryDirectory() as folder:
        return compared(pairs, count, lambda name: str(Path(folder) / f"{name}.sqlite"))


def in_postgres(pairs: int, count: int) -> str:
    """On a private server, where one is installed."""
    where = programs()
    if where is None or importlib.util.find_spec("psycopg") is None:
        return "{}"
    with server(where) as running:

        def place(name: str) -> str:
            running.run("createdb", "-h", "127.0.0.1", "-p", str(running.port), "-U", "postgres", name)
            return running.url(name)

        return compared(pairs, count, place)


def main() -> None:
    if sys.argv[1] == "run":
        _, _, kind, count, place = sys.argv
        made = place_of(place)
        print(json.dumps(anyio.run(ours, made, int(count)) if kind == "ours" else raw(made, int(count))))
        return
    if importlib.util.find_spec("dbos") is None:
        print("{}")
        return
    _, kind, pairs, count = sys.argv
    print({"sqlite": in_sqlite, "postgres": in_postgres}[kind](int(pairs), int(count)))


if __name__ == "__main__":
    main()
