"""Limits on connections, streams, and what comes too slowly."""

from __future__ import annotations

import json
import resource
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from service.service_rig import TOKEN, WITH, Rig, Stream

from pod.cli.files import SPARE, open_files
from pod.errors import UsageProblem
from pod.service import Tokens, app, connections, door, serving
from pod.service.connections import Connections

pytestmark = pytest.mark.anyio
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[SocketStream]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield stream


async def answered(stream: SocketStream, data: bytes = ASK) -> tuple[int, dict[str, str], bytes]:
    """What comes for these bytes: status, headers, body."""
    with anyio.fail_after(20):
        await stream.send(data)
        got = b""
        while b"\r\n\r\n" not in got:
            got += await stream.receive()
        head, _, body = got.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += await stream.receive()
        return int(first.split()[1]), headers, body


async def until(true: Any) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.01)


async def test_one_connection_more_than_may_be_is_told_so_and_there_is_room_when_one_has_gone(rig: Rig) -> None:
    bound = Connections(3)
    async with rig.up(connections=bound) as up, AsyncExitStack() as stack:
        port = int(up.url.rpartition(":")[2])
        held = [await stack.enter_async_context(connected(port)) for _ in range(3)]
        await until(lambda: bound.open == 3)
        for _ in range(5):
            async with connected(port) as more:
                status, headers, body = await answered(more)
                assert status == 503 and headers["retry-after"] == "5" and headers["connection"] == "close"
                assert json.loads(body)["error"] == "too_many_connections"
                with anyio.fail_after(20), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await more.receive()
        for _ in range(3):
            for stream in held:  # those that are here are answered, as often as they ask
                assert (await answered(stream))[0] == 200
        await held[0].aclose()
        await until(lambda: bound.open == 2)
        assert (await up.get("/healthz")).status_code == 200
    assert bound.open == bound.refusing == 0


async def test_who_is_refused_and_says_nothing_is_closed_and_more_of_those_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REFUSING", 2)
    monkeypatch.setattr(connections, "MOMENT", 0.2)
    bound = Connections(1)
    async with rig.up(connections=bound) as up, AsyncExitStack() as stack:
        port = int(up.url.rpartition(":")[2])
        first = await stack.enter_async_context(connected(port))
        await until(lambda: bound.open == 1)
        silent = [await stack.enter_async_context(connected(port)) for _ in range(10)]
        for stream in silent:
            with anyio.fail_after(20), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert bound.open == 1 and bound.refusing == 0
        assert (await answered(first))[0] == 200


async def test_a_connection_ends_with_its_other_end_and_not_with_its_time(rig: Rig) -> None:
    """Else a few requests a second, each on a connection of its own, would take all places."""
    bound = Connections()
    async with rig.up(connections=bound) as up:
        port = int(up.url.rpartition(":")[2])
        for _ in range(10):
            async with connected(port) as stream:
                assert (await answered(stream))[0] == 200
            async with connected(port):
                pass
        await until(lambda: bound.open == 0)
        async with connected(port) as stream:  # who will say nothing more still gets the answer
            await stream.send(ASK)
            await stream.send_eof()
            with anyio.fail_after(20):
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        await until(lambda: bound.open == 0)


async def test_a_head_that_drips_is_cut_off_in_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE", 0.4)
    bound = Connections()
    async with rig.up(connections=bound) as up:
        port = int(up.url.rpartition(":")[2])
        async with connected(port) as stream, anyio.create_task_group() as group:

            async def drip() -> None:
                with anyio.move_on_after(20):
                    await stream.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                    while True:
                        try:
                            await stream.send(b"X-More: and more\r\n")
                        except anyio.BrokenResourceError:
                            return
                        await anyio.sleep(0.05)

            group.start_soon(drip)
            with anyio.fail_after(10), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.receive()
            group.cancel_scope.cancel()
        await until(lambda: bound.open == 0)
        assert (await up.get("/healthz")).status_code == 200


async def test_a_body_that_drips_is_answered_in_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_SECONDS", 0.4)
    head = f"POST /v1/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with rig.up() as up:
        port = int(up.url.rpartition(":")[2])
        async with connected(port) as stream, anyio.create_task_group() as group:

            async def drip() -> None:
                await anyio.sleep(0.05)
                for _ in range(200):
                    try:
                        await stream.send(b" ")
                    except anyio.BrokenResourceError:
                        return
                    await anyio.sleep(0.05)

            group.start_soon(drip)
            status, _, body = await answered(stream, f"{head}Content-Length: 100000\r\n\r\n".encode())
            assert status == 408 and json.loads(body)["error"] == "too_slow"
            group.cancel_scope.cancel()
    assert not (rig.home / "pods").exists()


async def test_a_token_has_so_many_streams_and_leaves_room_for_others(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "READERS", 3)
    monkeypatch.setattr(app, "READERS_EACH", 2)
    file = tmp_path / "tokens.toml"
    file.write_text(
        f'[tokens.ann]\nrole = "admin"\ntoken = "{TOKEN}"\n[tokens.bob]\nrole = "read"\ntoken = "{TOKEN}-bob"\n'
    )
    file.chmod(0o600)
    bob = {"authorization": f"Bearer {TOKEN}-bob"}

    held: list[Stream] = []

    async def read(stack: AsyncExitStack, **headers: str) -> None:
        held.append(await stack.enter_async_context(up.events("p", **headers)))
        await held[-1].next()

    async def refused(headers: dict[str, str]) -> str:
        answer = await up.get("/v1/pods/p/events", headers={**headers, "accept": "text/event-stream"})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "5"
        return answer.json()["message"]

    async with rig.up(tokens=Tokens.of_file(file)) as up:
        await up.make(task=None)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await read(stack)
            assert "2 readers are here already with this token" in await refused(WITH)
            await read(stack, **bob)
            assert "3 readers are here already:" in await refused(bob)
        await until(lambda: up.service._readers.total() == 0)
        async with up.events("p") as stream:
            await stream.next()
    async with rig.up() as up, AsyncExitStack() as stack:  # one token alone may have them all
        for _ in range(3):
            await read(stack)
        assert "3 readers are here already:" in await refused(WITH)


def test_there_is_room_for_as_many_connections_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 2_000))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    assert open_files(50, 500) == 500 and made.pop() == (SPARE + 800 + 500, 2_000)
    assert open_files(50, None, usual=4_096) == 2_000 - SPARE - 800 and made.pop() == (2_000, 2_000)
    with pytest.raises(UsageProblem, match="--max-connections 5000"):
        open_files(50, 5_000)
    with pytest.raises(UsageProblem, match="--concurrency 200:"):
        open_files(200, None, usual=4_096)


async def test_what_one_connection_does_ends_no_other(rig: Rig) -> None:
    bound = Connections(2)
    async with rig.up(connections=bound) as up, AsyncExitStack() as stack:
        port = int(up.url.rpartition(":")[2])
        # HTTP/2, and a path that no ASCII is: the server below raises on it.
        head = b"\x82\x86\x41\x09localhost\x04\x03/\xc3\xa9"
        frame = len(head).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big") + head
        async with connected(port) as stream:
            await stream.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + frame)
            with anyio.fail_after(20), pytest.raises(anyio.EndOfStream):
                while True:
                    await stream.receive()
        await until(lambda: bound.open == 0)
        # One that is refused, and has gone before it was told so.
        for _ in range(2):
            await stack.enter_async_context(connected(port))
        await until(lambda: bound.open == 2)
        with socket.create_connection(("127.0.0.1", port)) as gone:
            await until(lambda: bound.refusing == 1)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bound.refusing == 0)
        await stack.aclose()
        await until(lambda: bound.open == 0)
        assert (await up.get("/readyz")).status_code == 200
