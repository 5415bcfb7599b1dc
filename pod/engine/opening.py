"""The engine that a command names, opened where its library is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pod.errors import UsageProblem
from worker.errors import way_to_install

if TYPE_CHECKING:
    from pod.engine.dbos_engine import DbosEngine


def engine_at(
    db: str | None, home: Path, *, lease: float | None = None, tell: Callable[[str], object] = lambda text: None
) -> DbosEngine:
    """The engine on the database that was named (default: the one of the home). Raises `UsageProblem`."""
    try:
        from pod.engine.dbos_engine import DbosEngine
        from pod.engine.places import HomeDatabase, place_of
    except ModuleNotFoundError as error:
        if error.name not in {"dbos", "sqlalchemy"}:
            raise
        raise UsageProblem(f"queues need the extra `dbos`: {way_to_install('dbos')}") from None
    place = place_of(db, home)
    if lease is not None and isinstance(place, HomeDatabase):
        raise UsageProblem(
            "--lease: the home is a database, whose lease counts for nodes too: POD_HOME=postgresql://...?pod_lease=SECONDS, the same "
            "for all"
        )
    return DbosEngine(place, lease=lease, tell=tell)
