"""Compaction that overflows or fails never loses the session (cases B007 to B012), breaker, cancel and progress."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from pod.log import entries as e
from pod.state import PodState
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    contexts,
    filler,
    manifest,
    results,
    size,
    summariser,
    summary,
    texts,
    until,
)  # fmt: skip
from worker.errors import ContextOverflow, ProviderDown
from worker.items import AssistantItem, ToolResultItem
from worker.models.base import Request
from worker.records import ReplyRecord, Warned
from worker.testing import FunctionModel, call, calls, fail, hang, reply, say, think
from worker.testing.scripted import Step
from worker.tools import tool

pytestmark = pytest.mark.anyio


def broken(step: Step | None = None) -> Agent:
    """A compact worker's model that never gives a summary."""
    return Agent(lambda r, n: step or fail(ProviderDown("boom", status=500)), name="offline:broken")


async def test_b007_the_first_compact_request_fits_a_small_model_whatever_the_prefix(rig: Rig) -> None:
    """B007: 400 items and 300,000 tokens before it; a compact model of 50,000 rejects nothing."""

    def play(request: Request, n: int) -> Step:
        return calls(call("fetch", n=(n - 1) * 10 + k) for k in range(1, 11)) if n <= 20 else say("done")

    fetch = Counted(1_500)
    worker = summariser(window=50_000)
    made = manifest(compaction=compacting(290_000, worker_context_max_tokens=50_000))
    async with rig.open(Agent(play, window=400_000), made, tools=[fetch.tool], compact_model=worker) as pod:
        result = (await pod.run("fetch two hundred")).raise_for_status()
    assert result.compactions == 1 and len(fetch.calls) == 200
    done = next(r for r in rig.of(e.CompactionRung) if r.state == "done")
    assert done.rung == "compact" and done.figures["first_input_tokens"] < 40_000
    assert all(size(request) < 50_000 for request in worker.requests)
    started = rig.of(e.CompactionStarted)[0]
    assert started.items >= 360 and started.tokens > 290_000


async def test_b008_results_are_reduced_also_where_text_and_reasoning_can_not(rig: Rig) -> None:
    """B008: text and reasoning of the unanswered batch are passed over, and both of its large results are cut."""

    @tool
    async def big(n: int) -> str:
        """Gives much."""
        return filler(14_000, f"big {n}")

    def play(request: Request, n: int) -> Step:
        if n == 1:
            return reply(think('{"t": 1}'), say("I look at both"), call("big", n=1), call("big", n=2))
        return say("done")

    made = manifest(compaction=compacting(12_000))
    agent = Agent(play)
    async with rig.open(agent, made, tools=[big], compact_model=summariser()) as pod:
        result = (await pod.run("look")).raise_for_status()
        spilled = results(agent.requests[-1], "big")
        assert [r.name for r in spilled] == ["big", "big"] and all(len(r.content or "") < 1_500 for r in spilled)
        assert "big 1 line 0 " in (spilled[0].content or "") and "bytes left out" in (spilled[0].content or "")
        assert all(r.artifact and pod.running.services.artifacts.path(f"artifact:{r.artifact}") for r in spilled)
    assert result.segments == 2
    assert any("cut to head and tail" in note for c in rig.of(e.CompactionCompleted) for note in c.notes)
    kept = [i.text for i in agent.requests[-1].items if isinstance(i, AssistantItem)]
    assert kept == ["I look at both"] and size(agent.requests[-1]) < 6_000


async def test_b009_a_failing_summariser_costs_a_warning_once_a_turn_and_never_the_turn(rig: Rig) -> None:
    """B009: six requests in the turn, one failed compaction; after three failed turns the breaker is open."""
    fetch = Counted(1_000)
    made = manifest(compaction=compacting(None, threshold=8_000))
    worker = broken()
    served = {"n": 0}

    def play(request: Request, n: int) -> Step:
        served["n"] += 1
        return call("fetch", n=n) if served["n"] % 6 else say(f"turn done {n}")

    async with rig.open(Agent(play), made, tools=[fetch.tool], compact_model=worker) as pod:
        (await pod.run("first " + filler(5_000))).raise_for_status()
        assert not rig.of(e.CompactionStarted)
        asked: list[int] = []
        for turn in range(5):
            assert (await pod.run(f"turn {turn}")).status == "finished"
            asked.append(len(worker.requests))
        failures = [b.failures for b in rig.of(e.Breaker)]
        assert failures == [1, 2, 3], "one failure is counted for a turn"
        assert rig.of(e.Breaker)[-1].open_until is not None
        assert asked[2] == asked[3] == asked[4], "an open breaker asks no model"
    assert [w.code for w in rig.of(Warned)].count("compaction.failed") == 5
    assert len(rig.of(e.RunEndedEntry)) == 6 and len(rig.segments()) == 1


async def test_the_circuit_breaker_opens_after_three_failures_survives_a_restart_and_half_opens(rig: Rig) -> None:
    """Three failures in a row; then model rungs are skipped durably, until the cooldown is over; a success closes it."""
    made = manifest(compaction=compacting(None, breaker_cooldown=1_800.0))
    worker = broken()
    now = 1_000_000.0
    async with rig.open(Agent(caller(6)), made, tools=[Counted(1_000).tool], compact_model=worker) as pod:
        await pod.run("go")
        pod.running.compactor.parts.wall = lambda: now
        for _ in range(3):
            assert not await pod.running.compact("threshold")
        asked = len(worker.requests)
        assert asked == 5, "the third failure opens it before the coarse rung"
        assert pod.state.breaker.failures == 3 and pod.state.breaker.open_until == now + 1_800
    good = summariser()
    async with rig.open(Agent(caller(0)), made, tools=[Counted(1_000).tool], compact_model=good) as pod:
        pod.running.compactor.parts.wall = lambda: now + 1_799
        assert not await pod.running.compact("threshold")
        skipped = [r for r in rig.of(e.CompactionRung) if r.state == "skipped"]
        assert [r.rung for r in skipped][-2:] == ["compact", "coarse"] and "3 times in a row" in skipped[-1].reason
        assert not good.requests
        pod.running.compactor.parts.wall = lambda: now + 1_801
        assert await pod.running.compact("threshold")
        assert pod.state.breaker.failures == 0 and pod.state.breaker.open_until is None
    assert len(rig.segments()) == 2


async def test_a_changed_manifest_lets_an_open_breaker_try_once_more(rig: Rig) -> None:
    made = manifest(compaction=compacting(None))
    worker = broken()
    async with rig.open(Agent(caller(4)), made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        await pod.run("go")
        pod.running.session.put(e.Breaker(failures=3, open_until=9e9))
        await pod.running.compact("threshold")
        assert not worker.requests
        pod.running.session.put(e.ManifestChanged(digest="other"))
        await pod.running.compact("threshold")
        assert len(worker.requests) == 1 and pod.state.breaker.failures == 4
        assert pod.state.breaker.open_until is not None, "one more failure opens it again"


async def test_an_open_breaker_leaves_the_rungs_without_a_model_and_a_compaction_by_hand(rig: Rig) -> None:
    """A mandatory compaction makes a checkpoint meanwhile; asked for by hand, the compact worker is tried all the same."""
    made = manifest(compaction=compacting(8_000))
    worker = broken()
    agent = Agent(caller(9))
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        pod.running.session.put(e.Breaker(failures=3, open_until=9e9))
        (await pod.run("go")).raise_for_status()
        assert not worker.requests
        assert {c.rung for c in rig.of(e.CompactionCompleted)} == {"checkpoint"}
    async with rig.open(Agent(caller(4)), made, "q", tools=[Counted(1_500).tool], compact_model=worker) as pod:
        pod.running.session.put(e.Breaker(failures=3, open_until=9e9))
        (await pod.run("go")).raise_for_status()
        await pod.compact()
        assert worker.requests


async def test_b010_cut_summaries_end_within_their_bounds(rig: Rig) -> None:
    """B010: a compact worker whose replies are always cut; few requests, one failure, the old segment stays active."""
    made = manifest(compaction=compacting(None))
    worker = broken(reply(stop="length"))
    async with rig.open(Agent(caller(100)), made, tools=[Counted(60).tool], compact_model=worker) as pod:
        await pod.run("go")
        before = pod.state.start.segment
        assert not await pod.running.compact("threshold")
        assert pod.state.start.segment == before and pod.state.compaction is None
    assert len(worker.requests) <= 4
    assert len(rig.of(e.CompactionFailed)) == 1


async def test_b011_the_compact_worker_finds_what_the_overview_and_a_prune_left_out(rig: Rig) -> None:
    """B011: a line in the middle of the old output, pruned from the view, is still found in the log."""

    @tool
    async def fetch(n: int) -> str:
        """Fetches."""
        return filler(600, f"page {n}") + ("\nport must be 7443" if n == 7 else "") + "\n" + filler(600, f"more {n}")

    found: list[str] = []

    def written(request: Request) -> str:
        found.extend(r.text() for r in results(request, "search_session_log"))
        return summary(Findings="- port must be 7443 — source: fetch 7")

    worker = summariser(written, first=[call("search_session_log", query="7443")])
    made = manifest(
        prune={"enabled": True, "min_savings": 2_000, "protected_tokens": 1_000}, compaction=compacting(None)
    )
    agent = Agent(caller(12))
    async with rig.open(agent, made, tools=[fetch], compact_model=worker) as pod:
        result = (await pod.run("go")).raise_for_status()
        assert result.prunes and "port must be 7443" not in texts(agent.requests[-1])
        assert await pod.compact()
        agent.play = lambda r, n: say("ok")
        await pod.run("next")
    assert "item 15 (result of fetch" in found[0] and "not shown" in texts(worker.requests[0])
    assert "port must be 7443" in contexts(agent.requests[-1], "summary")[0]


async def test_b011_a_summary_that_says_nothing_is_demanded_again_and_then_fails(rig: Rig) -> None:
    """B011: an empty-looking summary of a large prefix is refused twice, then the compaction fails."""
    empty = "\n\n".join(
        f"## {name}\nnone"
        for name in ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Current Work")
    )
    made = manifest(compaction=compacting(None), context={"ladder": ["compact"]})
    worker = summariser(empty)
    async with rig.open(Agent(caller(8)), made, tools=[Counted(1_000).tool], compact_model=worker) as pod:
        await pod.run("go")
        assert not await pod.compact()
    assert 2 <= len(worker.requests) <= 20
    assert "empty" in texts(worker.requests[-1])


async def test_b012_a_compact_model_with_a_smaller_window_is_never_sent_more(rig: Rig) -> None:
    """B012: worker_context_max_tokens is 50,000, the compact model's window 16,000."""
    worker = summariser(first=[call("read_session_items", offset=1, limit=80, mode="full")] * 3, window=16_000)
    made = manifest(compaction=compacting(None, worker_context_max_tokens=50_000))
    async with rig.open(Agent(caller(25)), made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        await pod.run("go")
        assert await pod.compact()
    assert worker.requests and all(size(request) <= 15_000 for request in worker.requests)


async def test_the_yield_is_recorded_before_the_compaction_and_the_same_run_goes_on(rig: Rig) -> None:
    """The worker ends cleanly; `yielded` stands before `compaction_started`; no new input, the same run id."""
    agent = Agent(caller(9))
    async with rig.open(
        agent, manifest(compaction=compacting(8_000)), tools=[Counted(1_500).tool], compact_model=summariser()
    ) as pod:
        result = (await pod.run("go")).raise_for_status()
    kinds = rig.kinds()
    assert kinds.index("yielded") < kinds.index("compaction_started") < kinds.index("compaction_completed")
    runs = {r.run for r in rig.of(e.RunStarted)} | {r.run for r in rig.of(e.RunEndedEntry)}
    assert runs == {result.run} and kinds.count("input") == 1
    assert all(s.open_run is not None and s.open_run.run == result.run for s in rig.starts()[1:])
    assert result.requests == len(rig.of(ReplyRecord)) == 10


async def test_a_failed_mandatory_compaction_leaves_the_old_segment_whole(rig: Rig) -> None:
    """The yield was recorded before; nothing of the old segment is lost, and the run can be resumed later."""
    made = manifest(compaction=compacting(8_000), context={"ladder": ["compact"]})
    async with rig.open(Agent(caller(9)), made, tools=[Counted(1_500).tool], compact_model=broken()) as pod:
        result = await pod.run("go")
    assert result.status == "failed" and result.resumable and len(rig.segments()) == 1
    agent = Agent(lambda r, n: call("fetch", n=50) if n == 1 else say("done"))
    async with rig.open(agent, made, tools=[Counted(100).tool], compact_model=summariser()) as pod:
        assert (await pod.resume()).status == "finished"
    assert len(rig.segments()) == 2


async def test_a_coarse_overview_is_the_second_rung(rig: Rig) -> None:
    """The first attempt fails, the second starts from a coarse overview and succeeds; both are on record."""
    tried = {"n": 0}
    good = summariser()

    def play(request: Request, n: int) -> Step:
        tried["n"] += 1
        return fail(ContextOverflow("no")) if tried["n"] == 1 else good.play(request, n)

    made = manifest(compaction=compacting(8_000))
    async with rig.open(
        Agent(caller(6)), made, tools=[Counted(1_500).tool], compact_model=Agent(play, name="offline:c")
    ) as pod:
        (await pod.run("go")).raise_for_status()
    rungs = [(r.rung, r.state) for r in rig.of(e.CompactionRung)]
    assert rungs == [("compact", "tried"), ("compact", "failed"), ("coarse", "tried"), ("coarse", "done")]
    assert rig.of(e.CompactionCompleted)[0].rung == "coarse"
    assert [b.failures for b in rig.of(e.Breaker)] == [1, 0]


async def test_b088_cancelling_a_run_cancels_its_compact_worker_and_the_pod_is_idle(rig: Rig) -> None:
    """B088: cancelled while the compact worker waits; the old segment is active, and the next message is taken."""
    made = manifest(compaction=compacting(8_000))
    worker = Agent(lambda r, n: hang(), name="offline:slow")
    agent = Agent(lambda r, n: call("fetch", n=n) if n <= 5 else say("done"))
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        async with pod.start("go") as run:
            await until(lambda: worker.requests)
            result = await run.interrupt()
        assert result.status == "cancelled" and not pod.running.busy
        assert len(rig.segments()) == 1
        pod.running.compactor.parts.models = (summariser(),)
        pod.running.compact_models = (summariser(),)
        assert (await pod.run("go on")).status == "finished"
        assert pod.state.compaction is None
    assert len(rig.segments()) >= 2


async def test_b149_nothing_is_announced_where_nothing_can_be_compacted(rig: Rig) -> None:
    """B149: over the threshold without a prefix to summarise: no compaction event; by hand there is a reason."""
    made = manifest(compaction=compacting(None, threshold=600, retained_tokens=500, retained_floor_tokens=100))
    worker = summariser()
    seen: list[Any] = []
    async with rig.open(Agent(lambda r, n: say("ok")), made, compact_model=worker, observers=[seen.append]) as pod:
        assert not await pod.compact()
        assert [w.message for w in rig.of(Warned)] == [
            "there is nothing to compact: all that could be summarised is already a summary or must stay"
        ]
        assert pod.running.worker.sender.occupancy().tokens > 500
        (await pod.run("hello " + filler(300))).raise_for_status()
    assert not [event for event in seen if event.type.startswith("compaction")]
    assert not worker.requests


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0.02)})])
async def test_b150_a_compaction_shows_its_progress_at_least_every_fifteen_seconds(rig: Rig) -> None:
    """B150: the compact worker needs 90 s; on a clock of the test's own, a sign comes every 15 s with stage and time."""
    worker = summariser()
    played = worker.play

    async def slow(request: Request) -> None:
        await anyio.sleep(90)

    class Slow(Agent):
        async def send(self, request: Request, emit: Any) -> Any:
            await slow(request)
            return await super().send(request, emit)

    made = manifest(compaction=compacting(None))
    seen: list[Any] = []
    async with rig.open(
        Agent(caller(5)),
        made,
        tools=[Counted(1_500).tool],
        compact_model=Slow(played, name="offline:slow"),
        observers=[seen.append],
    ) as pod:
        await pod.run("go")
        assert await pod.compact()
    beats = [event for event in seen if event.type == "compaction.progress"]
    assert len(beats) >= 180 // 15 - 1
    assert beats[-1].figures["elapsed"] >= 90


async def test_the_compact_workers_own_log_stands_beside_the_segment(rig: Rig) -> None:
    """Its records are kept, whole, for looking at; they are not the session's entries."""
    async with rig.open(
        Agent(caller(5)), manifest(compaction=compacting(None)), tools=[Counted(1_500).tool], compact_model=summariser()
    ) as pod:
        await pod.run("go")
        segment = pod.state.start.segment
        assert await pod.compact()
    paths = rig.worker_logs()
    assert [path.name for path in paths] == [f"{segment}.compact-1.jsonl"]
    records = rig.worker_records(paths[0])
    assert any(isinstance(r, ReplyRecord) for r in records)
    assert sum(isinstance(r, ReplyRecord) for r in rig.log()) == 6


async def test_the_overview_holds_no_arguments_no_tool_content_and_no_reasoning(rig: Rig) -> None:
    """The seed's rule, at the pod: what the compact worker is first sent has none of the three."""

    @tool
    async def fetch(secret_argument: str) -> str:
        """Fetches."""
        return "first line\n" + "\n".join(f"SECRET-CONTENT {n} " + "and so on " * 8 for n in range(150))

    def play(request: Request, n: int) -> Step:
        if n <= 4:
            return reply(
                think('{"x": "SECRET-REASONING"}', "SECRET-REASONING"),
                say(f"step {n}"),
                call("fetch", secret_argument="SECRET-ARGUMENT"),
            )
        return say("done")

    worker = summariser()
    async with rig.open(Agent(play), manifest(compaction=compacting(None)), tools=[fetch], compact_model=worker) as pod:
        await pod.run("look at the USER-WORDS")
        assert await pod.compact()
    first = "\n".join(str(getattr(i, "text", "")) for i in worker.requests[0].items)
    assert "USER-WORDS" in first and "step 1" in first and "fetch" in first
    for secret in ("SECRET-CONTENT", "SECRET-REASONING", "SECRET-ARGUMENT"):
        assert secret not in first


async def test_overview_warning_and_deadline_do_not_stop_a_compaction(rig: Rig) -> None:
    """Above the warning: a warning. Above the deadline: a coarse overview. Both times the compaction completes."""
    settings = compacting(
        None, overview_target_tokens=3_000, overview_warning_tokens=3_000, overview_deadline_tokens=40_000
    )
    for name, more in (("warned", {}), ("coarse", {"overview_deadline_tokens": 3_500})):
        seen: list[Any] = []
        made = manifest(compaction={**settings, **more})
        agent = Agent(lambda r, n: say(f"answer {n} " + filler(450, f"a{n}")))
        async with rig.open(agent, made, name, compact_model=summariser(), observers=[seen.append]) as pod:
            for n in range(12):
                await pod.run(f"question {n}")
            assert await pod.compact()
        codes = [event.figures.get("code") for event in seen if event.type == "compaction.progress"]
        assert "overview_large" in codes
        assert ("overview_coarse" in codes) == (name == "coarse")


async def test_the_finish_warning_comes_once_and_below_the_reserve_only_the_summary_runs(rig: Rig) -> None:
    """Finish warning, final reserve and hard limit of the compact worker, as events of the pod."""
    reading = [call("read_session_items", offset=1, limit=6, mode="full")] * 6
    worker = summariser(first=reading)
    seen: list[Any] = []
    settings = compacting(
        None, worker_context_max_tokens=16_000, finish_warning_remaining_tokens=6_000, final_reserve_tokens=3_000,
        overview_target_tokens=2_000, summary_max_tokens=1_500, summary_target_tokens=500,
    )  # fmt: skip
    async with rig.open(
        Agent(caller(12)),
        manifest(compaction=settings),
        tools=[Counted(1_000).tool],
        compact_model=worker,
        observers=[seen.append],
    ) as pod:
        await pod.run("go")
        assert await pod.compact()
    codes = [event.figures.get("code") for event in seen if event.type == "compaction.progress"]
    assert codes.count("finish_warning") == 1
    log = rig.worker_records(rig.worker_logs()[0])
    refused = [r.item for r in log if getattr(getattr(r, "item", None), "status", "") == "error"]
    assert refused and all(
        "too little context is left" in item.summary for item in refused if isinstance(item, ToolResultItem)
    )
    assert all(size(request) <= 16_000 for request in worker.requests)


async def test_a_worker_without_a_summary_is_nudged_once_and_plain_text_is_never_one(rig: Rig) -> None:
    """It answers in plain text twice: one nudge, then the compaction fails, and the text is nowhere."""
    worker = Agent(lambda r, n: say("Here is my summary: all is well"), name="offline:talker")
    made = manifest(compaction=compacting(None), context={"ladder": ["compact"]})
    seen: list[Any] = []
    async with rig.open(
        Agent(caller(5)), made, tools=[Counted(1_500).tool], compact_model=worker, observers=[seen.append]
    ) as pod:
        await pod.run("go")
        assert not await pod.compact()
    assert len(worker.requests) == 2 and "no valid summary yet" in texts(worker.requests[1])
    assert [e_.stage for e_ in seen if e_.type == "compaction.progress"].count("compaction.nudge") == 1
    assert len(rig.segments()) == 1


async def test_a_worker_that_marks_nothing_though_files_were_touched_is_nudged_once(rig: Rig) -> None:
    """The second nudge of the seed: only where the pod knows of touched files; the compaction completes all the same."""
    rig.file("a.txt", "alpha\n")
    for name, path in (("touched", "a.txt"), ("untouched", "nowhere.txt")):
        worker = summariser()
        agent = Agent(
            lambda r, n, path=path: (
                call("read_file", path=path) if n == 1 else call("fetch", n=n) if n <= 6 else say("done")
            )
        )
        made = manifest(tools={"enable": ["read_file"]}, compaction=compacting(None))
        async with rig.open(agent, made, name, tools=[Counted(1_500).tool], compact_model=worker) as pod:
            await pod.run("go")
            assert await pod.compact()
        nudges = sum("none is marked" in texts(r) for r in worker.requests[-1:])
        assert nudges == (1 if name == "touched" else 0)


async def test_the_summary_is_validated_before_the_commit(rig: Rig) -> None:
    """A summary above its maximum is refused; the new segment holds the one that was valid, below its maximum."""
    attempts = [summary(Completed_Tasks="### [T1] x\n- " + filler(900, "long")), summary(current="SHORT AND VALID")]
    state = {"n": 0}

    def written(request: Request) -> str:
        state["n"] += 1
        return attempts[min(state["n"] - 1, 1)]

    settings = compacting(None, summary_max_tokens=600, summary_target_tokens=300, result_context_max_tokens=4_000)
    async with rig.open(
        Agent(caller(8)), manifest(compaction=settings), tools=[Counted(1_000).tool], compact_model=summariser(written)
    ) as pod:
        await pod.run("go")
        assert await pod.compact()
        items = pod.state.start.items
        found = [i.text for i in items if getattr(i, "kind", "") == "summary"]
        assert len(found) == 1 and "SHORT AND VALID" in found[0]
        assert sum(pod.state.history.tokens) < 4_000, "result_context_max_tokens holds"


async def test_a_compact_model_whose_code_breaks_is_a_failed_rung_and_the_run_goes_on(rig: Rig) -> None:
    """Compaction never ends a run by itself while a rung is left, whatever a model of somebody else's raises."""

    def broken(_: Any) -> Any:
        raise ValueError("a bug in the model's own code")

    fetch = Counted(3_000)
    worker = FunctionModel("offline:broken", broken)
    async with rig.open(
        Agent(caller(8)), manifest(compaction=compacting(14_000)), tools=[fetch.tool], compact_model=worker
    ) as pod:
        result = await pod.run("fetch")
    assert result.status == "finished", result
    rungs = [(r.rung, r.state) for r in rig.of(e.CompactionRung)]
    assert ("compact", "failed") in rungs
    assert any("a bug in the model's own code" in r.reason for r in rig.of(e.CompactionRung))


def test_a_compaction_that_failed_holds_nothing_back_once_another_has_succeeded() -> None:
    """Between runs it is tried again after a tenth more growth; that rests on the failure, which is over then."""
    state = PodState.begin(e.SegmentStarted(session="s", segment="g", lineage=e.Lineage()))
    at = "2026-01-01T00:00:00+00:00"
    failed = e.CompactionFailed(compaction="c", reason="r", mandatory=False, figures={"tokens": 90_000})
    state.apply(failed, at, 1)
    assert state.carry().failed_at_tokens == 90_000
    done = e.CompactionCompleted(
        compaction="d", trigger="request_threshold", rung="compact", before=95_000, after=20_000, limit=40_000
    )
    state.apply(done, at, 2)
    assert state.failed_at_tokens == state.carry().failed_at_tokens == 0
