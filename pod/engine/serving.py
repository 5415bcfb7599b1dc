"""How an engine serves: what runs of it here, and that its work is never cut off: a cancellation of its caller becomes a drain."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.from_thread

from pod.engine.port import QueueSpec, Runs
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


@dataclass(eq=False)
class Serving:
    """What is served, and what runs of it here."""

    runs: Runs
    queues: tuple[QueueSpec, ...]
    within: float = float("inf")
    token: Any = None
    draining: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    _here: dict[str, int] = field(default_factory=dict[str, int])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def here(self, id_: str) -> _Here:
        """While it is entered, an activation runs here."""
        return _Here(self._here, self._lock, id_)

    def local(self) -> list[str]:
        """The ids of those that run here."""
        with self._lock:
            return list(self._here)

    def cancel(self, id_: str) -> None:
        """Ends one of them. From another thread."""
        anyio.from_thread.run_sync(self.runs.cancel, id_, token=self.token)


@dataclass(slots=True)
class _Here:
    ids: dict[str, int]
    lock: threading.Lock
    id: str

    def __enter__(self) -> None:
        with self.lock:
            self.ids[self.id] = self.ids.get(self.id, 0) + 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.ids[self.id] -= 1
            if not self.ids[self.id]:
                del self.ids[self.id]
