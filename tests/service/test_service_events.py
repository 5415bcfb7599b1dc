"""Events through HTTP: each once, from where a reader left off, through drops, stalls and restarts."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest
from service.service_rig import TOKEN, Rig, answering

from pod.bus import BUFFER
from pod.events import ToolCompleted
from pod.operations import clear, rewind
from pod.service import feed, sse
from pod.tail import Tail
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio


def stepping(total: int) -> Any:
    """A model that calls `step` so often, then ends."""

    def play(request: Request) -> Step:
        done = sum(isinstance(item, ToolResultItem) for item in request.items)
        return say("done") if done >= total else call("step")

    return answering(play)


@tool
async def step() -> str:
    """One step."""
    await anyio.sleep(0.005)
    return "stepped"


async def test_b154_a_reader_that_leaves_takes_nothing_from_the_run_or_from_another_one(rig: Rig) -> None:
    """B154: it comes back while the run is under way, and after its end, and misses nothing."""
    async with rig.up(model=stepping(30), tools=[step]) as up:
        await up.make()
        async with up.events("p") as second:
            async with up.events("p") as first:
                await first.next()
                _, left_at = (await first.next()) or (0, {})
            async with up.events("p", last_event_id=str(left_at["seq"])) as back:
                came_back = await back.until("run.ended")
            whole = await second.until("run.ended")
        told = [number for number in rig.told() if number <= whole[-1]]
        assert whole == told and came_back == [number for number in told if number > left_at["seq"]]
        async with up.events("p", last_event_id=str(left_at["seq"])) as late:
            assert await late.until("run.ended") == came_back


async def test_b155_a_reader_goes_on_behind_the_event_that_it_names_after_a_restart_too(rig: Rig) -> None:
    """B155: exactly what comes after it, once; the numbers go on from the log."""
    async with rig.up(model=stepping(5), tools=[step]) as up:
        await up.make()
        async with up.events("p") as stream:
            first = await stream.until("run.ended")
    async with rig.up(model=stepping(10), tools=[step]) as up:
        async with up.events("p", last_event_id=str(first[2])) as stream:
            assert (await stream.until("run.ended"))[: len(first) - 3] == first[3:]
            await up.post("/v1/pods/p/messages", {"text": "on"})
            stream.seen.clear()
            more = await stream.until("run.ended")
        assert more[0] > first[-1] and more == sorted(set(more))
        assert more == [number for number in rig.told() if first[-1] < number <= more[-1]]


async def test_b155_a_reader_of_an_idle_pod_is_told_that_nothing_happened(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B155: by a comment."""
    monkeypatch.setattr(feed.Reader.next, "__defaults__", (0.05,))
    async with rig.up() as up:
        await up.make(task=None)
        async with up.client.stream("GET", "/v1/pods/p/events", headers={"accept": "text/event-stream"}) as answer:
            with anyio.fail_after(20):
                async for line in answer.aiter_lines():
                    if line.startswith(":"):
                        break


@pytest.mark.parametrize("given", ["x", "-1", "1" * 16, "1.5", "٣"])
async def test_a_number_that_is_none_is_refused(rig: Rig, given: str) -> None:
    async with rig.up() as up:
        await up.make(task=None)
        headers = {"accept": "text/event-stream", "last-event-id": given.encode()}
        assert (await up.get("/v1/pods/p/events", headers=headers)).status_code == 422


async def test_pages_give_the_same_events_and_wait_for_the_next(rig: Rig) -> None:
    async with rig.up(model=stepping(4), tools=[step]) as up:
        await up.make()
        await up.until("p", "finished")
        seen: list[int] = []
        after = 0
        while True:
            page = (await up.get("/v1/pods/p/events", params={"after": after, "limit": 3})).json()
            assert len(page["events"]) <= 3
            if not page["events"]:
                break
            seen += [event["seq"] for event in page["events"]]
            after = page["last"]
        assert seen == rig.told()
        async with anyio.create_task_group() as group:
            found: list[Any] = []

            async def wait() -> None:
                answer = await up.get("/v1/pods/p/events", params={"after": after, "wait": 20})
                found.extend(answer.json()["events"])

            group.start_soon(wait)
            await up.post("/v1/pods/p/messages", {"text": "more"})
        assert found and found[0]["seq"] > after


async def test_a_reader_that_lags_reads_on_from_the_log_and_misses_nothing(rig: Rig) -> None:
    """More events than a reader is kept for: what it was not given stands in the log."""
    async with rig.up(model=stepping(3), tools=[step]) as up:
        await up.make()
        await up.until("p", "finished")
        care = up.service.care
        with care.reader(rig.folder(), 0) as reader:
            first = await reader.next()
            assert first is not None
            channel = reader.channel
            for number in range(BUFFER + 10):
                channel.bus.publish(
                    ToolCompleted(call_id="c", name="n", status="ok", summary="", seconds=0.0, seq=10_000 + number)
                )
            assert channel.bus.subscriptions[0].lagging_from is not None
            numbers = [first.seq]
            with anyio.move_on_after(2):
                while (event := await reader.next(0.2)) is not None:
                    numbers.append(event.seq)
        assert numbers == rig.told()


async def test_a_reader_that_takes_nothing_is_dropped_and_comes_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends; the run and the others never wait for it."""
    monkeypatch.setattr(sse.EventStream.__init__, "__kwdefaults__", {"stalled": 0.3})
    big = "x" * 880_000

    async with rig.up(0.3) as up:
        port = int(up.url.rpartition(":")[2])
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await anyio.to_thread.run_sync(stalled.connect, ("127.0.0.1", port))
        await up.make(task=None)
        head = f"GET /v1/pods/p/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        await anyio.to_thread.run_sync(stalled.sendall, head.encode())
        with anyio.fail_after(20):
            while up.service._readers.total() == 0:
                await anyio.sleep(0.02)
        for _ in range(8):
            await up.post("/v1/pods/p/messages", {"text": big})
        with anyio.fail_after(30):
            while up.service._readers.total():
                await anyio.sleep(0.05)
        stalled.close()
        await up.until("p", "finished", "failed", "limit")


async def test_text_is_passed_on_while_it_comes_and_has_no_number(rig: Rig) -> None:
    @tool
    async def wait() -> str:
        """Waits."""
        return "ok"

    def play(request: Request) -> Step:
        done = any(isinstance(item, ToolResultItem) for item in request.items)
        return say("it is done") if done else call("wait")

    async with rig.up(model=answering(play), tools=[wait]) as up:
        await up.make(task=None)
        async with up.events("p") as stream:
            await stream.next()
            await up.post("/v1/pods/p/messages", {"text": "go"})
            await stream.until("run.ended")
        passing = [event for number, event in stream.seen if number is None]
        assert "".join(event["text"] for event in passing if event["type"] == "text.delta") == "it is done"
        assert stream.numbers == sorted(set(stream.numbers))


async def test_a_tail_reads_each_entry_once_through_new_segments_and_points_gone_back_to(rig: Rig) -> None:
    async with rig.up(model=stepping(3), tools=[step]) as up:
        await up.make()
        await up.until("p", "finished")
        folder = rig.folder()
        tail = Tail(folder)
        seen = [line.seq for line in tail.read(4)]
        assert seen == [1, 2, 3, 4]
        while lines := tail.read():
            seen += [line.seq for line in lines]
        last = seen[-1]
        await rewind(rig.home, "p", last - 6)
        seen += [line.seq for line in tail.read()]
        assert seen == sorted(set(seen)) and seen[-1] > last
        await up.post("/v1/pods/p/messages", {"text": "on"})
        await up.until("p", "finished")
        while lines := tail.read():
            seen += [line.seq for line in lines]
        await clear(rig.home, "p")
        while lines := tail.read():
            seen += [line.seq for line in lines]
        assert seen == sorted(set(seen)) and not tail.read()
        fresh = Tail(folder)
        kept = [line.seq for line in fresh.read()]
        assert kept and kept[0] > last


async def test_a_removed_pod_ends_its_readers(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make(task=None)
        async with up.events("p") as stream:
            await stream.next()
            from pod.removing import remove

            remove(rig.home, "p")
            with anyio.fail_after(20):
                while await stream.next() is not None:
                    pass
        assert (await up.get("/v1/pods/p")).status_code == 404


async def test_a_stream_ends_where_another_pod_takes_the_name_and_its_numbers_are_no_others(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make()
        await up.until("p", "finished")
        assert (await up.post("/v1/pods/p/messages", {"text": "more"})).is_success
        async with up.events("p") as stream:
            await stream.until("run.ended")
            last = (await stream.until("run.ended"))[-1]
            with anyio.fail_after(20):
                while not (await up.client.delete("/v1/pods/p")).is_success:
                    await anyio.sleep(0.01)  # its run is being put away
            await up.make()
            await up.until("p", "finished")
            assert await stream.next() is None  # none of the new one's
        stale = {"accept": "text/event-stream", "last-event-id": str(last)}
        for answer in (
            await up.get("/v1/pods/p/events", headers=stale),
            await up.get("/v1/pods/p/events", params={"after": last}),
        ):
            assert answer.status_code == 409 and answer.json()["error"] == "another_pod", answer.text
        async with up.events("p", last_event_id=str(rig.told()[-1])) as stream:
            assert (await up.post("/v1/pods/p/messages", {"text": "more"})).is_success
            await stream.until("run.ended")
        assert stream.numbers[0] > rig.told()[0]
