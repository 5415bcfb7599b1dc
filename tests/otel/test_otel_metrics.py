"""The metrics: names and buckets of the conventions, and figures that are those of the log."""

from __future__ import annotations

from typing import Any

import pytest

from pod.log import entries as e
from tests.otel.otel_rig import Traces, said
from tests.pod.native_rig import NativeAgent, native
from tests.pod.pod_rig import Agent, Counted, Rig, caller, capabilities, compacting, manifest, summariser
from worker.errors import RateLimited
from worker.models.base import Price, Usage
from worker.records import Pruned, ReplyRecord
from worker.testing import ScriptedModel, call, fail, reply, say

pytestmark = pytest.mark.anyio


def total(traces: Traces, name: str, **attributes: Any) -> float:
    """The sum of a counter, or of a histogram, over the points with these attributes (`_` for `.`)."""
    wanted = {key.replace("__", "."): value for key, value in attributes.items()}
    points = [p for p in traces.points(name) if wanted.items() <= dict(p.attributes).items()]
    return sum(getattr(p, "sum", getattr(p, "value", 0)) for p in points)


async def test_tokens_and_durations_have_the_names_and_buckets_of_the_conventions(rig: Rig, traces: Traces) -> None:
    usage = Usage(input_tokens=5_000, output_tokens=70)
    async with rig.open(ScriptedModel([reply(say("done"), usage=usage)]), telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    found = {dict(p.attributes)["gen_ai.token.type"]: p for p in traces.points("gen_ai.client.token.usage")}
    assert found["input"].sum == 5_000 and found["output"].sum == 70
    assert found["input"].explicit_bounds == (
        1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864
    )  # fmt: skip
    named = {"gen_ai.provider.name": "offline", "gen_ai.request.model": "scripted", "gen_ai.operation.name": "chat"}
    assert dict(found["input"].attributes) == named | {"gen_ai.token.type": "input"}
    (took,) = traces.points("gen_ai.client.operation.duration")
    assert dict(took.attributes) == named and took.count == 1
    assert took.explicit_bounds == (
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92
    )  # fmt: skip
    (run,) = traces.points("gen_ai.invoke_agent.duration")
    assert run.explicit_bounds == (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
    assert total(traces, "pod.runs", pod__status="finished") == 1


async def test_a_provider_that_reports_nothing_is_not_counted(rig: Rig, traces: Traces) -> None:
    async with rig.open(ScriptedModel([reply(say("done"), usage=Usage())]), telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    assert traces.points("gen_ai.client.token.usage") == []


async def test_retries_failures_and_tools_are_counted(rig: Rig, traces: Traces) -> None:
    slow = fail(RateLimited("slow down", retry_after=0.0))
    model = ScriptedModel([slow, call("fetch", n=1), call("none_of_these"), say("done")])
    made = manifest(retry={"max_attempts": 2})
    async with rig.open(model, made, tools=[Counted(10).tool], telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    assert total(traces, "pod.retries", error__type="rate_limited") == 1
    assert total(traces, "pod.tool_results", pod__status="ok") == 1
    assert total(traces, "pod.tool_results", pod__status="error") == 1
    (tool,) = traces.points("gen_ai.execute_tool.duration")
    assert dict(tool.attributes) == {"gen_ai.tool.name": "fetch", "gen_ai.tool.type": "function"}


async def test_cost_compactions_and_prunes_are_those_of_the_log(rig: Rig, traces: Traces) -> None:
    price = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75, source="test")
    made = manifest(
        compaction=compacting(9_000), prune={"enabled": True, "protected_tokens": 500, "min_savings": 2_000}
    )
    agent, worker = Agent(caller(24), capabilities=capabilities(price=price)), summariser()
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": worker}
    async with rig.open(agent, made, telemetry=traces.telemetry, **options) as pod:
        result = (await pod.run("fetch")).raise_for_status()
    done, prunes = rig.of(e.CompactionCompleted), rig.of(Pruned)
    assert prunes
    assert total(traces, "pod.prunes") == len(prunes)
    assert total(traces, "pod.tokens_saved", pod__cause="prune") == sum(p.tokens_saved for p in prunes)
    assert total(traces, "pod.compactions", pod__outcome="completed") == len(done)
    cost = sum(r.cost_usd or 0.0 for r in rig.of(ReplyRecord))
    assert total(traces, "pod.cost") == pytest.approx(cost) and cost > 0
    assert result.requests == sum(p.count for p in traces.points("gen_ai.client.operation.duration")
                                  if dict(p.attributes)["gen_ai.request.model"] == "agent")  # fmt: skip


async def test_what_a_provider_compacts_itself_is_a_request_with_its_tokens_and_its_cost(
    rig: Rig, traces: Traces
) -> None:
    agent = NativeAgent(caller(10), name="sealed:one")
    options: dict[str, Any] = {"tools": [Counted(1_000).tool]}
    async with rig.open(agent, native(9_000), telemetry=traces.telemetry, **options) as pod:
        (await pod.run("fetch")).raise_for_status()
    (made,) = rig.of(e.NativeMade)
    asked = traces.one("compact one")
    assert traces.parent(asked) is traces.one("compaction")
    assert said(asked)["gen_ai.usage.input_tokens"] == made.usage.input_tokens
    assert total(
        traces, "gen_ai.client.token.usage", gen_ai__operation__name="compact", gen_ai__token__type="input"
    ) == (made.usage.input_tokens)
    replies = sum(reply.cost_usd for reply in rig.of(ReplyRecord))
    assert made.cost_usd and total(traces, "pod.cost") == pytest.approx(replies + made.cost_usd)
