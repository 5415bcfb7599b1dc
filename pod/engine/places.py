"""Where an engine's tables can be: a file of this machine, or the database that is the home of the pods."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event

from pod.errors import UsageProblem
from pod.store.mounting import address, url_of
from pod.store.port import TTL

FILE = "engine.sqlite"
"""The database in a home, where none is named."""

SCHEMA = "pod_engine"
"""The schema of the engine's tables in PostgreSQL."""

LOCK = 0x706F6465  # 'pode'
"""The advisory lock under which that is made."""

LEASE = 15.0
"""Seconds without a sign of life after which a node is taken for dead, where the home has no lease of its own."""

_PREFIX = re.compile(r"sqlite:///")


class Place(Protocol):
    """Where the tables are."""

    @property
    def label(self) -> str:
        """The place as people know it, without secrets."""
        ...

    @property
    def way_out(self) -> str:
        """What may help where it can't be opened, as the end of a sentence."""
        ...

    @property
    def schema(self) -> str | None:
        """The schema of the tables, where the database has such."""
        ...

    @property
    def lease(self) -> float:
        """Seconds that the lease of a node has where none is given."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two looks into a queue."""
        ...

    def connect(self) -> sa.Engine:
        """The database, with the settings that it needs. Blocks. Raises `OSError`."""
        ...

    def make(self, engine: sa.Engine, make: Callable[[], None]) -> None:
        """Has the tables made where they are not there, by one of all who come first. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file: many processes of one machine write to it, and what was committed stays."""

    path: Path
    way_out: str = "; name another file with --db"
    schema: None = None
    lease: float = LEASE
    interval: float = 0.2

    @property
    def label(self) -> str:
        """Its path."""
        return str(self.path)

    def connect(self) -> sa.Engine:
        """The file, made where it is not there."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch(mode=0o600, exist_ok=True)
        engine = sa.create_engine(sa.URL.create("sqlite", database=str(self.path)), pool_size=5, max_overflow=20)

        def settings(connection: Any, _: Any) -> None:
            connection.isolation_level = None
            for setting in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {setting}")

        def begin(_: Any, cursor: Any, statement: str, *__: Any) -> None:
            # The driver itself would begin before the first write alone: what was read before that may have changed since, and two
            # nodes that count what runs would each find room. Migrations begin by themselves.
            if not cursor.connection.in_transaction and not statement.lstrip().upper().startswith(("BEGIN", "PRAGMA")):
                cursor.execute("BEGIN IMMEDIATE")

        event.listen(engine, "connect", settings)
        event.listen(engine, "before_cursor_execute", begin)
        return engine

    def make(self, engine: sa.Engine, make: Callable[[], None]) -> None:
        """The file's own lock is enough."""
        make()


@dataclass(frozen=True, slots=True)
class HomeDatabase:
    """The PostgreSQL database of a home. The lease of a node is that of its pods: a dead node's pods are free when it is taken for dead."""

    url: str
    lease: float = TTL
    interval: float = 0.5
    way_out: str = ""
    schema: str = SCHEMA

    @property
    def label(self) -> str:
        """The database without user and password."""
        from pod.store.connecting import where

        return where(self.url)

    def connect(self) -> sa.Engine:
        """At most ten connections, each as `pod.store.connecting` has them."""
        import psycopg

        from pod.store.connecting import keeps_commits, settings

        options = settings(self.url, schema=self.schema, name="pod engine", ttl=self.lease)

        def connected() -> psycopg.Connection[Any]:
            connection = psycopg.connect(self.url, **options)
            keeps_commits(connection)
            connection.commit()
            return connection

        return sa.create_engine(
            "postgresql+psycopg://", creator=connected, pool_size=5, max_overflow=5, pool_timeout=30, pool_pre_ping=True
        )

    def make(self, engine: sa.Engine, make: Callable[[], None]) -> None:
        """Under an advisory lock. A role that may not make tables can work with those that are there."""
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

            def there() -> bool:
                found = connection.execute(sa.text("SELECT to_regclass(:table)"), {"table": f"{self.schema}.pod_queue"})
                return found.scalar() is not None

            if there():
                return
            connection.execute(sa.text(f"SELECT pg_advisory_lock({LOCK})"))
            try:
                if not there():
                    connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {self.schema}"))
                    make()
            finally:
                connection.execute(sa.text(f"SELECT pg_advisory_unlock({LOCK})"))


def place_of(given: str | None, home: Path) -> Place:
    """The place of the queues of a home: its database, or a file that was named as a path or as `sqlite:///PATH`. Raises `UsageProblem`."""
    url = url_of(home)
    if url is not None:
        if given is not None:
            raise UsageProblem("--db: the home is a database (POD_HOME), and its queues lie there too; leave --db out")
        plain, lease = address(url)
        return HomeDatabase(plain, lease)
    if given is None:
        return SqliteFile(home / FILE)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", given)
    if scheme is not None and not _PREFIX.match(given):
        raise UsageProblem(
            f"--db: a database of the kind {scheme[1]!r} is not served here; name a file, as a path or as sqlite:///PATH"
            f"{', or make the database the home (POD_HOME)' if scheme[1].startswith('postgres') else ''}"
        )
    path = Path(_PREFIX.sub("", given)).absolute()
    if path.is_dir():
        raise UsageProblem(f"--db {given}: a folder; name a file")
    if not path.parent.is_dir():
        raise UsageProblem(f"--db {given}: there is no folder {path.parent}")
    return SqliteFile(path)
