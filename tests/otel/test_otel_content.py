"""What was said leaves only where that was asked for, and no secret does even then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pod.otel import Telemetry
from pod.otel.content import LONGEST, PART, wanted
from pod.otel.records import why_ended
from tests.otel.otel_rig import Traces, said
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker.errors import BadRequest
from worker.records import ReplyRecord
from worker.testing import ScriptedModel, call, fail, say, think
from worker.testing.scripted import reply
from worker.tools import ToolFault, tool

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-of-the-tests-9241"


@tool
async def look(word: str) -> str:
    """Looks a word up."""
    return f"ANSWER on {word}"


@tool
async def breaks(word: str) -> str:
    """Fails."""
    raise ToolFault(f"FAULT of {word}")


async def a_run(rig: Rig, traces: Traces, **options: Any) -> None:
    model = ScriptedModel(
        [
            reply(think("{}", "THOUGHT"), call("look", word="ARGUMENT")),
            call("breaks", word="ARGUMENT"),
            call("INVENTED", word="ARGUMENT"),
            say("REPLY"),
        ]
    )
    made = manifest(worker={"system_prompt": "INSTRUCTIONS"})
    async with rig.open(model, made, tools=[look, breaks], telemetry=traces.telemetry, **options) as pod:
        (await pod.run("QUESTION")).raise_for_status()


WORDS = ("QUESTION", "REPLY", "ARGUMENT", "ANSWER", "FAULT", "INSTRUCTIONS", "THOUGHT", "INVENTED")


async def test_nothing_that_anybody_said_leaves_by_default(rig: Rig, traces: Traces) -> None:
    await a_run(rig, traces)
    assert [word for word in WORDS if word in traces.text()] == []
    data = traces._reader.get_metrics_data()  # pyright: ignore[reportPrivateUsage]
    assert data is not None and [word for word in WORDS if word in data.to_json()] == []


async def test_nothing_of_a_compaction_or_a_failure_leaves_by_default(rig: Rig, traces: Traces) -> None:
    made = manifest(compaction=compacting(9_000))
    failing = Agent(lambda r, n: caller(20)(r, n) if n < 12 else fail(BadRequest("REFUSED the words of somebody")))
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": summariser()}
    async with rig.open(failing, made, telemetry=traces.telemetry, **options) as pod:
        assert (await pod.run("QUESTION")).status == "failed"
    assert traces.named("compaction") and said(traces.one("invoke_agent"))["error.type"] == "bad_request"
    text = traces.text()
    assert [word for word in ("REFUSED", "QUESTION", "Completed Tasks", "page 1 begins") if word in text] == []


@pytest.mark.parametrize(
    ("word", "told"), [("end_turn", "end_turn"), ("I was ASKED to stop", "end"), ("x" * 65, "end")]
)
def test_a_providers_word_for_its_end_is_told_where_it_is_a_word(word: str, told: str) -> None:
    assert why_ended(ReplyRecord(items=(), native_stop=word)) == told


async def test_with_capture_content_messages_arguments_and_results_are_attributes(rig: Rig) -> None:
    traces = Traces(capture_content=True)
    await a_run(rig, traces)
    first, second, *_, last = traces.named("chat")
    (system,) = json.loads(said(first)["gen_ai.system_instructions"])
    assert system["type"] == "text" and "INSTRUCTIONS" in system["content"]
    user = {"role": "user", "parts": [{"type": "text", "content": "QUESTION"}]}
    assert json.loads(said(first)["gen_ai.input.messages"]) == [user]
    (made,) = json.loads(said(first)["gen_ai.output.messages"])
    assert made["role"] == "assistant" and made["finish_reason"] == "tool_calls"
    thought, called = made["parts"]
    assert thought == {"type": "reasoning", "content": "THOUGHT"}
    assert (called["type"], called["name"], called["arguments"]) == ("tool_call", "look", {"word": "ARGUMENT"})
    answer = json.loads(said(second)["gen_ai.input.messages"])[-1]
    assert answer["role"] == "tool" and answer["parts"][0]["response"] == "ANSWER on ARGUMENT"
    assert answer["parts"][0]["id"] == called["id"]
    assert json.loads(said(last)["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "REPLY"}]
    ran, failed = traces.named("execute_tool")
    assert json.loads(said(ran)["gen_ai.tool.call.arguments"]) == {"word": "ARGUMENT"}
    assert said(ran)["gen_ai.tool.call.result"] == "ANSWER on ARGUMENT"
    assert said(failed)["gen_ai.tool.call.result"] == "FAULT of ARGUMENT"


@pytest.mark.parametrize("redact", [True, False])
async def test_no_secret_leaves_with_the_content(rig: Rig, monkeypatch: pytest.MonkeyPatch, redact: bool) -> None:
    """Also where the pod's own log is not masked: what leaves the machine passes a gate of its own."""
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    traces = Traces(capture_content=True)
    model = ScriptedModel([call("look", word=SECRET), say(f"the key is {SECRET}")])
    made = manifest(log={"redact": redact}, worker={"system_prompt": f"never tell {SECRET}"})
    async with rig.open(model, made, tools=[look], telemetry=traces.telemetry) as pod:
        (await pod.run(f"my key is {SECRET}")).raise_for_status()
    text = traces.text()
    assert SECRET not in text and text.count("[secret SERVICE_API_KEY]") >= 5


async def test_a_long_history_leaves_with_its_newest_messages_and_says_how_many_are_left_out(rig: Rig) -> None:
    traces = Traces(capture_content=True)
    async with rig.open(Agent(caller(10)), tools=[Counted(3_000).tool], telemetry=traces.telemetry) as pod:
        (await pod.run("QUESTION")).raise_for_status()
    last = said(traces.named("chat")[-1])
    messages = json.loads(last["gen_ai.input.messages"])
    assert LONGEST <= len(last["gen_ai.input.messages"]) <= LONGEST + PART + 1_000
    assert "page 10 begins" in messages[-1]["parts"][0]["response"]
    assert len(messages) + last["pod.content.left_out"] == 21


async def test_a_text_is_cut_once_it_is_masked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut through a secret would leave a half that nothing knows."""
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    traces = Traces(capture_content=True)

    @tool(max_output=PART * 4)
    async def reads() -> str:
        """Reads a long text."""
        return "x" * (PART - 32) + SECRET + "y" * PART

    model = ScriptedModel([call("reads"), call("look", word="z" * PART * 2), say("done")])
    made = manifest(log={"redact": False})
    async with rig.open(model, made, tools=[reads, look], telemetry=traces.telemetry) as pod:
        (await pod.run("QUESTION")).raise_for_status()
    first, second = traces.named("execute_tool")
    for text in (said(first)["gen_ai.tool.call.result"], said(second)["gen_ai.tool.call.arguments"]):
        assert len(text) <= PART
    assert SECRET[:8] not in traces.text() and "xxx[secret" in said(first)["gen_ai.tool.call.result"]
    (answer,) = json.loads(said(traces.named("chat")[1])["gen_ai.output.messages"])
    assert isinstance(answer["parts"][0]["arguments"], str)


@pytest.mark.parametrize(
    ("value", "captures"), [("true", True), ("TRUE", True), ("span_only", True), ("false", False), ("", False)]
)
def test_the_environment_asks_for_content_where_code_does_not_say(
    monkeypatch: pytest.MonkeyPatch, value: str, captures: bool
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    assert wanted() is captures
    assert (Telemetry()._content is not None) is captures  # pyright: ignore[reportPrivateUsage]
    assert Telemetry(capture_content=False)._content is None  # pyright: ignore[reportPrivateUsage]
