"""What every engine promises, on both event loops: memory, DBOS on SQLite, DBOS on PostgreSQL."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from pod.engine.port import Activation, Ended, Following, QueueSpec
from tests.engine.engine_rig import (
    KINDS,
    LASTING,
    QUEUE,
    Noting,
    activations,
    engine_of,
    phases,
    rows,
    serving,
    until_phase,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Any:
    return engine_of(request.param, request)


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest) -> Any:
    """An engine whose tables outlive it. What ended is kept for no time at all."""
    return engine_of(request.param, request, keep=0.0)


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


async def test_who_wakes_may_have_a_clock_that_is_ahead(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine:
        await engine.submit(activations("w"), queue="work", delay=1000.0)
        with monkeypatch.context() as patch:
            clock = time.time
            patch.setattr(time, "time", lambda: clock() + 3600.0)
            await engine.wake("w@1")
        (found,) = await engine.status(["w@1"])
        assert found.phase == "queued" or found.due <= time.time()


async def test_a_short_delay_ends_by_itself_and_not_before(engine: Any) -> None:
    runs = Noting()
    async with engine, serving(engine, runs):
        submitted = anyio.current_time()
        await engine.submit(activations("d"), queue="work", delay=0.3)
        await runs.until(lambda: runs.began == ["d@1"])
        assert anyio.current_time() - submitted >= 0.3
        await until_phase(engine, "d@1", "ended")


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


async def test_those_that_were_made_lately_are_listed_alone(engine: Any) -> None:
    async with engine:
        await engine.submit(activations("a0"), queue="work", delay=3600.0)
        (old,) = [status async for status in engine.list()]
        made = [old]
        with anyio.fail_after(10):
            while made[-1].created == old.created:  # a file's clock goes by whole seconds
                await engine.submit(activations(f"a{len(made)}"), queue="work", delay=3600.0)
                made += await engine.status([f"a{len(made)}@1"])
                await anyio.sleep(0.1)
        found = [s async for s in engine.list(phases=["delayed"], since=made[-1].created)]
        assert [s.activation.id for s in found] == [made[-1].activation.id]
        assert not [s async for s in engine.list(since=made[-1].created + 1.0)]


async def test_a_run_has_no_steps_and_what_it_submits_is_no_step_either(lasting: Any) -> None:
    def ends(activation: Activation) -> Ended:
        return Ended("superseded", "", Following(Activation("a", 2), "work")) if activation.n == 1 else Ended("done")

    runs = Noting(ends, waits=True)
    async with lasting:
        await lasting.submit(activations("a"), queue="work")
        async with serving(lasting, runs):
            await runs.until(lambda: runs.inside == 1)
            runs.go.set()
            await runs.until(lambda: runs.began == ["a@1", "a@2"])
        assert rows(lasting, "SELECT count(*) FROM operation_outputs") == [(0,)]
        assert rows(lasting, "SELECT count(*) FROM workflow_status WHERE priority = 0") == [(0,)]
        if lasting.place.schema is None:
            assert rows(lasting, "PRAGMA journal_mode") == [("wal",)]
        else:
            found = rows(lasting, "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'workflow_status'")
            assert found == [("pod_engine",)]
            assert rows(lasting, "SHOW synchronous_commit") == [("local",)]


async def test_recovery_takes_only_what_a_dead_node_still_has(lasting: Any) -> None:
    """The library's own recovery, which has no public name: conditional on the row being that node's still."""
    from dbos import DBOS

    runs = Noting(waits=True)
    async with lasting:
        await lasting.submit(activations("a"), queue="work")
        async with serving(lasting, runs):
            await runs.until(lambda: runs.inside == 1)
            recover = DBOS._recover_pending_workflows  # pyright: ignore[reportPrivateUsage]
            await anyio.to_thread.run_sync(recover, ["somebody-else"])
            assert await phases(lasting, "a@1") == [("running", None)]
            runs.go.set()
            await until_phase(lasting, "a@1", "ended")
        assert runs.began == ["a@1"]


async def test_what_a_node_left_that_gives_no_sign_of_life_begins_again_on_its_queue(lasting: Any) -> None:
    runs = Noting()
    one = QueueSpec("work", concurrency=1, interval=0.02)
    async with lasting:
        await lasting.submit(activations("theirs", "alive", *(f"new{n}" for n in range(3))), queue="work", priority=200)
        label = "elsewhere/7/7"  # no process of this machine: nobody can look whether it is gone
        taken = "UPDATE workflow_status SET status = 'PENDING', executor_id = :node WHERE workflow_uuid = :id"
        rows(lasting, taken, node="gone", id="theirs@1")
        rows(lasting, taken, node="there", id="alive@1")
        runs.waits = True  # the first one that is new takes the only place
        async with serving(lasting, runs, one):
            with anyio.fail_after(15):
                while await phases(lasting, "theirs@1") != [("queued", None)]:
                    await anyio.to_thread.run_sync(lasting._nodes.beat, "there", label, ["work"])
                    await anyio.sleep(0.05)
            runs.go.set()
            await until_phase(lasting, "theirs@1", "ended")
            assert runs.began[1] == "theirs@1", "what was begun goes before what is new"
            await anyio.to_thread.run_sync(lasting._nodes.beat, "there", label, ["work"])
            assert {node.id for node in await lasting.nodes()} == {lasting.worker, "there"}
            assert await phases(lasting, "alive@1") == [("running", None)]
        (status,) = await lasting.status(["theirs@1"])
        assert (status.outcome, status.priority, status.worker) == ("done", 10, lasting.worker)


async def test_an_activation_that_stands_as_this_nodes_and_does_not_run_is_put_back(
    lasting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pod.engine.keeping.LOST", 0.3)
    runs = Noting()
    async with lasting:
        await lasting.submit(activations("lost"), queue="elsewhere", priority=7)
        async with serving(lasting, runs):
            rows(lasting, "UPDATE workflow_status SET status = 'PENDING', executor_id = :me", me=lasting.worker)
            assert await phases(lasting, "lost@1") == [("running", None)]
            assert (await until_phase(lasting, "lost@1", "queued")).queue == "elsewhere"
        assert not runs.began


async def test_what_ended_long_ago_is_swept_away_and_nothing_else_is(lasting: Any) -> None:
    runs = Noting()
    async with lasting:
        await lasting.submit(activations("done"), queue="work")
        await lasting.submit(activations("later"), queue="work", delay=3600.0)
        await lasting.submit(activations("waits"), queue="elsewhere")
        await lasting.submit(activations("off"), queue="elsewhere")
        await lasting.cancel(["off@1"])
        async with serving(lasting, runs):
            await runs.until(lambda: runs.began == ["done@1"] and not runs.inside)
        async with serving(lasting, runs):  # a node sweeps when it begins
            with anyio.fail_after(15):
                while len([status async for status in lasting.list()]) != 2:
                    await anyio.sleep(0.02)
        assert runs.began == ["done@1"]
        assert await phases(lasting, "later@1", "waits@1") == [("delayed", None), ("queued", None)]
