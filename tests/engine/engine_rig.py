"""What the tests of engines share: an engine of each kind, and runs that note what they are asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from pod.engine.memory import MemoryEngine
from pod.engine.port import Activation, Ended, QueueSpec

KINDS = ("memory", "sqlite", "postgres")
"""All that keep the promises of the port."""

LASTING = KINDS[1:]
"""Those whose tables outlive a process."""

QUEUE = QueueSpec("work", concurrency=3, interval=0.02)


def engine_of(kind: str, request: pytest.FixtureRequest, **options: Any) -> Any:
    """An engine on new tables."""
    if kind == "memory":
        return MemoryEngine()
    from pod.engine.dbos_engine import DbosEngine
    from pod.engine.places import HomeDatabase, SqliteFile

    if kind == "sqlite":
        place: Any = SqliteFile(request.getfixturevalue("tmp_path") / "engine.sqlite")
    else:
        place = HomeDatabase(request.getfixturevalue("new_database")())
    return DbosEngine(place, lease=options.pop("lease", 2.0), **options)


def another(engine: Any) -> Any:
    """One more engine on the tables of one, as in another process."""
    from pod.engine.dbos_engine import DbosEngine

    return DbosEngine(engine.place, lease=2.0)


def rows(engine: Any, statement: str, **values: object) -> list[tuple[Any, ...]]:
    """What an engine's own database says; a statement that changes something is committed."""
    import sqlalchemy as sa

    with engine._database.begin() as connection:
        found = connection.execute(sa.text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


@dataclass
class Noting:
    """Runs that end as `ends` says, or wait until they are let go."""

    ends: Callable[[Activation], Ended] = lambda activation: Ended("done")
    waits: bool = False
    began: list[str] = field(default_factory=list)
    inside: int = 0
    most: int = 0
    draining: bool = False
    scopes: dict[str, anyio.CancelScope] = field(default_factory=dict)
    changed: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, activation: Activation) -> Ended:
        if self.draining:
            return self.drained(activation)
        self.began.append(activation.id)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._note()
        with anyio.CancelScope() as scope:
            self.scopes[activation.id] = scope
            if self.waits:
                await self.go.wait()
        self.inside -= 1
        self._note()
        if scope.cancelled_caught:
            return self.drained(activation) if self.draining else Ended("cancelled", "while it ran")
        return self.ends(activation)

    def drained(self, activation: Activation) -> Ended:
        from pod.engine.port import Following

        return Ended("drained", "", Following(Activation(activation.session, activation.n + 1, "drained"), "work"))

    def cancel(self, activation_id: str) -> None:
        self.scopes[activation_id].cancel()

    async def drain(self, within: float) -> None:
        self.draining = True
        for scope in self.scopes.values():
            scope.cancel()

    def _note(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, holds: Callable[[], bool], within: float = 15.0) -> None:
        with anyio.fail_after(within):
            while not holds():
                await self.changed.wait()


@asynccontextmanager
async def serving(engine: Any, runs: Noting, *queues: QueueSpec) -> AsyncGenerator[None]:
    """While it is open, the engine serves; at its end it has drained."""
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: engine.serve(runs, queues=queues or (QUEUE,)))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await engine.drain(5.0)


async def phases(engine: Any, *ids: str) -> list[tuple[str, str | None]]:
    return [(status.phase, status.outcome) for status in await engine.status(ids)]


async def until_phase(engine: Any, id_: str, phase: str, within: float = 15.0) -> Any:
    """The status of an activation once it has come to a phase."""
    with anyio.fail_after(within):
        while True:
            found = await engine.status([id_])
            if found and found[0].phase == phase:
                return found[0]
            await anyio.sleep(0.02)


def activations(*sessions: str) -> Sequence[Activation]:
    return [Activation(session) for session in sessions]
