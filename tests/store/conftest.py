"""One private PostgreSQL for all tests of the store, and a database for each that asks for one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from store.pg_server import Server, programs, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running server. Without PostgreSQL the tests that need it say that they were left out."""
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL is not installed: its tests are left out")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")
    with server(where) as running:
        yield running


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The URL of an empty database."""
    import psycopg
    from psycopg import sql

    name = sql.Identifier(f"t{uuid.uuid4().hex[:12]}")
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    yield postgres.url(name.as_string().strip('"'))
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="module")
def shared_database(postgres: Server) -> Iterator[str]:
    """The URL of a database for all tests of a module."""
    import psycopg

    name = f"m{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres.url(name)
