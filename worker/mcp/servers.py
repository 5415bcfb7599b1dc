"""All servers of a worker: started side by side, ended together, and their tools as tools like all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from worker.errors import ConfigError, way_to_install
from worker.items import ToolOutput
from worker.mcp.connection import Connection, Place, State
from worker.mcp.define import Server
from worker.mcp.definitions import Definition, Listing
from worker.mcp.words import Screen
from worker.tools import Tool, ToolContext

SOME = 5
"""Tools that are named where a pattern covers none of them."""


class News(NamedTuple):
    """How a server stands. `tools` counts those that the agent has of it, `unfit` names those that can't be offered, with the
    reason; `waiting` says that it lists other tools by now, which are offered from the next segment on.
    """

    server: str
    state: State
    why: str
    tools: int
    unfit: tuple[tuple[str, str], ...]
    waiting: bool


class Servers:
    """Servers as an async context manager: left, all of them are gone. What they say passes `screen`. Raises `ConfigError` where the
    package `mcp` is not installed.
    """

    def __init__(self, servers: Sequence[Server], place: Place, screen: Screen | None = None) -> None:
        if servers and find_spec("mcp") is None:
            raise ConfigError(f"[[mcp]] needs the package mcp: {way_to_install('mcp')}")
        self._servers, self._place, self._screen = servers, place, screen or Screen()
        self._connections: list[Connection] = []
        self._offered: dict[str, Listing] = {}
        self._told: dict[str, News] = {}
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Starts all of them side by side and waits until each is up or has failed, for at most the longest `start_timeout`."""
        group = self._group = anyio.create_task_group()
        await group.__aenter__()
        try:
            # Loading the package takes a moment in which other tasks go on.
            await anyio.to_thread.run_sync(_load, any(server.url is not None for server in self._servers))
            self._connections = [Connection(server, self._place, group, self._screen) for server in self._servers]
            async with anyio.create_task_group() as starting:
                for connection in self._connections:
                    starting.start_soon(connection.start)
        except BaseException as error:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await group.__aexit__(type(error), error, error.__traceback__)
            raise
        self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    def failed(self) -> list[News]:
        """Those that are not running and that nothing may begin without."""
        return [_news(c, self._offered) for c in self._connections if c.server.required and c.state != "up"]

    def take(self) -> None:
        """From now on the tools are those that the servers list now: at the start, and where a new segment begins."""
        self._offered = {c.server.name: c.listed for c in self._connections}

    def tools(self, *, now: bool = False) -> list[Tool]:
        """The tools that were taken last (`now`: those that would be), in a fixed order: servers as given, tools by name."""
        return [
            made
            for connection in self._connections
            for made in _tools(connection, connection.listed if now else self._offered[connection.server.name])
        ]

    def by_server(self) -> dict[str, list[Tool]]:
        """The tools that were taken last, by server."""
        return {c.server.name: _tools(c, self._offered[c.server.name]) for c in self._connections}

    def news(self) -> list[News]:
        """How the servers stand whose standing is another one than was told last."""
        found = [_news(connection, self._offered) for connection in self._connections]
        changed = [each for each in found if self._told.get(each.server) != each]
        self._told |= {each.server: each for each in changed}
        return changed


def _load(http: bool) -> None:
    import_module("worker.mcp.session")
    import_module("worker.mcp.http" if http else "worker.mcp.stdio")


def _news(connection: Connection, offered: dict[str, Listing]) -> News:
    server, listing = connection.server, offered.get(connection.server.name, Listing())
    return News(
        server.name, connection.state, connection.why, sum(server.offers(each.tool) for each in listing.tools),
        (*(each for each in listing.unfit if server.offers(each[0])), *_of_none(server, listing)), connection.listed != listing,
    )  # fmt: skip


def _of_none(server: Server, listing: Listing) -> Iterator[tuple[str, str]]:
    """Patterns of `tools` that cover nothing of what a server listed: a slip, where a tool was meant."""
    listed = [*(each.tool for each in listing.tools), *(name for name, _ in listing.unfit)]
    for pattern in server.tools:
        if listed and not any(fnmatchcase(name, pattern) for name in listed):
            some = ", ".join(listed[:SOME]) + (", ..." if len(listed) > SOME else "")
            yield pattern, f"it lists no tool of this name; it lists {some}"


def _tools(connection: Connection, listing: Listing) -> list[Tool]:
    return [_tool(connection, each) for each in listing.tools if connection.server.offers(each.tool)]


def _tool(connection: Connection, definition: Definition) -> Tool:
    server = connection.server
    return Tool(
        name=definition.name,
        description=definition.description,
        parameters=definition.schema,
        call=partial(_call, connection, definition.tool),
        effect=server.effect_of(definition.tool),
        timeout=server.call_timeout,
        max_output=server.max_output,
    )


async def _call(connection: Connection, tool: str, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
    return await connection.call(tool, arguments, context.name)
