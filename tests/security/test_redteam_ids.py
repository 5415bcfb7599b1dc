"""Ids and words of its own that a provider chooses: they name files and variables, and stand in logs and requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pod.log import entries as e
from tests.security.hostile import SCREEN, UNSEEN
from tests.security.redteam_rig import KEY, World
from worker.gate import LONGEST_ID
from worker.records import ReplyRecord, ToolResult
from worker.testing.provider_server import Answer, Http, ProviderServer, Raw, RecordedRequest, Step

pytestmark = pytest.mark.anyio

WIDE = "".join(chr(ord(char) + 0xFEE0) for char in KEY)
IDS = {
    "a secret": f"call_{KEY}",
    "a secret in full width": WIDE,
    "what steers": f"call{SCREEN}",
    "what nobody sees": f"call_1{UNSEEN}",
    "NUL": "call\x00_1",
    "lines": "call_1\nPOD_OWNER=other",
    "half a character": "call_\ud800",
    "a megabyte": "c" * 1_000_000,
}
KEPT = ["../../../../outside/made", "functions.read_file:0", "call_abc", "a/b|c=d+e"]


def chunks(label: str) -> Raw:
    """A reply that calls, with this id in every place that has one."""
    call = {
        "index": 0,
        "id": label,
        "type": "function",
        "function": {"name": "shell", "arguments": '{"command": "seq 30000; env"}'},
    }
    head = {"id": label, "object": "chat.completion.chunk", "model": label, "system_fingerprint": label}
    one = head | {
        "choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": None}]
    }
    end = head | {
        "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 9},
    }
    return Raw([one, end, "[DONE]"])


async def played(world: World, *labels: str) -> list[Any]:
    """One run whose replies have these ids; its records."""
    waiting: list[Step] = [*map(chunks, labels), Answer("done")]
    bodies = world.bodies = []

    def answer(request: RecordedRequest) -> Step:
        bodies.append(request.body)
        return waiting.pop(0)

    allowed = {"rules": [{"tool": "shell", "action": "allow"}]}
    with ProviderServer(answer) as server:
        async with world.pod(world.manifest(server, permissions=allowed)) as pod:
            result = await pod.run("go")
    assert result.status == "finished", result.error
    return world.log()


@pytest.mark.parametrize("what", list(IDS))
async def test_an_id_that_is_none_is_replaced_and_its_call_runs(what: str, world: World) -> None:
    before = world.seen()
    records = await played(world, IDS[what])
    [item] = [record.item for record in records if isinstance(record, ToolResult)]
    assert item.status == "ok" and item.call_id.startswith("call_") and len(item.call_id) < 50
    [first, _] = [record for record in records if isinstance(record, ReplyRecord)]
    assert first.provider_id is None and world.seen() == before
    below, wire = world.below_home(), b"\n".join(world.bodies)
    for text in (KEY, WIDE, SCREEN, UNSEEN, "\\u001b", "POD_OWNER=other", "c" * 2_000):
        assert text.encode() not in below + wire and json.dumps(text)[1:-1].encode() not in below + wire


async def test_an_id_as_providers_choose_them_stays(world: World) -> None:
    before = world.seen()
    records = await played(world, *KEPT, "x" * LONGEST_ID)
    assert world.seen() == before, "an id names no file"
    assert [r.item.call_id for r in records if isinstance(r, ToolResult)] == [*KEPT, "x" * LONGEST_ID]
    assert [r.provider_id for r in records if isinstance(r, ReplyRecord)][:4] == KEPT
    sent = json.loads(world.bodies[-1])["messages"]
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == [
        c["id"] for m in sent for c in m.get("tool_calls", ())
    ]


async def test_b083_a_cut_leaves_no_part_of_a_secret_in_what_a_provider_says(world: World) -> None:
    """B083: errors that are tried again, the last one, its word for why it stopped; each is cut somewhere."""

    def refusal(before: int) -> Step:
        message = f"{'a' * before} {KEY} {'b' * 900}"
        return Http(500, {"error": {"message": message}}, headers={"retry-after": "0"})

    waiting: list[Step] = [refusal(cut - left) for cut in (300, 500, 1_000) for left in (9, 12, 16, 20)]
    first: list[Step] = [Answer(f"so {KEY}", stop=f"{'c' * 185}{KEY}{'c' * 300}")]
    for name, steps, status in (("one", [*waiting, *first], "finished"), ("two", [waiting[-1]] * 3, "failed")):
        with ProviderServer(steps) as server:
            retry = {"max_attempts": 13 if name == "one" else 2, "max_seconds": 60}
            async with world.pod(world.manifest(server, retry=retry), name=name) as pod:
                result = await pod.run("go")
        assert result.status == status, result.error
        below = world.below_home()
        assert b"aaa" in below and KEY[:8].encode() not in below and KEY[:8] not in str(result.error)


async def test_ids_that_come_again_are_told_apart(world: World) -> None:
    records = await played(world, "call_1", "call_1", IDS["a secret"], IDS["a secret"])
    labels = [record.item.call_id for record in records if isinstance(record, ToolResult)]
    assert len(set(labels)) == 4 and labels[0] == "call_1"
    assert not [record for record in records if isinstance(record, e.RunEndedEntry) and record.status != "finished"]
