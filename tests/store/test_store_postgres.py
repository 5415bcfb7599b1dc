"""The store in PostgreSQL where things go wrong: answers lost, servers killed, writers frozen, tables of another version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from store.cutting_proxy import proxy
from store.pg_server import Server

from pod.store.owners import new_owner
from pod.store.port import Entry, Fenced, Held, Lease, SessionStore, Unreachable

psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")

from pod.store.postgres import MIGRATIONS, NewerSchema, PostgresStore, migrate  # noqa: E402


@pytest.fixture
def store(database: str) -> Iterator[PostgresStore]:
    made = PostgresStore(database)
    yield made
    made.close()


def _begun(store: SessionStore, session: str = "a") -> Lease:
    store.create(session)
    return store.acquire(session, new_owner())


CHANGES: dict[str, Callable[[SessionStore, Lease], object]] = {
    "append": lambda store, lease: store.append(lease, "log", 2, [b"two", b"three"]),
    "rewrite": lambda store, lease: store.rewrite(lease, "log", [b"one", b"two", b"three"]),
    "put": lambda store, lease: store.put(lease, "file", b"data"),
    "drop": lambda store, lease: store.drop(lease, "log"),
    "post": lambda store, lease: store.post(lease.session, "c", b"body"),
    "take": lambda store, lease: store.take(lease.session, "before"),
    "set_state": lambda store, lease: store.set_state(lease.session, "done", expect="") or pytest.fail("it was set"),
    "beat": lambda store, lease: store.beat(lease),
    "acquire": lambda store, lease: store.acquire(lease.session, lease.owner),
    "release": lambda store, lease: store.release(lease),
}


def _held(store: SessionStore) -> tuple[object, ...]:
    logs, files = store.logs("a"), store.files("a")
    return (
        [(log.name, [*store.load("a", log.name)]) for log in logs],
        [(file.name, store.get("a", file.name)) for file in files],
        [(each.id, each.body) for each in store.posted("a")],
        store.head("a").state,
        store.head("a").owner,
    )


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_whose_answer_was_lost_happens_once(change: str, postgres: Server, database: str) -> None:
    def run(store: SessionStore, cut: Callable[[], None]) -> tuple[object, ...]:
        store.create("a")
        lease = store.acquire("a", "the owner")
        store.append(lease, "log", 1, [b"one"])
        store.post("a", "before", b"")
        cut()
        CHANGES[change](store, lease)
        return _held(store)

    with proxy(postgres.port) as relay:
        through = PostgresStore(database.replace(f":{postgres.port}/", f":{relay.port}/"), size=1)
        try:
            cut = run(through, relay.lose_next)
        finally:
            through.close()
        assert relay.lost == 1
    plain = PostgresStore(database, schema="other")
    try:
        assert cut == run(plain, lambda: None)
    finally:
        plain.close()


def test_a_server_that_is_killed_loses_nothing_acknowledged_and_is_waited_for(
    postgres: Server, store: PostgresStore
) -> None:
    lease, count, reached = _begun(store), 300, threading.Event()

    def write() -> None:
        for n in range(1, count + 1):
            store.append(lease, "log", n, [b"%d" % n])
            if n == 50:
                reached.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert reached.wait(30)
    postgres.restart()
    writer.join(60)
    assert [*store.load("a", "log")] == [Entry(n, b"%d" % n) for n in range(1, count + 1)]


def test_an_owner_without_a_sign_of_life_is_taken_over_by_the_databases_clock(
    store: PostgresStore, database: str
) -> None:
    old, other = _begun(store), PostgresStore(database)
    try:
        with pytest.raises(Held) as held:
            other.acquire("a", "other")
        assert (held.value.owner, held.value.epoch) == (old.owner, old.epoch)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE pod.session SET beat = beat - interval '29 seconds'")
        with pytest.raises(Held):
            other.acquire("a", "other")
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE pod.session SET beat = beat - interval '2 seconds'")
        new = other.acquire("a", "other")
        with pytest.raises(Fenced, match="other took the session 'a' over"):
            store.append(old, "log", 1, [b"zombie"])
        other.append(new, "log", 1, [b"new"])
        assert [*store.load("a", "log")] == [Entry(1, b"new")]
    finally:
        other.close()


def test_a_sign_of_life_keeps_the_lease(store: PostgresStore, database: str) -> None:
    lease = _begun(store)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE pod.session SET beat = beat - interval '1 hour'")
    store.beat(lease)
    with pytest.raises(Held):
        store.acquire("a", "other")


def test_many_that_begin_at_once_make_the_tables_once(database: str) -> None:
    stores = [PostgresStore(database, size=1) for _ in range(6)]
    errors: list[BaseException] = []

    def begin(store: PostgresStore, n: int) -> None:
        try:
            store.create(f"s{n}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(store, n)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert [info.id for info in stores[0].list()] == [f"s{n}" for n in range(6)]
    for store in stores:
        store.close()


def test_tables_of_a_newer_version_are_refused_and_left_alone(database: str, store: PostgresStore) -> None:
    _begun(store)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE pod.version SET number = number + 1")
    with pytest.raises(NewerSchema, match=f"version {len(MIGRATIONS) + 1}; this version knows {len(MIGRATIONS)}"):
        PostgresStore(database).create("b")
    assert [info.id for info in store.list()] == ["a"]


def test_a_migration_that_fails_leaves_the_tables_as_they_were(
    database: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(store)
    monkeypatch.setattr("pod.store.postgres.MIGRATIONS", (*MIGRATIONS, "DROP TABLE command; SELECT 1 / 0"))
    options = "-c search_path=pod"
    with psycopg.connect(database, options=options) as connection, pytest.raises(psycopg.errors.DivisionByZero):
        migrate(connection, "pod")
    monkeypatch.undo()
    assert store.post("a", "c", b"")
    with psycopg.connect(database, options=options) as connection:
        assert migrate(connection, "pod") == len(MIGRATIONS)


def test_a_server_that_is_not_there_is_said_at_once_without_the_password() -> None:
    store = PostgresStore("postgresql://me:hunter2@127.0.0.1:1/db")
    with pytest.raises(Unreachable) as raised:
        store.list()
    assert "postgresql://127.0.0.1:1/db can't be reached" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_what_is_no_url_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a URL"):
        PostgresStore("postgresql://[")


def test_statements_have_a_time_limit(store: PostgresStore) -> None:
    store.create("a")
    rows = store._rows("SELECT current_setting('statement_timeout'), current_setting('search_path')")
    assert rows == [("30s", "pod")]


def test_listings_and_lengths_of_logs_go_through_an_index(store: PostgresStore, database: str) -> None:
    lease = _begun(store)
    store.append(lease, "a", 1, [b"x"] * 3000)
    store.append(lease, "b", 1, [b"y"] * 3000)
    with psycopg.connect(database, options="-c search_path=pod") as connection:
        connection.execute("INSERT INTO session (id, state) SELECT 's' || n, 'done' FROM generate_series(1, 3000) n")
        connection.execute("ANALYZE")
        for where in ("id > 's5' AND id >= 's5'", "state = 'parked'"):
            plan = connection.execute(f"EXPLAIN SELECT id FROM session WHERE {where} ORDER BY id LIMIT 5").fetchall()
            assert "Index" in str(plan) and "Seq Scan" not in str(plan)
    assert store.logs("a") == [("a", 3000, 3000), ("b", 3000, 3000)]
