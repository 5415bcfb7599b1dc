"""What `pod context` says will go next is what the next request then does: asked before each request of a session."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pod import setup
from pod.foresight import Next, foresee
from pod.log import entries as e
from pod.outlook import outlook
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker.estimate import estimate_item, estimate_text
from worker.models.base import Usage
from worker.records import Pruned
from worker.testing import call, reply, say

pytestmark = pytest.mark.anyio

PRICED, FREE = "openai:gpt-5.1", "offline:surveyor"
TOTAL = 26


async def foreseen(rig: Rig, model: str, **sections: Any) -> list[tuple[Next, Next, bool, bool]]:
    """For each request but the first: what was foreseen of prune and compaction, and whether they came."""
    made = manifest(
        model={"name": model, "context_window": 60_000, "max_output_tokens": 1_000},
        worker={"max_requests": 1}, compaction=compacting(24_000), **sections,
    )  # fmt: skip
    agent = Agent(caller(TOTAL), name=model, capabilities=setup.models_of(made.model)[0].capabilities)
    tool, found, coming = Counted(1_400).tool, list[tuple[Next, Next, bool, bool]](), None
    pruned = 0
    for number in range(TOTAL):
        async with rig.open(agent, made, tools=[tool], compact_model=summariser()) as pod:
            compacted = pod.state.totals.compactions
            result = await (pod.run("go") if number == 0 else pod.resume())
            prunes, compactions = len(rig.of(Pruned)) - pruned, pod.state.totals.compactions - compacted
            pruned += prunes
        assert result.status == "limit"
        if coming is not None:
            found.append((coming[0], coming[1], prunes > 0, compactions > 0))
        view = outlook(rig.folder())
        coming = foresee(view, view.plan(), time.time())
    return found


@pytest.mark.parametrize(("model", "anyio_backend"), [(PRICED, "asyncio"), (FREE, "trio")])
@pytest.mark.parametrize(
    "prune",
    [
        {"enabled": True, "protected_tokens": 2_000},
        {"enabled": True, "protected_tokens": 2_000, "min_savings": 5_000},
        {"enabled": False},
    ],
)
async def test_prunes_and_compactions_come_when_they_were_foreseen(rig: Rig, model: str, prune: dict[str, Any]) -> None:
    found = await foreseen(rig, model, prune=prune)
    assert [(p.happens, c.happens) for p, c, _, _ in found] == [(pruned, made) for _, _, pruned, made in found]
    assert any(pruned or made for _, _, pruned, made in found)


async def test_a_prune_that_does_not_pay_yet_is_not_foreseen_and_says_so(rig: Rig) -> None:
    """With prices more decides than the tokens that could go."""
    found = await foreseen(rig, PRICED, prune={"enabled": True, "protected_tokens": 2_000})
    waiting = [prune for prune, _, _, _ in found if "by the model's prices that does not pay yet" in prune.reason]
    assert waiting and not any(prune.happens for prune in waiting)


async def test_a_dry_run_foretells_sizes_as_the_model_counts_them(rig: Rig) -> None:
    """The model counts 1.6 times what is estimated: what is foretold bounds what a compaction then comes to, on both sides."""
    fetch = Counted(1_400)
    made = manifest(
        model={"name": FREE, "context_window": 90_000, "max_output_tokens": 1_000},
        compaction=compacting(None, threshold=80_000, retained_tokens=6_000),
    )

    def play(request: Any, n: int) -> Any:
        raw = sum(estimate_item(item, "o200k") for item in request.items) + estimate_text(request.system, "o200k") + 100
        usage = Usage(input_tokens=int(raw * 1.6), output_tokens=20)
        return reply(call("fetch", n=n) if n <= 12 else say("done"), usage=usage)

    agent = Agent(play, name=FREE, capabilities=setup.models_of(made.model)[0].capabilities)
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=summariser()) as pod:
        (await pod.run("fetch twelve")).raise_for_status()
    view = outlook(rig.folder())
    plan = view.plan()
    assert view.state.history.calibration.whole(FREE) > 1.4
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=summariser()) as pod:
        assert await pod.compact()
    (completed,) = rig.of(e.CompactionCompleted)
    assert view.least(plan) <= completed.after <= plan.expected
    assert view.least(plan) > plan.before.overhead + plan.retained_tokens + 1_000, (
        "raw tokens would foretell too little"
    )
