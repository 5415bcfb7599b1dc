"""Bodies of compactions by the provider, and of what comes after them, held against the files in `golden/`.

    POD_WIRES_GOLDEN=write python -m pytest tests/wires/test_wires_native_golden.py

writes the files anew.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.models.compaction_rig import LONG, NAMES, ROUNDS, WAYS, conversation, model_of, readable, request_of, sent
from worker.items import ContextItem, UserItem
from worker.models.base import NativeWay, ToolClearing
from worker.testing.provider_http import RecordedRequest
from worker.testing.provider_server import Answer, ProviderServer
from worker.testing.provider_wires import WireName

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("POD_WIRES_GOLDEN") == "write"
OTHERS: dict[WireName, str] = {
    "openai": "openai:gpt-5.6-sol",
    "anthropic": "anthropic:claude-opus-5",
    "openai-chat": "openai-chat:some-model",
}
_MEMORY = re.compile(r"memory-[\w=-]+\.[0-9a-f]{32}")
_SEAL = re.compile(r"seal-[0-9a-f]{32}")
_REPLY = re.compile(r"\"(rs|fc|msg|cmp)_[0-9_]+\"")


def rendered(request: RecordedRequest) -> str:
    headers = {k: v for k, v in request.headers.items() if k in ("content-type", "anthropic-beta", "anthropic-version")}
    value = {"path": request.path, "headers": headers, "body": request.json}
    text = json.dumps(value, ensure_ascii=False, indent=1).replace(LONG, "LONG")
    return _REPLY.sub(r'"\1"', _SEAL.sub("SEAL", _MEMORY.sub("MEMORY", text))) + "\n"


def held(name: str, request: RecordedRequest) -> list[str]:
    """The lines that differ from a golden file."""
    path, text = GOLDEN / f"native.{name}.json", rendered(request)
    if WRITE:
        path.write_text(text)
    golden = path.read_text() if path.exists() else ""
    return list(difflib.unified_diff(golden.splitlines(), text.splitlines(), path.name, "this run", lineterm="", n=2))


@pytest.mark.parametrize(("wire", "way"), WAYS)
async def test_compactions_and_what_follows_are_as_in_the_golden_files(wire: Any, way: NativeWay) -> None:
    clearing = ToolClearing(trigger=100_000, keep=3, at_least=5_000, exclude=("context",))
    with ProviderServer(
        [*ROUNDS, Answer("Done.")], wire=wire, strict=True, bind_reasoning=True, compacts="a.py sets x.", ways=(way,)
    ) as server:
        async with model_of(server, tool_clearing=clearing) as model:
            source, kept = await conversation(model)
            made = await model.compact_by(way, request_of(model, source))
            words = ContextItem(kind="user_words", text="Read a.py and b.py.", source="user message", trust="user")
            await sent(model, [readable(made), *kept, words, UserItem(text="Go on.")])
    assert server.rejected == []
    wrong = [*held(f"{wire}.{way}", server.compacted[0]), *held(f"{wire}.after-{way}", server.requests[-1])]
    if wrong:
        pytest.fail("\n".join(["bodies differ (POD_WIRES_GOLDEN=write takes them over)", *wrong]), pytrace=False)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("wire", NAMES)
async def test_a_switch_of_the_model_sends_the_readable_text(wire: Any, other: WireName) -> None:
    """B013: the next model gets a summary in the memory's place, and the reasoning of the kept turn is left out."""
    with ProviderServer(ROUNDS, wire=wire, strict=True, bind_reasoning=True, compacts="a.py sets x.") as server:
        async with model_of(server) as model:
            source, kept = await conversation(model)
            memory = readable(await model.compact(request_of(model, source)))
    with ProviderServer([Answer("Done.")], wire=other, strict=True, bind_reasoning=True, compacts="") as second:
        async with model_of(second, OTHERS[other]) as model:
            reply = await sent(model, [memory, *kept, UserItem(text="Go on.")])
    assert second.rejected == [] and reply.transformations == ()
    wrong = held(f"{other}.after-a-switch-from-{wire}", second.requests[0])
    if wrong:
        pytest.fail("\n".join(["bodies differ (POD_WIRES_GOLDEN=write takes them over)", *wrong]), pytrace=False)


def test_there_is_a_golden_file_for_each_body_and_no_other() -> None:
    names = {f"{wire}.{prefix}{way}" for wire, way in WAYS for prefix in ("", "after-")}
    names |= {f"{other}.after-a-switch-from-{wire}" for other in OTHERS for wire in NAMES}
    assert {path.name for path in GOLDEN.glob("native.*")} == {f"native.{name}.json" for name in names}
