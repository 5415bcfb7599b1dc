"""How an engine serves: its work is never cut off, a cancellation of its caller becomes a drain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from worker.errors import alone


async def never_cut_off(body: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]]) -> None:
    """Runs `body` to its end. Cancelled, it calls `drain`, which should have the body end, waits for that, and is cancelled then.

    Raises what the body raises, alone.
    """
    over = anyio.Event()

    async def whole() -> None:
        try:
            with anyio.CancelScope(shield=True):
                await body()
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(whole)
            try:
                await over.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await drain()
                    await over.wait()
                raise
    except BaseExceptionGroup as error:
        raise alone(error) from None
