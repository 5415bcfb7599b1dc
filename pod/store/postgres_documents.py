"""The small documents of a home that is a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import LiteralString

from pod.store.connecting import AWAY
from pod.store.documents import Kind
from pod.store.postgres import Connection, PostgresStore
from pod.store.schema import LOCK

_WRITE: LiteralString = (
    "INSERT INTO document (kind, name, body) VALUES (%s, %s, %b) "
    "ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body WHERE document.body <> excluded.body"
)

_KEY: LiteralString = "hashtext(%s)"


class PostgresDocuments:
    """`Documents` in the store's database."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def where(self, kind: Kind, name: str) -> str:
        """The database, and what it is there."""
        return f"{self._store.where}: {kind} {name}"

    def read(self, kind: Kind, names: Iterable[str]) -> dict[str, bytes]:
        """As the port says."""
        statement: LiteralString = "SELECT name, body FROM document WHERE kind = %s AND name = ANY(%s)"
        wanted = list(names)

        def step(connection: Connection) -> dict[str, bytes]:
            return dict(connection.execute(statement, [kind, wanted], binary=True).fetchall())

        return self._store.patiently(step) if wanted else {}

    def write(self, kind: Kind, documents: Mapping[str, bytes]) -> None:
        """As the port says: all or none."""

        def step(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(_WRITE, [(kind, name, documents[name]) for name in sorted(documents)])

        if documents:
            self._store.patiently(step)

    def change(self, kind: Kind, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """As the port says."""

        def step(connection: Connection) -> bytes:
            with connection.transaction():
                connection.execute(f"SELECT pg_advisory_xact_lock(%s, {_KEY})", [LOCK, f"{kind} {name}"])
                row = connection.execute(
                    "SELECT body FROM document WHERE kind = %s AND name = %s", [kind, name], binary=True
                ).fetchone()
                before: bytes | None = None if row is None else row[0]
                after = change(before)
                if after != before:
                    connection.execute(_WRITE, [kind, name, after])
                return after

        return self._store.patiently(step)

    def names(self, kind: Kind) -> list[str]:
        """As the port says."""

        def step(connection: Connection) -> list[str]:
            rows = connection.execute("SELECT name FROM document WHERE kind = %s ORDER BY name", [kind]).fetchall()
            return [name for (name,) in rows]

        return self._store.patiently(step)

    @contextmanager
    def alone(self, kind: Kind, name: str) -> Generator[None]:
        """As the port says, among all machines, for as long as the connection lasts: one that breaks lets go."""
        connection = self._store.patiently(lambda _: self._store.connected())
        try:
            row = connection.execute(
                f"SELECT pg_try_advisory_lock(%s, {_KEY})", [LOCK, f"alone {kind} {name}"]
            ).fetchone()
            if row is None or not row[0]:
                raise BlockingIOError
            yield
        finally:
            with suppress(*AWAY):
                connection.close()
