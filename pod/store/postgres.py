"""A store of sessions in PostgreSQL, for several machines. The only module that imports `psycopg` (the extra `postgres`).

Blocking: `psycopg`'s own loop support needs asyncio, and a pod may run on trio. Each step is one transaction. Where the server went
away, a step is asked for again, with growing pauses, for at most `patience` seconds: every step may happen twice and counts once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pod.store.connecting import AWAY, keeps_commits, settings, where
from pod.store.port import (
    PAGE,
    TTL,
    Conflict,
    Entry,
    Fenced,
    Gathered,
    Held,
    Holding,
    Lease,
    NoSession,
    Posted,
    Refused,
    SessionExists,
    SessionInfo,
    Unreachable,
)
from pod.store.schema import LOCK, MIGRATIONS
from pod.store.statements import ALL_ENTRIES, ALL_FILES, ALL_LOGS, ALL_POSTED, APPEND, APPEND_ONE, INFO, MARKS

T = TypeVar("T")
Connection = psycopg.Connection[Any]

STATEMENT = 30
"""Seconds that one statement may take."""

PATIENCE = 600.0
"""Seconds for which a step is asked for again while the server is away."""

_FENCED, _CONFLICT = "PD001", "PD002"


class NewerSchema(Exception):
    """The schema was made by a newer version."""


class PostgresStore:
    """`SessionStore` in a PostgreSQL database. Safe between threads; a process that forks must make its own after it.

    The first contact is tried once: a wrong address raises `Unreachable` at once. Tables lie in the schema `schema`, made or brought
    up to date by whoever comes first.
    """

    def __init__(
        self, url: str, *, schema: str = "pod", ttl: float = TTL, size: int = 8, patience: float = PATIENCE
    ) -> None:
        options = settings(url, schema=schema, name="pod", ttl=ttl, statement=STATEMENT)
        self.where, self.schema, self.ttl = where(url), schema, ttl
        self._patience = patience
        self._options: dict[str, Any] = {"autocommit": True, **options}
        self._url = url
        self._slots = threading.BoundedSemaphore(size)
        self._idle: list[Connection] = []
        self._known = False

    # -- sessions ---------------------------------------------------------------------------------------------

    def create(self, session: str, *, exist_ok: bool = False) -> None:
        """Makes a session. One that was made by a call whose answer was lost counts as there already."""
        made = self._rows("INSERT INTO session (id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING id", session)
        if not made and not exist_ok:
            raise SessionExists(session)

    def acquire(self, session: str, owner: str, *, over: int = 0) -> Lease:
        """Becomes the writer, by the database's clock."""
        statement = (
            "UPDATE session SET epoch = epoch + 1, owner = %s, beat = clock_timestamp() WHERE id = %s AND "
            "(owner IN ('', %s) OR epoch = %s OR beat < clock_timestamp() - make_interval(secs => %s)) RETURNING epoch"
        )
        while True:
            for (epoch,) in self._rows(statement, owner, session, owner, over, self.ttl):
                return Lease(session, epoch, owner)
            known = self.head(session)
            if known.owner and known.quiet < self.ttl:  # else it was given free just now
                raise Held(session, known.owner, known.epoch)

    def beat(self, lease: Lease) -> int:
        """A sign of life."""
        statement = (
            "UPDATE session SET beat = clock_timestamp() WHERE id = %s AND epoch = %s AND owner = %s "
            "RETURNING coalesce((SELECT max(number) FROM command WHERE command.session = session.id), 0)"
        )
        for (number,) in self._rows(statement, *lease):
            return number
        raise self._fenced(lease.session)

    def release(self, lease: Lease) -> None:
        """Gives the session free."""
        self._rows("UPDATE session SET owner = '' WHERE id = %s AND epoch = %s AND owner = %s RETURNING id", *lease)

    def head(self, session: str) -> SessionInfo:
        """What is known of a session."""
        for row in self._rows(f"{INFO} WHERE id = %s", session):
            return SessionInfo(*row)
        raise NoSession(session)

    def set_state(self, session: str, state: str, *, expect: str | None = None) -> bool:
        """Sets the state."""
        statement = (
            "UPDATE session SET state = %s WHERE id = %s AND (%s::text IS NULL OR state IN (%s, %s)) RETURNING id"
        )
        if self._rows(statement, state, session, expect, expect, state):
            return True
        self.head(session)
        return False

    def list(
        self, *, prefix: str = "", state: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[SessionInfo]:
        """Sessions in order."""
        where, values = "id > %s", [after]
        if prefix:
            where, values = where + " AND id >= %s AND starts_with(id, %s)", [*values, prefix, prefix]
            if (end := _after(prefix)) is not None:
                where, values = where + " AND id < %s", [*values, end]
        if state is not None:
            where, values = where + " AND state = %s", [*values, state]
        statement = f"{INFO} WHERE {where} ORDER BY id LIMIT %s"
        return [SessionInfo(*row) for row in self._rows(statement, *values, limit)]

    def gather(self, sessions: Sequence[str], small: int = 0) -> list[Gathered]:
        """What these sessions hold, in four questions for all of them."""
        wanted = list(sessions)
        infos = [SessionInfo(*row) for row in self._rows(f"{INFO} WHERE id = ANY(%s) ORDER BY id", wanted)]
        logs: dict[str, list[Holding]] = {info.id: [] for info in infos}
        files: dict[str, list[Holding]] = {info.id: [] for info in infos}
        posted: dict[str, list[Posted]] = {info.id: [] for info in infos}
        contents: dict[str, dict[str, bytes]] = {info.id: {} for info in infos}
        ids = list(logs)
        for session, *held in self._rows(ALL_LOGS, ids) if ids else ():
            logs[session].append(Holding(*held))
        for session, name, size, body in self._rows(ALL_FILES, small, ids) if ids else ():
            files[session].append(Holding(name, 0, size))
            if body is not None:
                contents[session][name] = body
        for session, *each in self._rows(ALL_POSTED, ids) if ids else ():
            posted[session].append(Posted(*each))
        return [Gathered(i, logs[i.id], files[i.id], posted[i.id], contents[i.id]) for i in infos]

    def contents(self, logs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Entry]]:
        """All entries of short logs, in one question."""
        found: dict[tuple[str, str], list[Entry]] = {}
        rows = self._rows(ALL_ENTRIES, [session for session, _ in logs], [log for _, log in logs])
        for session, log, seq, body in rows:
            found.setdefault((session, log), []).append(Entry(seq, body))
        return found

    def marks(self, sessions: Sequence[str]) -> dict[str, object]:
        """What changes when something happens to these sessions, in one question."""
        return {session: tuple(mark) for session, *mark in self._rows(MARKS, list(sessions))}

    def remove(self, lease: Lease) -> None:
        """Removes the session; what belongs to it goes with it."""

        def step(connection: Connection) -> None:
            self._hold(connection, lease)
            connection.execute("DELETE FROM session WHERE id = %s", [lease.session])
            for table in ("entry", "file", "command"):
                connection.execute(f"DELETE FROM {table} WHERE session = %s", [lease.session])

        self._transaction(lease, step)

    # -- logs -------------------------------------------------------------------------------------------------

    def append(self, lease: Lease, log: str, first: int, bodies: Sequence[bytes]) -> None:
        """Appends entries, in one statement."""
        self._writing(lease, lambda connection: self._append(connection, lease, log, first, bodies), log, first)

    def _append(self, connection: Connection, lease: Lease, log: str, first: int, bodies: Sequence[bytes]) -> None:
        one = len(bodies) == 1
        named = {
            "session": lease.session, "epoch": lease.epoch, "owner": lease.owner, "log": log, "first": first,
            "body": bodies[0] if one else [*bodies], "n": len(bodies),
        }  # fmt: skip
        made = connection.execute(APPEND_ONE if one else APPEND, named)
        if not (made.rowcount if one else sum(count for (count,) in made)):  # nothing was written: why?
            self._hold(connection, lease)
            if bodies:
                raise Conflict(lease.session, log, first)

    def rewrite(self, lease: Lease, log: str, bodies: Sequence[bytes]) -> None:
        """Makes a log anew."""

        def step(connection: Connection) -> None:
            self._hold(connection, lease)
            connection.execute("DELETE FROM entry WHERE session = %s AND log = %s", [lease.session, log])
            self._append(connection, lease, log, 1, bodies)

        self._transaction(lease, step)

    def load(self, session: str, log: str, first: int = 1) -> Iterator[Entry]:
        """The entries of a log."""
        statement = "SELECT seq, body FROM entry WHERE session = %s AND log = %s AND seq >= %s ORDER BY seq LIMIT %s"
        while True:
            page = [Entry(seq, body) for seq, body in self._rows(statement, session, log, first, PAGE)]
            yield from page
            if len(page) < PAGE:
                return
            first = page[-1].seq + 1

    def logs(self, session: str) -> list[Holding]:
        """All logs: a jump through the index from one name to the next, whatever their lengths."""
        return [Holding(*row[1:]) for row in self._rows_of(session, ALL_LOGS, [session])]

    # -- files and commands -----------------------------------------------------------------------------------

    def put(self, lease: Lease, name: str, data: bytes) -> None:
        """Keeps a file."""
        statement = (
            "INSERT INTO file (session, name, size, body) VALUES (%s, %s, %s, %b) ON CONFLICT (session, name) "
            "DO UPDATE SET size = excluded.size, body = excluded.body"
        )

        def step(connection: Connection) -> None:
            self._hold(connection, lease)
            connection.execute(statement, [lease.session, name, len(data), data])

        self._transaction(lease, step)

    def get(self, session: str, name: str) -> bytes | None:
        """A file."""
        for (body,) in self._rows_of(session, "SELECT body FROM file WHERE session = %s AND name = %s", session, name):
            return body
        return None

    def drop(self, lease: Lease, name: str) -> None:
        """Removes a file or log."""

        def step(connection: Connection) -> None:
            self._hold(connection, lease)
            connection.execute("DELETE FROM file WHERE session = %s AND name = %s", [lease.session, name])
            connection.execute("DELETE FROM entry WHERE session = %s AND log = %s", [lease.session, name])

        self._transaction(lease, step)

    def files(self, session: str) -> list[Holding]:
        """All files."""
        statement = "SELECT name, 0, size FROM file WHERE session = %s ORDER BY name"
        return [Holding(*row) for row in self._rows_of(session, statement, session)]

    def post(self, session: str, command: str, body: bytes) -> bool:
        """Leaves a command. Posts to one session come one after the other, so that their numbers are seen in order."""

        def step(connection: Connection) -> bool:
            with connection.transaction():
                if not connection.execute("SELECT FROM session WHERE id = %s FOR KEY SHARE", [session]).rowcount:
                    raise NoSession(session)
                connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK, session])
                statement = "INSERT INTO command (session, id, body) VALUES (%s, %s, %b) ON CONFLICT DO NOTHING"
                return connection.execute(statement, [session, command, body]).rowcount == 1

        return self.patiently(step)

    def posted(self, session: str, after: int = 0) -> list[Posted]:
        """The commands that wait."""
        statement = "SELECT number, id, body FROM command WHERE session = %s AND number > %s ORDER BY number"
        return [Posted(*row) for row in self._rows_of(session, statement, session, after)]

    def take(self, session: str, command: str) -> None:
        """Removes a command."""
        self._rows("DELETE FROM command WHERE session = %s AND id = %s RETURNING id", session, command)

    def close(self) -> None:
        """Closes the connections that are not in use."""
        while (connection := self._pooled()) is not None:
            connection.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _rows(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        return self.patiently(lambda connection: connection.execute(statement, values, binary=True).fetchall())

    def _rows_of(self, session: str, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a session; where there are none, whether it is there. Raises `NoSession`."""
        found = self._rows(statement, *values)
        if not found:
            self.head(session)
        return found

    def _hold(self, connection: Connection, lease: Lease) -> None:
        connection.execute("SELECT hold(%s, %s, %s)", [lease.session, lease.epoch, lease.owner])

    def _transaction(self, lease: Lease, step: Callable[[Connection], None]) -> None:
        def whole(connection: Connection) -> None:
            with connection.transaction():
                step(connection)

        self._writing(lease, whole)

    def _writing(self, lease: Lease, step: Callable[[Connection], T], log: str = "", first: int = 0) -> T:
        """A step under a lease. Raises `Fenced`, `Conflict`."""

        def told(connection: Connection) -> T:
            try:
                return step(connection)
            except psycopg.Error as error:
                if error.sqlstate == _FENCED:
                    raise Fenced(lease.session, error.diag.message_detail or "") from None
                if error.sqlstate == _CONFLICT:
                    raise Conflict(lease.session, log, first) from None
                raise

        return self.patiently(told)

    def _fenced(self, session: str) -> Fenced:
        try:
            return Fenced(session, self.head(session).owner)
        except NoSession:
            return Fenced(session, "")

    def patiently(self, step: Callable[[Connection], T]) -> T:
        """Does a step on a connection, and does it again while the server is away. Raises `Unreachable` in the end, `Refused` where the
        server will not do it.
        """
        end, pause = time.monotonic() + self._patience, 0.1
        with self._slots:
            while True:
                pooled = self._pooled()
                try:
                    connection = pooled or self.connected()
                    try:
                        found = step(connection)
                    except BaseException:
                        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                            connection.close()  # it was broken off in the middle
                        else:
                            self._idle.append(connection)
                        raise
                    self._idle.append(connection)
                    return found
                except AWAY as error:
                    left = end - time.monotonic()
                    if left <= 0 or not self._known:
                        raise Unreachable(self.where, _why(error)) from None
                except psycopg.Error as error:
                    raise Refused(self.where, _why(error)) from error
                if pooled is not None and pooled.closed:
                    self.close()  # the others broke with it; a new one tells at once whether the server is there
                    continue
                time.sleep(min(pause * random.uniform(0.5, 1.0), left))
                pause = min(pause * 2, 5.0)

    def _pooled(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def connected(self) -> Connection:
        """A new connection, the first one with the tables brought up to date."""
        connection = psycopg.connect(self._url, **self._options)
        try:
            keeps_commits(connection)
            if not self._known:
                try:
                    migrate(connection, self.schema)
                except psycopg.errors.InsufficientPrivilege as error:
                    raise Unreachable(self.where, _why(error)) from None
                self._known = True
        except BaseException:
            connection.close()
            raise
        return connection


def migrate(connection: Connection, schema: str) -> int:
    """Brings the tables up to date, in one transaction, and returns their version. Raises `NewerSchema`."""
    name = sql.Identifier(schema)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        known = connection.execute("SELECT to_regclass(%s)::text", [f'"{schema}".version']).fetchone()
        if known is None or known[0] is None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            connection.execute("CREATE TABLE version (number int NOT NULL)")
            connection.execute("INSERT INTO version VALUES (0)")
        row = connection.execute("SELECT number FROM version").fetchone()
        found: int = row[0] if row is not None else 0
        if found > len(MIGRATIONS):
            raise NewerSchema(f"the tables in {schema!r} have version {found}; this version knows {len(MIGRATIONS)}")
        for migration in MIGRATIONS[found:]:
            connection.execute(cast("LiteralString", migration))
        if found < len(MIGRATIONS):
            connection.execute("UPDATE version SET number = %s", [len(MIGRATIONS)])
    return len(MIGRATIONS)


def _why(error: BaseException) -> str:
    """The first line of what went wrong: no addresses with passwords stand in it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _after(prefix: str) -> str | None:
    """The first text that sorts behind all that begin with a prefix."""
    last = ord(prefix[-1])
    return None if last in {0xD7FF, 0x10FFFF} else prefix[:-1] + chr(last + 1)
