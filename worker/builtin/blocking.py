"""Blocking file work of tools, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.from_thread
import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")

give_up_if_cancelled = anyio.from_thread.check_cancelled
"""Called inside of the thread between two pieces of work: raises where the waiting call was cancelled."""


async def in_thread(function: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> T:
    """Runs `function` in a thread. Cancelled, it waits for the thread, so that nothing is written after the call has
    ended.
    """
    return await anyio.to_thread.run_sync(partial(function, *args, **keywords))
