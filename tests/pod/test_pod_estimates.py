"""What a pod learns of its model's token counts outlives segments and restarts, and is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import Agent, Counted, Rig, caller, capabilities, compacting, filler, manifest, size, summariser
from worker.codes import ESTIMATE_BARRED
from worker.models.base import Usage
from worker.records import ReplyRecord, TokensCounted, Warned
from worker.testing import reply, say

pytestmark = pytest.mark.anyio


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def heavy(total: int, factor: float) -> Any:
    """Calls a tool `total` times and counts `factor` times the tokens that the estimator sees."""
    play = caller(total)

    def step(request: Any, number: int) -> Any:
        usage = Usage(input_tokens=int(factor * size(request)), output_tokens=20)
        return reply(play(request, number), usage=usage)

    return step


async def test_calibration_and_errors_go_on_in_new_segments_and_after_a_restart(rig: Rig) -> None:
    made = manifest(compaction=compacting(24_000))
    events: list[Any] = []
    options: dict[str, Any] = {"tools": [Counted(1_500).tool], "compact_model": summariser()}
    async with rig.open(Agent(heavy(14, 2.0)), made, observers=[events.append], **options) as pod:
        (await pod.run("go")).raise_for_status()
        learned = pod.state.history.calibration
    replies = rig.of(ReplyRecord)
    accuracy = learned.accuracy("offline:agent")
    assert rig.of(e.CompactionCompleted) and 1.7 < learned.factor("offline:agent") < 2.2
    assert accuracy.every.count == len(replies)
    assert accuracy.first.count == sum(r.provenance == "heuristic" for r in replies) >= len(rig.starts())
    told = [event for event in events if event.type == "request.completed" and event.estimate_error is not None]
    assert len(told) == accuracy.first.count
    assert told[0].estimate_error < -0.3 < told[-1].estimate_error, "what was learned serves the next segment"
    async with rig.open(Agent(heavy(0, 2.0)), made, **options) as pod:
        assert pod.state.history.calibration == learned


async def test_while_a_model_is_barred_the_pod_compacts_on_reports_alone_until_a_count_puts_it_right(rig: Rig) -> None:
    """Three surprises in a row; then a long message of which only the estimate says that it passes the threshold."""
    made = manifest(compaction=compacting(None, threshold=100_000))
    reports = (23_500, 47_000, 82_000, 82_100, 82_200, 100_001, 100_100)
    agent = Agent(
        lambda request, number: reply(say("ok"), usage=Usage(input_tokens=reports[number - 1], output_tokens=1)),
        capabilities=capabilities(),
    )
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        for n in range(5):
            (await pod.run(filler(12_000, f"n{n}") if n < 3 else "go")).raise_for_status()
        assert [w.code for w in rig.of(Warned)].count(ESTIMATE_BARRED) == 1
        await pod.send(filler(15_000))
        (await pod.run("go on")).raise_for_status()
        assert rig.of(e.CompactionStarted) == [], "82,200 reported, more than 100,000 estimated"
        (await pod.run("again")).raise_for_status()
        assert [c.trigger for c in rig.of(e.CompactionStarted)] == ["threshold"], "100,001 are reported by now"


async def test_a_pod_asks_the_provider_near_its_trigger_only(rig: Rig) -> None:
    asked: list[int] = []

    class Counts(Agent):
        async def count(self, request: Any) -> int:
            asked.append(size(request))
            return size(request)

    agent = Counts(caller(12), capabilities=capabilities(counting="provider"))
    made = manifest(compaction=compacting(12_000))
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
    counted = rig.of(TokensCounted)
    assert len(asked) == len(counted) <= 3 < agent.served
    assert all(abs(tokens - 12_000) < 12_000 * 0.15 for tokens in asked)
