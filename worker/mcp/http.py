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


class Address:
    """The way to a server at an address, and how it failed last."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, dict(headers)
        self._status = ""

    def why(self) -> str:
        """What the address answered last, where that was a refusal."""
        return self._status

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Transport]:
        """What a session reads and writes. Redirects are followed within the address's own origin alone.

        There is no limit on how long an answer takes: each call has its own.
        """
        timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=None)
        # A proxy would be asked for its own loopback address.
        proxied = (urlsplit(self._url).hostname or "") not in _HERE
        hooks = {"response": [self._heard]}
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=timeout, trust_env=proxied, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=LONGEST) as streams,
        ):
            yield streams  # type: ignore[misc]  # a pair of streams is what a session takes

    async def _heard(self, response: httpx2.Response) -> None:
        if response.request.method == "POST":
            refused = response.status_code >= 300
            self._status = f"it answered with HTTP {response.status_code} {response.reason_phrase}" if refused else ""
        # An answer that is read whole has a bound; a stream of events has one of its own.
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
