"""SIGINT and SIGTERM while a command works: the first ends its work durably, the second forces the exit."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from pod.cli.failing import note


@dataclass
class Stopping:
    """What a signal asked for. `name` is None as long as none came; `end` ends what is under way. `words` say what that means, and
    `tell` says it, with the signal before it.
    """

    name: str | None = None
    end: Callable[[], Coroutine[Any, Any, object]] | None = None
    before_exit: Callable[[], None] | None = None
    words: str = "ending the run; its state is kept. Once more forces the exit."
    tell: Callable[[str], object] = lambda text: note(f"pod: {text}")

    @property
    def exit_code(self) -> int:
        """128 and the signal's number."""
        return 128 + int(signal.Signals[self.name or "SIGINT"])


@asynccontextmanager
async def handled(stopping: Stopping) -> AsyncGenerator[anyio.CancelScope]:
    """While it is open, signals go to `stopping`.

    Where it has no `end`, the block itself is cancelled (the scope says so).
    """
    with anyio.CancelScope() as scope, anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for number in received:
                    if stopping.name is not None:
                        if stopping.before_exit is not None:
                            stopping.before_exit()
                        os._exit(128 + int(number))
                    stopping.name = signal.Signals(number).name
                    stopping.tell(f"{stopping.name}: {stopping.words}")
                    if stopping.end is None:
                        scope.cancel()
                    else:
                        group.start_soon(stopping.end)

            group.start_soon(watch)
            try:
                yield scope
            finally:
                group.cancel_scope.cancel()
