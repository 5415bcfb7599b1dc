"""Hands events to readers. A slow reader never blocks a run, and a failing one never fails it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from pod.events import Event

BUFFER = 2_000
"""Events kept for a reader that lags; above it, passing events go first, then the reader is told to read the log."""

PASSING = frozenset({"text.delta", "request.started", "compaction.progress", "init", "result"})
"""Events that are not told again: no entry of the log stands behind them."""

logger = logging.getLogger("pod.events")


@dataclass
class Subscription:
    """One reader. Iterate it; `lagging_from` is the number of the first event that it missed and can read from the log."""

    buffer: deque[Event] = field(default_factory=deque[Event])
    lagging_from: int | None = None
    closed: bool = False
    _wake: anyio.Event = field(default_factory=anyio.Event)

    def offer(self, event: Event) -> None:
        """Gives an event, without waiting."""
        if self.closed:
            return
        if len(self.buffer) >= BUFFER:
            if event.type in PASSING:
                return
            kept = [e for e in self.buffer if e.type not in PASSING]
            self.buffer = deque(kept)
            if len(kept) >= BUFFER:
                self.lagging_from = self.lagging_from or event.seq
                return
        if self.lagging_from is not None:
            return
        self.buffer.append(event)
        self._wake.set()

    def close(self) -> None:
        """No more events; what is buffered is still read."""
        self.closed = True
        self._wake.set()

    async def next(self) -> Event | None:
        """The next event; None at the end. Cancelled, no event is lost."""
        while True:
            if self.buffer:
                return self.buffer.popleft()
            if self.closed or self.lagging_from is not None:
                return None
            self._wake = anyio.Event()
            await self._wake.wait()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event


class Told:
    """Events from the log, read in a thread when the first one is asked for. No generator: it can be left at any place."""

    def __init__(self, read: Callable[[], list[Event]]) -> None:
        self._read = read
        self._events: deque[Event] | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._events is None:
            self._events = deque(await anyio.to_thread.run_sync(self._read))
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()


@dataclass
class Bus:
    """All readers of a pod. `observers` are plain callables; one that raises is logged, the first time with its
    traceback, and goes on being called (case B164)."""

    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    observers: list[Callable[[Event], object]] = field(default_factory=list[Callable[[Event], object]])
    _failed: set[int] = field(default_factory=set[int])

    @property
    def watched(self) -> bool:
        """Whether anyone reads: where no one does, events need not be made."""
        return bool(self.subscriptions or self.observers)

    def publish(self, event: Event) -> None:
        """Gives an event to everyone."""
        for subscription in self.subscriptions:
            subscription.offer(event)
        for observer in self.observers:
            try:
                observer(event)
            except Exception as error:
                self._say_failed(observer, event, error)

    def _say_failed(self, observer: Callable[[Event], object], event: Event, error: Exception) -> None:
        name = getattr(observer, "__qualname__", type(observer).__name__)
        if id(observer) in self._failed:
            logger.debug("the observer %s failed again, on %s: %r", name, event.type, error)
            return
        self._failed.add(id(observer))
        logger.error(
            "the observer %s failed on %s; it goes on being called, and later failures are logged at debug level",
            name, event.type, exc_info=error,
        )  # fmt: skip

    def subscribe(self) -> Subscription:
        """A new reader, from now on."""
        subscription = Subscription()
        self.subscriptions.append(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """A reader goes."""
        subscription.close()
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
