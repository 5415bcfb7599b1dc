"""How much of a sweep the suite takes: a share, spread over all of it. `make soak` takes every point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = bool(os.environ.get("POD_SWEEP_WHOLE"))
"""Whether every point is taken."""


def share(points: Sequence[T], of: int, first: int = 0) -> Sequence[T]:
    """One point in `of`, beginning with the `first`-th: sweeps that look at the same from other sides begin at other ones."""
    return points if WHOLE else points[first % of :: of]
