"""A sign of life while something takes long."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

INTERVAL = 10.0
"""Seconds between two signs: none comes later than every 15 s, also on a busy machine (case B150)."""


@asynccontextmanager
async def beating(tell: Callable[[float], None], interval: float = INTERVAL) -> AsyncGenerator[None]:
    """Calls `tell` with the seconds since it began, every `interval` seconds, until the block ends.

    What the block raises comes out as it is, not in a group.
    """
    began = anyio.current_time()
    raised: Exception | None = None

    async def beat() -> None:
        while True:
            await anyio.sleep(interval)
            tell(round(anyio.current_time() - began, 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        try:
            yield
        except Exception as error:
            raised = error
        tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised
