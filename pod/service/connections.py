"""How many connections a service that runs by itself has open at once: one more is told so, and closed."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import anyio
from hypercorn.config import Config
from hypercorn.events import Updated

from worker.errors import alone

logger = logging.getLogger("pod.service")

MOST = 4_096
"""Connections at once, unless another number is given."""

REFUSING = 128
"""Of those that are refused, how many may stay for a moment to read why. Others are closed at once."""

MOMENT = 1.0
"""Seconds for that."""


@dataclass(eq=False)
class Connections:
    """Those of one server."""

    most: int = MOST
    open: int = 0
    refusing: int = 0


class Bounded(Config):
    """A configuration of hypercorn whose connections are counted."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self.connections = connections


def counted(library: str) -> None:
    """From now on hypercorn counts the connections of each `Bounded` configuration on this library (asyncio, trio)."""
    run: Any = import_module(f"hypercorn.{library}.run")
    run.TCPServer = _counting(import_module(f"hypercorn.{library}.tcp_server").TCPServer)


@cache
def _counting(server: type[Any]) -> type[Any]:
    """A server of one connection that looks first whether there is room for it, and ends with it. That of hypercorn has no place where
    to ask for either.
    """
    whole: Any = server.run
    read: Any = server._read_data
    sent: Any = server.protocol_send

    class Counting(server):
        left = False

        async def run(self) -> None:
            try:
                await self._counted()
            except Exception as error:
                # Whatever the other end sent or did, it is this connection's alone: raised on, it would end the whole server.
                logger.info("a connection was closed that the server could not go on with: %r", alone(error))

        async def _counted(self) -> None:
            connections: Connections | None = getattr(self.config, "connections", None)
            if connections is None:
                await whole(self)
            elif connections.open >= connections.most:
                await self._refuse(connections)
            else:
                connections.open += 1
                try:
                    await whole(self)
                finally:
                    connections.open -= 1

        async def _read_data(self) -> None:
            # Where the other end has gone, hypercorn would keep the connection until its time for the next request is over.
            await read(self)
            self.left = True
            await self.idle_task.stop()

        async def protocol_send(self, event: Any) -> None:
            if not (self.left and isinstance(event, Updated)):
                await sent(self, event)

        async def _refuse(self, connections: Connections) -> None:
            try:
                if connections.refusing < REFUSING:
                    connections.refusing += 1
                    try:
                        with (
                            anyio.move_on_after(MOMENT),
                            suppress(Exception),
                        ):  # it has gone, in the library's own words
                            await _told(self)
                    finally:
                        connections.refusing -= 1
            finally:
                await self._close()

    return Counting


async def _told(server: Any) -> None:
    """Says why, once the request has begun to come: closed before that, the answer might be lost on the way."""
    stream = getattr(server, "stream", None)
    if stream is None:
        await server.reader.read(65_536)
        server.writer.write(_ANSWER)
        await server.writer.drain()
    else:
        await stream.receive_some(65_536)
        await stream.send_all(_ANSWER)


_BODY = json.dumps(
    {"error": "too_many_connections", "message": "as many connections are open here as may be: come back in a moment"}
).encode()
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close\r\n"
    b"cache-control: no-store\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
) + _BODY
