"""The table of nodes with their signs of life, by the database's clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from pod.alive import is_gone

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
"""Seconds since 1970, as each database says them."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS pod_node (id TEXT PRIMARY KEY, process TEXT NOT NULL, queues TEXT NOT NULL, "
    "seen DOUBLE PRECISION NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A node's last sign of life: `ago` in seconds by the database's clock."""

    id: str
    process: str
    queues: tuple[str, ...]
    ago: float

    def is_dead(self, lease: float) -> bool:
        """Whether it is taken for dead: its process is gone, or nothing was seen of it for so many seconds."""
        return self.ago > lease or is_gone(self.process)


class Nodes:
    """The table of nodes. Everything blocks."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._now = _NOW[engine.dialect.name]

    def make(self) -> None:
        """Makes the table where it is not there."""
        self._do(_TABLE)

    def beat(self, id_: str, process: str, queues: Sequence[str]) -> None:
        """A sign of life."""
        self._do(
            f"INSERT INTO pod_node (id, process, queues, seen) VALUES (:id, :process, :queues, {self._now}) "
            "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen",
            id=id_, process=process, queues=json.dumps(list(queues)),
        )  # fmt: skip

    def forget(self, ids: Sequence[str]) -> None:
        """Takes nodes out of the table."""
        for id_ in ids:
            self._do("DELETE FROM pod_node WHERE id = :id", id=id_)

    def signs(self) -> list[Sign]:
        """All that are in the table."""
        with self._engine.connect() as connection:
            rows = connection.execute(
                sa.text(f"SELECT id, process, queues, {self._now} - seen FROM pod_node ORDER BY id")
            ).all()
        return [Sign(str(row[0]), str(row[1]), tuple(json.loads(row[2])), float(row[3])) for row in rows]

    def _do(self, statement: str, **values: object) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text(statement), values)
