"""The limits of a run hold inside its compactions: a request that would pass one is not sent, whoever would send it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from interceptors.limits import Spent
from pod import Manifest
from pod.log import entries as e
from tests.pod.native_rig import NativeAgent
from tests.pod.pod_rig import Agent, Counted, Rig, caller, capabilities, compacting, manifest, summariser
from worker.models.base import Price, Request
from worker.records import ReplyRecord
from worker.testing import call, hang
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio

PRICE = Price(input=1.0, output=10.0, cache_read=0.1, cache_write=1.25, source="test")
DEAR = Price(input=10.0, output=100.0, cache_read=1.0, cache_write=12.5, source="test")
TOTAL = 12


def restless() -> Agent:
    """A compact worker that looks things up and never writes its summary."""

    def play(request: Request, number: int) -> Step:
        return call("read_session_items", offset=number, limit=5)

    return Agent(play, name="offline:restless", capabilities=capabilities(price=DEAR))


def limited(**limits: Any) -> Manifest:
    return manifest(model={"name": "offline:surveyor"}, compaction=compacting(8_000), limits=limits)


def agent() -> Agent:
    return Agent(caller(TOTAL), capabilities=capabilities(price=PRICE))


@pytest.mark.parametrize("limits", [{"max_total_tokens": 60_000}, {"max_cost_usd": 0.4}])
async def test_a_compact_worker_that_finds_no_end_stops_at_the_runs_limit(rig: Rig, limits: dict[str, Any]) -> None:
    worker = restless()
    async with rig.open(agent(), limited(**limits), tools=[Counted(1_500).tool], compact_model=worker) as pod:
        result = await pod.run("go")
        totals = pod.state.totals
    assert result.status == "limit" and "in a compaction" in (result.error or "")
    assert worker.served > 1
    [key] = limits
    replies = [each for each in rig.worker_records(rig.worker_logs()[-1]) if isinstance(each, ReplyRecord)]
    answer = replies[-1].usage.output_tokens
    used = {
        "max_total_tokens": totals.prompt_tokens + totals.output_tokens - answer,
        "max_cost_usd": totals.cost_usd,
    }
    assert 0.5 * limits[key] < used[key] <= limits[key]
    assert result.details["limit"] == limits[key]


async def test_a_run_that_its_limit_ended_in_a_compaction_goes_on_with_a_higher_one(rig: Rig) -> None:
    """Nothing was taken out of the view for want of money, and no rung below made a lesser memory; the breaker counts nothing."""
    low, tool = limited(max_total_tokens=40_000), Counted(1_500).tool
    async with rig.open(agent(), low, tools=[tool], compact_model=restless()) as pod:
        assert (await pod.run("go")).status == "limit"
        assert pod.state.breaker.failures == 0 and len(rig.segments()) == 1
    rungs = [record.rung for record in rig.of(e.CompactionRung) if record.state == "tried"]
    assert set(rungs) <= {"compact", "coarse"}
    async with rig.open(agent(), limited(max_total_tokens=400_000), tools=[tool], compact_model=summariser()) as pod:
        result = await pod.resume()
    assert result.status == "finished" and result.compactions >= 1


async def test_a_providers_own_compaction_that_would_pass_a_limit_is_not_asked_for(rig: Rig) -> None:
    """The request to compact reads the history once more: with that the run would be above its limit."""
    model = NativeAgent(caller(TOTAL))
    found = []
    for most in (10_000_000, 40_000):
        name = f"p{most}"
        made = manifest(
            model={"name": "offline:surveyor"}, context={"policy": "native"}, compaction=compacting(8_000),
            limits={"max_total_tokens": most},
        )  # fmt: skip
        model = NativeAgent(caller(TOTAL))
        async with rig.open(model, made, name, tools=[Counted(1_500).tool]) as pod:
            result = await pod.run("go")
            totals = pod.state.totals
        found.append((result.status, len(model.asked) > 0))
        assert totals.prompt_tokens + totals.output_tokens <= most
    assert found[0] == ("finished", True) and found[1][0] == "limit"


async def test_a_compaction_by_hand_has_the_limits_for_itself_and_says_what_ended_it(rig: Rig) -> None:
    """No run is under way that could end: the context stays as it is, with a warning."""
    made = manifest(
        model={"name": "offline:surveyor"}, compaction=compacting(None), limits={"max_total_tokens": 25_000}
    )
    worker = restless()
    async with rig.open(Agent(caller(5)), made, tools=[Counted(800).tool], compact_model=worker) as pod:
        (await pod.run("go")).raise_for_status()
        before = pod.state.totals
        assert not await pod.compact()
        spent = pod.state.totals.prompt_tokens + pod.state.totals.output_tokens
        spent -= before.prompt_tokens + before.output_tokens
        (booked,) = (figures for label, figures in pod.state.totals.by.items() if label.startswith("compaction:"))
    # What the last request of all will be answered with is not known before it is sent; its replies are alike.
    assert 0 < spent <= 25_000 + 2 * booked["output_tokens"] / booked["requests"]
    assert "max_total_tokens" in rig.of(e.CompactionFailed)[-1].reason


def test_what_a_worker_beside_a_run_uses_counts_but_its_requests_and_calls() -> None:
    run, worker = Spent(3, 0.5, 1_000, 9.0, 4), Spent(7, 0.25, 500, 1.0, 8, 1)
    assert run.beside(worker) == Spent(3, 0.75, 1_500, 9.0, 4, 1)


async def test_what_a_compact_worker_spent_before_it_was_interrupted_is_booked(rig: Rig) -> None:
    """B158: each reply of the worker was billed, though no summary came of it."""
    asked = anyio.Event()

    def play(request: Request, number: int) -> Step:
        if number < 4:
            return call("read_session_items", offset=number, limit=5)
        asked.set()
        return hang()

    worker = Agent(play, name="offline:restless", capabilities=capabilities(price=PRICE))
    async with rig.open(agent(), limited(), tools=[Counted(1_500).tool], compact_model=worker) as pod:
        async with anyio.create_task_group() as group:
            group.start_soon(pod.run, "go")
            with anyio.fail_after(30):
                await asked.wait()
            group.cancel_scope.cancel()
        booked = pod.state.totals.by["compaction:offline:restless"]
    assert booked["requests"] == 3 and booked["cost_usd"] > 0 and booked["prompt_tokens"] > 0
    async with rig.open(agent(), limited(), tools=[Counted(1_500).tool], compact_model=worker) as pod:
        assert pod.state.totals.by["compaction:offline:restless"] == booked
