"""What every session store must do, as a suite for a store of your own.

    from pod.testing.store_conformance import StoreConformance

    class TestMine(StoreConformance):
        def make(self, tmp_path):
            return MyStore(tmp_path)

Run it with pytest and anyio's plugin; an `anyio_backend` fixture chooses the backends. Each test makes a store of its own, or
takes session ids of its own, and closes what it made.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from pod.store.owners import new_owner
from pod.store.port import PAGE, Conflict, Entry, Fenced, Held, Lease, NoSession, SessionExists, SessionStore
from pod.store.threaded import Threaded

ODD = (
    b"",
    b"\0",
    b'{"text":"\\u0000"}',
    "\ud800 alone".encode(errors="surrogatepass"),
    b'{"text":"\\ud800"}',
    b'{"b":1e2, "a":1}\n\r\n',
    bytes(range(256)) * 9,
)
"""Bytes that some stores reject or rewrite."""


def _id(stem: str = "s") -> str:
    return f"{stem}-{uuid.uuid4().hex[:12]}"


class StoreConformance:
    """Subclass it as `Test...` and define `make`."""

    pytestmark = pytest.mark.anyio

    def make(self, tmp_path: Path) -> SessionStore:
        """A store, new or with other sessions in it."""
        raise NotImplementedError

    @asynccontextmanager
    async def session(self, tmp_path: Path) -> AsyncGenerator[tuple[Threaded, Lease]]:
        """A new session and its lease; the store is closed at the end."""
        call = Threaded(self.make(tmp_path))
        try:
            label = _id()
            await call(call.store.create, label)
            yield call, await call(call.store.acquire, label, new_owner())
        finally:
            await call(call.store.close)

    async def read(self, call: Threaded, session: str, log: str = "log", first: int = 1) -> list[tuple[int, bytes]]:
        """The entries of a log from a number on."""
        return [(entry.seq, entry.body) async for entry in call.load(session, log, first)]

    # -- logs -------------------------------------------------------------------------------------------------

    async def test_what_is_appended_is_read_byte_for_byte_whatever_it_is(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            await call(call.store.append, lease, "log", 1, ODD)
            assert await self.read(call, lease.session) == [*enumerate(ODD, 1)]
            (log,) = await call(call.store.logs, lease.session)
            assert log == ("log", len(ODD), sum(map(len, ODD)))

    async def test_an_append_that_is_not_the_next_one_is_refused_whole(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            await call(call.store.append, lease, "log", 1, [b"a", b"b"])
            attempts: Sequence[tuple[int, list[bytes]]] = [(4, [b"x"]), (2, [b"x", b"y"]), (1, [b"x"]), (0, [b"x"])]
            for first, bodies in attempts:
                with pytest.raises(Conflict):
                    await call(call.store.append, lease, "log", first, bodies)
            assert await self.read(call, lease.session) == [(1, b"a"), (2, b"b")]

    async def test_the_same_append_once_more_does_nothing(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            for _ in range(3):
                await call(call.store.append, lease, "log", 1, [b"a", b"b"])
            for _ in range(2):
                await call(call.store.append, lease, "log", 3, [b"c"])
            assert await self.read(call, lease.session) == [(1, b"a"), (2, b"b"), (3, b"c")]

    async def test_logs_of_a_session_are_numbered_each_by_itself(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            await call(call.store.append, lease, "a/b.jsonl", 1, [b"1"])
            await call(call.store.append, lease, ".a", 1, [b"2", b"3"])
            await call(call.store.append, lease, "a/b.jsonl", 2, [])
            assert await call(call.store.logs, lease.session) == [(".a", 2, 2), ("a/b.jsonl", 1, 1)]
            assert await self.read(call, lease.session, "nothing") == []

    async def test_a_long_log_is_read_in_pages_from_any_entry(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            bodies = [b"%d" % n for n in range(2 * PAGE + 1)]
            await call(call.store.append, lease, "log", 1, bodies)
            whole = [*enumerate(bodies, 1)]
            for first in (1, 2, PAGE, PAGE + 1, 2 * PAGE + 1, 2 * PAGE + 2):
                assert await self.read(call, lease.session, first=first) == whole[first - 1 :]

    async def test_a_log_that_is_made_anew_goes_on_from_its_new_end(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            await call(call.store.append, lease, "log", 1, [b"a", b"b", b"c"])
            await call(call.store.rewrite, lease, "log", [b"A"])
            await call(call.store.append, lease, "log", 2, [b"B"])
            assert await self.read(call, lease.session) == [(1, b"A"), (2, b"B")]
            await call(call.store.rewrite, lease, "log", [])
            assert await call(call.store.logs, lease.session) == []

    # -- one writer -------------------------------------------------------------------------------------------

    async def test_a_lease_that_was_taken_over_writes_nothing_more(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, old):
            store = call.store
            await call(store.append, old, "log", 1, [b"old"])
            with pytest.raises(Held) as held:
                await call(store.acquire, old.session, new_owner())
            assert (held.value.owner, held.value.epoch) == (old.owner, old.epoch)
            new = await call(store.acquire, old.session, new_owner(), over=old.epoch)
            assert new.epoch > old.epoch
            for write in (
                lambda: store.append(old, "log", 2, [b"zombie"]),
                lambda: store.append(old, "log", 1, [b"old"]),
                lambda: store.rewrite(old, "log", []),
                lambda: store.put(old, "file", b"zombie"),
                lambda: store.drop(old, "log"),
                lambda: store.remove(old),
                lambda: store.beat(old),
            ):
                with pytest.raises(Fenced) as fenced:
                    await call(write)
                assert fenced.value.owner == new.owner and new.owner in str(fenced.value)
            await call(store.release, old)
            await call(store.append, new, "log", 2, [b"new"])
            assert await self.read(call, old.session) == [(1, b"old"), (2, b"new")]
            assert await call(store.files, old.session) == []

    async def test_a_lease_that_was_given_up_is_free_for_the_next_and_writes_nothing_more(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, old):
            await call(call.store.release, old)
            assert (await call(call.store.head, old.session)).owner == ""
            with pytest.raises(Fenced):
                await call(call.store.append, old, "log", 1, [b"late"])
            new = await call(call.store.acquire, old.session, new_owner())
            assert new.epoch > old.epoch
            assert (await call(call.store.head, old.session)).owner == new.owner

    async def test_the_same_owner_may_ask_again_for_what_it_holds(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            again = await call(call.store.acquire, lease.session, lease.owner)
            await call(call.store.append, again, "log", 1, [b"a"])

    async def test_two_writers_at_once_leave_one_gapless_log_and_the_new_one_misses_nothing(
        self, tmp_path: Path
    ) -> None:
        for start in range(6):
            async with self.session(tmp_path) as (call, old):
                store, acknowledged, seen = call.store, 0, list[tuple[int, bytes]]()
                far = anyio.Event()

                async def write(
                    store: SessionStore = store,
                    old: Lease = old,
                    call: Threaded = call,
                    start: int = start,
                    far: anyio.Event = far,
                ) -> None:
                    nonlocal acknowledged
                    with pytest.raises(Fenced):
                        for n in range(1, 20_000):
                            await call(store.append, old, "log", 2 * n - 1, [b"old", b"old"])
                            acknowledged = 2 * n
                            if n > start:
                                far.set()

                async with anyio.create_task_group() as group:
                    group.start_soon(write)
                    await far.wait()
                    new = await call(store.acquire, old.session, new_owner(), over=old.epoch)
                    seen = await self.read(call, old.session)
                    await call(store.append, new, "log", len(seen) + 1, [b"new"])
                assert len(seen) >= acknowledged and len(seen) % 2 == 0
                assert await self.read(call, old.session) == [*seen, (len(seen) + 1, b"new")]

    # -- sessions ---------------------------------------------------------------------------------------------

    async def test_a_session_is_made_once_and_what_is_not_there_is_said(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store, missing = call.store, _id("missing")
            with pytest.raises(SessionExists):
                await call(store.create, lease.session)
            await call(store.create, lease.session, exist_ok=True)
            assert (await call(store.head, lease.session)).epoch == lease.epoch
            for ask in (
                lambda: store.head(missing),
                lambda: store.acquire(missing, new_owner()),
                lambda: store.logs(missing),
                lambda: store.files(missing),
                lambda: store.get(missing, "file"),
                lambda: store.post(missing, "c", b""),
                lambda: store.posted(missing),
                lambda: store.set_state(missing, "done"),
            ):
                with pytest.raises(NoSession):
                    await call(ask)

    async def test_a_state_changes_only_from_the_one_that_was_expected(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store, label = call.store, lease.session
            assert await call(store.set_state, label, "running", expect="")
            assert not await call(store.set_state, label, "done", expect="parked")
            assert await call(store.set_state, label, "running", expect="parked")  # it is so already
            assert await call(store.set_state, label, "done")
            assert (await call(store.head, label)).state == "done"

    async def test_sessions_are_listed_in_order_by_prefix_state_and_page(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, _):
            store, stem = call.store, _id("batch")
            names = [f"{stem}/{n:03}" for n in range(7)]
            for name in (*reversed(names), f"{stem}0", f"{stem}_x"):
                await call(store.create, name)
            await call(store.set_state, names[3], "done")
            found = [info.id for info in await call(lambda: store.list(prefix=f"{stem}/"))]
            assert found == names
            page = await call(lambda: store.list(prefix=f"{stem}/", after=names[1], limit=2))
            assert [info.id for info in page] == names[2:4]
            done = await call(lambda: store.list(prefix=f"{stem}/", state="done"))
            assert [info.id for info in done] == [names[3]]

    async def test_a_removed_session_is_gone_with_all_that_it_held(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store = call.store
            await call(store.append, lease, "log", 1, [b"a"])
            await call(store.put, lease, "file", b"b")
            await call(store.post, lease.session, "c", b"c")
            await call(store.set_state, lease.session, "done")
            await call(store.remove, lease)
            with pytest.raises(NoSession):
                await call(store.head, lease.session)
            with pytest.raises(Fenced):
                await call(store.append, lease, "log", 2, [b"late"])
            await call(store.create, lease.session)
            new = await call(store.acquire, lease.session, new_owner())
            assert await self.read(call, lease.session) == []
            assert await call(store.files, new.session) == [] == await call(store.posted, new.session)
            assert (await call(store.head, new.session)).state == ""

    async def test_many_are_gathered_as_each_is_told_by_itself(self, tmp_path: Path) -> None:
        """A store of yours may make it out of `pod.store.port.gathered` and `all_entries`."""
        async with self.session(tmp_path) as (call, lease):
            store, other = call.store, _id()
            await call(store.create, other)
            await call(store.append, lease, "log", 1, [b"one", b"two"])
            await call(store.append, lease, "other log", 1, [b"three"])
            await call(store.put, lease, "small", b"abc")
            await call(store.put, lease, "large", b"x" * 100)
            await call(store.post, lease.session, "c1", b"hello")
            found = {each.info.id: each for each in await call(store.gather, [lease.session, _id(), other], 10)}
            assert set(found) == {lease.session, other}
            one, two = found[lease.session], found[other]
            assert list(one.logs) == await call(store.logs, lease.session)
            assert list(one.files) == await call(store.files, lease.session)
            assert list(one.posted) == await call(store.posted, lease.session)
            assert one.small == {"small": b"abc"} and one.info.owner == lease.owner
            assert (two.logs, two.files, two.posted, two.small) == ([], [], [], {})
            wanted = [(lease.session, "log"), (lease.session, "none"), (_id(), "log")]
            assert await call(store.contents, wanted) == {(lease.session, "log"): [Entry(1, b"one"), Entry(2, b"two")]}

    async def test_a_mark_changes_with_the_writer_and_with_each_command(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store, seen = call.store, list[object]()

            async def differs() -> None:
                marks = await call(store.marks, [lease.session, _id()])
                assert list(marks) == [lease.session] and marks[lease.session] not in seen
                assert await call(store.marks, [lease.session]) == marks
                seen.append(marks[lease.session])

            await differs()
            await call(store.post, lease.session, "c1", b"hello")
            await differs()
            await call(store.post, lease.session, "c2", b"hello")
            await differs()
            await call(store.take, lease.session, "c1")
            await differs()
            await call(store.release, lease)
            await differs()
            await call(store.acquire, lease.session, new_owner())
            await differs()

    # -- files and commands -----------------------------------------------------------------------------------

    async def test_files_are_kept_whole_under_any_name_and_replaced(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store, label = call.store, lease.session
            for n, data in enumerate(ODD):
                await call(store.put, lease, f"blobs/{n}", data)
                assert await call(store.get, label, f"blobs/{n}") == data
            await call(store.put, lease, ".hidden %/x", b"1")
            await call(store.put, lease, ".hidden %/x", b"22")
            assert (".hidden %/x", 0, 2) in await call(store.files, label)
            assert await call(store.get, label, "nothing") is None
            await call(store.drop, lease, ".hidden %/x")
            await call(store.drop, lease, ".hidden %/x")
            assert len(await call(store.files, label)) == len(ODD)

    async def test_a_dropped_log_is_gone_and_may_begin_again(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            await call(call.store.append, lease, "log", 1, [b"a", b"b"])
            await call(call.store.drop, lease, "log")
            assert await call(call.store.logs, lease.session) == []
            await call(call.store.append, lease, "log", 1, [b"c"])
            assert await self.read(call, lease.session) == [(1, b"c")]

    async def test_commands_come_in_the_order_of_their_arrival_each_id_once_until_taken(self, tmp_path: Path) -> None:
        async with self.session(tmp_path) as (call, lease):
            store, label = call.store, lease.session
            sent = [f"c{9 - n}" for n in range(5)]
            for name, data in zip(sent, ODD, strict=False):
                assert await call(store.post, label, name, data)
                assert not await call(store.post, label, name, b"other")
            found = await call(store.posted, label)
            assert [(each.id, each.body) for each in found] == [*zip(sent, ODD, strict=False)]
            later = await call(store.posted, label, found[1].number)
            assert [each.id for each in later] == sent[2:]
            assert await call(store.beat, lease) == found[-1].number
            for name in sent[:2]:
                await call(store.take, label, name)
                await call(store.take, label, name)
            assert [each.id for each in await call(store.posted, label)] == sent[2:]
