"""A server at an address: the transport of the package `mcp` over a client of our own, with bounded answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from worker.mcp.lines import LONGEST
from worker.text import size

CONNECT_TIMEOUT = 30.0
_HERE = ("localhost", "127.0.0.1", "::1")


@asynccontextmanager
async def address_streams(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
    """What a session reads and writes. Redirects are followed within the address's own origin alone.

    There is no limit on how long an answer takes: each call has its own.
    """
    timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=None)
    # A proxy would be asked for its own loopback address.
    proxied = (urlsplit(url).hostname or "") not in _HERE
    async with (
        httpx2.AsyncClient(
            headers=dict(headers), timeout=timeout, trust_env=proxied, event_hooks={"response": [_bounded]}
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=LONGEST) as streams,
    ):
        yield streams  # type: ignore[misc]  # a pair of streams is what a session takes


async def _bounded(response: httpx2.Response) -> None:
    """Bounds an answer that is read whole; a stream of events has a bound of its own."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _Bounded(response)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner, self._request = response.stream, response.request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for piece in self._inner:
            total += len(piece)
            if total > LONGEST:
                raise httpx2.ReadError(f"an answer of more than {size(LONGEST)}", request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
