"""The engine that a command names, opened where its library is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pod.errors import UsageProblem

if TYPE_CHECKING:
    from pod.engine.dbos_engine import DbosEngine


def engine_at(
    db: str | None, home: Path, *, lease: float | None = None, tell: Callable[[str], object] = lambda text: None
) -> DbosEngine:
    """The engine on the database that was named (default: the one of the home). Raises `UsageProblem`."""
    try:
        from pod.engine.database import place_of
        from pod.engine.dbos_engine import LEASE, DbosEngine
    except ModuleNotFoundError as error:
        if error.name not in {"dbos", "sqlalchemy"}:
            raise
        raise UsageProblem("queues need the extra `dbos`: pip install 'pod-runtime[dbos]'") from None
    return DbosEngine(place_of(db, home), lease=LEASE if lease is None else lease, tell=tell)
