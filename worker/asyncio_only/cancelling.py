"""Was this task cancelled natively, outside any anyio scope?"""

from __future__ import annotations

import asyncio


def natively_cancelled() -> bool:
    """Whether someone called `Task.cancel()` on the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
