"""What nodes do about schedules, in every engine, on both event loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pod.engine.cron import local
from pod.engine.firing import Firing, still_open
from pod.engine.orders import Orders
from pod.engine.placing import place_once
from pod.engine.port import Activation, Ended, QueueSpec
from pod.engine.schedules import GRACE, OPEN, Schedule, changed, decided, due, pod_of
from tests.engine.engine_rig import KINDS, LASTING, Noting, another, engine_of, phases, serving, until_phase

pytestmark = pytest.mark.anyio

WORK = QueueSpec("work", concurrency=5, interval=0.02)

DAY = 86400.0


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Any:
    return engine_of(request.param, request)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def schedule(tmp_path: Path, **values: Any) -> Schedule:
    base = {"name": "report", "cron": "* * * * * *", "queue": "work", "task": "Report", "manifest": "m"}
    return Schedule.model_validate({**base, "base": str(tmp_path), "cwd": str(tmp_path), **values})


async def the(engine: Any, name: str = "report") -> Schedule:
    schedules = (await engine.schedules.read()).schedules
    (found,) = [each for each in schedules if each.name == name]
    return found


async def now_of(engine: Any) -> float:
    return (await engine.schedules.read()).now


async def queued(engine: Any) -> list[str]:
    return sorted([status.activation.id async for status in engine.list()])


async def missed(engine: Any, tmp_path: Path, days: int = 3, **values: Any) -> float:
    """Has a daily schedule that nobody looked after for some days; the last time that came, twelve hours ago."""
    now = await now_of(engine)
    hour = (local(now, "UTC").hour + 12) % 24
    at = schedule(tmp_path, cron=f"0 {hour} * * *", **values)
    assert await engine.schedules.put(at.model_copy(update={"decided": now - days * DAY}))
    newest = due(await the(engine), now)
    assert newest is not None and now - newest > GRACE
    return newest


async def test_what_came_while_no_node_served_begins_once(engine: Any, orders: Orders, tmp_path: Path) -> None:
    async with engine:
        newest = await missed(engine, tmp_path, partition="acme", priority=7, attempts=2)
        firing = Firing(engine, orders, {"work"})
        for _ in range(3):
            await firing.once()
        pod = pod_of("report", newest)
        assert await queued(engine) == [f"{pod}@1"]
        (status,) = [each async for each in engine.list()]
        assert (status.queue, status.priority, status.partition) == ("work", 7, "acme")
        order = orders.require(pod)
        assert (order.task, order.manifest, order.attempts, order.cwd) == ("Report", "m", 2, str(tmp_path))
        kept = await the(engine)
        assert (kept.decided, kept.due, kept.pod, kept.fired) == (newest, None, pod, newest)


async def test_what_came_while_no_node_served_is_left_out_where_that_is_wanted(
    engine: Any, orders: Orders, tmp_path: Path
) -> None:
    async with engine:
        newest = await missed(engine, tmp_path, missed="skip")
        await Firing(engine, orders, {"work"}).once()
        kept = await the(engine)
        assert await queued(engine) == []
        assert (kept.decided, kept.skipped, kept.why) == (newest, newest, "no node served its queue at that time")
        # What comes while a node serves begins all the same.
        now = await now_of(engine)
        assert await engine.schedules.put(changed(kept, cron="* * * * * *", decided=now - 2))
        await Firing(engine, orders, {"work"}).once()
        assert len(await queued(engine)) == 1


async def test_nodes_of_other_queues_and_paused_schedules_begin_nothing(
    engine: Any, orders: Orders, tmp_path: Path
) -> None:
    async with engine:
        await missed(engine, tmp_path)
        await Firing(engine, orders, {"other"}).once()
        assert await engine.schedules.put(changed(await the(engine), paused=True))
        await Firing(engine, orders, {"work"}).once()
        assert await queued(engine) == []


async def test_while_a_former_pod_is_not_over_its_times_are_left_out(
    engine: Any, orders: Orders, tmp_path: Path
) -> None:
    async with engine:
        first = pod_of("report", await missed(engine, tmp_path))
        firing = Firing(engine, orders, {"work"})
        await firing.once()
        await come(engine)
        await firing.once()
        kept = await the(engine)
        assert kept.why == f"{first} was not over" and await queued(engine) == [f"{first}@1"]
        assert await still_open(engine, orders, kept) == [first]
        await engine.cancel([f"{first}@1"])
        await come(engine)
        await firing.once()
        second = (await the(engine)).pod
        assert second is not None and await still_open(engine, orders, await the(engine)) == [second]
        assert await phases(engine, f"{first}@1", f"{second}@1") == [("ended", "cancelled"), ("queued", None)]


async def come(engine: Any) -> None:
    """Has a time of the schedule come, now."""
    now = await now_of(engine)
    assert await engine.schedules.put(changed(await the(engine), cron="* * * * * *", decided=now - 1.5))


async def test_a_former_pod_that_is_handed_on_is_not_over(engine: Any, orders: Orders, tmp_path: Path) -> None:
    async with engine:
        newest = await missed(engine, tmp_path)
        await Firing(engine, orders, {"work"}).once()
        pod = pod_of("report", newest)
        runs = Noting(lambda activation: Ended("drained"), waits=True)
        async with serving(engine, runs, WORK):
            await runs.until(lambda: runs.inside == 1)
            # Its next activation is in the order, and not on the queue yet.
            order = orders.follow(Activation(pod), "drained")
            assert order.n == 2 and await still_open(engine, orders, await the(engine)) == [pod]
            runs.go.set()
            await until_phase(engine, f"{pod}@1", "ended")
            assert await still_open(engine, orders, await the(engine)) == [pod]
            await engine.submit([order.activation], queue="work")
            await until_phase(engine, f"{pod}@2", "ended")


async def test_where_it_is_allowed_pods_of_a_schedule_overlap(engine: Any, orders: Orders, tmp_path: Path) -> None:
    async with engine:
        await missed(engine, tmp_path, overlap="allow")
        firing = Firing(engine, orders, {"work"})
        await firing.once()
        await come(engine)
        await firing.once()
        assert len(await queued(engine)) == 2
        assert len(await still_open(engine, orders, await the(engine))) == 2


async def test_what_was_decided_and_not_done_is_done_by_the_next_node(
    engine: Any, orders: Orders, tmp_path: Path
) -> None:
    """The first node ends between the two."""
    async with engine:
        newest = await missed(engine, tmp_path)
        old = await the(engine)
        made = decided(old, newest, await now_of(engine), []).model_copy(update={"version": old.version + 1})
        assert await engine.schedules.put(made) and made.due is not None
        await Firing(engine, orders, {"work"}).once()
        assert await queued(engine) == [f"{made.due}@1"]
        assert (await the(engine)).due is None


async def test_a_node_that_comes_late_begins_nothing_again(engine: Any, orders: Orders, tmp_path: Path) -> None:
    """It read the schedule, was frozen, and goes on when the pod is long over."""
    async with engine:
        newest = await missed(engine, tmp_path)
        late = await the(engine)
        await Firing(engine, orders, {"work"}).once()
        pod = pod_of("report", newest)
        await engine.cancel([f"{pod}@1"])
        made = decided(late, newest, await now_of(engine), []).model_copy(update={"version": late.version + 1})
        assert not await engine.schedules.put(made)
        await place_once(engine, orders, late.order(pod))
        assert await queued(engine) == [f"{pod}@1"] and orders.require(pod).n == 1


async def test_of_two_that_change_a_schedule_one_is_heard(engine: Any, tmp_path: Path) -> None:
    made = schedule(tmp_path)
    async with engine:
        assert await engine.schedules.put(made)
        assert not await engine.schedules.put(schedule(tmp_path))
        assert await engine.schedules.put(changed(made, task="One"))
        assert not await engine.schedules.put(changed(made, task="Other"))
        assert (await the(engine)).task == "One"
        assert await engine.schedules.remove("report") and not await engine.schedules.remove("report")
        # One of the same name that was made anew is another one.
        assert not await engine.schedules.put(changed(made, task="Late"))
        assert await engine.schedules.put(again := schedule(tmp_path))
        assert not await engine.schedules.put(changed(made, task="Late"))
        assert (await the(engine)) == again


@pytest.mark.parametrize("kind", LASTING)
async def test_two_nodes_that_look_all_the_time_begin_each_time_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, orders: Orders
) -> None:
    runs = Noting()
    async with engine_of(kind, request) as one, another(one) as two:
        made = schedule(tmp_path, overlap="allow").model_copy(update={"decided": await now_of(one)})
        assert await one.schedules.put(made)
        async with serving(one, runs, WORK), anyio.create_task_group() as group:
            for engine in (one, two, one, two):
                group.start_soon(Firing(engine, orders, {"work"}).run)
            await runs.until(lambda: len(runs.began) >= 2)
            group.cancel_scope.cancel()
    assert len(set(runs.began)) == len(runs.began), runs.began
    seconds = sorted(int(id_.partition("@")[0][-7:-1]) for id_ in runs.began)
    assert all(each.endswith("Z@1") for each in runs.began) and len(set(seconds)) == len(seconds)


@pytest.mark.parametrize("kind", LASTING)
async def test_schedules_outlive_the_processes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = schedule(tmp_path, zone="Europe/Berlin", missed="skip", overlap="allow", decided=12.5)
    async with engine_of(kind, request) as first:
        assert await first.schedules.put(made)
    async with another(first) as engine:
        assert await the(engine) == made


async def test_one_schedule_that_fails_keeps_no_other_one_from_its_time(
    engine: Any, orders: Orders, tmp_path: Path
) -> None:
    told: list[str] = []
    async with engine:
        await missed(engine, tmp_path)
        assert await engine.schedules.put(schedule(tmp_path, name="a-bad", zone="Nowhere/City"))
        firing = Firing(engine, orders, {"work"}, told.append)
        for _ in range(2):
            await firing.once()
        assert len(await queued(engine)) == 1
    assert len([line for line in told if "no time zone 'Nowhere/City'" in line]) == 1


async def test_a_database_that_is_away_is_told_once_and_tried_again(orders: Orders, tmp_path: Path) -> None:
    from pod.engine.memory import MemoryEngine

    told: list[str] = []
    engine: Any = MemoryEngine()
    await missed(engine, tmp_path)
    read, tried = engine.schedules.read, 0

    async def away() -> Any:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise OSError("gone")
        return await read()

    engine.schedules.read = away
    async with anyio.create_task_group() as group:
        group.start_soon(Firing(engine, orders, {"work"}, told.append).run)
        with anyio.fail_after(10):
            while not await queued(engine):
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert told[0].startswith("the schedules can't be read (OSError: gone)") and len(told) == 2


async def test_a_schedule_looks_after_so_many_pods_and_no_more(tmp_path: Path) -> None:
    made = schedule(tmp_path)
    for n in range(OPEN + 5):
        made = made.begun(f"report/{n}", 0.0, made.open)
    assert len(made.open) == OPEN and made.open[-1] == f"report/{OPEN + 4}"
