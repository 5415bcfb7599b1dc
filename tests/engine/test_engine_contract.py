"""What every engine promises, on both event loops: memory, and DBOS on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod.engine.port import Activation, Ended, Following, QueueSpec
from tests.engine.engine_rig import QUEUE, Noting, activations, engine_of, phases, serving, until_phase

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "dbos"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return engine_of(request.param, tmp_path)


async def test_each_runs_once_however_often_it_is_submitted_and_the_smaller_priority_goes_first(engine: Any) -> None:
    runs = Noting()
    one = QueueSpec("work", concurrency=1, interval=0.02)
    async with engine:
        await engine.submit(activations("late"), queue="work", priority=200)
        await engine.submit(activations("soon"), queue="work", priority=10)
        await engine.submit(activations("middle"), queue="work")
        await engine.submit(activations("late", "soon"), queue="work", priority=1)
        await engine.submit(activations("other"), queue="elsewhere", priority=1)
        assert await phases(engine, "late@1", "soon@1", "nobody@1") == [("queued", None)] * 2
        async with serving(engine, runs, one):
            await runs.until(lambda: len(runs.began) == 3)
            await engine.submit(activations("late"), queue="work")
            await until_phase(engine, "late@1", "ended")
        assert runs.began == ["soon@1", "middle@1", "late@1"]
        assert await phases(engine, "soon@1", "other@1") == [("ended", "done"), ("queued", None)]
        listed = [status.activation.session async for status in engine.list(queue="work")]
        assert sorted(listed) == ["late", "middle", "soon"]
        assert [s.activation.id async for s in engine.list(phases=["queued"])] == ["other@1"]
        assert [s.activation.id async for s in engine.list(session="soon")] == ["soon@1"]
        assert len([s async for s in engine.list(limit=2)]) == 2


async def test_a_queue_runs_no_more_at_once_than_it_may(engine: Any) -> None:
    runs = Noting(waits=True)
    async with engine:
        await engine.submit(activations(*(f"s{n}" for n in range(7))), queue="work")
        async with serving(engine, runs, QUEUE):
            await runs.until(lambda: len(runs.began) == 3)
            running = [s.activation.id async for s in engine.list(phases=["running"])]
            assert sorted(running) == sorted(runs.began)
            runs.go.set()
            await runs.until(lambda: len(runs.began) == 7)
            await runs.until(lambda: not runs.inside)
        assert runs.most == 3


async def test_what_is_cancelled_does_not_begin_or_is_ended_and_its_slot_is_free_again(engine: Any) -> None:
    runs = Noting(waits=True)
    async with engine:
        await engine.submit(activations("a", "b", "c", "d"), queue="work")
        await engine.submit(activations("later"), queue="work", delay=3600.0)
        async with serving(engine, runs):
            await runs.until(lambda: len(runs.began) == 3)
            (waiting,) = {"a@1", "b@1", "c@1", "d@1"} - set(runs.began)
            await engine.cancel([waiting, "later@1"])
            assert await phases(engine, waiting, "later@1") == [("ended", "cancelled")] * 2
            victim = runs.began[0]
            await engine.cancel([victim])
            await runs.until(lambda: runs.scopes[victim].cancelled_caught)
            await engine.submit(activations("next"), queue="work")
            await runs.until(lambda: "next@1" in runs.began)
            runs.go.set()
            await until_phase(engine, "next@1", "ended")
        assert waiting not in runs.began and "later@1" not in runs.began
        assert await phases(engine, victim, "next@1") == [("ended", "cancelled"), ("ended", "done")]


async def test_what_is_put_off_waits_until_it_is_woken_and_runs_once(engine: Any) -> None:
    def ends(activation: Activation) -> Ended:
        if activation.n > 1:
            return Ended("done")
        return Ended("parked", "asks", Following(Activation("p", 2, "parked"), "work", 10, 3600.0))

    runs = Noting(ends)
    async with engine:
        await engine.submit(activations("p"), queue="work")
        async with serving(engine, runs):
            first = await until_phase(engine, "p@1", "ended")
            assert (first.outcome, first.detail) == ("parked", "asks")
            parked = await until_phase(engine, "p@2", "delayed")
            assert (parked.activation.reason, parked.priority) == ("parked", 10) and parked.due
            for _ in range(2):
                await engine.wake("p@2")
            await until_phase(engine, "p@2", "ended")
        assert runs.began == ["p@1", "p@2"]


async def test_a_short_delay_ends_by_itself(engine: Any) -> None:
    runs = Noting()
    async with engine:
        async with serving(engine, runs):
            await engine.submit(activations("d"), queue="work", delay=0.3)
            await engine.submit(activations("now"), queue="work")
            await until_phase(engine, "d@1", "ended")
        assert runs.began == ["now@1", "d@1"]


async def test_a_drain_ends_what_runs_and_begins_nothing_more_and_the_next_node_goes_on(engine: Any) -> None:
    runs, then = Noting(waits=True), Noting()
    async with engine:
        await engine.submit(activations("a", "b", "c", "d", "e"), queue="work")
        async with serving(engine, runs):
            await runs.until(lambda: runs.inside == 3)
            assert [node.queues for node in await engine.nodes()] == [("work",)]
        began = set(runs.began)
        assert len(began) == 3 and not await engine.nodes()
        assert await phases(engine, *began) == [("ended", "drained")] * 3
        left = {f"{session}@1" for session in "abcde"} - began
        again = {f"{id_[0]}@2" for id_ in began}
        assert await phases(engine, *left, *again) == [("queued", None)] * 5
        async with serving(engine, then):
            await then.until(lambda: len(then.began) == 5)
            await until_phase(engine, then.began[-1], "ended")
        assert set(then.began) == left | again and set(then.began[:3]) == again


async def test_a_node_whose_caller_is_cancelled_drains_first(engine: Any) -> None:
    runs = Noting(waits=True)
    async with engine:
        await engine.submit(activations("a"), queue="work")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.serve(runs, queues=(QUEUE,)))
            await runs.until(lambda: runs.inside == 1)
            group.cancel_scope.cancel()
        assert await phases(engine, "a@1", "a@2") == [("ended", "drained"), ("queued", None)]


async def test_a_run_has_no_steps_and_what_it_submits_is_no_step_either(tmp_path: Path) -> None:
    def ends(activation: Activation) -> Ended:
        return Ended("superseded", "", Following(Activation("a", 2), "work")) if activation.n == 1 else Ended("done")

    runs = Noting(ends)
    engine = engine_of("dbos", tmp_path)
    async with engine:
        await engine.submit(activations("a"), queue="work")
        async with serving(engine, runs):
            await until_phase(engine, "a@2", "ended")
    with sqlite3.connect(tmp_path / "engine.sqlite") as database:
        assert database.execute("SELECT count(*) FROM operation_outputs").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM workflow_status WHERE priority = 0").fetchone() == (0,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_recovery_takes_only_what_a_dead_node_still_has(tmp_path: Path) -> None:
    """The library's own recovery, which has no public name: conditional on the row being that node's still."""
    from dbos import DBOS

    runs = Noting(waits=True)
    engine = engine_of("dbos", tmp_path)
    async with engine:
        await engine.submit(activations("a"), queue="work")
        async with serving(engine, runs):
            await runs.until(lambda: runs.inside == 1)
            recover = DBOS._recover_pending_workflows  # pyright: ignore[reportPrivateUsage]
            await anyio.to_thread.run_sync(recover, ["somebody-else"])
            assert await phases(engine, "a@1") == [("running", None)]
            runs.go.set()
            await until_phase(engine, "a@1", "ended")
        assert runs.began == ["a@1"]
