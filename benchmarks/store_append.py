"""What an append through a session store costs against the same by hand: in a file, and in PostgreSQL with the same fence.

python benchmarks/store_append.py files PAIRS APPENDS         prints a JSON row
python benchmarks/store_append.py postgres PAIRS APPENDS      the same, or {} where PostgreSQL is not installed
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from store.pg_server import programs, server

from pod.store.jsonl import JsonlStore

BODY = b'{"text":"' + b"x" * 668 + b'"}'
RAW = (
    "WITH held AS (SELECT id FROM pod.session WHERE id = %s AND epoch = %s FOR SHARE) "
    "INSERT INTO pod.entry (session, log, seq, epoch, upto, body) SELECT id, %s, %s, %s, %s, %b FROM held "
    "ON CONFLICT (session, log, seq) DO UPDATE SET seq = excluded.seq WHERE entry.epoch = excluded.epoch"
)


def compared(pairs: int, count: int, ours: Callable[[str, int], object], raw: Callable[[str, int], object]) -> str:
    """The row of so many pairs; the first one warms up."""
    ratios: list[float] = []
    by_hand = 0.0
    for pair in range(-1, pairs):
        took: dict[object, list[float]] = {ours: [], raw: []}
        for n in range(1, count + 1):
            # One and the other by turns: what a disk takes for a sync changes from moment to moment.
            for name, append in (("ours", ours), ("raw", raw)):
                began = time.perf_counter()
                append(f"{name}-{pair}", n)
                took[append].append(time.perf_counter() - began)
        by_hand = median(took[raw])
        if pair >= 0:
            ratios.append(median(took[ours]) / by_hand)
    spread = f"{pairs} pairs of {count} appends, {min(ratios):.2f} to {max(ratios):.2f}"
    return json.dumps({"ratio": median(ratios), "note": f"{spread}; {by_hand * 1e3:.2f} ms by hand"})


def in_files(pairs: int, count: int) -> str:
    """One line and one `fdatasync` each, by the store and by hand."""
    with tempfile.TemporaryDirectory() as folder:
        store = JsonlStore(Path(folder) / "home")
        store.create("bench")
        lease = store.acquire("bench", "bench")
        opened: dict[str, int] = {}

        def raw(log: str, n: int) -> None:
            if log not in opened:
                opened[log] = os.open(Path(folder) / log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(opened[log], BODY + b"\n")
            os.fdatasync(opened[log])

        try:
            return compared(pairs, count, lambda log, n: store.append(lease, log, n, [BODY]), raw)
        finally:
            store.close()
            for fd in opened.values():
                os.close(fd)


def in_postgres(pairs: int, count: int) -> str:
    """The same fenced insert, by the store and by hand, on one connection each."""
    where = programs()
    try:
        import psycopg

        from pod.store.postgres import PostgresStore
    except ImportError:
        where = None
    if where is None:
        return "{}"
    with server(where) as running:
        store = PostgresStore(running.url(), size=1)
        store.create("bench")
        lease = store.acquire("bench", "bench")
        with psycopg.connect(running.url(), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")

            def raw(log: str, n: int) -> None:
                values = ["bench", lease.epoch, log, n, lease.epoch, n * len(BODY), BODY]
                assert connection.execute(RAW, values).rowcount == 1

            row = compared(pairs, count, lambda log, n: store.append(lease, log, n, [BODY]), raw)
        store.close()
    return row


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    print({"files": in_files, "postgres": in_postgres}[kind](*map(int, numbers)))
