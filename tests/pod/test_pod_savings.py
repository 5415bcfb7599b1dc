"""What prunes and compactions saved or lost, by the provider's own figures: in the log, the result and `pod context`."""

from __future__ import annotations

from typing import Any

import pytest

from pod.log import entries as e
from pod.outlook import outlook
from pod.reading import SessionReader
from tests.pod.pod_rig import Agent, Counted, Rig, caller, capabilities, compacting, manifest, summariser
from worker.models.base import Price, Usage
from worker.records import Pruned, ReplyRecord
from worker.testing import call, reply, say

pytestmark = pytest.mark.anyio

PRICE = Price(input=1.0, output=10.0, cache_read=0.1, cache_write=1.25, source="test")
PRUNES = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings": 6_000})


def numbered(rig: Rig) -> list[tuple[int, Any]]:
    """The session's records with the numbers of their entries."""
    found = ((line.seq, e.record_of(line)) for line in SessionReader(rig.folder()).lines())
    return [(seq, record) for seq, record in found if record is not None]


def input_cost(usage: Usage) -> float:
    return PRICE.cost(usage.model_copy(update={"output_tokens": 0}))


async def test_each_prune_is_joined_to_what_the_next_request_read_and_sent_anew(rig: Rig) -> None:
    agent = Agent(caller(20), capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    records = numbered(rig)
    prunes = [seq for seq, record in records if isinstance(record, Pruned)]
    measured = rig.of(e.Measured)
    assert len(prunes) > 1
    assert [m.entries for m in measured] == [(seq,) for seq in prunes]
    for seq, found in zip(prunes, measured, strict=True):
        prune = next(record for n, record in records if n == seq)
        before = [r for n, r in records if isinstance(r, ReplyRecord) and n < seq][-1].usage
        after = next(r for n, r in records if isinstance(r, ReplyRecord) and n > seq).usage
        assert (found.read_before, found.read_after) == (before.cached_tokens, after.cached_tokens)
        assert found.tokens_saved == prune.tokens_saved
        assert found.rewritten == before.input_tokens - prune.tokens_saved - after.cached_tokens
        assert found.rewritten == pytest.approx(found.expected_rewritten, rel=0.5)
        without = after.input_tokens + prune.tokens_saved
        kept = (before.input_tokens * 0.1 + (without - before.input_tokens) * 1.0) / 1e6
        assert found.cost_usd == pytest.approx(input_cost(after) - kept, abs=1e-8)
        assert found.expected_usd is not None and found.cost_usd is not None


async def test_the_result_says_what_pruning_saved_less_what_it_cost(rig: Rig) -> None:
    """The prune's own requests cost more; each later one reads what is gone no more. So it is in the log, summed by hand."""
    agent = Agent(caller(30), capabilities=capabilities(price=PRICE))
    named = manifest(model={"name": "offline:surveyor"}, prune=PRUNES.prune.model_dump())
    async with rig.open(agent, named, tools=[Counted(1_000).tool]) as pod:
        result = (await pod.run("go")).raise_for_status()
    saved, gone = 0.0, 0
    for _, record in numbered(rig):
        if isinstance(record, e.Measured):
            saved, gone = saved - (record.cost_usd or 0.0), gone + record.tokens_saved
        elif isinstance(record, ReplyRecord):
            saved += gone * 0.1 / 1e6
    assert result.prunes > 2
    assert result.prune_saved_usd == pytest.approx(saved, abs=2e-6)
    assert result.compaction_saved_usd == 0
    facts = outlook(rig.folder()).as_dict()
    assert facts["prune_saved_usd"] == pytest.approx(saved, abs=2e-6)
    assert facts["last_prune"]["entries"] == rig.of(e.Measured)[-1].entries


async def test_without_prices_the_tokens_are_told_and_no_money(rig: Rig) -> None:
    async with rig.open(Agent(caller(20)), PRUNES, tools=[Counted(1_000).tool]) as pod:
        result = (await pod.run("go")).raise_for_status()
    assert result.prunes and result.prune_saved_usd is None and result.compaction_saved_usd is None
    assert all(m.cost_usd is None and m.expected_usd is None and m.rewritten > 0 for m in rig.of(e.Measured))


async def test_a_restart_tells_the_same_savings_and_goes_on_with_them(rig: Rig) -> None:
    """B159, B160: live and restored sums are one."""
    agent = Agent(caller(20), capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        live = pod.state.totals
    agent = Agent(lambda r, n: say("done"), capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        assert pod.state.totals == live
        await pod.run("more")
        gone = sum(m.tokens_saved for m in rig.of(e.Measured))
        more = pod.state.totals.prune_saved_usd - live.prune_saved_usd
    assert more == pytest.approx(gone * (0.1 if agent_read(rig) else 1.0) / 1e6)


def agent_read(rig: Rig) -> int:
    return rig.of(ReplyRecord)[-1].usage.cached_tokens


async def test_a_compaction_is_charged_with_its_worker_and_credited_with_the_smaller_context(rig: Rig) -> None:
    """B158: what the worker was billed is part of what the compaction cost."""
    priced = capabilities(price=PRICE)
    made = manifest(compaction=compacting(8_000))
    agent = Agent(caller(14), capabilities=priced)
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=summariser(capabilities=priced)) as pod:
        result = (await pod.run("go")).raise_for_status()
    records = numbered(rig)
    saved, gone = 0.0, 0
    for _, record in records:
        match record:
            case e.SegmentStarted():
                gone = 0
            case e.CompactionRung(state="done", figures=figures):
                saved -= figures["cost_usd"]
            case e.Measured():
                done = next(r for n, r in records if n == record.entries[0])
                assert record.cause == "compaction" and isinstance(done, e.CompactionCompleted)
                assert record.tokens_saved <= done.before
                saved, gone = saved - (record.cost_usd or 0.0), record.tokens_saved
            case ReplyRecord() if gone:
                saved += gone * (0.1 if record.usage.cached_tokens else 1.0) / 1e6
            case _:
                pass
    assert result.compactions >= 2
    assert len(rig.of(e.Measured)) == result.compactions
    assert result.compaction_saved_usd == pytest.approx(saved, abs=2e-6)
    assert result.prune_saved_usd == 0


async def test_what_a_crash_kept_from_the_record_is_measured_at_the_next_request(rig: Rig) -> None:
    """The reply behind a prune is the last entry of the log: the next process puts its effect on record first."""
    agent = Agent(caller(20), capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    path = rig.segments()[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"measured"' in line)
    path.write_bytes(b"".join(lines[:first]))
    agent = Agent(lambda r, n: say("done"), capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        (await pod.resume()).raise_for_status()
    (found,) = rig.of(e.Measured)
    (seq,) = [n for n, record in numbered(rig) if isinstance(record, Pruned)]
    assert found.entries == (seq,)


async def test_auto_follows_the_models_price_and_the_runs_of_the_session(rig: Rig) -> None:
    """The same runs, dear and cheap to write to the cache: only where it pays something is pruned, and it pays."""
    made = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings_floor": 2_000})
    for name, write in (("dear", 40.0), ("cheap", 1.0)):
        price = Price(input=1.0, output=10.0, cache_read=0.1, cache_write=write, source="test")
        agent = Agent(
            lambda r, n: call("fetch", n=n) if n % 30 else say("done"), capabilities=capabilities(price=price)
        )
        async with rig.open(agent, made, name, tools=[Counted(1_000).tool]) as pod:
            for text in ("one", "two"):
                result = (await pod.run(text)).raise_for_status()
            assert (pod.state.runs, pod.state.run_requests) == (2, 60)
        prunes = rig.of(Pruned, name)
        assert bool(prunes) is (name == "cheap")
    assert result.prune_saved_usd is not None and result.prune_saved_usd > 0
    assert all(p.requests and p.tokens_saved > p.min_savings for p in prunes)


async def test_a_reply_without_figures_leaves_the_effect_to_the_next(rig: Rig) -> None:
    def play(request: Any, number: int) -> Any:
        if number > 20:
            return say("done")
        return reply(call("fetch", n=number), usage=Usage()) if number % 2 else call("fetch", n=number)

    agent = Agent(play, capabilities=capabilities(price=PRICE))
    async with rig.open(agent, PRUNES, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    named = [seq for m in rig.of(e.Measured) for seq in m.entries]
    assert named == [seq for seq, record in numbered(rig) if isinstance(record, Pruned)][: len(named)]
    assert named
