"""A session store for an event loop, asyncio's or trio's: each call in a thread, under a limiter of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from pod.store.port import PAGE, Entry, SessionStore

P = ParamSpec("P")
T = TypeVar("T")


class Threaded:
    """Calls the methods of a blocking store in threads, at most `limit` at a time.

        lease = await threaded(store.acquire, "a", owner)

    A call is shielded from cancellation: whether it happened is never unknown. What a store's own time limits allow bounds it.
    """

    def __init__(self, store: SessionStore, limit: int = 8) -> None:
        self.store = store
        self._limiter = anyio.CapacityLimiter(limit)

    async def __call__(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of one call. Raises what it raises."""
        found: list[T] = []
        with anyio.CancelScope(shield=True):
            found.append(await anyio.to_thread.run_sync(lambda: call(*args, **named), limiter=self._limiter))
        return found[0]

    async def load(self, session: str, log: str, first: int = 1) -> AsyncIterator[Entry]:
        """The entries of a log, a page at a time."""
        entries = self.store.load(session, log, first)

        def page() -> list[Entry]:
            return [entry for _, entry in zip(range(PAGE), entries, strict=False)]

        while found := await self(page):
            for entry in found:
                yield entry
