"""What a server asks of its client: all of it is refused, and one that asks on without taking the answers is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

MOST_OPEN = 100
"""Requests of a server whose answers it has not taken."""

FLOOD = f"it asks, and has not taken the answers to {MOST_OPEN} requests"


class Asked:
    """The requests of a server that are open, by their ids. `flooded` is called once there are too many."""

    def __init__(self, flooded: Callable[[], None]) -> None:
        self._open: Counter[str] = Counter()
        self._flooded = flooded

    def heard(self, message: object) -> bool:
        """Takes what comes in; False where there is too much of it."""
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._close((message.params or {}).get("requestId"))
        if not isinstance(message, JSONRPCRequest):
            return True
        self._open[str(message.id)] += 1
        if self._open.total() <= MOST_OPEN:
            return True
        self._flooded()
        return False

    def said(self, message: object) -> None:
        """Takes what went out."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._close(message.id)

    def _close(self, label: object) -> None:
        if self._open[str(label)] > 1:
            self._open[str(label)] -= 1
        else:
            del self._open[str(label)]


class _Side:
    """One direction of a transport, as a session takes it."""

    def __init__(self, inner: Any, asked: Asked) -> None:
        self._inner, self._asked = inner, asked

    async def aclose(self) -> None:
        """Closes it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class Incoming(_Side):
    """What a server says; it ends where that is too much."""

    @property
    def last_context(self) -> Any:
        """The context that the last message was read in, where the transport has one."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._inner.__anext__()
        if isinstance(item, SessionMessage) and not self._asked.heard(item.message):
            raise StopAsyncIteration
        return item


class Outgoing(_Side):
    """What is said to it."""

    async def send(self, item: SessionMessage) -> None:
        """Sends a message. Cancelled, it may have been sent."""
        await self._inner.send(item)
        self._asked.said(item.message)
