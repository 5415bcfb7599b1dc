"""A sign of life while a compaction is silent: at least every 15 s, with its stage and its time (case B150)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from pod.events import CompactionProgress, Event
from pod.log.lines import now

HEARTBEAT = 15.0
"""Seconds after which a silent compaction is told of again."""

STEP = 1.0
"""Seconds between two looks."""


class Pulse:
    """Follows the events of a run, and makes one where a compaction says nothing."""

    def __init__(self) -> None:
        self._compaction: str | None = None
        self._began = self._spoke = 0.0
        self._stage = ""
        self._seq = 0

    def follow(self, event: Event) -> None:
        """Takes note of an event. Call it inside the event loop."""
        self._spoke, self._seq = anyio.current_time(), max(self._seq, event.seq)
        match event.type:
            case "compaction.started":
                self._compaction, self._began, self._stage = event.compaction, self._spoke, "started"
            case "compaction.rung":
                self._stage = f"{event.rung} {event.state}"
            case "compaction.progress":
                self._stage = event.stage
            case "compaction.completed" | "compaction.failed":
                self._compaction = None
            case _:
                pass

    async def beat(self, tell: Callable[[Event], Awaitable[None]]) -> None:
        """Tells an event whenever a compaction has been silent for `HEARTBEAT` seconds. Runs until it is cancelled."""
        while True:
            await anyio.sleep(STEP)
            at = anyio.current_time()
            if self._compaction is None or at - self._spoke < HEARTBEAT - STEP:
                continue
            event = CompactionProgress(
                seq=self._seq,
                at=now(),
                compaction=self._compaction,
                stage=self._stage,
                figures={"elapsed": round(at - self._began, 1)},
            )
            self.follow(event)
            await tell(event)
