"""Where the current span is: in tools' functions and threads, in commands, in servers of tools, at the service's door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace

from pod import PodHost
from tests.mcp.mcp_rig import raw, seen
from tests.otel.otel_rig import Traces, ids, said
from tests.pod.pod_rig import Rig, manifest
from tests.service.service_rig import Rig as ServiceRig
from tests.service.service_rig import answering
from worker import tracing
from worker.testing import ScriptedModel, call, calls, say
from worker.tools import tool

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C


def current() -> int:
    """The id of the current span."""
    return trace.get_current_span().get_span_context().span_id


async def test_within_a_tools_function_the_current_span_is_the_tools_own(rig: Rig, traces: Traces) -> None:
    """An async one, one in a thread, and what a thread starts by hand with the context."""
    found: dict[str, int] = {}

    @tool
    async def waits() -> str:
        """Async."""
        found["waits"] = current()
        return "ok"

    @tool
    def threads() -> str:
        """In a thread."""
        found["threads"] = current()
        return "ok"

    model = ScriptedModel([calls([call("waits"), call("threads")]), say("done")])
    before = current()
    async with rig.open(model, tools=[waits, threads], telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    own = {span.name.removeprefix("execute_tool "): ids(span).span_id for span in traces.named("execute_tool")}
    assert found == own and len(set(own.values())) == 2
    assert current() == before == 0


async def test_a_span_that_a_tool_begins_stands_below_the_tools_own(rig: Rig, traces: Traces) -> None:
    @tool
    def queries() -> str:
        """Asks a database."""
        with traces.tracers.get_tracer("theirs").start_as_current_span("SELECT"):
            return "ok"

    async with rig.open(
        ScriptedModel([call("queries"), say("done")]), tools=[queries], telemetry=traces.telemetry
    ) as pod:
        (await pod.run("go")).raise_for_status()
    assert traces.parent(traces.one("SELECT")) is traces.one("execute_tool")


async def test_a_pod_that_a_plain_tool_runs_in_its_thread_stands_below_it(rig: Rig, traces: Traces) -> None:
    @tool
    def delegate() -> str:
        """Runs another pod, with a loop of its own."""

        async def main() -> None:
            async with rig.open(ScriptedModel([say("done")]), name="child") as pod:
                (await pod.run("go")).raise_for_status()

        anyio.run(main)
        return "ok"

    async with rig.open(
        ScriptedModel([call("delegate"), say("done")]), tools=[delegate], telemetry=traces.telemetry
    ) as pod:
        (await pod.run("go")).raise_for_status()
    assert traces.parent(traces.one("invoke_agent child")) is traces.one("execute_tool")


SHELL: dict[str, Any] = {
    "tools": {"enable": ["shell"]}, "permissions": {"rules": [{"tool": "shell", "match": "*", "action": "allow"}]},
}  # fmt: skip


def parented(text: str) -> tuple[int, int]:
    """Trace and span of a `traceparent`."""
    _, trace_id, span, _ = text.split("-")
    return int(trace_id, 16), int(span, 16)


@pytest.mark.parametrize("traced", [True, False])
async def test_a_command_is_told_of_the_call_that_starts_it(rig: Rig, traces: Traces, traced: bool) -> None:
    command = call("shell", command='printf "%s" "${TRACEPARENT-none}" > told.txt')
    options: dict[str, Any] = {"telemetry": traces.telemetry} if traced else {}
    async with rig.open(ScriptedModel([command, say("done")]), manifest(**SHELL), **options) as pod:
        (await pod.run("go")).raise_for_status()
    told = (rig.cwd / "told.txt").read_text()
    if not traced:
        assert told == "none"
        return
    span = traces.one("execute_tool")
    assert parented(told) == (ids(span).trace_id, ids(span).span_id)


async def test_a_server_of_tools_is_told_of_the_call(rig: Rig, traces: Traces) -> None:
    """In the request's `_meta`; the package `mcp` puts it there, of the span that is current where a call is made."""
    program = raw(
        rig.cwd, "one", 'note("meta " + json.dumps(message["params"].get("_meta")))\nsend(id=id, result=text("ok"))'
    )
    made = manifest(mcp=[{"name": "one", "command": program, "effect": "read", "start_timeout": 20}])
    async with rig.open(ScriptedModel([call("one__work"), say("done")]), made, telemetry=traces.telemetry) as pod:
        (await pod.run("go")).raise_for_status()
    (noted,) = (line.removeprefix("meta ") for line in seen(rig.cwd, "one") if line.startswith("meta "))
    span = traces.one("execute_tool")
    assert parented(json.loads(noted)["traceparent"]) == (ids(span).trace_id, ids(span).span_id)


async def test_what_a_request_to_the_service_makes_and_wakes_belongs_to_its_trace(tmp_path: Path) -> None:
    rig, traces = ServiceRig(tmp_path), Traces()
    async with rig.up(model=answering(), telemetry=traces.telemetry) as up:
        body = {"manifest": "plain", "name": "p", "task": "go"}
        assert (await up.post("/v1/pods", body, traceparent=PARENT)).status_code == 201
        await up.until("p", "finished")
        await up.make("q")
        await up.until("q", "finished")
        assert (await up.post("/v1/pods/q/messages", {"text": "more"}, traceparent=PARENT)).status_code == 202
        with anyio.fail_after(20):
            while len(traces._exporter.get_finished_spans()) < 9:  # pyright: ignore[reportPrivateUsage]
                await anyio.sleep(0.02)
    made, first, woken = traces.named("invoke_agent")
    assert ids(made).trace_id == ids(woken).trace_id == TRACE
    assert made.parent is not None and f"{made.parent.span_id:016x}" == PARENT.split("-")[2]
    assert first.parent is None and ids(first).trace_id != TRACE


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", PARENT + "\u00e9"])
async def test_a_traceparent_that_is_none_is_none(traces: Traces, header: str) -> None:
    with traces.telemetry.incoming({"traceparent": header}):
        assert current() == 0


async def test_a_pod_belongs_to_whoever_asked_for_it_not_to_the_one_whose_place_it_takes(
    rig: Rig, traces: Traces
) -> None:
    tracer = traces.tracers.get_tracer("theirs")
    options: dict[str, Any] = {"home": rig.home, "cwd": rig.cwd, "telemetry": traces.telemetry}
    async with PodHost(concurrency=1) as host:
        for name in ("one", "two"):
            with tracer.start_as_current_span(f"asks for {name}"):
                host.start(manifest(), "go", name=name, model=ScriptedModel([say("done")]), **options)
        host.start(manifest(), "go", name="three", model=ScriptedModel([say("done")]), **options)
    for name in ("one", "two"):
        assert traces.parent(traces.one(f"invoke_agent {name}")) is traces.one(f"asks for {name}")
    assert traces.one("invoke_agent three").parent is None


async def test_a_tracing_of_the_process_is_in_force_where_a_pod_has_none(rig: Rig, traces: Traces) -> None:
    other = Traces()
    tracing.install(traces.telemetry)
    try:
        async with rig.open(ScriptedModel([say("done")]), name="of-the-process") as pod:
            (await pod.run("go")).raise_for_status()
        async with rig.open(ScriptedModel([say("done")]), name="own", telemetry=other.telemetry) as pod:
            (await pod.run("go")).raise_for_status()
    finally:
        tracing.install(None)
    assert [said(span)["gen_ai.agent.name"] for span in traces.named("invoke_agent")] == ["of-the-process"]
    assert [said(span)["gen_ai.agent.name"] for span in other.named("invoke_agent")] == ["own"]
