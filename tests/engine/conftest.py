"""A PostgreSQL server for the tests of engines, and databases in which the tables are made already."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from store.conftest import database as database
from store.conftest import postgres as postgres
from store.pg_server import Server


@pytest.fixture(scope="session")
def made_database(postgres: Server) -> str:
    """The name of a database with the tables of pods and of the engine, from which others are copied."""
    import psycopg

    from pod.engine.dbos_engine import DbosEngine
    from pod.engine.places import HomeDatabase
    from pod.store.postgres import PostgresStore

    name = f"made{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    store = PostgresStore(postgres.url(name))
    store.list(limit=1)
    store.close()

    async def make() -> None:
        async with DbosEngine(HomeDatabase(postgres.url(name))):
            pass

    with ThreadPoolExecutor(1) as pool:  # this thread may have a loop of a test's
        pool.submit(anyio.run, make).result()
    return name


@pytest.fixture
def new_database(postgres: Server, made_database: str) -> Iterator[Callable[[], str]]:
    """Makes databases; gives the URL of each."""
    import psycopg

    names: list[str] = []

    def make() -> str:
        names.append(f"e{uuid.uuid4().hex[:12]}")
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {names[-1]} TEMPLATE {made_database}")
        return postgres.url(names[-1])

    yield make
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
