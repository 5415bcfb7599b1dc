"""Promises of the policy and the rung `native`: the provider's own memory opens the new segment, and nothing hangs on it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pod.context.checkpoint import PREAMBLE
from pod.log import entries as e
from tests.pod.native_rig import PRICE, MemoryEncoder, NativeAgent, compacted, memories, native, rungs
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    contexts,
    filler,
    manifest,
    summariser,
    summary,
    words,
)
from worker.errors import BadRequest, ContextOverflow, ProviderDown, RateLimited
from worker.items import OpaqueItem, ReasoningItem, UserItem, source_hash
from worker.memory import memory_of, read_by_others
from worker.models.base import Emit, Reply, Request, Usage
from worker.records import ModelSwitched, Warned
from worker.testing import call, fail, reply, say, think
from worker.tools import tool

pytestmark = pytest.mark.anyio

SHORT = {"summary_target_tokens": 500, "summary_max_tokens": 1_000, "auto_read_budget_tokens": 1_000}
"""Numbers of a compaction whose new segment may be small."""


def warned(rig: Rig, code: str) -> list[Warned]:
    return [w for w in rig.of(Warned) if w.code == code]


async def test_a_long_task_goes_on_over_the_providers_own_memories(rig: Rig) -> None:
    tool_, agent = Counted(1_000), NativeAgent(caller(30))
    async with rig.open(agent, native(), tools=[tool_.tool]) as pod:
        result = await pod.run("fetch thirty pages, never twice")
    assert result.status == "finished" and tool_.calls == list(range(1, 31))
    assert {c.rung for c in rig.of(e.CompactionCompleted)} == {"native"}
    made = memories(rig)
    assert len(made) == len(agent.asked) >= 2 and len({m.payload for m in made}) == len(made)
    for request, start, memory in zip(agent.asked, rig.starts()[1:], made, strict=True):
        assert start.items[0] == memory and memory.source_hash == source_hash(request.items)
        assert start.items[1] not in request.items and start.items[1].type != "context", "the tail follows directly"
        assert start.lineage.kind_ == "compacted_from"
    later = agent.requests[-1]
    assert later.items[0] == made[-1] and b"sealed 1 " in agent.asked[1].messages and b"sealed 2 " in later.messages
    assert agent.asked[1].items[0] == made[0], "the old memory goes into the new one"
    assert words(later)[0] == "fetch thirty pages, never twice" and not contexts(later, "summary")


async def test_the_request_is_a_continuation_of_the_pods_own_so_that_its_cache_serves(rig: Rig) -> None:
    agent = NativeAgent(caller(14))
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    asked = agent.asked[0]
    before = next(r for r in reversed(agent.requests) if len(r.items) >= len(asked.items) and r.items[0].type == "user")
    assert before.messages.startswith(asked.messages)
    same = (asked.system, asked.tools, asked.cache_key)
    assert same == (before.system, before.tools, before.cache_key)


async def test_cost_tokens_and_requests_are_counted_once(rig: Rig) -> None:
    agent = NativeAgent(caller(14))
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        result = await pod.run("go")
        totals = pod.state.totals
    made = rig.of(e.NativeMade)
    cost = sum(PRICE.cost(m.usage) for m in made)
    assert made and result.compaction_requests == len(made) == len(agent.asked)
    assert totals.by["compaction:sealed:one"]["cost_usd"] == pytest.approx(cost)
    assert totals.by["compaction:sealed:one"]["prompt_tokens"] == 9_000 * len(made)
    own = totals.by["worker:sealed:one"]["cost_usd"]
    assert totals.cost_usd == pytest.approx(own + cost) and result.cost_usd == pytest.approx(totals.cost_usd, abs=1e-6)
    from pod.peek import glance

    look = glance(rig.folder())
    assert look.cost_usd == pytest.approx(totals.cost_usd, abs=1e-6) and look.requests == totals.requests


async def test_the_providers_text_is_what_others_read_else_a_checkpoint(rig: Rig) -> None:
    def answer(request: Any, number: int) -> Any:
        return compacted("sealed:one", number, readable="The port is 7443." if number == 1 else "")

    agent = NativeAgent(caller(30), answer=answer)
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert pod.state.summary == memories(rig)[-1].readable
    first, second, *_ = memories(rig)
    assert first.readable == "The port is 7443." and rig.starts()[1].carry.checkpoint is None
    assert second.readable.startswith(PREAMBLE) and "The port is 7443." in second.readable
    assert rig.starts()[2].carry.checkpoint.text == second.readable


async def test_a_focus_that_a_provider_takes_none_of_is_said_not_to_be_used(rig: Rig) -> None:
    agent = NativeAgent(caller(6))
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert await pod.compact("the port")
    [done] = [r for r in rig.of(e.CompactionRung) if r.state == "done"]
    assert done.figures["focus"].startswith("not used") and done.figures["model"] == "sealed:one"
    [told] = warned(rig, "native.focus")
    assert "takes no focus" in told.message and "responses.compact" in told.message


async def test_a_focus_is_told_to_a_provider_that_takes_one(rig: Rig) -> None:
    """One made without it is not taken up in its place; one made with it is."""

    def answer(request: Request, number: int) -> Any:
        tokens = 50_000 if number < 3 else 300
        return replace(compacted("sealed:one", number, tokens=tokens), way="summarize", focused=bool(request.focus))

    agent = NativeAgent(caller(6), answer=answer)
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert not await pod.compact(), "too large"
        assert not await pod.compact("the port") and not await pod.compact("the port"), "too large, and then taken up"
        assert [r.focus for r in agent.asked] == ["", "the port"]
        assert await pod.compact("the host")
    assert [m.focus for m in rig.of(e.NativeMade)] == [None, "the port", "the host"]
    [done] = [r for r in rig.of(e.CompactionRung) if r.state == "done"]
    assert "focus" not in done.figures and not warned(rig, "native.focus")


# -- when it does not come about -------------------------------------------------------------------------------------


async def test_b009_a_ladder_whose_first_two_rungs_fail_goes_on(rig: Rig) -> None:
    """B009: the provider refuses, the compact worker is broken."""
    agent = NativeAgent(caller(9), answer=lambda r, n: BadRequest("no such beta", status=400))
    broken = Agent(lambda r, n: fail(ProviderDown("boom", status=500)), name="offline:broken")
    tool_ = Counted(1_500)
    made = native(8_000, ladder=("compact", "checkpoint"))
    async with rig.open(agent, made, tools=[tool_.tool], compact_model=broken) as pod:
        (await pod.run("go")).raise_for_status()
    assert tool_.calls == list(range(1, 10))
    assert rungs(rig)[:5] == [
        ("native", "tried"), ("native", "failed"), ("compact", "tried"), ("compact", "failed"), ("checkpoint", "tried")
    ]  # fmt: skip
    failed = next(r for r in rig.of(e.CompactionRung) if r.state == "failed")
    assert "sealed:one did not compact: bad_request: no such beta" in failed.reason
    assert failed.figures["requests"] == 1 and not memories(rig)
    assert contexts(agent.requests[-1], "summary")[0].startswith(PREAMBLE)


async def test_the_breaker_rests_it_with_the_other_rungs_that_ask_a_model(rig: Rig) -> None:
    agent = NativeAgent(caller(30), answer=lambda r, n: BadRequest("no", status=400))
    async with rig.open(agent, native(8_000, ladder=("checkpoint",)), tools=[Counted(1_500).tool]) as pod:
        await pod.run("go")
    assert len(agent.asked) == 3
    assert rungs(rig)[-3:-1] == [("native", "skipped"), ("checkpoint", "tried")]


async def test_a_request_is_tried_again_by_the_pods_own_patience(rig: Rig) -> None:
    def answer(request: Any, number: int) -> Any:
        return RateLimited("slow down", retry_after=0.0) if number == 1 else compacted("sealed:one", number)

    agent = NativeAgent(caller(6), answer=answer)
    async with rig.open(agent, native(None, retry={"max_attempts": 3}), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert await pod.compact()
    [made] = rig.of(e.NativeMade)
    assert made.attempts == 2 and "retry" in rig.kinds()


EMPTY = replace(compacted("sealed:one", 1), item=compacted("sealed:one", 1).item.model_copy(update={"payload": " "}))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError("a bug"), "broke: ValueError: a bug"),
        (EMPTY, "answered without a memory"),
        (compacted("sealed:two", 1), "answered with a memory of sealed:two"),
    ],
)
async def test_a_model_that_breaks_is_a_failed_rung(rig: Rig, answer: Any, reason: str) -> None:
    agent = NativeAgent(caller(14), answer=lambda r, n: answer)
    async with rig.open(agent, native(ladder=("rollover",)), tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    assert rungs(rig)[:2] == [("native", "tried"), ("native", "failed")]
    assert reason in next(r.reason for r in rig.of(e.CompactionRung) if r.state == "failed")
    assert {c.rung for c in rig.of(e.CompactionCompleted)} == {"rollover"}


async def test_a_model_without_a_way_is_passed_over_with_the_reason(rig: Rig) -> None:
    async with rig.open(Agent(caller(14)), native(ladder=("checkpoint",)), tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    skipped = next(r for r in rig.of(e.CompactionRung) if r.rung == "native")
    assert skipped.state == "skipped" and skipped.reason == "the provider of offline:agent has no compaction of its own"


async def test_b037_a_memory_that_is_too_large_is_refused_and_not_paid_for_twice(rig: Rig) -> None:
    """B037: a new segment that is not small enough is never begun."""
    agent = NativeAgent(caller(6), answer=lambda r, n: compacted("sealed:one", n, tokens=50_000))
    async with rig.open(agent, native(None, ladder=("checkpoint",)), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert not await pod.compact() and not await pod.compact()
    assert len(agent.asked) == len(rig.of(e.NativeMade)) == 1 and len(rig.starts()) == 1
    last = [r for r in rig.of(e.CompactionRung) if r.rung == "native"][-1]
    assert last.state == "failed" and last.figures["taken_up"] and "the new segment would have" in last.reason
    assert pod.state.totals.by["compaction:sealed:one"]["requests"] == 1


async def test_cancelled_in_the_middle_it_leaves_nothing_and_the_next_one_asks_again(rig: Rig) -> None:
    agent = NativeAgent(caller(6), answer=lambda r, n: None if n == 1 else compacted("sealed:one", n))
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        async with anyio.create_task_group() as group:
            group.start_soon(pod.compact)
            while not agent.asked:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert len(rig.starts()) == 1 and not rig.of(e.NativeMade)
        assert await pod.compact()
    assert len(rig.of(e.CompactionInterrupted)) == 1 and len(memories(rig)) == 1


async def test_an_answer_that_came_as_it_was_cancelled_is_kept_and_taken_up(rig: Rig) -> None:
    scope = anyio.CancelScope()

    def answer(request: Any, number: int) -> Any:
        scope.cancel()
        return compacted("sealed:one", number)

    agent = NativeAgent(caller(6), answer=answer)
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        with scope:
            await pod.compact()
        assert scope.cancelled_caught and len(rig.starts()) == 1
        [made] = rig.of(e.NativeMade)
        assert await pod.compact()
    assert len(agent.asked) == 1 and memories(rig) == [made.item]


@pytest.mark.parametrize("pages", [(1_600,) * 4, (1_700,) * 4, (1_200,) * 6, (900,) * 7])
async def test_a_last_result_above_a_small_ceiling_leaves_what_was_sent_before_it_to_the_provider(
    rig: Rig, pages: tuple[int, ...]
) -> None:
    """What a request held that the provider took, and said the size of, is no larger to compact."""
    sizes = [*pages, 6_000]
    agent = NativeAgent(caller(len(sizes)), window=9_000)

    @tool(effect="read")
    async def fetch(n: int) -> str:
        """Fetches page n."""
        return filler(sizes[n - 1], f"page {n} begins")

    async with rig.open(agent, native(None, ladder=("checkpoint",)), tools=[fetch]) as pod:
        assert (await pod.run("go")).status == "finished"
    assert rungs(rig)[0] == ("native", "tried") and "skipped" not in {state for _, state in rungs(rig)}
    assert {c.rung for c in rig.of(e.CompactionCompleted)} == {"native"}
    sent = [r.messages for r in agent.requests]
    assert all(any(m.startswith(r.messages) for m in sent) for r in agent.asked), "a prefix of one that was taken"


async def test_no_request_to_compact_is_above_the_ceiling(rig: Rig) -> None:
    """An overflow: the view is above the window, so its head is not sent to be compacted either."""
    agent = NativeAgent(caller(6), window=9_000)
    async with rig.open(agent, native(None, ladder=("checkpoint",)), tools=[Counted(3_000).tool]) as pod:
        assert (await pod.run("go")).status == "finished"
    available = 9_000 - 1_000
    taken = [r.messages for r in agent.requests]  # each was reported to be below the ceiling
    for asked in agent.asked:
        assert len(asked.messages) / 3 < available or any(each.startswith(asked.messages) for each in taken)
    skipped = [r.reason for r in rig.of(e.CompactionRung) if r.rung == "native" and r.state == "skipped"]
    assert all("above the ceiling" in reason for reason in skipped)
    assert len(skipped) + len(agent.asked) >= 1


# -- a process that dies ---------------------------------------------------------------------------------------------

KILLED = """
import sys
from pathlib import Path
import anyio
from pod import Pod
from pod.testing.crashing import CrashingFiles
from tests.pod.native_rig import NativeAgent, native
from tests.pod.pod_rig import Counted, caller

async def main():
    agent = NativeAgent(caller(14))
    files = CrashingFiles("native.made")
    async with Pod.open(native(), name="p", home=Path(sys.argv[1]), cwd=Path(sys.argv[2]), model=agent,
                        tools=[Counted(1_000).tool], files=files) as pod:
        await pod.run("go")

anyio.run(main, backend=sys.argv[3])
"""


async def test_an_answer_that_was_paid_for_is_taken_up_after_a_kill(rig: Rig, anyio_backend_name: str) -> None:
    """Between the answer and the new segment the process dies: the next one asks nobody, and counts the cost once."""
    rig.run_in_process(KILLED, anyio_backend_name, check=137)
    [made] = rig.of(e.NativeMade)
    assert len(rig.starts()) == 1
    agent = NativeAgent(lambda r, n: say("done"))
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        assert (await pod.resume()).status == "finished"
        by = pod.state.totals.by["compaction:sealed:one"]
    assert not agent.asked and rig.of(e.NativeMade) == [made] and memories(rig) == [made.item]
    assert by["requests"] == 1 and by["cost_usd"] == pytest.approx(PRICE.cost(made.usage))
    [done] = [r for r in rig.of(e.CompactionRung) if r.state == "done"]
    assert done.figures["taken_up"] and agent.requests[0].items[0] == made.item


async def test_one_that_fits_the_history_no_more_is_ignored(rig: Rig, anyio_backend_name: str) -> None:
    rig.run_in_process(KILLED, anyio_backend_name, check=137)
    other = NativeAgent(lambda r, n: say("done"), name="sealed:two")
    async with rig.open(other, native(), tools=[Counted(1_000).tool]) as pod:
        assert (await pod.resume()).status == "finished"
    assert len(other.asked) == 1 and [m.model for m in memories(rig)] == ["two"]


# -- another model ---------------------------------------------------------------------------------------------------


async def _begun(rig: Rig, play: Any = None, **more: Any) -> NativeAgent:
    """A pod whose active segment begins with a memory."""
    agent = NativeAgent(play or caller(6), **more)
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        await pod.run("keep the port at 7443")
        assert await pod.compact()
    return agent


async def test_another_model_reads_it_in_words_in_the_same_segment_and_that_is_said_once(rig: Rig) -> None:
    await _begun(rig)
    other = Agent(caller(2), name="offline:other", encoder=MemoryEncoder("offline:other"))
    async with rig.open(other, manifest(compaction=compacting(None)), tools=[Counted(100).tool]) as pod:
        (await pod.run("go on")).raise_for_status()
    assert len(rig.starts()) == 2
    [memory] = memories(rig)
    assert (
        memory.payload[:40].encode() not in other.requests[0].messages
        and b"Quotes from the record" in other.requests[0].messages
    )
    [warning] = warned(rig, "context.memory_rebuilt")
    figures = warning.figures
    assert (figures["from"], figures["to"]) == ("sealed:one", "offline:other")
    assert figures["before"] == 304 and figures["after"] > 0
    assert warned(rig, "context.memory_rebuilt") == [warning]


async def test_a_fallback_reads_it_in_words_and_its_size_is_what_it_reads(rig: Rig) -> None:
    readable = filler(4_000)

    def play(request: Any, number: int) -> Any:
        return call("fetch", n=number) if number <= 6 else fail(ProviderDown("gone", status=500))

    first = NativeAgent(play, answer=lambda r, n: compacted("sealed:one", n, readable=readable))
    second = Agent(lambda r, n: say("done"), name="offline:second", encoder=MemoryEncoder("offline:second"))
    small = Agent(lambda r, n: say("never"), name="offline:small", encoder=MemoryEncoder("offline:small"), window=5_500)
    async with rig.open(first, native(None), tools=[Counted(1_000).tool]) as pod:
        pod.running.models = (first, small, second)
        pod.running.assemble()
        first.play = caller(6)
        await pod.run("go")
        assert await pod.compact()
        first.play = lambda r, n: fail(ProviderDown("gone", status=500))
        assert (await pod.run("more")).status == "finished"
    assert [w.figures["to"] for w in warned(rig, "context.memory_rebuilt")] == ["offline:second"]
    assert not small.requests and [s.to_model for s in rig.of(ModelSwitched) if s.skipped] == ["offline:small"]
    assert second.requests[0].items[0] == memories(rig)[0]


@pytest.mark.parametrize("rung", ["compact", "checkpoint", "rollover"])
async def test_a_rung_of_another_kind_works_on_with_its_text(rig: Rig, rung: str) -> None:
    """B009: whatever comes after a memory reads it, and a rollover lets it stand as a summary stands."""
    agent = await _begun(rig, answer=lambda r, n: compacted("sealed:one", n, readable="- The port is 7443."))
    worker = summariser(summary(Findings="- the port is 7443 — source: earlier summary"))
    made = manifest(compaction=compacting(None), context={"policy": "compact", "ladder": [rung]})
    agent.served, agent.play = 0, caller(6)
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=worker) as pod:
        await pod.run("more")
        assert await pod.compact() == (rung != "none")
    start = rig.starts()[-1]
    if rung == "rollover":
        assert start.items[0] == memories(rig)[0] and start.carry.summary == "- The port is 7443."
        return
    assert not any(isinstance(i, OpaqueItem) for i in start.items)
    if rung == "compact":
        assert "The previous summary, to be updated:\n- The port is 7443." in contexts(worker.requests[0], "lead_in")[0]
    else:
        assert "The port is 7443." in (start.carry.summary or "")


async def test_b013_a_memory_is_nobodys_reply_and_never_a_part_of_the_tail(rig: Rig) -> None:
    """B013: what stands behind it is parted from it."""
    await _begun(rig)
    async with rig.open(NativeAgent(caller(1)), native(None), tools=[Counted(100).tool]) as pod:
        plan = pod.running.compactor.plan("hand")
        assert plan.cut.at == 1 and not plan.possible and "already a summary" in plan.reason
        assert not await pod.compact()
    assert len(rig.starts()) == 2


# -- reasoning that is bound to what it was made with ----------------------------------------------------------------


def thinking(request: Any, number: int) -> Any:
    if number > 12:
        return say("done")
    return reply(think(f"seal {number}", text="hm"), say("next"), call("fetch", n=number))


def kept_reasoning(items: Any) -> list[str]:
    return [i.payload for i in items if isinstance(i, ReasoningItem)]


@pytest.mark.parametrize(
    "case", ["behind its own memory", "behind a checkpoint", "other instructions", "cut from the tail", "rollover"]
)
async def test_b020_bound_reasoning_stays_only_where_it_directly_follows_its_own_models_memory(
    rig: Rig, case: str
) -> None:
    """B020: behind the memory of its own model, with the same prompt and tools and nothing skipped; nowhere else."""
    agent = NativeAgent(thinking, history_binding="thinking_prefix")
    ladder = {"behind a checkpoint": ["checkpoint"], "rollover": ["rollover"]}.get(case, ["native"])
    made = manifest(
        compaction=compacting(
            None, result_context_max_tokens=2_300 if case == "cut from the tail" else 24_000, **SHORT
        ),
        context={"policy": "compact", "ladder": ladder},
    )
    async with rig.open(agent, made, tools=[Counted(700).tool]) as pod:
        await pod.run("go")
        if case == "other instructions":
            rig.file("AGENTS.md", "Be brief.")
            await pod.run("again")
        if case == "cut from the tail":
            agent.answer = lambda r, n: compacted("sealed:one", n, tokens=1_200)
        assert await pod.compact()
    items = rig.starts()[-1].items
    tail = [i for i in items if i.type == "tool_call"]
    if case == "behind its own memory":
        assert len(kept_reasoning(items)) == len(tail) >= 2
        assert items[0] == memories(rig)[0] and isinstance(items[1], ReasoningItem)
    else:
        assert not kept_reasoning(items)
    if case == "cut from the tail":
        assert any("start of the tail" in note for note in rig.of(e.CompactionCompleted)[-1].notes)


# -- the user's words, and what crosses ------------------------------------------------------------------------------


async def test_the_users_words_cross_whole_and_once_over_two_memories(rig: Rig) -> None:
    told = [f"order {n}: keep   the port\nat 744{n} – exactly" for n in range(5)]
    agent = NativeAgent(lambda r, n: say(f"noted {n}\n{filler(1_500, str(n))}"))
    async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
        for number, text in enumerate(told):
            await pod.run(text)
            if number in {2, 4}:
                assert await pod.compact()
        await pod.run("go on")
    seen = words(agent.requests[-1])
    assert sorted(seen) == sorted([*told, "go on"]) and len(memories(rig)) == 2
    crossed = [i.text for i in rig.starts()[-1].items if getattr(i, "kind", "") == "user_words"]
    assert crossed == [text for text in told if text in crossed], "oldest first"


async def test_words_in_a_part_of_the_tail_that_does_not_fit_join_the_others(rig: Rig) -> None:
    def play(request: Any, number: int) -> Any:
        return say(f"noted {number}\n{filler(600, str(number))}")

    agent = NativeAgent(play)
    made = manifest(compaction=compacting(None, result_context_max_tokens=2_700, **SHORT), context={"policy": "native"})
    async with rig.open(agent, made) as pod:
        for number in range(12):
            await pod.run(f"order {number}")
        agent.answer = lambda r, n: compacted("sealed:one", n, tokens=1_700)
        assert await pod.compact()
        await pod.run("go on")
    assert any("start of the tail" in note for note in rig.of(e.CompactionCompleted)[-1].notes)
    assert sorted(words(agent.requests[-1])) == sorted([*(f"order {n}" for n in range(12)), "go on"])


@pytest.mark.parametrize("change", ["fork", "clear", "rewind", "export"])
async def test_it_goes_where_the_session_goes_and_never_across_a_clear(rig: Rig, change: str) -> None:
    from pod.operations import clear, fork, rewind
    from pod.session import Session
    from pod.transfer import export_pod, import_pod
    from worker.memory import memory_of

    agent = await _begun(rig)
    [memory] = memories(rig)
    async with rig.open(agent, native(None), tools=[Counted(100).tool]) as pod:
        point = pod.state.last_seq
        agent.play = lambda r, n: say("ok")
        await pod.run("more")
    name = "p"
    if change == "fork":
        name = fork(rig.home, "p", "q").name
    elif change == "clear":
        await clear(rig.home, "p")
    elif change == "rewind":
        await rewind(rig.home, "p", point)
    else:
        file = rig.cwd / "p.tar"
        export_pod(rig.home, "p", file)
        name = "q"
        import_pod(file, rig.home, name)
    session = Session.open(rig.home, name)
    session.close()
    found = memory_of(session.state.history.view)
    assert found == (None if change == "clear" else memory)
    if change == "clear":
        assert session.state.summary is None and session.state.native is None


async def test_a_restart_sends_the_same_bytes(rig: Rig) -> None:
    """B076: the memory is sent byte for byte, by any process."""
    agent = await _begun(rig)
    seen: list[bytes] = []
    for _ in range(2):
        agent.play = lambda r, n: say("ok")
        agent.requests.clear()
        async with rig.open(agent, native(None), tools=[Counted(1_000).tool]) as pod:
            await pod.run("more")
        seen.append(agent.requests[0].messages)
    assert seen[1].startswith(seen[0]) and agent.requests[0].items[0] == memories(rig)[0]


async def test_the_first_report_corrects_the_estimate_as_in_any_new_segment(rig: Rig) -> None:
    agent = NativeAgent(caller(16))
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    [verified, *_] = rig.of(e.Verified)
    assert verified.accepted and 0 < verified.reported < verified.before


def test_a_memory_reads_as_a_summary_of_the_same_id() -> None:
    memory = OpaqueItem(provider="a", model="b", payload="{}", source_hash="x", readable="so it was")
    plain = OpaqueItem(provider="a", model="b", payload="{}")
    assert read_by_others(plain) is plain
    read = read_by_others(memory)
    assert (read.id, read.type) == (memory.id, "context") and getattr(read, "text", "") == "so it was"
    assert isinstance(read_by_others(UserItem(text="hi")), UserItem) and Usage().input_tokens is None
    assert capabilities().native_compaction == ()


async def test_it_may_stand_anywhere_in_a_ladder_and_serves_between_runs(rig: Rig) -> None:
    """The summariser is broken, so the provider makes the memory."""
    broken = Agent(lambda r, n: fail(ProviderDown("boom", status=500)), name="offline:broken")
    agent = NativeAgent(caller(6))
    made = manifest(
        context={"policy": "compact", "ladder": ["compact", "native", "rollover"]},
        compaction=compacting(None, threshold=5_000),
    )
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=broken) as pod:
        await pod.run("go")
        await pod.run("and on")
    assert [(c.rung, c.trigger) for c in rig.of(e.CompactionCompleted)] == [("native", "threshold")]
    assert rungs(rig)[:3] == [("compact", "tried"), ("compact", "failed"), ("native", "tried")]


async def test_a_fallback_that_stands_in_for_a_resting_model_is_the_one_that_is_asked(rig: Rig) -> None:
    """A memory belongs to the model that is asked next; while the first one rests that is another."""
    first = NativeAgent(lambda r, n: fail(ProviderDown("gone", status=500)))
    second = NativeAgent(caller(8), name="sealed:two")
    async with rig.open(first, native(None), tools=[Counted(1_000).tool]) as pod:
        pod.running.models = (first, second)
        pod.running.assemble()
        await pod.run("go")
        assert await pod.compact()
        await pod.run("more")
    assert not first.asked and [m.model for m in memories(rig)] == ["two"]
    assert second.requests[-1].items[0] == memories(rig)[0] and not warned(rig, "context.memory_rebuilt")


@pytest.mark.parametrize("readable", [True, False])
async def test_a_memory_that_reports_too_few_tokens_is_measured_by_what_it_holds(rig: Rig, *, readable: bool) -> None:
    text = "fact word. " * 20_000

    def answer(request: Any, number: int) -> Any:
        held = {"content": text} if readable else {"encrypted_content": text * 4}
        made = compacted("sealed:one", number, readable=text if readable else "", tokens=10)
        payload = json.dumps({"type": "compaction", **held})
        return replace(made, item=made.item.model_copy(update={"payload": payload}))

    agent = NativeAgent(caller(14), answer=answer, window=40_000)
    async with rig.open(agent, native(), tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    assert not memories(rig) and {c.rung for c in rig.of(e.CompactionCompleted)} <= {"compact", "coarse", "checkpoint"}
    refused = next(r for r in rig.of(e.CompactionRung) if r.rung == "native" and r.state == "failed")
    assert "the new segment would have" in refused.reason


@pytest.mark.parametrize("readable", ["Pages 1 to 9 were fetched. " * 10, ""])
async def test_a_lone_memory_that_no_request_can_hold_gives_way(rig: Rig, readable: str) -> None:
    """Its provider refuses the request as too long, whatever it said of the memory's size."""

    class Refusing(NativeAgent):
        async def send(self, request: Request, emit: Emit) -> Reply:
            if memory_of(request.items) is not None:
                raise ContextOverflow("prompt is too long: 220000 tokens > 200000 maximum", limit=200_000, status=400)
            return await super().send(request, emit)

    tool_ = Counted(1_000)
    agent = Refusing(caller(14), answer=lambda r, n: compacted("sealed:one", n, readable=readable))
    async with rig.open(agent, native(ladder=("checkpoint",)), tools=[tool_.tool]) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and tool_.calls == list(range(1, 15)), result.error
    assert memories(rig) and rig.of(e.CompactionCompleted)[-1].rung == "checkpoint"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_failure_of_the_only_rung_is_told_as_one_and_not_as_a_lack_of_room(rig: Rig, times: int) -> None:
    """Also where it rests after some: the next run goes on once the provider is there again."""
    agent = NativeAgent(
        caller(14), answer=lambda r, n: ProviderDown("boom", status=500) if n <= times else compacted("sealed:one", n)
    )
    async with rig.open(agent, native(ladder=("native",)), tools=[Counted(1_000).tool]) as pod:
        result = await pod.run("go")
        for _ in range(times):
            assert result.status == "failed" and "was not made smaller" in str(result.error)
            assert "`pod resume`" in str(result.error) and "can't be made small enough" not in str(result.error)
            assert "provider_down: boom" in str(result.error)
            result = await pod.resume()
        rested = str(result.error)
    assert result.status == "finished" if times == 1 else "they rest until" in rested and "`pod resume`" in rested


@pytest.mark.parametrize("rung", ["native", "compact"])
async def test_what_is_paid_for_and_too_large_each_time_opens_the_breaker(rig: Rig, rung: str) -> None:
    agent = NativeAgent(caller(60), answer=lambda r, n: compacted("sealed:one", n, tokens=50_000))
    wordy = summariser(summary(filler(2_500)))
    made = native(ladder=("native", "checkpoint"))
    if rung == "compact":
        sizes = {"summary_max_tokens": 4_000, "result_context_max_tokens": 9_000}
        made = manifest(
            context={"policy": "compact", "ladder": ("compact", "checkpoint")}, compaction=compacting(6_000) | sizes
        )
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=wordy) as pod:
        (await pod.run("go")).raise_for_status()
    assert rungs(rig).count((rung, "failed")) == 3 and (rung, "skipped") in rungs(rig)
    assert all("the new segment would have" in r.reason for r in rig.of(e.CompactionRung) if r.state == "failed")


async def test_another_model_that_compacts_before_anything_else_is_said_to_read_the_memory_in_words(rig: Rig) -> None:
    async with rig.open(NativeAgent(caller(14)), native(ladder=("native",)), tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    other = NativeAgent(lambda r, n: say("done"), name="sealed:two")
    async with rig.open(other, native(4_000, ladder=("native",)), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go on")
    assert other.asked
    [told] = warned(rig, "context.memory_rebuilt")
    assert (told.figures["from"], told.figures["to"]) == ("sealed:one", "sealed:two")


@pytest.mark.parametrize("told", [1_000_000, 10**9])
async def test_an_output_larger_than_the_window_is_not_what_a_compaction_is_billed(rig: Rig, told: int) -> None:
    """Three hundred bytes of a memory are no million tokens: the limit on cost must not rest on that."""
    model = NativeAgent(
        caller(12), window=60_000,
        answer=lambda request, n: compacted("sealed:one", n, usage=Usage(input_tokens=9_000, output_tokens=told)),
    )  # fmt: skip
    async with rig.open(model, native(), tools=[Counted(1_500).tool]) as pod:
        (await pod.run("go")).raise_for_status()
        booked = pod.state.totals.by["compaction:sealed:one"]
    assert model.asked and booked["output_tokens"] <= 60_000 * len(model.asked)
    assert any(record.code == "usage_doubted" for record in rig.of(Warned))
