"""A home in PostgreSQL while its database is away, and what looking at many pods costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from log.logs import create, reopen, say, started

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")

from engine.fleet import Relay
from store.home_rig import machine

from pod import StoreError
from pod.log.folder import PodFolder, pod_names
from pod.log.inbox import Command, post
from pod.peek import glances
from pod.session import write_segment
from pod.store.port import Fenced
from pod.store.postgres import PostgresStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    made = Relay(int(re.findall(r":(\d+)/", database)[0]))
    yield made
    made.close()


@pytest.fixture
def here(database: str, relay: Relay, tmp_path: Path) -> Iterator[Path]:
    """A copy whose way to the database can be cut."""
    with machine(re.sub(r":\d+/", f":{relay.port}/", database), tmp_path / "here") as home:
        yield home
        relay.mend()


@pytest.fixture
def there(database: str, tmp_path: Path) -> Iterator[Path]:
    with machine(database, tmp_path / "there") as home:
        yield home


async def thread(call: Callable[..., Any], *args: Any) -> Any:
    return await anyio.to_thread.run_sync(lambda: call(*args))


async def test_an_event_loop_never_waits_for_a_database_that_is_away(here: Path, there: Path, relay: Relay) -> None:
    session = await thread(create, here)
    folder, other = session.folder, PodFolder(there, "a")
    await thread(post, other, Command(id="cmd", kind="send", args={"text": "hello"}))
    with anyio.fail_after(10):
        while not (folder.inbox / "cmd.json").exists():
            await anyio.sleep(0.02)
    gaps, synced = [0.0], anyio.Event()

    async def tick() -> None:
        while not synced.is_set():
            before = anyio.current_time()
            await anyio.sleep(0.01)
            gaps.append(anyio.current_time() - before)

    async def sync() -> None:
        await session.sync()
        synced.set()

    relay.cut()
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        say(session, "said while it was away")
        group.start_soon(sync)
        await anyio.sleep(0.1)  # the sync waits for the database in its thread
        start = started(session)
        label = folder.put_blob("a text of a new segment" * 1000)
        write_segment(folder, start, session.writer.next_seq)
        folder.set_pointer(session.pointer.model_copy(update={"segment": start.segment}))
        folder.files.unlink(folder.inbox / "cmd.json")
        folder.expire_cursors()
        with anyio.fail_after(10):
            while len(gaps) < 50:
                await anyio.sleep(0.02)
        assert not synced.is_set() and folder.pointer().segment == start.segment and folder.holds(label)
        relay.mend()
    assert max(gaps) < 1.0
    await session.sync()
    await thread(session.close)
    assert (await thread(other.pointer)).segment == start.segment
    assert await thread(other.holds, label) and not list(other.inbox.glob("*.json"))
    again = await thread(reopen, there)
    await thread(again.close)


async def test_what_a_loop_put_is_sent_in_order_and_nothing_of_it_where_the_pod_was_taken_over(
    here: Path, there: Path, database: str
) -> None:
    session = await thread(create, here)
    lapsed = PostgresStore(database, ttl=0.0)
    await thread(lapsed.acquire, "a", "another")
    label = session.folder.put_blob("too late")
    session.folder.set_pointer(session.pointer.model_copy(update={"generation": 99}))
    with pytest.raises(StoreError) as raised:
        say(session, "too late too")
        await session.sync()
    assert isinstance(raised.value.cause, Fenced)
    other = PodFolder(there, "a")
    assert (await thread(other.pointer)).generation != 99 and not await thread(other.holds, label)
    await thread(session.close)
    lapsed.close()


async def test_what_nobody_syncs_is_sent_all_the_same(here: Path, there: Path) -> None:
    session = await thread(create, here)
    label = session.folder.put_blob("a text")
    other = PodFolder(there, "a")
    with anyio.fail_after(10):
        while await thread(other.pointer) and not await thread(other.holds, label):
            await anyio.sleep(0.05)
    await thread(session.close)


def test_what_a_process_left_takes_no_room_and_comes_again_when_it_is_looked_at(here: Path) -> None:
    session = create(here)
    label = session.folder.put_blob("a text " * 1000)
    (session.folder.artifacts).mkdir()
    (session.folder.artifacts / "x.txt").write_text("an artifact")
    folder = session.folder
    folder.files.leave(folder.path)
    assert folder.holds(label), "the writer's own copy stays"
    session.close()
    folder.files.leave(folder.path)
    assert [path.name for path in folder.path.rglob("*") if path.is_file()] == ["lock"]
    again = reopen(here)
    assert again.folder.holds(label) and (again.folder.artifacts / "x.txt").read_text() == "an artifact"
    again.close()


def test_many_pods_are_listed_with_a_few_questions(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        session = create(here, f"many/p{n:02}")
        say(session, f"message {n}")
        session.close()
    asked: list[object] = []
    patiently = PostgresStore.patiently

    def counted(self: PostgresStore, step: Any) -> Any:
        asked.append(step)
        return patiently(self, step)

    monkeypatch.setattr(PostgresStore, "patiently", counted)
    found = list(glances(there))
    assert [look.name for look in found] == [f"many/p{n:02}" for n in range(30)]
    assert {look.problem for look in found} == {""} and all(look.size > 0 for look in found)
    assert len(asked) < 20, "about one for each pod would be thirty"
    del asked[:]
    assert len(list(pod_names(there))) == 30 and len(asked) < 20
