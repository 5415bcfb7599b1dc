"""The conversation with one server: how it begins, what it lists, one call. What the package `mcp` calls things stays in here."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio.to_thread
import pydantic
from mcp.client import ClientSession, IncomingMessage, Transport
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    ToolListChangedNotification,
)

from worker.items import ToolOutput
from worker.mcp.asking import Asked, Incoming, Outgoing
from worker.mcp.define import ServerFault
from worker.mcp.definitions import MOST_LISTED, MOST_TOOLS, Listing, listing_of, weight
from worker.mcp.results import output_of
from worker.mcp.words import Screen
from worker.text import size
from worker.tools import ToolFault

MOST_PAGES = 200
"""Pages of one list of tools; a list that never ends keeps nobody."""

MOST_TOLD = 4_000
"""Characters of an error that a server answers with."""

_RESULT: pydantic.TypeAdapter[CallToolResult | InputRequiredResult] = pydantic.TypeAdapter(
    CallToolResult | InputRequiredResult
)

for _name in ("mcp", "client"):
    # The package tells of odd messages by `logging`; without a handler they would land in the user's terminal.
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Lost(Exception):
    """The connection ended before the answer came."""


class Session:
    """A conversation that has begun."""

    def __init__(self, client: ClientSession, wire: JSONRPCDispatcher[Any], screen: Screen) -> None:
        self._client, self._wire, self._screen = client, wire, screen

    async def listing(self, named: Callable[[str], str]) -> Listing:
        """The tools that the server lists, each looked at alone; `named` gives what one is called here. Raises `ServerFault`."""
        found: list[object] = []
        total = 0
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            raw = await self._page(cursor)
            tools, cursor = raw.get("tools"), raw.get("nextCursor")
            if not isinstance(tools, list):
                raise ServerFault("its list of tools is none")
            page = cast("list[object]", tools)
            found += page
            total += await anyio.to_thread.run_sync(weight, page)
            if total > MOST_LISTED:
                raise ServerFault(f"it lists tools of more than {size(MOST_LISTED)}")
            if len(found) > MOST_TOOLS:
                raise ServerFault(f"it lists more than {MOST_TOOLS:,} tools")
            if not isinstance(cursor, str) or not cursor:
                return await anyio.to_thread.run_sync(listing_of, found, named, self._screen)
        raise ServerFault(f"its list of tools has no end after {MOST_PAGES} pages")

    async def _page(self, cursor: str | None) -> dict[str, Any]:
        params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
        try:
            page = await self._client.list_tools(params=params)
        except pydantic.ValidationError:
            # One bad tool makes the whole list invalid to the package: it is taken as it was sent.
            return await self._wire.send_raw_request("tools/list", {} if cursor is None else {"cursor": cursor})
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise
            raise ServerFault(f"it answered to tools/list with an error ({error.code}): {error.message}") from error
        return page.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def call(self, tool: str, arguments: dict[str, Any], label: str) -> ToolOutput:
        """One call, by the server's own name of the tool. Cancelled, the server is told, and the call is not waited for.

        Raises `ToolFault` where it is refused, `Lost` where no answer will come.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            result: Any = await self._client.send_request(request, cast("Any", _RESULT))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or "session terminated" in error.message.lower():
                raise Lost(error.message) from error
            said = self._screen.text(error.message, MOST_TOLD)
            raise ToolFault(f"{label}: the server answered with an error ({error.code}): {said}") from error
        except pydantic.ValidationError as error:
            raise ToolFault(f"{label}: the server's answer is no result of a call") from error
        if isinstance(result, InputRequiredResult):
            raise ToolFault(f"{label}: the server asks for input of a user or a model, which it does not get here")
        raw = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return await anyio.to_thread.run_sync(_output, raw, label)


def _output(raw: dict[str, Any], label: str) -> ToolOutput:
    content = cast("list[object]", raw.get("content") or [])
    return output_of(content, raw.get("structuredContent"), failed=bool(raw.get("isError")), label=label)


@asynccontextmanager
async def conversation(
    streams: Transport, changed: Callable[[], None], flooded: Callable[[], None], version: str, screen: Screen
) -> AsyncGenerator[Callable[[], Awaitable[Session]]]:
    """A conversation over a transport's streams; what it yields begins it. `changed` is called where the server says that its
    list of tools is another one, `flooded` where it asks too much: then the conversation ends.

    Requests of the server (sampling, elicitation, roots) are refused: none of these is declared.
    """
    read, write = cast("Any", streams)
    asked = Asked(flooded)
    wire: JSONRPCDispatcher[Any] = JSONRPCDispatcher(
        cast("Any", Incoming(read, asked)), cast("Any", Outgoing(write, asked))
    )

    async def heard(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed()

    info = Implementation(name="pod-runtime", version=version)
    async with ClientSession(dispatcher=wire, message_handler=heard, client_info=info) as client:

        async def begin() -> Session:
            try:
                await client.initialize()
            except MCPError as error:
                if error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                    raise
                # A server of the newer kind, which begins without a handshake.
                await client.discover()
            return Session(client, wire, screen)

        yield begin
