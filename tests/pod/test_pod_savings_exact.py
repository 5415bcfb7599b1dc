"""What prunes and compactions are said to have saved is what they saved: against the same run without them, billed by the
same simulated cache, at several shapes of price.

The cache is that of `worker.testing` (it finds the longest common beginning), told in the ways of providers, and lost where
a test says so. What is left between the two are the estimates of how many tokens left the view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import pytest

from pod.log import entries as e
from pod.savings import Due, Savings
from tests.pod.pod_rig import Agent, Counted, Rig, capabilities, compacting, manifest
from worker.models.base import Capabilities, Emit, Price, Reply, Request, Usage
from worker.records import Pruned, ReplyRecord
from worker.testing import call, say

pytestmark = pytest.mark.anyio

Telling: TypeAlias = Literal["nothing", "reads", "reads and writes", "a rest too"]
"""What a report says of the cache: there is none, what was read, what was written as well, and all but a last piece that is
neither."""

REST = 40

PRICES = {
    "cheap reads, dear writes": Price(1.0, 10.0, 0.1, 1.25, "test"),
    "free writes": Price(1.0, 10.0, 0.1, 0.0, "test"),
    "free reads": Price(3.0, 15.0, 0.0, 6.0, "test"),
}

LOST = {"warm": frozenset[int](), "cold": frozenset({10, 17, 21, 24}), "between": frozenset({9, 12, 22, 25})}
"""The requests before which the cache runs out: never, at each change, in between."""

NEAR = 0.01
"""Share by which estimates may be off."""


class Billed(Agent):
    """Reports in one of the ways of providers. Before the requests in `lost` its cache runs out; what is shorter than
    `least` tokens it never keeps."""

    def __init__(self, steps: int, telling: Telling, lost: frozenset[int], caps: Capabilities) -> None:
        super().__init__(lambda r, n: call("fetch", n=n) if n <= steps else say("done"), capabilities=caps)
        self.telling, self.lost = telling, lost

    async def send(self, request: Request, emit: Emit) -> Reply:
        if self.served + 1 in self.lost:
            self._sent.clear()
        reply = await super().send(request, emit)
        return replace(reply, usage=self.told(reply.usage))

    def told(self, usage: Usage) -> Usage:
        """The report of a request."""
        tokens, read = usage.input_tokens or 0, usage.cached_tokens
        if self.telling == "nothing" or read < self.capabilities.cache_least:
            read = 0
        rest = REST if self.telling == "a rest too" else 0
        written = tokens - read - rest if self.telling in ("reads and writes", "a rest too") else 0
        return usage.model_copy(update={"cached_tokens": read, "cache_write_tokens": written})


def spent(rig: Rig, name: str, price: Price) -> float:
    """What the inputs of a session cost."""
    usages = [record.usage for record in rig.of(ReplyRecord, name)]
    return sum(price.cost(usage.model_copy(update={"output_tokens": 0})) for usage in usages)


def pruning(on: bool) -> dict[str, Any]:
    return {"prune": {"enabled": True, "protected_tokens": 2_000, "min_savings": 6_000 if on else 150_000}}


def checkpoints(on: bool) -> dict[str, Any]:
    return {"context": {"policy": "checkpoint"}, "compaction": compacting(22_000 if on else 150_000)}


async def played(
    rig: Rig, change: str, agent: Callable[[], Agent], price: Price, name: str = ""
) -> tuple[float, float]:
    """What is said to be saved by a change, and what it saved: the run with it and the one without."""
    made = pruning if change == "prune" else checkpoints
    said, costs = 0.0, list[float]()
    for on in (True, False):
        label = f"{name}{'with' if on else 'without'}"
        async with rig.open(agent(), manifest(**made(on)), label, tools=[Counted(1_000).tool]) as pod:
            result = (await pod.run("go")).raise_for_status()
            if on:
                said = getattr(pod.state.totals, f"{change}_saved_usd")
                assert said == pytest.approx(getattr(result, f"{change}_saved_usd"), abs=1e-6)
        assert bool(rig.of(e.Measured, label)) is on
        costs.append(spent(rig, label, price))
    return said, costs[1] - costs[0]


@pytest.mark.parametrize(
    ("prices", "lost", "anyio_backend"),
    [
        *zip(PRICES, ("warm", "cold", "between"), ("asyncio", "trio", "asyncio"), strict=True),
        *zip(PRICES, ("cold", "between", "warm"), ("trio", "asyncio", "trio"), strict=True),
    ],
)
@pytest.mark.parametrize("telling", ["nothing", "reads", "reads and writes", "a rest too"])
@pytest.mark.parametrize("change", ["prune", "compaction"])
async def test_what_is_said_to_be_saved_is_what_was_saved(
    rig: Rig, change: str, prices: str, telling: Telling, lost: str
) -> None:
    price = PRICES[prices]
    agent = partial(Billed, 26, telling, LOST[lost], capabilities(price=price))
    said, true = await played(rig, change, agent, price)
    assert said == pytest.approx(true, rel=NEAR)


async def test_a_beginning_too_short_for_the_cache_does_not_make_a_warm_one_cold(rig: Rig) -> None:
    """Nothing read behind a compaction: where system prompt and schemas are too short to be kept, that says nothing."""
    price = PRICES["cheap reads, dear writes"]
    agent = partial(Billed, 26, "reads and writes", LOST["warm"], capabilities(price=price, cache_least=1_024))
    said, true = await played(rig, "compaction", agent, price)
    (found,) = rig.of(e.Measured, "with")
    assert found.read_after == 0 and found.held > 20_000
    assert said == pytest.approx(true, rel=NEAR)


USAGE = Usage(input_tokens=3_000, cached_tokens=500, cache_write_tokens=2_500)
BEFORE = e.Reported(model="m", usage=Usage(input_tokens=20_000, cached_tokens=19_000, cache_write_tokens=1_000))
DUE = Due("compaction", (1,), 18_000, "m", USAGE, before=BEFORE, sent=20_000, common=700)
UNREAD = replace(DUE, usage=Usage(input_tokens=3_000, cache_write_tokens=3_000))
LEAST = capabilities(cache_least=1_024)
DONE = e.CompactionCompleted(
    compaction="c", trigger="hand", rung="checkpoint", before=21_000, after=3_000, limit=9_000, reported=BEFORE
)


@pytest.mark.parametrize(
    ("due", "known", "held"),
    [
        (DUE, None, 20_000),
        (replace(DUE, cold=True), None, 20_000),
        (replace(DUE, cold=True, warmed=True), None, 0),
        (replace(DUE, warmed=True), None, 20_000),
        (UNREAD, None, 0),
        (UNREAD, capabilities(), 0),
        (UNREAD, LEAST, 20_000),
        (replace(UNREAD, cold=True), LEAST, 0),
        (replace(UNREAD, common=1_024), LEAST, 0),
        (replace(UNREAD, before=e.Reported(model="m", usage=Usage(input_tokens=20_000))), LEAST, 0),
        (replace(UNREAD, before=None), LEAST, 0),
        (replace(DUE, before=e.Reported(model="other", usage=BEFORE.usage)), None, 500),
        (replace(DUE, tokens_saved=10_000), None, 13_000),
    ],
)  # fmt: skip
def test_the_report_tells_what_the_cache_would_have_held(due: Due, known: Capabilities | None, held: int) -> None:
    """What was read shows a cache, unless the compaction itself filled it; nothing read shows none, unless what both share is
    too short to be kept."""
    assert due.held(known) == due.measured(known).held == held


def test_a_later_report_that_reads_no_further_than_the_change_shows_a_lost_cache() -> None:
    """Another pod may keep a common beginning warm: that is no sign that this session's context was held."""
    savings = Savings()
    savings.compacted(1, DONE)
    priced = capabilities(price=PRICES["cheap reads, dear writes"])
    assert savings.replied(ReplyRecord(items=(), usage=USAGE, model="m")) == {} and savings.due is not None
    savings.measured(savings.due.measured(priced))
    for usage, each in (
        (Usage(input_tokens=4_000, cached_tokens=3_000, cache_write_tokens=1_000), 0.1),
        (Usage(input_tokens=4_000, cached_tokens=500, cache_write_tokens=3_500), 1.25),
        (Usage(input_tokens=4_000, cached_tokens=500), 1.0),
        (Usage(input_tokens=4_000), 1.0),
    ):
        saved = savings.replied(ReplyRecord(items=(), usage=usage, model="m"))
        assert saved == {"compaction": pytest.approx(18_000 * each / 1e6)}
    assert savings.replied(ReplyRecord(items=(), usage=Usage(), model="m")) == {}
    assert savings.replied(ReplyRecord(items=(), usage=USAGE, model="other")) == {}


def test_prunes_of_a_new_segments_first_request_are_part_of_its_compaction() -> None:
    savings = Savings()
    savings.compacted(1, DONE)
    savings.pruned(2, Pruned(items=(), tokens_saved=5_000))
    savings.replied(ReplyRecord(items=(), usage=USAGE, model="m"))
    assert savings.due is not None
    found = savings.due.measured(None)
    assert (found.cause, found.entries, found.tokens_saved) == ("compaction", (1, 2), 18_000)
    savings.measured(found)
    assert savings.replied(ReplyRecord(items=(), usage=USAGE, model="m")) == {} and savings.due is None
