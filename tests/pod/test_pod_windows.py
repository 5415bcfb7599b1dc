"""What a request will take is known before it is sent, and an overflow is known whatever it looks like (cases B045, B049, B054, B059)."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import Agent, Counted, Rig, caller, capabilities, compacting, filler, manifest, size, summary
from worker.estimate import IMAGE_TOKENS
from worker.items import Image
from worker.models.base import Capabilities
from worker.records import Warned
from worker.testing import call, say
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, RecordedRequest, Step, Tokens
from worker.tools import ToolOutput, tool

pytestmark = pytest.mark.anyio


async def test_b045_a_picture_of_three_mebibytes_starts_no_compaction(rig: Rig) -> None:
    """B045: its price is that of a picture and not that of its four million characters."""
    data = base64.b64encode(bytes(3 * 2**20)).decode()

    @tool(effect="read")
    async def look() -> ToolOutput:
        """Takes a picture."""
        return ToolOutput(summary="a screenshot", images=(Image(media_type="image/png", data=data),))

    agent = Agent(lambda r, n: call("look") if n == 1 else say("I see it"), capabilities=capabilities(images=True))
    made = manifest(compaction=compacting(80_000, threshold=80_000))
    async with rig.open(agent, made, tools=[look]) as pod:
        (await pod.run("look")).raise_for_status()
        assert IMAGE_TOKENS < pod.running.worker.sender.occupancy().tokens < 2 * IMAGE_TOKENS
    assert not rig.of(e.CompactionStarted) and not rig.of(e.YieldedEntry)
    assert any(i.images for i in agent.requests[-1].items if i.type == "tool_result")


async def test_b049_prompt_and_schemas_count_in_the_first_request_and_show_in_its_refusal(rig: Rig) -> None:
    """B049: 40,000 of messages and 30,000 of schemas in a window of 64,000: nothing is sent, and the parts are named."""

    def wordy(n: int) -> Any:
        @tool(name=f"t{n}", description=filler(3_000, f"tool {n}"))
        async def run(x: int) -> str:
            """Does."""
            return str(x)

        return run

    agent = Agent(lambda r, n: say("done"), window=64_000)
    async with rig.open(agent, manifest(), tools=[wordy(n) for n in range(10)]) as pod:
        result = await pod.run(filler(40_000))
    assert result.error_kind == "over_budget" and not agent.requests
    parts = {
        name.strip(): int(n.replace(",", ""))
        for name, n in re.findall(r"^  (.+?) +([\d,]+)$", result.error or "", re.M)
    }
    assert parts["tool schemas"] >= 30_000 and parts["current request"] >= 40_000
    assert result.details["tokens"] >= 70_000


async def test_b054_an_unknown_model_has_a_small_window_whose_origin_is_shown(rig: Rig) -> None:
    """B054: neither a window nor a trigger is written; the session is bounded all the same and ends with the reason."""
    agent = Agent(caller(60), capabilities=Capabilities(family="o200k"), name="openai-chat:mine")
    async with rig.open(agent, manifest(), tools=[Counted(2_000).tool]) as pod:
        init = pod.init_event()
        result = await pod.run("fetch")
    assert (init.window, init.window_source) == (32_768, "fallback")
    assert result.error_kind == "over_budget" and all(size(r) < 32_768 for r in agent.requests)
    assert "unknown_window" in [w.code for w in rig.of(Warned)]


LOOKS = {
    "403": Http(403, {"error": {"message": "context window exceeded"}}),
    "413": Http(413, "Payload Too Large"),
    "400": Http(400, {"error": {"message": "prompt is too long"}}),
    "a reply of nothing": Answer("", stop="length", usage=Tokens(input=39_900, output=0)),
    "control": Http(403, {"error": {"message": "invalid key"}}),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_b059_an_overflow_is_recovered_once_whatever_it_looks_like(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """B059: over real HTTP. Four shapes of an overflow, each with one recovery; the control is a wrong key, and nothing is
    compacted for it.
    """
    pages: list[int] = []
    shown: list[int] = []

    def respond(request: RecordedRequest) -> Step:
        own = [spec["function"]["name"] for spec in request.json["tools"]]
        if "write_summary" in own:
            written = any(
                "summary recorded" in str(m["content"]) for m in request.json["messages"] if m["role"] == "tool"
            )
            return Answer("written") if written else Answer(calls=[Call("write_summary", {"text": summary()})])
        if len(pages) == 8 and not shown:
            shown.append(1)
            return LOOKS[look]
        return Answer(calls=[Call("page", {"n": len(pages) + 1})]) if len(pages) < 12 else Answer("done")

    @tool(effect="read")
    async def page(n: int) -> str:
        """Gives page n."""
        pages.append(n)
        return filler(1_200, f"page {n}")

    monkeypatch.setenv("TEST_KEY", "k")
    with ProviderServer(respond, wire="openai-chat", strict=True) as server:
        made = manifest(
            model={"name": "openai-chat:some-model", "base_url": server.url, "api_key_env": "TEST_KEY", "context_window": 40_000,
                   "max_output_tokens": 1_000},
            compaction=compacting(35_000),
        )  # fmt: skip
        async with rig.open(None, made, tools=[page]) as pod:
            result = await pod.run("read the pages")
    triggers = [r.trigger for r in rig.of(e.CompactionStarted)]
    if look == "control":
        assert (result.status, result.error_kind, triggers) == ("failed", "auth", []) and result.resumable
    else:
        assert (result.text, triggers) == ("done", ["overflow"]) and pages == list(range(1, 13)), result
