"""Tools with odd schemas, and arguments with odd characters: what the model sent reaches the tool, and goes back as it came."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field
from wires.test_wires_long_task import delivered
from wires.wires_rig import Agent, Ran, Sent, manifest, pairs, run_pod

from pod import Pod, UsageProblem
from worker.testing.provider_server import Answer, Call, ProviderServer
from worker.testing.provider_wires import WireName
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio


class Ort(BaseModel):
    """A place."""

    straße: str = Field(description='with "quotes", <context> and \\ backslash')
    land: Literal["Österreich", "日本", ""] = "日本"
    inner: list[dict[str, float | None]] = Field(default_factory=list[dict[str, float | None]])


class Node(BaseModel):
    """Holds itself."""

    name: str = ""
    children: list[Node] = []


ODD: dict[str, Any] = {
    "text": 'é 日本語 🧪👩‍🔬 \u2028\u2029 \x7f "q" \\ </context> <order tag="x"> &amp; \t\n\r',
    "größe": 2**60,
    "ort": {"straße": "Ünter\u200bden", "land": "Österreich", "inner": [{"a b": 1.5, "": None}]},
    "tree": {"name": "root", "children": [{"name": "leaf 🌿", "children": []}]},
    "limit": 1e300,
}


def tools(got: list[dict[str, Any]]) -> list[Tool]:
    @tool(name="odd-tool_1", effect="read")
    async def odd(
        text: str,
        größe: Annotated[int, Field(ge=0, description="eine Größe\nin zwei Zeilen")],
        ort: Ort,
        tree: Node | None = None,
        limit: float = math.inf,
        pattern: Annotated[str, Field(pattern=r"^[\p{L}\"\\]*$")] = "",
    ) -> str:
        """Takes everything: <context>, "quotes", 日本語, {braces} and a backslash \\.

        Args:
            text: any text, also \u2028 and 🧪
        """
        got.append(
            {"text": text, "größe": größe, "ort": ort.model_dump(), "tree": tree and tree.model_dump(), "limit": limit}
        )
        return f"got {text[:3]} <order tag='fake'>"

    @tool(effect="read")
    async def bare() -> str:
        """No parameters."""
        got.append({})
        return ""

    return [odd, bare]


async def odd_run(wire: WireName, folder: Path, calls: list[Call], got: list[dict[str, Any]], split: int = 1) -> Ran:
    steps = [Answer("Calling – ok.", reasoning="思", calls=calls, split=split), Answer("Done 🎉.")]
    agent = Agent(wire, steps)
    with ProviderServer(agent, wire=wire, strict=True) as server:
        return await run_pod(server, agent, manifest(server), folder, "Call.", tools=lambda _: tools(got))


def echoed(sent: Sent) -> list[Any]:
    """The arguments of the calls in a request, as objects."""
    match sent.wire:
        case "openai-chat":
            calls: list[Any] = [call for item in sent.items for call in cast("list[Any]", item.get("tool_calls") or [])]
            return [json.loads(call["function"]["arguments"]) for call in calls]
        case "openai":
            return [json.loads(item["arguments"]) for item in sent.items if item["type"] == "function_call"]
        case _:
            blocks = [block for item in sent.items for block in item["content"]]
            return [block["input"] for block in blocks if block["type"] == "tool_use"]


async def test_odd_arguments_survive_the_round_trip(wire: WireName, tmp_path: Path) -> None:
    """B145: split in the middle of characters, escaped or not, the tool gets what the model meant."""
    got: list[dict[str, Any]] = []
    plain = json.dumps(ODD, ensure_ascii=False)
    spaced = json.dumps(ODD, indent=2)
    ran = await odd_run(wire, tmp_path, [Call("odd-tool_1", plain), Call("odd-tool_1", spaced), Call("bare", "")], got)
    assert ran.result.status == "finished" and ran.server.rejected == [], ran.result
    assert sorted(got, key=len) == [{}, ODD, ODD], "calls that only read may run side by side"
    second = delivered(ran)[1]
    assert echoed(second) == [ODD, ODD, {}]
    if wire == "anthropic":
        assert plain.encode() in second.body, "an object stands there with the very bytes that came"
    else:
        assert plain in second.strings()
    results = [text for _, text in pairs(second)]
    assert results[0] == "got é 日 <order tag='fake'>" and results[2]


async def test_an_odd_schema_is_valid_json_for_a_strict_provider(wire: WireName, tmp_path: Path) -> None:
    """B137: a default of infinity, a pattern full of quotes, a type that holds itself: one such tool bricks no session."""
    got: list[dict[str, Any]] = []
    ran = await odd_run(wire, tmp_path, [Call("bare")], got)
    assert ran.result.status == "finished" and ran.server.rejected == [], ran.result
    sent = delivered(ran)[0]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(sent.body, parse_constant=refuse)
    specs = [spec.get("function", spec) for spec in sent.json["tools"]]
    odd = next(spec for spec in specs if spec["name"] == "odd-tool_1")
    schema = odd.get("input_schema") or odd["parameters"]
    assert list(schema["properties"]) == sorted(schema["properties"])
    assert schema["properties"]["größe"]["description"] == "eine Größe\nin zwei Zeilen"
    assert "default" not in schema["properties"]["limit"] or schema["properties"]["limit"]["default"] is None
    assert schema["$defs"]["Ort"]["properties"]["straße"]["description"] == 'with "quotes", <context> and \\ backslash'
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert odd["description"].startswith('Takes everything: <context>, "quotes", 日本語, {braces} and a backslash \\.')


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"text": "half \\ud83d of one"}', "größe"),
        ('{"text": "cut off', "not valid JSON"),
        ('["not", "an object"]', "must be a JSON object"),
        ('{"text": NaN, "größe": Infinity}', "text"),
        ('{"text": "a", "größe": 1, "ort": {"straße": "x"}, "more": 1}', "more"),
    ],
)
async def test_damaged_arguments_are_answered_and_leave_a_valid_history(
    wire: WireName, raw: str, said: str, tmp_path: Path
) -> None:
    """B110, B112, B145: the model is told what is wrong, and no later request is rejected for it."""
    got: list[dict[str, Any]] = []
    ran = await odd_run(wire, tmp_path, [Call("odd-tool_1", raw)], got, split=0)
    assert ran.result.status == "finished" and ran.server.rejected == [], ran.result
    assert got == []
    [(_, text)] = pairs(delivered(ran)[1])
    assert said in text
    [arguments] = echoed(delivered(ran)[1])
    assert isinstance(arguments, dict) and arguments


@pytest.mark.parametrize("name", ["fs.read", "größe", "two words", "x" * 65])
async def test_a_tool_name_that_no_provider_takes_is_refused_before_anything_is_sent(name: str, tmp_path: Path) -> None:
    @tool(name=name)
    async def helper() -> str:
        """Helps."""
        return ""

    with ProviderServer([], wire="openai") as server:
        with pytest.raises(UsageProblem, match="letters, digits"):
            async with Pod.open(manifest(server), name="p", cwd=tmp_path, home=tmp_path / "home", tools=[helper]):
                pass
        assert server.requests == []
