"""The tree of spans of a run: what stands below what, what each says, and that each ends however the run does."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from pod.log import entries as e
from tests.otel.otel_rig import Traces, events, ids, said
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    manifest,
    summariser,
    until,
)
from worker.errors import AuthFailed, ProviderDown, RateLimited
from worker.models.base import Usage
from worker.records import Pruned
from worker.testing import ScriptedModel, call, calls, fail, hang, reply, say
from worker.tools import Tool, ToolFault, tool

pytestmark = pytest.mark.anyio

RETRIES = {"retry": {"max_attempts": 3, "max_seconds": 60}}
ONLY = {"ladder": ["compact"]}


@tool
async def look(word: str) -> str:
    """Looks a word up."""
    return f"{word} is a word"


@tool
async def breaks() -> str:
    """Fails."""
    raise ToolFault("no such thing")


async def test_a_run_its_requests_and_its_tools_are_a_tree_by_the_conventions(rig: Rig, traces: Traces) -> None:
    usage = Usage(input_tokens=100, cached_tokens=40, cache_write_tokens=10, output_tokens=7, reasoning_tokens=3)
    model = ScriptedModel([calls([call("look", word="a"), call("look", word="b")]), reply(say("done"), usage=usage)])
    async with rig.open(model, tools=[look], telemetry=traces.telemetry) as pod:
        result = await pod.run("go")
        session, segment, run = pod.state.start.session, pod.state.start.segment, pod.state.last_run
    assert result.status == "finished"
    assert traces.tree() == [
        "invoke_agent p",
        "  segment",
        "    chat scripted",
        "    execute_tool look",
        "    execute_tool look",
        "    chat scripted",
    ]
    root = said(traces.one("invoke_agent"))
    assert root == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "offline", "gen_ai.request.model": "scripted",
        "gen_ai.agent.name": "p", "gen_ai.conversation.id": session, "pod.segment": segment, "pod.run": run,
        "pod.status": "finished", "pod.requests": 2,
    }  # fmt: skip
    last = traces.named("chat")[-1]
    assert last.kind is SpanKind.CLIENT and last.status.status_code is StatusCode.UNSET
    wanted = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "offline", "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted", "gen_ai.response.finish_reasons": ("end",), "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.cache_creation.input_tokens": 10, "gen_ai.usage.reasoning.output_tokens": 3, "pod.attempts": 1,
        "gen_ai.agent.name": "p", "gen_ai.conversation.id": session, "pod.segment": segment,
    }  # fmt: skip
    assert wanted.items() <= said(last).items()
    ran = traces.named("execute_tool")
    assert {said(span)["gen_ai.tool.call.id"] for span in ran} == set(pod.state.history.call_ids)
    for span in ran:
        expected = {"gen_ai.tool.name": "look", "gen_ai.operation.name": "execute_tool", "pod.status": "ok"}
        assert span.kind is SpanKind.INTERNAL and expected.items() <= said(span).items()


async def test_a_retry_is_an_event_of_its_request_and_a_fallback_a_request_of_its_own(rig: Rig, traces: Traces) -> None:
    model = ScriptedModel([fail(RateLimited("slow down", retry_after=0.0, status=429)), say("done")])
    async with rig.open(model, manifest(**RETRIES), telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    asked = traces.one("chat")
    (retry,) = events(asked, "pod.retry")
    assert retry == {"error.type": "rate_limited", "pod.attempt": 1, "pod.wait": 0.0, "http.response.status_code": 429}
    assert said(asked)["pod.attempts"] == 2 and asked.status.status_code is StatusCode.UNSET


async def test_a_request_that_fails_for_good_says_why_and_so_does_the_run(rig: Rig, traces: Traces) -> None:
    async with rig.open(ScriptedModel([fail(AuthFailed("bad key 123"))]), telemetry=traces.telemetry) as pod:
        assert (await pod.run("go")).status == "failed"
    for span in (traces.one("chat"), traces.one("invoke_agent")):
        assert said(span)["error.type"] == "auth" and span.status.status_code is StatusCode.ERROR
    assert "bad key" not in traces.text()


async def test_a_tool_that_fails_is_an_error_and_the_run_is_none(rig: Rig, traces: Traces) -> None:
    model = ScriptedModel([calls([call("breaks"), call("nothing")]), say("done")])
    async with rig.open(model, tools=[breaks], telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    span = traces.one("execute_tool")
    assert said(span)["error.type"] == "tool_error" and span.status.status_code is StatusCode.ERROR
    assert traces.one("invoke_agent").status.status_code is StatusCode.UNSET
    (unknown,) = events(traces.one("segment"), "pod.tool_not_run")
    assert unknown["pod.status"] == "error" and "nothing" not in str(unknown.values())


async def test_a_compaction_holds_the_requests_of_its_worker_and_a_new_segment_follows(
    rig: Rig, traces: Traces
) -> None:
    made = manifest(compaction=compacting(9_000), context=ONLY)
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": summariser()}
    async with rig.open(Agent(caller(10)), made, telemetry=traces.telemetry, **options) as pod:
        (await pod.run("fetch")).raise_for_status()
    (done,) = rig.of(e.CompactionCompleted)
    tops = [span.name for span in traces.spans if traces.parent(span) is traces.one("invoke_agent")]
    assert tops == ["segment", "compaction", "segment"]
    compaction = traces.one("compaction")
    wanted = {
        "pod.compaction.trigger": done.trigger, "pod.compaction.rung": "compact", "pod.tokens_before": done.before,
        "pod.tokens_after": done.after, "pod.tokens_saved": done.before - done.after, "pod.compaction": done.compaction,
        "pod.occupancy": done.before, "pod.segment.next": rig.starts()[1].segment,
    }  # fmt: skip
    assert wanted.items() <= said(compaction).items()
    below = [span.name for span in traces.spans if traces.parent(span) is compaction]
    assert below == ["chat summariser", "execute_tool write_summary", "chat summariser"]
    assert said(compaction)["pod.requests"] == 2
    first, second = traces.named("segment")
    assert said(first)["pod.segment"] == rig.starts()[0].segment != said(second)["pod.segment"]
    assert said(second)["pod.segment"] == rig.starts()[1].segment
    assert {said(span)["gen_ai.conversation.id"] for span in traces.spans} == {rig.starts()[0].session}


async def test_a_compaction_by_hand_is_a_trace_of_its_own(rig: Rig, traces: Traces) -> None:
    made = manifest(compaction=compacting(None), context=ONLY)
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": summariser()}
    async with rig.open(Agent(caller(8)), made, telemetry=traces.telemetry, **options) as pod:
        (await pod.run("fetch")).raise_for_status()
        assert await pod.compact()
    compaction = traces.one("compaction")
    assert compaction.parent is None and said(compaction)["pod.compaction.trigger"] == "hand"


async def test_a_compaction_that_comes_to_nothing_is_an_error(rig: Rig, traces: Traces) -> None:
    made = manifest(compaction=compacting(None), context=ONLY)
    worker = Agent(lambda r, n: say("I would rather not"), name="offline:summariser")
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": worker}
    async with rig.open(Agent(caller(8)), made, telemetry=traces.telemetry, **options) as pod:
        (await pod.run("fetch")).raise_for_status()
        assert not await pod.compact()
    compaction = traces.one("compaction")
    assert said(compaction)["error.type"] == "compaction_failed"
    assert compaction.status.status_code is StatusCode.ERROR
    assert [each["pod.state"] for each in events(compaction, "pod.rung")] == ["tried", "failed"]


async def test_a_prune_is_an_event_with_its_figures(rig: Rig, traces: Traces) -> None:
    made = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings": 6_000})
    async with rig.open(Agent(caller(12)), made, tools=[Counted(1_500).tool], telemetry=traces.telemetry) as pod:
        (await pod.run("fetch")).raise_for_status()
    wanted = [(each.tokens_saved, each.tokens_before, len(each.items)) for each in rig.of(Pruned)]
    found = events(traces.one("segment"), "pod.pruned")
    assert wanted and [(f["pod.tokens_saved"], f["pod.tokens_before"], f["pod.results"]) for f in found] == wanted


def child_of(rig: Rig, traces: Traces | None) -> Tool:
    """A tool whose function runs a pod of its own."""

    @tool(name="delegate")
    async def delegate() -> str:
        """Has another agent do it."""
        options: dict[str, Any] = {} if traces is None else {"telemetry": traces.telemetry}
        async with rig.open(ScriptedModel([say("the child is done")]), name="child", **options) as pod:
            return str((await pod.run("do it")).text)

    return delegate


@pytest.mark.parametrize("given", [True, False], ids=["with the same telemetry", "without any of its own"])
async def test_a_pod_that_a_tool_runs_stands_below_the_tools_span(rig: Rig, traces: Traces, given: bool) -> None:
    delegate = child_of(rig, traces if given else None)
    async with rig.open(
        ScriptedModel([call("delegate"), say("done")]), tools=[delegate], telemetry=traces.telemetry
    ) as pod:
        (await pod.run("go")).raise_for_status()
    assert traces.tree() == [
        "invoke_agent p",
        "  segment",
        "    chat scripted",
        "    execute_tool delegate",
        "      invoke_agent child",
        "        segment",
        "          chat scripted",
        "    chat scripted",
    ]
    assert said(traces.one("invoke_agent p"))["pod.requests"] == 2
    assert said(traces.one("invoke_agent child"))["pod.requests"] == 1
    sessions = [said(span)["gen_ai.conversation.id"] for span in traces.named("chat")]
    assert sessions[0] == sessions[2] != sessions[1]


async def test_all_spans_end_where_a_run_is_cancelled(rig: Rig, traces: Traces) -> None:
    model = ScriptedModel([call("look", word="a"), hang()])
    async with rig.open(model, tools=[look], telemetry=traces.telemetry) as pod, anyio.create_task_group() as group:
        group.start_soon(pod.run, "go")
        await until(lambda: len(model.requests) == 2)
        group.cancel_scope.cancel()
    first, second = traces.named("chat")
    assert first.status.status_code is StatusCode.UNSET
    assert said(second)["error.type"] == "cancelled" and second.status.status_code is StatusCode.ERROR
    assert said(traces.one("invoke_agent"))["pod.status"] == "cancelled"


async def test_a_tool_that_is_cancelled_has_its_span_ended(rig: Rig, traces: Traces) -> None:
    begun = anyio.Event()

    @tool
    async def waits() -> str:
        """Waits."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    async with rig.open(ScriptedModel([call("waits")]), tools=[waits], telemetry=traces.telemetry) as pod:
        async with pod.start("go") as run:
            await begun.wait()
            await run.interrupt("now")
        assert run.result.status == "cancelled"
    assert said(traces.one("execute_tool"))["error.type"] == "cancelled"
    assert traces.one("invoke_agent").status.status_code is StatusCode.UNSET


async def test_a_run_that_goes_on_links_to_the_stretch_before(rig: Rig, traces: Traces) -> None:
    model = ScriptedModel([call("look", word="a"), hang()])
    async with rig.open(model, tools=[look], telemetry=traces.telemetry) as pod, pod.start("go") as run:
        await until(lambda: len(model.requests) == 2)
        await run.interrupt("now")
    before = traces.one("invoke_agent")
    async with rig.open(ScriptedModel([say("done")]), tools=[look], telemetry=traces.telemetry) as pod:
        (await pod.resume()).raise_for_status()
    _, after = traces.named("invoke_agent")
    assert after.parent is None and ids(after).trace_id != ids(before).trace_id
    (link,) = after.links
    assert (link.context.trace_id, link.context.span_id) == (ids(before).trace_id, ids(before).span_id)
    assert said(after)["gen_ai.conversation.id"] == said(before)["gen_ai.conversation.id"]


async def test_a_run_that_waits_for_a_human_is_paused_and_its_answer_goes_on_in_a_trace_that_links_to_it(
    rig: Rig, traces: Traces
) -> None:
    @tool(effect="process")
    async def risky() -> str:
        """Asks first."""
        return "ok"

    model = ScriptedModel([call("risky"), say("done")])
    async with rig.open(model, tools=[risky], telemetry=traces.telemetry) as pod:
        assert (await pod.run("go")).status == "paused"
        assert traces.named("execute_tool") == [] and events(traces.one("segment"), "pod.approval_asked")
        await pod.approve(pod.approvals[0].id)
        (await pod.resume()).raise_for_status()
    first, second = traces.named("invoke_agent")
    assert said(first)["pod.status"] == "paused" and said(second)["pod.status"] == "finished"
    assert said(first)["pod.run"] == said(second)["pod.run"]
    assert [link.context.span_id for link in second.links] == [ids(first).span_id]
    ran = traces.parent(traces.one("execute_tool"))
    assert ran is not None and traces.parent(ran) is second


async def test_a_new_message_begins_a_trace_without_a_link(rig: Rig, traces: Traces) -> None:
    async with rig.open(ScriptedModel([say("one"), say("two")]), telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
        (await pod.run("more")).raise_for_status()
    assert [span.links for span in traces.named("invoke_agent")] == [(), ()]


async def test_a_run_taken_up_after_a_kill_links_to_the_killed_ones_trace_across_a_compaction(
    rig: Rig, traces: Traces
) -> None:
    """The trace stands in the log: the process that ended had its own providers."""
    program = """
import os, sys, anyio
from tests.otel.otel_rig import Traces
from tests.pod.pod_rig import *
from worker.testing import call, say
from pathlib import Path

rig = Rig(Path(sys.argv[1]).parent)
traces = Traces()
def play(request, number):
    if number == 11:
        os._exit(9)
    return caller(20)(request, number)

async def main():
    made = manifest(compaction=compacting(9_000), context={"ladder": ["compact"]})
    async with rig.open(Agent(play), made, tools=[Counted(1_000).tool], compact_model=summariser(), telemetry=traces.telemetry) as pod:
        await pod.run("fetch")
anyio.run(main)
"""
    await anyio.to_thread.run_sync(lambda: rig.run_in_process(program, check=9))
    (started,) = rig.of(e.RunStarted)
    assert rig.of(e.CompactionCompleted) and started.trace
    made = manifest(compaction=compacting(9_000), context=ONLY)
    agent = Agent(lambda r, n: say("done"))
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": summariser()}
    async with rig.open(agent, made, telemetry=traces.telemetry, **options) as pod:
        (await pod.resume()).raise_for_status()
    (link,) = traces.one("invoke_agent").links
    assert started.trace.startswith(f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-")
    (went_on,) = rig.of(e.RunContinued)
    assert went_on.trace and went_on.trace != started.trace
    assert said(traces.one("invoke_agent"))["pod.continued"] is True


async def test_a_fallback_is_asked_in_a_span_of_its_own(rig: Rig, traces: Traces) -> None:
    first, second = ScriptedModel([fail(ProviderDown("down"))], name="offline:first"), ScriptedModel([say("done")])
    async with rig.open(first, telemetry=traces.telemetry) as pod:
        pod.running.models = (first, second)
        pod.running.assemble()
        (await pod.run("go")).raise_for_status()
    failed, answered = traces.named("chat")
    assert failed.name == "chat first" and said(failed)["error.type"] == "provider_down"
    assert answered.name == "chat scripted" and answered.status.status_code is StatusCode.UNSET
    (switched,) = events(traces.one("segment"), "pod.model_switched")
    assert switched == {"pod.from": "offline:first", "pod.to": "offline:scripted", "pod.skipped": False}


async def test_a_pod_below_somebody_elses_span_belongs_to_their_trace(rig: Rig, traces: Traces) -> None:
    tracer = traces.tracers.get_tracer("theirs")
    async with rig.open(ScriptedModel([say("done")]), telemetry=traces.telemetry) as pod:
        with tracer.start_as_current_span("their request"):
            async with pod.start("go") as run:
                async for _ in run:
                    pass
        run.result.raise_for_status()
    assert traces.tree()[:2] == ["their request", "  invoke_agent p"]
