"""What the engine keeps of its own reads and writes alike in SQLite and in PostgreSQL."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from pod.engine import tables
from pod.engine.bounding import bounds, put_bounds
from pod.engine.firing import Firing
from pod.engine.limits import Limits
from pod.engine.orders import Orders
from pod.engine.places import SqliteFile
from pod.engine.schedules import Schedule, changed
from pod.engine.tables import QueueRow, QueueTable, StoredSchedules
from tests.store.pg_server import programs, server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL is not installed: its tests are left out")
    with server(where) as running:
        yield running.url().replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        engine = SqliteFile(tmp_path / "engine.sqlite").connect()
    else:
        engine = sa.create_engine(request.getfixturevalue("postgres"))
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE IF EXISTS pod_schedule, pod_queue"))
    yield engine
    engine.dispose()


def made(database: sa.Engine) -> sa.Engine:
    """The database with its tables, which several processes make at once."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tables.make(database), range(4)))
    return database


async def blocking(function: Callable[..., Any], *args: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(function, *args))


async def test_schedules_are_kept_as_they_are_and_one_of_two_changes_is_heard(
    database: sa.Engine, tmp_path: Path
) -> None:
    schedules = StoredSchedules(made(database), blocking)
    first = Schedule(
        name="a/b", cron="@daily", queue="q", task="Ünïcode \U0001f600 \u2028 'quoted'", manifest="m", base="/", cwd="/"
    )
    assert await schedules.put(first) and not await schedules.put(first)
    now, kept, unread = await schedules.read()
    assert kept == [first] and not unread and abs(now - time.time()) < 5
    heard: list[bool] = []

    async def change(n: int) -> None:
        heard.append(await schedules.put(changed(first, task=f"task {n}")))

    async with anyio.create_task_group() as group:
        for n in range(6):
            group.start_soon(change, n)
    assert sorted(heard) == [False] * 5 + [True]
    assert await schedules.remove("a/b") and not await schedules.remove("a/b")


@pytest.mark.parametrize(
    "row", ["no JSON", '{"name": "later"}', None], ids=["no JSON", "parts missing", "a later version's"]
)
async def test_a_schedule_that_does_not_read_is_named_and_the_others_are_read(
    database: sa.Engine, tmp_path: Path, row: str | None
) -> None:
    schedules = StoredSchedules(made(database), blocking)
    good = Schedule(
        name="good", cron="@daily", queue="q", task="t", manifest="m", base="/", cwd="/", decided=time.time()
    )
    for each in (good, good.model_copy(update={"name": "later"})):
        assert await schedules.put(each)
    row = row or json.dumps({**good.model_dump(mode="json"), "name": "later", "format": 2})
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE pod_schedule SET schedule = :row WHERE name = 'later'"), {"row": row})
    found = await schedules.read()
    assert (found.schedules, list(found.unread)) == ([good], ["later"])
    told: list[str] = []
    firing = Firing(cast("Any", SimpleNamespace(schedules=schedules)), Orders(tmp_path), {"q"}, told.append)
    for _ in range(2):
        assert await firing.once() > 0
    assert told == [f"schedule later can't be read: {found.unread['later']}; the others go on"]
    assert await schedules.remove("later") and not (await schedules.read()).unread


BOUNDED = [Limits(together=1), Limits(each_partition=1), Limits(starts=1, per=60.0)]


@pytest.mark.parametrize("limits", BOUNDED, ids=Limits.words)
async def test_two_nodes_that_look_at_once_keep_to_a_limit_also_where_a_more_urgent_one_comes_between(
    database: sa.Engine, limits: Limits
) -> None:
    """By itself the library takes both: each look counts before the other writes, and neither writes what the other does."""
    assert len(await anyio.to_thread.run_sync(_look_twice, database, limits)) == 1


def _look_twice(database: sa.Engine, limits: Limits) -> list[str]:
    """What two looks take; the second one, and the submission before it, fall between what the first one reads and writes."""
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

    kind, schema = database.dialect.name, f"s{uuid.uuid4().hex[:12]}"
    DBOS.migrate(database.url.render_as_string(hide_password=False), schema=schema)
    client = DBOSClient(
        system_database_engine=database, serializer=DBOSPortableJSONSerializer(), dbos_system_schema=schema
    )
    rows = client._sys_db  # pyright: ignore[reportPrivateUsage]
    client.register_queue("q", **bounds(QueueRow(limits, 1), kind))
    queue = client.retrieve_queue("q")
    assert queue is not None
    key = "" if queue._has_partition_limits() else None  # pyright: ignore[reportPrivateUsage]  (as the library's own thread does)
    at_its_write, go_on = threading.Event(), threading.Event()
    taken: list[str] = []

    def submit(id_: str, priority: int) -> None:
        client.enqueue(
            {"workflow_name": "w", "queue_name": "q", "workflow_id": id_, "app_version": "v", "priority": priority, "queue_partition_key": ""},
            "",
        )  # fmt: skip

    def look(node: str) -> None:
        try:
            taken.extend(rows.start_queued_workflows(queue, node, "v", key, owner_xid=node, is_latest_version=True)[0])
        except DBAPIError as error:
            assert rows.is_serialization_conflict(error)

    def then() -> None:
        submit("urgent", 1)
        look("two")

    def hold(_: object, __: object, statement: str, *___: object) -> None:
        if threading.current_thread() is first and statement.startswith("UPDATE"):
            at_its_write.set()
            go_on.wait(20)

    first, second = threading.Thread(target=look, args=("one",)), threading.Thread(target=then)
    sa.event.listen(database, "before_cursor_execute", hold)
    submit("later", 100)
    try:
        first.start()
        assert at_its_write.wait(20)
        second.start()
        second.join(0.5)  # in SQLite it waits for the first one, as it should
    finally:
        go_on.set()
        first.join()
        second.join()
        client.destroy()
    return taken


async def test_limits_and_what_nodes_say_are_kept_beside_each_other(database: sa.Engine) -> None:
    queues = QueueTable(made(database))
    queues.limit("q", Limits(together=3))
    assert queues.rows() == {"q": QueueRow(Limits(together=3))}
    queues.served("q", 8, 0.5)
    queues.limit("q", Limits(starts=2, per=1.5))
    queues.served("other", 4, 0.2)
    assert queues.rows() == {
        "other": QueueRow(Limits(), 4, 0.2),
        "q": QueueRow(Limits(starts=2, per=1.5), 8, 0.5),
    }


async def test_where_two_change_a_queue_at_once_its_row_says_the_newest_in_the_end(database: sa.Engine) -> None:
    """The second change comes between the first one's look and its write."""
    queues, row = QueueTable(made(database)), dict[str, Any]()
    queues.served("q", 8, 0.2)
    written: list[int | None] = []

    def register(name: str, **values: Any) -> None:
        if not written:
            queues.limit("q", Limits(together=2))  # another one, who then writes before this one does
        written.append(values["global_concurrency"])
        row.update(values)

    queues.limit("q", Limits(together=5))
    put_bounds(register, queues, "q")
    assert written == [5, 2] and row["global_concurrency"] == 2
