"""Promises of `[context] tool_clearing`: the provider clears old results by the numbers of `[prune]`, in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pod import setup
from pod.clearing import clearing_of, clears
from pod.log import entries as e
from tests.pod.native_rig import NativeAgent, memories, native, rungs
from tests.pod.pod_rig import Agent, Counted, Rig, call, caller, capabilities, compacting, manifest, say
from worker.errors import BadRequest, ProviderDown
from worker.estimate import estimate_items
from worker.history import History
from worker.items import ReasoningItem
from worker.models.base import Emit, Reply, Request, ToolClearing, Usage
from worker.models.registry import BUILT_IN
from worker.records import Pruned, ReplyRecord
from worker.testing import make_reply
from worker.tools import tool

pytestmark = pytest.mark.anyio

ABLE: dict[str, Any] = {"tool_clearing": True, "history_binding": "thinking_prefix"}
ON = {"enabled": True, "protected_tokens": 2_000, "min_savings": 1_000}


@pytest.mark.parametrize(
    ("mode", "policy", "caps", "expected"),
    [
        ("auto", "native", ABLE, True),
        ("auto", "compact", ABLE, False),
        ("auto", "native", {"tool_clearing": True}, False),
        ("auto", "native", {"history_binding": "thinking_prefix"}, False),
        ("on", "compact", {"tool_clearing": True}, True),
        ("on", "compact", {}, False),
        ("off", "native", ABLE, False),
    ],
)
def test_it_is_for_models_that_bind_their_reasoning_unless_the_manifest_says_otherwise(
    mode: str, policy: str, caps: dict[str, Any], expected: bool
) -> None:
    made = manifest(context={"policy": policy, "tool_clearing": mode}, prune=ON)
    assert clears(made, capabilities(**caps)) is expected
    assert (clearing_of(made, capabilities(**caps), ()) is not None) is expected


@tool(prunable=False)
async def keeps(n: int) -> str:
    """Is never cleared."""
    return ""


@pytest.mark.parametrize(
    ("trigger", "prune", "expected"),
    [
        (50_000, ON, ToolClearing(30_000, 3, 1_000, ("keeps",))),
        (None, ON, ToolClearing(int(0.6 * 199_000), 3, 1_000, ("keeps",))),
        (10_000, {**ON, "protected_tokens": 8_000}, ToolClearing(8_000, 3, 1_000, ("keeps",))),
        (50_000, {**ON, "min_savings": "auto"}, ToolClearing(30_000, 3, 4_096, ("keeps",))),
    ],
)
def test_its_numbers_are_those_of_the_prune(trigger: int | None, prune: Any, expected: ToolClearing) -> None:
    made = native(trigger, prune=prune, model={"max_output_tokens": 1_000})
    assert clearing_of(made, capabilities(**ABLE), (Counted().tool, keeps)) == expected


def test_only_the_models_that_can_are_made_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "sealed", "tests.pod.native_rig:create")
    made = native(20_000, prune=ON, model={"name": "sealed:one", "fallback": ["sealed:plain"]})
    first, second = setup.pod_models(made, {"keeps": keeps})
    assert isinstance(first, NativeAgent) and isinstance(second, NativeAgent)
    assert first.settings.tool_clearing == ToolClearing(12_000, 3, 1_000, ("keeps",))
    assert second.settings.tool_clearing is None
    assert setup.cleared_of(made, (first, second)) == {"sealed:one"}


async def test_the_pods_own_prune_leaves_such_a_model_alone(rig: Rig) -> None:
    for name, caps in (("able", ABLE), ("plain", {})):
        agent = NativeAgent(caller(8), **caps)
        async with rig.open(agent, native(None, prune=ON), name=name, tools=[Counted(1_000).tool]) as pod:
            await pod.run("go")
    assert not rig.of(Pruned, "able") and rig.of(Pruned, "plain")


async def test_above_the_ceiling_it_is_pruned_all_the_same(rig: Rig) -> None:
    """Whatever the provider would clear: no request is estimated above the ceiling."""
    agent = NativeAgent(caller(12), window=9_000, **ABLE)
    made = manifest(context={"policy": "warn", "tool_clearing": "on"}, prune=ON)
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    assert {p.reason for p in rig.of(Pruned)} == {"ceiling"}


class Clearing(NativeAgent):
    """Its provider reports a request without the results that it cleared."""

    async def send(self, request: Request, emit: Emit) -> Reply:
        found = await super().send(request, emit)
        sent = found.usage.input_tokens or 0
        if sent <= 6_000:
            return found
        cleared = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": sent - 4_000}
        usage = Usage(input_tokens=4_000, output_tokens=found.usage.output_tokens)
        return replace(found, usage=usage, transformations=(cleared,))


async def test_what_was_cleared_counts_neither_for_a_trigger_nor_for_the_estimator(rig: Rig) -> None:
    agent = Clearing(caller(16), **ABLE)
    async with rig.open(agent, native(12_000, prune=ON), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        calibration = pod.state.history.calibration
    assert len(rig.starts()) == 1 and not agent.asked, "it never came to the trigger"
    assert 0.9 < calibration.factor("sealed:one") < 1.2
    assert any(r.transformations for r in rig.of(ReplyRecord))


async def test_a_request_to_compact_is_estimated_in_full_and_so_is_a_fallbacks(rig: Rig) -> None:
    """Nothing is cleared there: what the provider reported of cleared requests says nothing of their size."""
    down = ProviderDown("down", status=500)
    agent = Clearing(caller(16), window=14_000, enforce_window=False, answer=lambda r, n: down, **ABLE)
    small = Agent(lambda r, n: say("never"), name="offline:small", window=14_000)
    async with rig.open(agent, native(None, ladder=("checkpoint",), prune=ON), tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
        tried = len(agent.asked)
        sender = pod.running.worker.sender
        assert sender.fits(agent) and not sender.fits(small)
        assert not await pod.compact()
    skipped = rig.of(e.CompactionRung)[-1]
    assert skipped.state == "skipped" and "above the ceiling" in skipped.reason and len(agent.asked) == tried
    assert 1 <= tried <= 3, "what came to nothing is tried again after a tenth more growth"


async def test_a_history_is_compacted_while_it_still_fits_uncleared(rig: Rig) -> None:
    """What the provider clears keeps each request small for ever; the request to compact goes uncleared."""
    agent = Clearing(caller(60), window=14_000, enforce_window=False, **ABLE)
    small = Agent(lambda r, n: say("never"), name="offline:small", window=14_000)
    async with rig.open(agent, native(9_000, ladder=("native",), prune=ON), tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
        assert pod.running.worker.sender.fits(small), "a fallback of the same window can take over"
    assert len(memories(rig)) == len(agent.asked) > 2 and set(rungs(rig)) == {("native", "tried"), ("native", "done")}
    assert all(estimate_items(r.items, "o200k") < 13_000 for r in agent.asked)
    assert {c.trigger for c in rig.of(e.CompactionCompleted)} == {"uncleared"}
    assert all(v.accepted for v in rig.of(e.Verified)), "it is measured against the whole history"


async def test_a_failed_compaction_of_the_whole_history_ends_no_run(rig: Rig) -> None:
    agent = Clearing(caller(40), window=14_000, enforce_window=False, answer=lambda r, n: BadRequest("no"), **ABLE)
    async with rig.open(agent, native(9_000, ladder=("native",), prune=ON), tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    assert len(agent.asked) <= 3 and len(rig.starts()) == 1


def test_the_floor_for_opaque_items_does_not_grow_with_what_was_cleared() -> None:
    """The estimator counts more than the provider does: the difference of two large numbers is no size."""
    from worker.items import UserItem

    seal = ReasoningItem(provider="a", model="b", payload="x" * 400)
    for pages in (5, 50, 500):
        history = History(family="o200k")
        history.extend(UserItem(text="word " * 1_500) for _ in range(pages))
        made = make_reply(seal, *call("t").items)
        usage = made.usage.model_copy(update={"input_tokens": 4_000, "output_tokens": 10})
        told = ({"cleared_input_tokens": pages * 1_000 - 4_000},)
        history.apply(ReplyRecord(items=made.items, usage=usage, model="a:b", transformations=told))
        assert history.occupancy("a:b", 0).tokens < 6_000


def test_a_floor_for_opaque_items_counts_what_was_cleared_out() -> None:
    from worker.items import UserItem
    from worker.records import Admitted, Input

    history = History(family="o200k")
    question = UserItem(text="word " * 4_000)
    history.apply(Input(item=question))
    history.apply(Admitted(ids=(question.id,)))
    seal = ReasoningItem(provider="a", model="b", payload="x" * 400)
    made = make_reply(seal, *call("t").items)
    usage = made.usage.model_copy(update={"input_tokens": 1_000, "output_tokens": 10})
    for cleared, least in ((0, 3_000), (3_000, 0)):
        other = History(family="o200k")
        other.extend(history.view)
        told = ({"cleared_input_tokens": cleared},) if cleared else ()
        other.apply(ReplyRecord(items=made.items, usage=usage, model="a:b", transformations=told))
        assert (other.occupancy("a:b", 0).tokens >= 3_000) is (least > 0)


def test_compacting_numbers_stay_as_they_are_without_it() -> None:
    made = manifest(compaction=compacting(None))
    assert setup.compaction_config(made).cleared == frozenset()
