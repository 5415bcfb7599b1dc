"""Compaction between requests and between runs never loops and never thrashes (cases B001 to B006)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pod.log import entries as e
from pod.result import RunResult
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    filler,
    manifest,
    results,
    summariser,
    words,
)
from worker.errors import ContextOverflow
from worker.interceptor import CONTINUE, Append, Decision, Interceptor, RequestContext
from worker.items import ContextItem
from worker.models.base import Usage
from worker.records import Warned
from worker.testing import call, fail, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


async def test_b001_overhead_above_the_trigger_ends_with_one_named_failure(rig: Rig) -> None:
    """B001: nothing can help, so the run ends with the figures instead of an endless series of requests."""
    fetch = Counted(50)
    agent = Agent(lambda request, n: reply(call("fetch", n=n), usage=Usage(input_tokens=25_200, output_tokens=20)))
    made = manifest(worker={"system_prompt": filler(22_000)}, compaction=compacting(20_000))
    worker = summariser()
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=worker) as pod:
        result = await pod.run("look around")
    assert result.status == "failed" and result.error_kind == "compact_thrash" and result.exit_code == 1
    assert "fixed overhead" in (result.error or "") and "lowest trigger 20,000" in (result.error or "")
    assert len(agent.requests) <= 2
    assert len(rig.of(e.CompactionStarted)) <= 1


async def test_b002_the_number_of_an_old_segment_never_triggers_in_the_new_one(rig: Rig) -> None:
    """B002: 95,000 are reported, and 4,000 of the first request of the new segment; there is exactly one new segment."""

    @tool(max_output=1_000_000, effect="read")
    async def fetch(n: int) -> str:
        """Fetches page n."""
        return filler(55_000 if n == 1 else 300, f"page {n}")

    reported = {1: 900, 2: 95_000}
    agent = Agent(
        lambda request, n: reply(
            call("fetch", n=n) if n <= 4 else say("done"),
            usage=Usage(input_tokens=reported.get(n, 4_000), output_tokens=20),
        )
    )
    started: list[Any] = []
    note = lambda event: started.append(event) if event.type == "request.started" else None  # noqa: E731
    async with rig.open(
        agent,
        manifest(compaction=compacting(90_000, retained_tokens=8_000)),
        tools=[fetch],
        compact_model=summariser(),
        observers=[note],
    ) as pod:
        (await pod.run("fetch four")).raise_for_status()
    assert len(rig.segments()) == 2
    assert [event.provenance for event in started] == ["heuristic", "usage", "heuristic", "usage", "usage"]
    assert started[2].tokens < 45_000, "the first request of the new segment is measured anew"
    assert [r.call_id for r in results(agent.requests[2])] == [r.call_id for r in results(agent.requests[-1])][:1], (
        "the retained tail is whole"
    )


async def test_b003_a_run_yields_inside_the_turn_before_the_request_that_would_pass_the_threshold(rig: Rig) -> None:
    """B003: forty calls of 3,000 tokens after one message; the run goes through segments and ends as one run."""
    fetch = Counted(3_000)
    agent = Agent(caller(40))
    made = manifest(compaction=compacting(50_000))
    started: list[Any] = []
    note = lambda event: started.append(event) if event.type == "request.started" else None  # noqa: E731
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=summariser(), observers=[note]) as pod:
        result = (await pod.run("fetch all forty")).raise_for_status()
    assert result.text == "done" and fetch.calls == list(range(1, 41))
    yields = rig.of(e.YieldedEntry)
    assert yields and all(y.reason == "compact" for y in yields)
    assert len(rig.segments()) == len(yields) + 1
    assert all(s.lineage.kind_ == "compacted_from" for s in rig.starts()[1:])
    assert all(words(r).count("fetch all forty") == 1 for r in agent.requests)
    assert len(rig.of(e.RunStarted)) == 1 and len(rig.of(e.RunEndedEntry)) == 1
    assert all(event.tokens <= 50_000 for event in started), "no request leaves above the threshold"


async def test_a_large_message_does_not_end_a_session_that_has_room(rig: Rig) -> None:
    """What must stand is above half the trigger, but half of the room beside it can still be freed: the run goes on."""
    fetch = Counted(1_200)
    agent = Agent(caller(20))
    made = manifest(compaction=compacting(16_000), model={"context_window": 60_000, "max_output_tokens": 2_000})
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=summariser()) as pod:
        result = await pod.run("keep this: " + filler(7_000))
    assert result.status == "finished", result
    assert result.compactions >= 1
    assert all(sum("keep this: " in text for text in words(r)) == 1 for r in agent.requests)


async def test_b004_a_compaction_that_frees_almost_nothing_is_refused_and_not_repeated(rig: Rig) -> None:
    """B004: nearly everything must stay (the current request): a warning with the figures, and the run goes on, since there
    is room under the ceiling. It is tried again only after a tenth more growth, until half of what there is can go.
    """
    fetch = Counted(1_200)
    agent, worker = Agent(caller(20)), summariser()
    made = manifest(compaction=compacting(12_000))
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=worker) as pod:
        result = await pod.run("keep this: " + filler(8_000))
    assert result.status == "finished" and fetch.calls == list(range(1, 21))
    done = [at for at, kind in enumerate(rig.kinds()) if kind == "compaction_completed"]
    before = [r for r in rig.log()[: done[0]] if isinstance(r, e.CompactionFailed)]
    # Half the trigger cannot be reached with a request of 8,000 words: the target is then nine tenths of it, and no more.
    assert before[0].held and before[0].figures["tokens"] > 12_000 and before[0].figures["target"] == 10_800
    at = [r.figures["tokens"] for r in before]
    assert len(at) > 2 and all(later > 1.1 * earlier for earlier, later in pairwise(at))
    refused = [r for r in rig.log()[: done[0]] if isinstance(r, e.CompactionRung) and r.state == "failed"]
    assert "must lie under 10,800 and a tenth below" in refused[0].reason and refused[0].figures["after"] > 10_800
    warned = [w for w in rig.of(Warned) if w.code == "compaction.failed"]
    assert len(warned) <= len(rig.segments()), "once in each segment"
    assert "tried again after a tenth more growth" in warned[0].message and "199,000" in warned[0].message
    assert all(sum("keep this: " in text for text in words(r)) == 1 for r in agent.requests)


class Reinjected(Interceptor):
    """Puts the same large notice into each new segment."""

    async def before_request(self, ctx: RequestContext) -> Decision:
        if any(isinstance(i, ContextItem) and i.kind == "notice" for i in ctx.history.view):
            return CONTINUE
        return (
            Append((ContextItem(kind="notice", text=filler(9_000)),)) if ctx.history.counters.segments > 1 else CONTINUE
        )


async def test_thrash_is_detected_where_a_new_segment_is_above_its_trigger_at_once(rig: Rig) -> None:
    """B004: no progress in the new segment: not the same rung again but the next, and in the end the named error."""
    fetch = Counted(1_500)
    agent = Agent(caller(30))
    worker = summariser()
    made = manifest(compaction=compacting(12_000))
    async with rig.open(agent, made, tools=[fetch.tool], compact_model=worker, interceptors=[Reinjected()]) as pod:
        result = await pod.run("fetch them")
    assert result.error_kind == "compact_thrash" and result.exit_code == 1
    taken = [r.rung for r in rig.of(e.CompactionCompleted)]
    assert taken and len(set(taken)) == len(taken), "no rung makes two segments in a row without work between"
    kinds = rig.kinds()
    assert "reply" not in kinds[kinds.index("yielded") :], "nothing more is asked of the model"


async def test_b005_at_most_one_compaction_when_a_session_grows_slowly_through_restarts(rig: Rig) -> None:
    """B005: ten small turns just under the threshold with a restart between all; a restart alone never starts one."""
    made = manifest(compaction=compacting(None, threshold=10_000))
    worker, fetch = summariser(), Counted(1_590).tool
    async with rig.open(Agent(caller(5)), made, compact_model=worker, tools=[fetch]) as pod:
        (await pod.run("fetch")).raise_for_status()
        assert 8_500 < pod.running.worker.sender.occupancy().tokens < 10_000
    for turn in range(10):
        async with rig.open(Agent(lambda r, n: say("ok")), made, compact_model=worker, tools=[fetch]) as pod:
            assert len(rig.of(e.CompactionStarted)) <= 1
            (await pod.run(f"turn {turn}: " + filler(200, f"t{turn}"))).raise_for_status()
    started = rig.of(e.CompactionStarted)
    assert len(started) == 1 and started[0].trigger == "threshold"
    assert len(rig.segments()) == 2


async def test_b006_an_overflow_with_compaction_off_ends_with_the_overflow_error(rig: Rig) -> None:
    """B006: no trigger is set, so no compact worker starts, and the error says that the policy is off."""
    agent = Agent(
        lambda r, n: call("fetch", n=1) if n == 1 else fail(ContextOverflow("the prompt is too long", status=400))
    )
    worker = summariser()
    async with rig.open(agent, manifest(), tools=[Counted(100).tool], compact_model=worker) as pod:
        result = await pod.run("go")
    assert result.status == "failed" and result.error_kind == "overflow" and result.exit_code != 0
    assert "Nothing was compacted" in (result.error or "") and "overflow_recovery" in (result.error or "")
    assert not worker.requests and not rig.of(e.CompactionStarted)
    assert len(agent.requests) == 2


async def test_b006_overflow_recovery_has_a_key_of_its_own(rig: Rig) -> None:
    """B006: with `[context] overflow_recovery = true` the same overflow is recovered once, without any trigger."""
    agent = Agent(
        lambda r, n: call("fetch", n=n) if n <= 6
        else fail(ContextOverflow("too long", limit=9_000, requested=9_400, status=400)) if n == 7 else say("done")
    )  # fmt: skip
    made = manifest(context={"overflow_recovery": True}, compaction=compacting(None))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        result = (await pod.run("go")).raise_for_status()
    assert result.compactions == 1 and len(rig.segments()) == 2
    assert rig.of(e.CompactionStarted)[0].trigger == "overflow"


async def test_each_trigger_is_optional_and_never_derived_from_the_other(rig: Rig) -> None:
    """Only `threshold`: a run may grow beyond it. Only `request_threshold`: nothing happens between runs."""
    only_between_runs = manifest(compaction=compacting(None, threshold=6_000))
    assert only_between_runs.triggers == {"threshold": 6_000}
    async with rig.open(
        Agent(caller(8)), only_between_runs, "a", tools=[Counted(1_500).tool], compact_model=summariser()
    ) as pod:
        (await pod.run("fetch")).raise_for_status()
        assert not rig.of(e.CompactionStarted, "a"), "not inside the run"
        (await pod.run("again")).raise_for_status()
    assert [c.trigger for c in rig.of(e.CompactionStarted, "a")] == ["threshold"]

    only_inside = manifest(compaction=compacting(20_000))
    assert only_inside.triggers == {"request_threshold": 20_000}
    async with rig.open(
        Agent(caller(8)), only_inside, "b", tools=[Counted(1_500).tool], compact_model=summariser()
    ) as pod:
        (await pod.run("fetch")).raise_for_status()
        (await pod.run("again")).raise_for_status()
    assert not rig.of(e.CompactionStarted, "b")


async def test_the_threshold_is_passed_only_above_and_queued_input_counts(rig: Rig) -> None:
    """Strictly above; a message that waits counts before it is in the view."""
    async with rig.open(Agent(lambda r, n: say("ok")), manifest(compaction=compacting(None, threshold=199_000))) as pod:
        await pod.run("hello " + filler(3_000))
        running = pod.running
        item = await running.intake.accept("next " + filler(500))
        exact = running.worker.sender.occupancy().tokens
        assert running.worker.sender.occupancy().pending > 400
        seen: list[str] = []

        async def note(trigger: str, focus: str | None = None) -> bool:
            seen.append(trigger)
            return False

        running.compact = note  # type: ignore[method-assign]
        section = running.manifest.compaction
        assert section is not None
        for value, expected in ((exact, []), (exact - 1, ["threshold"])):
            changed = section.model_copy(update={"threshold": value})
            running.manifest = running.manifest.model_copy(update={"compaction": changed})
            await running._between_runs()
            assert seen == expected
        assert item


async def test_between_runs_a_failure_is_a_warning_and_waits_for_ten_percent_of_growth(rig: Rig) -> None:
    """Best effort: the run goes on uncompacted, and the next attempt comes only after more growth."""
    made = manifest(compaction=compacting(None, threshold=5_000))
    worker = Agent(lambda r, n: fail(ContextOverflow("no")), name="offline:broken")
    async with rig.open(Agent(lambda r, n: say("ok")), made, compact_model=worker) as pod:
        for text in ("hello", filler(5_500), "and now"):
            assert (await pod.run(text)).status == "finished"
        results_: list[RunResult] = [await pod.run(f"short {n}") for n in range(3)]
        assert all(r.status == "finished" for r in results_)
        assert len(rig.of(e.CompactionStarted)) == 1
        assert [w.code for w in rig.of(Warned)].count("compaction.failed") == 1
        (await pod.run("longer " + filler(1_200))).raise_for_status()
        (await pod.run("then")).raise_for_status()
    assert len(rig.of(e.CompactionStarted)) == 2


async def test_a_pod_without_a_compaction_table_never_compacts_and_warns_once(rig: Rig) -> None:
    """No table, no compaction: the policy `warn` warns at 80 % of what is available and refuses what can't fit."""
    agent = Agent(caller(12), window=12_000)
    async with rig.open(agent, manifest(), tools=[Counted(1_500).tool]) as pod:
        result = await pod.run("fetch")
    assert result.error_kind == "over_budget" and "tool results" in (result.error or "")
    assert [w.code for w in rig.of(Warned)].count("context_high") == 1
    assert not rig.of(e.CompactionStarted)


async def test_percent_triggers_are_shares_of_what_is_available(rig: Rig) -> None:
    """A trigger in per cent follows the model's window, and the window that a refusal taught."""
    made = manifest(compaction=compacting(request_threshold="50%", request=None))
    async with rig.open(Agent(caller(1), capabilities=capabilities(41_000)), made, tools=[Counted(10).tool]) as pod:
        assert pod.init_event().triggers == {"request_threshold": 20_000}
        assert pod.running.compactor.limits().lowest == 20_000
