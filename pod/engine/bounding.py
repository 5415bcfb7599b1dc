"""Puts what is on record of a queue into the engine's own row of it, which nodes read before each look at the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pod.engine.tables import QueueRow, QueueTable

MANY = 1_000_000
"""A bound that nothing comes to."""

COARSE = 1.0
"""Seconds by which a start's stamp in SQLite may be too early: its clock may count whole ones."""


def put_bounds(register: Callable[..., object], table: QueueTable, name: str) -> None:
    """Has a queue's row, which `register` writes, say what is on record. Where others change the record meanwhile, the last of all
    says the newest. Blocks.
    """
    said: QueueRow | None = None
    # Looked at again behind each write: whoever writes last has seen the record as it is then.
    while (row := table.rows().get(name)) != said:
        if row is None or row.concurrency is None:
            return  # no node ever served it: the first that does begins with the limits
        register(name, **bounds(row, table.database.dialect.name), on_conflict="always_update")
        said = row


def bounds(row: QueueRow, database: str) -> dict[str, Any]:
    """The library's words for a queue's limits, in a database of a kind."""
    limits = row.limits
    together, partition = limits.together, limits.of_partition()
    if database == "postgresql" and (together or partition or limits.starts):
        # Two nodes that look at once, a more urgent activation coming between, would each find room: the library has looks happen as if
        # one after the other only where both of these are bounded.
        partition, together = partition or together or MANY, together or MANY
    period = (limits.per or 0.0) + (COARSE if database == "sqlite" else 0.0)
    return {
        "worker_concurrency": limits.on_node(row.concurrency or MANY),
        "global_concurrency": together,
        "partition_concurrency": partition,
        "limiter": {"limit": limits.starts, "period": period} if limits.starts else None,
        "polling_interval_sec": row.interval or 0.2,
    }
