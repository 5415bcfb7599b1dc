"""What bounds a queue over all nodes, in every engine, on both event loops: never exceeded, and changed while nodes serve."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from pod.engine.bounding import MANY, bounds
from pod.engine.limits import Limits
from pod.engine.port import Activation, Ended, Following, QueueSpec
from pod.engine.tables import QueueRow
from pod.errors import UsageProblem
from tests.engine.engine_rig import (
    KINDS,
    LASTING,
    Noting,
    activations,
    another,
    engine_of,
    phases,
    serving,
    until_phase,
)

pytestmark = pytest.mark.anyio

WIDE = QueueSpec("work", concurrency=6, interval=0.02)


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Any:
    return engine_of(request.param, request)


@dataclass
class Witness(Noting):
    """Notes as well when each began, and the most of each tenant that ran at once; a session is TENANT-NUMBER."""

    times: list[float] = field(default_factory=list)
    of: Counter[str] = field(default_factory=Counter[str])
    most_of: Counter[str] = field(default_factory=Counter[str])

    async def run(self, activation: Activation) -> Ended:
        tenant = activation.session.partition("-")[0]
        self.times.append(time.monotonic())
        self.of[tenant] += 1
        self.most_of[tenant] = max(self.most_of[tenant], self.of[tenant])
        try:
            return await super().run(activation)
        finally:
            self.of[tenant] -= 1


def tenants(*names: str, each: int) -> tuple[list[Activation], dict[str, str]]:
    sessions = [f"{name}-{n}" for name in names for n in range(each)]
    return list(activations(*sessions)), {session: session.partition("-")[0] for session in sessions}


async def test_all_nodes_together_run_no_more_than_the_queue_may_as_it_is_raised_and_lowered(engine: Any) -> None:
    runs = Witness(waits=True)
    async with engine:
        await engine.limit("work", Limits(together=2))
        await engine.submit(activations(*(f"s-{n}" for n in range(9))), queue="work")
        async with serving(engine, runs, WIDE):
            await runs.until(lambda: runs.inside == 2)
            await engine.submit(activations("next"), queue="work", priority=1)
            assert runs.most == 2
            await engine.limit("work", Limits(together=4))
            await runs.until(lambda: runs.inside == 4)
            await engine.limit("work", Limits())
            await runs.until(lambda: runs.inside == 6)
            assert await engine.limits() == {}
            await engine.limit("work", Limits(each_node=1))
            runs.go.set()
            await runs.until(lambda: len(runs.began) == 10 and not runs.inside)
            # The look that takes this one up may have begun before the limit; the next one has not.
            await engine.submit(activations("look"), queue="work")
            await until_phase(engine, "look@1", "ended")
            runs.most = 0
            await engine.submit(activations("d", "e", "f"), queue="work")
            await runs.until(lambda: len(runs.began) == 14 and not runs.inside)
        assert runs.most == 1
        assert await engine.limits() == {"work": Limits(each_node=1)}


async def test_one_tenant_does_not_take_all_the_places(engine: Any) -> None:
    runs = Witness(waits=True)
    async with engine:
        await engine.limit("work", Limits(each_partition=2))
        acts, partitions = tenants("big", each=8)
        await engine.submit(acts, queue="work", priority=1, partitions=partitions)
        acts, partitions = tenants("small", "tiny", each=2)
        await engine.submit(acts, queue="work", partitions=partitions)
        await engine.submit(activations("nobody-0"), queue="work")
        async with serving(engine, runs, QueueSpec("work", concurrency=9, interval=0.02)):
            await runs.until(lambda: runs.inside == 7)
            assert runs.of == {"big": 2, "small": 2, "tiny": 2, "nobody": 1}
            assert {s.activation.session: s.partition async for s in engine.list(phases=["running"])} == {
                session: "" if session == "nobody-0" else session.partition("-")[0]
                for session in (id_.partition("@")[0] for id_ in runs.began)
            }
            runs.go.set()
            await runs.until(lambda: len(runs.began) == 13 and not runs.inside)
        assert max(runs.most_of.values()) == 2


async def test_what_goes_on_stays_in_its_partition(engine: Any) -> None:
    def ends(activation: Activation) -> Ended:
        if activation.n == 2:
            return Ended("done")
        following = Following(Activation(activation.session, 2), "work", partition="acme")
        return Ended("superseded", "", following)

    runs = Noting(ends)
    async with engine:
        await engine.limit("work", Limits(each_partition=1))
        await engine.submit(activations("a"), queue="work", partitions={"a": "acme"})
        async with serving(engine, runs, WIDE):
            done = await until_phase(engine, "a@2", "ended")
        assert (done.outcome, done.partition) == ("done", "acme")


async def test_no_more_begin_in_any_time_than_may(engine: Any) -> None:
    runs, per = Witness(), 0.6
    async with engine:
        await engine.limit("work", Limits(starts=3, per=per))
        await engine.submit(activations(*(f"s-{n}" for n in range(5))), queue="work")
        async with serving(engine, runs, WIDE):
            await runs.until(lambda: len(runs.began) == 5 and not runs.inside)
        found = await engine.status([f"s-{n}@1" for n in range(5)])
    # By the engine's own stamps: what runs hears of its start a moment later.
    starts = sorted(each.started or 0.0 for each in found)
    for first, fourth in zip(starts, starts[3:], strict=False):
        assert fourth - first > per - 0.01, [moment - starts[0] for moment in starts]


@pytest.mark.parametrize("kind", LASTING)
async def test_limits_outlive_the_processes_and_nodes_that_begin_later_keep_to_them(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async with engine_of(kind, request) as first:
        await first.limit("work", Limits(together=1, starts=50, per=60.0))
    runs = Noting(waits=True)
    async with another(first) as engine:
        assert await engine.limits() == {"work": Limits(together=1, starts=50, per=60.0)}
        await engine.submit(activations("a", "b"), queue="work")
        async with serving(engine, runs, WIDE):
            await runs.until(lambda: runs.inside == 1)
            # Without the limit a look takes all that wait, at once.
            assert sorted(await phases(engine, "a@1", "b@1")) == [("queued", None), ("running", None)]
            runs.go.set()
            await runs.until(lambda: len(runs.began) == 2 and not runs.inside)
        assert runs.most == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [({"starts": 3}, "give --per SECONDS as well"), ({"per": 3.0}, "give --starts N as well")],
)
def test_limits_that_do_not_go_together_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        Limits().changed(**values)


def test_a_limit_is_changed_alone_and_taken_away_alone() -> None:
    limits = Limits(together=4).changed(starts=3, per=2.5)
    assert limits.words() == "4 together, 3 starts in 2.5 s"
    assert limits.changed(together=None) == Limits(starts=3, per=2.5)
    assert limits.changed(starts=None) == Limits(together=4)
    assert Limits.of({**limits.as_json(), "of a later version": 1}) == limits


def test_a_bound_above_another_one_never_hinders() -> None:
    """The library refuses a node's bound above that of all: then that one is the node's."""
    row = QueueRow(Limits(together=2, each_node=5, each_partition=9), concurrency=8, interval=0.5)
    assert bounds(row, "sqlite") == {
        "worker_concurrency": 2, "global_concurrency": 2, "partition_concurrency": 2, "limiter": None, "polling_interval_sec": 0.5,
    }  # fmt: skip


def test_in_postgresql_what_is_bounded_over_all_nodes_is_bounded_in_both_ways() -> None:
    def both(database: str, **limits: Any) -> tuple[int | None, int | None]:
        found = bounds(QueueRow(Limits(**limits), 8), database)
        return found["global_concurrency"], found["partition_concurrency"]

    assert both("postgresql", together=2) == (2, 2)
    assert both("postgresql", each_partition=2) == (MANY, 2)
    assert both("postgresql", starts=2, per=1.0) == (MANY, MANY)
    assert both("postgresql", each_node=2) == (None, None)
    assert both("sqlite", together=2) == (2, None)
