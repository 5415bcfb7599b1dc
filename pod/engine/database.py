"""The engine's database: where it is, how it is opened, and the table of nodes with their signs of life, by the database's clock."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from pod.alive import is_gone
from pod.errors import UsageProblem

FILE = "engine.sqlite"
"""The database in a home, where none is named."""

_PREFIX = re.compile(r"sqlite:///")


def place_of(given: str | None, home: Path) -> Path:
    """The file of the database that was named, as a path or as `sqlite:///PATH`. Raises `UsageProblem`."""
    if given is None:
        return home / FILE
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", given)
    if scheme is not None and not _PREFIX.match(given):
        raise UsageProblem(
            f"--db: a database of the kind {scheme[1]!r} is not served here; name a file, as a path or as sqlite:///PATH"
        )
    path = Path(_PREFIX.sub("", given)).absolute()
    if path.is_dir():
        raise UsageProblem(f"--db {given}: a folder; name a file")
    if not path.parent.is_dir():
        raise UsageProblem(f"--db {given}: there is no folder {path.parent}")
    return path


def connect(path: Path) -> sa.Engine:
    """The database with the settings that it needs: many processes write to it, and what was committed stays. Blocks."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=True)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), pool_size=5, max_overflow=20)

    def settings(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for setting in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    def begin(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        # The driver itself would begin before the first write alone: what was read before that may have changed since, and two nodes
        # that count what runs would each find room. Migrations begin by themselves.
        if not cursor.connection.in_transaction and not statement.lstrip().upper().startswith(("BEGIN", "PRAGMA")):
            cursor.execute("BEGIN IMMEDIATE")

    event.listen(engine, "connect", settings)
    event.listen(engine, "before_cursor_execute", begin)
    return engine


_NOW = "((julianday('now') - 2440587.5) * 86400.0)"

_TABLE = "CREATE TABLE IF NOT EXISTS pod_node (id TEXT PRIMARY KEY, process TEXT NOT NULL, queues TEXT NOT NULL, seen REAL NOT NULL)"


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

    def make(self) -> None:
        """Makes the table where it is not there."""
        self._do(_TABLE)

    def beat(self, id_: str, process: str, queues: Sequence[str]) -> None:
        """A sign of life."""
        self._do(
            f"INSERT INTO pod_node (id, process, queues, seen) VALUES (:id, :process, :queues, {_NOW}) "
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
                sa.text(f"SELECT id, process, queues, {_NOW} - seen FROM pod_node ORDER BY id")
            ).all()
        return [Sign(str(row[0]), str(row[1]), tuple(json.loads(row[2])), float(row[3])) for row in rows]

    def _do(self, statement: str, **values: object) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text(statement), values)
