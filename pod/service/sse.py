"""A pod's events as server-sent events: each with its number, from which a reader that comes back goes on."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from pod.bus import PASSING
from pod.errors import PodError
from pod.events import Event
from pod.service.door import Message, Receive, Scope, Send
from pod.service.feed import Reader

STALLED = 30.0
"""Seconds for which a reader may take nothing before it is dropped. It can come back, and misses nothing."""

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """An ASGI response that tells events until its reader goes, stalls, or `closing` is set. `left` is called at the end."""

    def __init__(
        self, reader: Reader, closing: anyio.Event, left: Callable[[], object], *, stalled: float = STALLED
    ) -> None:
        self._reader = reader
        self._closing = closing
        self._left = left
        self._stalled = stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tells the events."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_gone, receive, group.cancel_scope)
                group.start_soon(self._until_closing, group.cancel_scope)
                with self._reader:
                    await self._tell(send)
                group.cancel_scope.cancel()
        finally:
            self._left()

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_closing(self, scope: anyio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()

    async def _tell(self, send: Send) -> None:
        if not await self._sent(send, {"type": "http.response.start", "status": 200, "headers": HEADERS}):
            return
        text = b"retry: 1000\n\n"
        while await self._sent(send, {"type": "http.response.body", "body": text, "more_body": True}):
            try:
                event = await self._reader.next()
            except (PodError, OSError):
                break  # it was removed, or its log can't be read any more: asking anew says why
            text = b": nothing new\n\n" if event is None else frame(event)
        await self._sent(send, {"type": "http.response.body", "body": b""})

    async def _sent(self, send: Send, message: Message) -> bool:
        with anyio.move_on_after(self._stalled) as scope:
            await send(message)
        return not scope.cancelled_caught


def frame(event: Event) -> bytes:
    """One event. Those that pass have no number: a reader that comes back is not told them again."""
    number = "" if event.type in PASSING else f"id: {event.seq}\n"
    return f"{number}event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()
