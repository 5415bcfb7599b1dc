"""What an activation costs on the engine against a bare workflow of the library below it, on the same database.

python engine_cost.py PAIRS COUNT      prints a JSON row, or {} where the library is not installed
python engine_cost.py run ours|raw COUNT FILE      one run, in CPU seconds from the first submission to the last end

Both run nothing: what is left is submitting, dispatch, the event loop, and what becomes of each on record.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from pod.engine.port import Activation, Ended, QueueSpec

QUEUE = QueueSpec("bench", concurrency=50, interval=0.05)


class Nothing:
    """Runs activations that do nothing."""

    async def run(self, activation: Activation) -> Ended:
        return Ended("done")

    def cancel(self, activation_id: str) -> None:
        return

    async def drain(self, within: float) -> None:
        return


async def ours(file: Path, count: int) -> float:
    """The engine."""
    from pod.engine.dbos_engine import DbosEngine

    async with DbosEngine(file) as engine, anyio.create_task_group() as group:

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


def raw(file: Path, count: int) -> float:
    """The library alone, with the settings of the same file."""
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

    from pod.engine.places import SqliteFile

    logging.getLogger("dbos").setLevel(logging.CRITICAL)
    database = SqliteFile(file).connect()
    DBOS.migrate(f"sqlite:///{file}")
    client = DBOSClient(system_database_engine=database, serializer=DBOSPortableJSONSerializer())
    settings: Any = {
        "name": "pod-bench", "system_database_engine": database, "executor_id": "bench", "application_version": "1",
        "serializer": DBOSPortableJSONSerializer(), "enable_otlp": False, "use_listen_notify": False,
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


def one(kind: str, count: int) -> float:
    """One run in a process of its own: the library is one to a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "run", kind, str(count), str(Path(folder) / "engine.sqlite")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1] == "run":
        _, _, kind, count, file = sys.argv
        print(json.dumps(anyio.run(ours, Path(file), int(count)) if kind == "ours" else raw(Path(file), int(count))))
        return
    try:
        import dbos  # noqa: F401
    except ImportError:
        print("{}")
        return
    pairs, count = int(sys.argv[1]), int(sys.argv[2])
    found = [(one("ours", count), one("raw", count)) for _ in range(pairs)]
    ratios = sorted(mine / bare for mine, bare in found)
    note = f"{pairs} pairs of {count}, {ratios[0]:.2f} to {ratios[-1]:.2f}; {median(bare for _, bare in found) / count * 1e3:.2f} ms of CPU by itself"
    print(json.dumps({"ratio": median(ratios), "note": note}))


if __name__ == "__main__":
    main()
