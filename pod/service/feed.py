"""The events of a pod for many readers, each from where it left off: nothing missing, nothing twice.

What is on record is read from the log, so that a reader may come back at any time, after a restart of the service too. While
the pod runs in this process its events come from the run itself, together with those that pass (`text.delta` and its like).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from pod.bus import PASSING, Bus, Subscription
from pod.errors import LogDamaged
from pod.events import Event, event_of
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.lines import Line
from pod.tail import Tail

POLL = 0.5
"""Seconds between two looks at the log of a pod that another process runs, or nobody."""

KEEP_ALIVE = 15.0
"""Seconds after which a reader is told that nothing happened."""

READ_AT_ONCE = 500
"""Entries that are taken from a log at once."""


@dataclass(eq=False)
class Channel:
    """What the readers of one pod share. `live` is whether it runs in this process just now; `turns` counts how often that began.

    `shared` says that machines share its home: there an entry counts once it can be read back.
    """

    bus: Bus = field(default_factory=Bus)
    live: bool = False
    turns: int = 0
    shared: bool = False

    def begins(self) -> None:
        """The pod is opened here: from now on its events are told."""
        self.live = not self.shared
        self.turns += 1

    def ends(self) -> None:
        """The pod was closed here."""
        self.live = False


@dataclass(eq=False)
class Reader:
    """One reader of a pod, from entry `after` on. Use it as a context manager.

    `limiter` bounds the threads in which logs are read.
    """

    folder: PodFolder
    channel: Channel
    limiter: anyio.CapacityLimiter
    after: int = 0
    _tail: Tail = field(init=False, repr=False)
    _live: Subscription = field(init=False, repr=False)
    _pending: deque[Event] = field(default_factory=deque[Event], init=False, repr=False)
    _read_to: int = field(default=-1, init=False, repr=False)
    _quiet: float = field(default_factory=anyio.current_time, init=False, repr=False)

    def __post_init__(self) -> None:
        self._tail = Tail(self.folder, self.after)

    def __enter__(self) -> Self:
        self._live = self.channel.bus.subscribe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.bus.leave(self._live)

    async def next(self, within: float = KEEP_ALIVE) -> Event | None:
        """The next event; None where nothing happened for so many seconds. Cancelled, no event is lost.

        Raises `PodNotFound` where the pod is gone, and what reading a log does.
        """
        self._quiet = anyio.current_time()
        while True:
            while self._pending:
                event = self._pending.popleft()
                if event.type in PASSING:
                    if event.seq < self.after:
                        continue  # what it led up to is told already
                    return event
                if event.seq > self.after:
                    self.after = event.seq
                    return event
            if await self._read():
                continue
            event = await self._told(within)
            if event is not None:
                while not self._is_told() and await self._read():
                    pass  # the pod was opened here meanwhile: what it wrote on that was told to nobody
                self._pending.append(event)
            elif anyio.current_time() - self._quiet >= within:
                return None

    async def page(self, most: int, within: float) -> list[Event]:
        """What is on record from `after` on, at most so many events; for the first of them up to so many seconds are waited."""
        found: list[Event] = []
        deadline = anyio.current_time() + within
        while True:
            while len(found) < most and (some := await self._lines(most - len(found))):
                found += some
            self.after = max(self.after, self._tail.after)
            left = deadline - anyio.current_time()
            if found or left <= 0:
                return found
            with anyio.move_on_after(min(left, POLL)):
                await self._live.next()

    async def _read(self) -> bool:
        """Takes from the log what the run in this process does not tell; whether there may be more."""
        lagging = self._live.lagging_from is not None
        if lagging:
            self.channel.bus.leave(self._live)
            self._live = self.channel.bus.subscribe()
            self._read_to = -1
        if self._is_told() or (self._read_to == self.channel.turns and self._is_unchanged()):
            return False
        # First the turn, then the log: what is written from here on is told by the subscription.
        turns = self.channel.turns
        self._tail.skip(self.after)
        found = await self._lines(READ_AT_ONCE)
        self._pending.extend(found)
        if not found:
            self._read_to = turns
        return bool(found)

    def _is_told(self) -> bool:
        """Whether the run in this process tells everything from where the log was read to."""
        return self.channel.live and self._read_to == self.channel.turns

    def _is_unchanged(self) -> bool:
        return not self.channel.shared and not self._tail.has_news()

    async def _lines(self, most: int) -> list[Event]:
        """The next events on record, of at most so many entries; empty at their end. Entries that are bookkeeping, or can't be read,
        are passed over.
        """
        while lines := await anyio.to_thread.run_sync(self._tail.read, most, limiter=self.limiter):
            if found := [event for line in lines if (event := _event(line)) is not None]:
                return found
        return []

    async def _told(self, within: float) -> Event | None:
        """The next event of the run; None where it is time to look at the log, or to say that nothing happened."""
        wait = max(self._quiet + within - anyio.current_time(), 0.0)
        with anyio.move_on_after(wait if self.channel.live else min(wait, POLL)):
            return await self._live.next()
        return None


def _event(line: Line) -> Event | None:
    try:
        record = e.record_of(line)
    except LogDamaged:
        return None
    return None if record is None else event_of(line, record)
