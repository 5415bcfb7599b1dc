"""Tells a real cancellation from a tool that raises the backend's cancellation error by itself (case B018)."""

from __future__ import annotations

import math

import anyio


def really_cancelled() -> bool:
    """Whether the current task is being cancelled, by a scope or (under asyncio) natively."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    if anyio.get_cancelled_exc_class().__module__.startswith("asyncio"):
        from worker.asyncio_only.cancelling import natively_cancelled

        return natively_cancelled()
    return False
