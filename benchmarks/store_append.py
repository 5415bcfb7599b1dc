"""What an append through the PostgreSQL store costs against the same fenced insert by hand, on one connection each.

python benchmarks/store_append.py PAIRS APPENDS      prints a JSON row, or {} where PostgreSQL is not installed
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from store.pg_server import programs, server

BODY = b'{"text":"' + b"x" * 668 + b'"}'
RAW = (
    "WITH held AS (SELECT id FROM pod.session WHERE id = %s AND epoch = %s FOR SHARE) "
    "INSERT INTO pod.entry (session, log, seq, epoch, upto, body) SELECT id, %s, %s, %s, %s, %b FROM held "
    "ON CONFLICT (session, log, seq) DO UPDATE SET seq = excluded.seq WHERE entry.epoch = excluded.epoch"
)


def main() -> None:
    pairs, count = int(sys.argv[1]), int(sys.argv[2])
    where = programs()
    try:
        import psycopg

        from pod.store.postgres import PostgresStore
    except ImportError:
        where = None
    if where is None:
        print("{}")
        return
    with server(where) as running:
        store = PostgresStore(running.url(), size=1)
        store.create("bench")
        lease = store.acquire("bench", "bench")
        ratios: list[float] = []
        with psycopg.connect(running.url(), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            for pair in range(-1, pairs):  # the first one warms up
                ours, raw = f"ours-{pair}", f"raw-{pair}"
                began = time.perf_counter()
                for n in range(1, count + 1):
                    store.append(lease, ours, n, [BODY])
                middle = time.perf_counter()
                for n in range(1, count + 1):
                    values = ["bench", lease.epoch, raw, n, lease.epoch, n * len(BODY), BODY]
                    assert connection.execute(RAW, values).rowcount == 1
                end = time.perf_counter()
                if pair >= 0:
                    ratios.append((middle - began) / (end - middle))
        store.close()
    note = f"{pairs} pairs of {count} appends, {min(ratios):.2f} to {max(ratios):.2f}; {(end - middle) / count * 1e3:.2f} ms by hand"
    print(json.dumps({"ratio": median(ratios), "note": note}))


if __name__ == "__main__":
    main()
