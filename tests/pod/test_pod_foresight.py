"""What `pod context` says will go next is what the next request then does: asked before each request of a session."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pod import setup
from pod.foresight import Next, foresee
from pod.outlook import outlook
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker.records import Pruned

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
    for number in range(TOTAL):
        async with rig.open(agent, made, tools=[tool], compact_model=summariser()) as pod:
            before = len(rig.of(Pruned)), pod.state.totals.compactions
            result = await (pod.run("go") if number == 0 else pod.resume())
            prunes, compactions = len(rig.of(Pruned)) - before[0], pod.state.totals.compactions - before[1]
        assert result.status == "limit"
        if coming is not None:
            found.append((coming[0], coming[1], prunes > 0, compactions > 0))
        view = outlook(rig.folder())
        coming = foresee(view, view.plan(), time.time())
    return found


@pytest.mark.parametrize("model", [PRICED, FREE])
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
