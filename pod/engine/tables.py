"""What the engine keeps of its own beside the library's tables: schedules, and the limits of queues. SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from pod.engine.limits import NO_LIMITS, Limits
from pod.engine.schedules import Kept, Schedule

NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
"""Seconds since 1970 by the database's clock, by the kind of database."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS pod_schedule (name TEXT PRIMARY KEY, made TEXT NOT NULL, version INTEGER NOT NULL, schedule TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS pod_queue (name TEXT PRIMARY KEY, limits TEXT NOT NULL DEFAULT '{}', concurrency INTEGER, pause DOUBLE PRECISION)",
)

_MAKING = 0x706F642D71
"""The lock that one process at a time makes the tables under."""


def make(database: sa.Engine) -> None:
    """Makes the tables where they are not there. Blocks."""
    with database.begin() as connection:
        if database.dialect.name == "postgresql":
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_MAKING})"))
        for table in _TABLES:
            connection.execute(sa.text(table))


@dataclass(frozen=True, slots=True)
class StoredSchedules:
    """Schedules in a database. `blocking` runs a function in a thread."""

    database: sa.Engine
    blocking: Callable[..., Awaitable[Any]]

    async def read(self) -> Kept:
        """As the port says."""
        return await self.blocking(self._read)

    async def put(self, schedule: Schedule) -> bool:
        """As the port says."""
        return await self.blocking(self._put, schedule)

    async def remove(self, name: str) -> bool:
        """As the port says."""
        return await self.blocking(self._remove, name)

    def _read(self) -> Kept:
        with self.database.connect() as connection:
            now = connection.execute(sa.text(f"SELECT {NOW[self.database.dialect.name]}")).scalar_one()
            rows = connection.execute(sa.text("SELECT name, schedule FROM pod_schedule ORDER BY name")).all()
        found, unread = list[Schedule](), dict[str, str]()
        for name, row in rows:
            try:
                found.append(Schedule.model_validate_json(row))
            except ValidationError:
                unread[str(name)] = "it was not written by this version, or was altered"
        return Kept(float(now), found, unread)

    def _put(self, schedule: Schedule) -> bool:
        values = {
            "name": schedule.name, "made": schedule.made, "version": schedule.version, "schedule": schedule.model_dump_json(),
        }  # fmt: skip
        statement = (
            "INSERT INTO pod_schedule (name, made, version, schedule) VALUES (:name, :made, :version, :schedule) "
            "ON CONFLICT (name) DO NOTHING"
            if schedule.version == 1
            else "UPDATE pod_schedule SET version = :version, schedule = :schedule "
            "WHERE name = :name AND made = :made AND version = :version - 1"
        )
        return self._do(statement, values)

    def _remove(self, name: str) -> bool:
        return self._do("DELETE FROM pod_schedule WHERE name = :name", {"name": name})

    def _do(self, statement: str, values: Mapping[str, object]) -> bool:
        with self.database.begin() as connection:
            return connection.execute(sa.text(statement), values).rowcount == 1


@dataclass(frozen=True, slots=True)
class QueueRow:
    """What is on record of a queue: its limits, and what the node said of it that began to serve it last."""

    limits: Limits = NO_LIMITS
    concurrency: int | None = None
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class QueueTable:
    """The queues of which something is on record. Everything blocks."""

    database: sa.Engine

    def limit(self, name: str, limits: Limits) -> None:
        """Sets what bounds a queue."""
        self._set(name, "limits", json.dumps(limits.as_json()))

    def served(self, name: str, concurrency: int, interval: float) -> None:
        """A node serves a queue, and would run so many at once."""
        self._set(name, "concurrency", concurrency)
        self._set(name, "pause", interval)

    def rows(self) -> dict[str, QueueRow]:
        """All, by their names."""
        with self.database.connect() as connection:
            found = connection.execute(
                sa.text("SELECT name, limits, concurrency, pause FROM pod_queue ORDER BY name")
            ).all()
        return {str(name): QueueRow(Limits.of(json.loads(limits)), own, pause) for name, limits, own, pause in found}

    def _set(self, name: str, column: str, value: object) -> None:
        with self.database.begin() as connection:
            connection.execute(
                sa.text(
                    f"INSERT INTO pod_queue (name, {column}) VALUES (:name, :value) "
                    f"ON CONFLICT (name) DO UPDATE SET {column} = excluded.{column}"
                ),
                {"name": name, "value": value},
            )
