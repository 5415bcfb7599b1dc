"""Anthropic Messages: thinking, cache markers, stops, usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import ContextOverflow, InvalidHistory, StreamBroken
from worker.items import AssistantItem, OpaqueItem, ReasoningItem, ToolResultItem, UserItem
from worker.models.anthropic import BINDING_BETA, INTERLEAVED_BETA, MessagesModel
from worker.models.anthropic_stream import messages_usage
from worker.models.base import ModelSettings, Request, ToolSpec
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, Raw

pytestmark = pytest.mark.anyio
TOOL = ToolSpec("t", "d", {"type": "object", "properties": {"b": {}, "a": {}}})
PLAIN = Request("", (), (), b"", 1_000)


def body(model_id: str, settings: ModelSettings | None = None, **rest: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "system": "s",
        "tools": (TOOL,),
        "items": [],
        "encoded": b'{"role":"user","content":"u"}',
        "max_output_tokens": 8_000,
    }
    return json.loads(MessagesModel(model_id, settings).body(Request(**{**fields, **rest})))


def event(kind: str, **rest: Any) -> dict[str, Any]:
    return {"type": kind, **rest}


def start(**usage: Any) -> dict[str, Any]:
    return event("message_start", message={"id": "msg_1", "model": "claude-x", "usage": usage or {"input_tokens": 5}})


def block(index: int, value: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        event("content_block_start", index=index, content_block=value),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def end(reason: str | None = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    return [event("message_delta", delta={"stop_reason": reason}, usage=usage), event("message_stop")]


TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hi"})


async def reply_to(connect: Any, *events: Any, name: str | None = None) -> Any:
    with ProviderServer([Raw(events)], wire="anthropic") as server:
        async with connect(server, name) as ask:
            return await ask()


# -- replies


async def test_thinking_is_put_together_and_every_other_field_is_kept(connect: Any) -> None:
    """B146: the words under the signature are not changed, a half character included."""
    thinking = {"type": "thinking", "thinking": "", "signature": "", "novel": {"a": 1}}
    deltas = [
        {"type": "thinking_delta", "thinking": "a \ud83d"},
        {"type": "thinking_delta", "thinking": " b"},
        {"type": "signature_delta", "signature": "sig+/="},
    ]
    redacted = {"type": "redacted_thinking", "data": "xyz=="}
    reply = await reply_to(connect, start(), *block(0, thinking, *deltas), *block(1, redacted), *end())
    first, second = reply.items
    assert isinstance(first, ReasoningItem)
    assert json.loads(first.payload) == {**thinking, "thinking": "a \ud83d b", "signature": "sig+/="}
    assert first.payload.encode().isascii(), "half a character is stored as an escape"
    assert first.text == "a \ufffd b"
    assert json.loads(second.payload) == redacted
    assert (first.provider, first.model) == ("anthropic", "claude-opus-5-5")


async def test_blocks_of_unknown_type_are_kept_to_be_sent_back(connect: Any) -> None:
    new = {"type": "new_block", "x": [1]}
    server_tool = {"type": "server_tool_use", "id": "srv_1", "name": "web", "input": {}}
    deltas = [
        {"type": "input_json_delta", "partial_json": '{"q":'},
        {"type": "input_json_delta", "partial_json": '"a"}'},
    ]
    compaction = {"type": "compaction", "content": None, "signature": "s"}
    summary = {"type": "compaction_delta", "content": "summary"}
    reply = await reply_to(
        connect,
        start(),
        *block(0, compaction, summary),
        *block(1, new),
        *block(2, server_tool, *deltas),
        *end("pause_turn"),
    )
    assert all(isinstance(item, OpaqueItem) for item in reply.items)
    assert [json.loads(item.payload) for item in reply.items] == [
        {**compaction, "content": "summary"},
        new,
        {**server_tool, "input": {"q": "a"}},
    ]
    assert reply.stop == "pause"


@pytest.mark.parametrize(
    ("native", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("novel", "unknown"),
    ],
)
async def test_each_stop_reason_has_its_meaning(connect: Any, native: str, stop: str) -> None:
    """B108, B117."""
    reply = await reply_to(connect, start(), *TEXT, *end(native, output_tokens=3))
    assert (reply.stop, reply.native_stop, reply.items[0].text) == (stop, native, "hi")


async def test_the_window_that_ended_a_reply_is_an_overflow(connect: Any) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await reply_to(connect, start(input_tokens=9), *TEXT, *end("model_context_window_exceeded"))
    assert caught.value.code == "model_context_window_exceeded" and caught.value.requested == 9


async def test_a_stop_without_a_reason_is_a_broken_stream(connect: Any) -> None:
    with pytest.raises(StreamBroken):
        await reply_to(connect, start(), *TEXT, *end(None))


async def test_arguments_may_stand_in_the_first_event(connect: Any) -> None:
    call = {"type": "tool_use", "id": "toolu_1234567890123", "name": "t", "input": {"a": 1}}
    reply = await reply_to(connect, start(), *block(0, call), *end("tool_use"))
    assert reply.items[0].parsed == {"a": 1}


async def test_a_message_in_one_piece_is_accepted(connect: Any) -> None:
    message = {
        "type": "message",
        "id": "m",
        "model": "x",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    with ProviderServer([Http(200, message)], wire="anthropic") as server:
        async with connect(server) as ask:
            assert (await ask()).items[0].text == "hi"


async def test_what_was_done_to_the_input_is_reported(connect: Any) -> None:
    dropped = [{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}]
    first = event("message_start", message={"id": "m", "usage": {"input_tokens": 1}, "input_transformations": dropped})
    assert (await reply_to(connect, first, *TEXT, *end())).transformations == tuple(dropped)


# -- usage


@pytest.mark.parametrize(
    ("usage", "total", "cached", "written"),
    [
        ({"input_tokens": 768, "cache_read_input_tokens": 183_936}, 184_704, 183_936, 0),
        ({"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30}, 60, 20, 30),
        ({"input_tokens": 5, "cache_read_input_tokens": None}, 5, 0, 0),
        ({"output_tokens": 5}, None, 0, 0),
        (
            {
                "input_tokens": 900,
                "iterations": [
                    {"type": "message", "input_tokens": 300},
                    {"type": "message", "input_tokens": 600, "cache_read_input_tokens": 50},
                    {"type": "compaction", "input_tokens": 9},
                ],
            },
            650,
            50,
            0,
        ),
    ],
)
def test_the_whole_input_is_the_sum_of_three_fields(usage: Any, total: Any, cached: int, written: int) -> None:
    """B048."""
    read = messages_usage(usage)
    assert (read.input_tokens, read.cached_tokens, read.cache_write_tokens) == (total, cached, written)


async def test_later_usage_outranks_earlier(connect: Any) -> None:
    reply = await reply_to(
        connect,
        start(input_tokens=5, output_tokens=1, cache_read_input_tokens=2),
        *TEXT,
        *end("end_turn", output_tokens=40, input_tokens=6, output_tokens_details={"thinking_tokens": 30}),
    )
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.reasoning_tokens) == (8, 40, 30)


# -- what is sent


def test_cache_markers_stand_behind_the_system_prompt_and_move_at_the_end() -> None:
    sent = body("claude-opus-5-5")
    assert sent["cache_control"] == {"type": "ephemeral"}
    assert sent["system"] == [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
    assert json.dumps(sent).count("cache_control") == 2
    hour = body("claude-opus-5-5", ModelSettings(cache_ttl="1h"))
    assert hour["cache_control"] == {"type": "ephemeral", "ttl": "1h"} == hour["system"][0]["cache_control"]
    bare = body("claude-opus-5-5", system="")
    assert bare["tools"][-1]["cache_control"] == {"type": "ephemeral"} and "system" not in bare
    assert "cache_control" not in json.dumps(body("claude-opus-5-5", ModelSettings(cache_ttl="off")))


def test_models_that_bind_thinking_are_asked_to_drop_what_does_not_fit() -> None:
    drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert body("claude-opus-5-5")["thinking"] == drop
    assert MessagesModel("claude-opus-5-5").headers(PLAIN)["anthropic-beta"] == BINDING_BETA
    assert "thinking" not in body("claude-opus-4-8")
    assert "anthropic-beta" not in MessagesModel("claude-opus-4-8").headers(PLAIN)


@pytest.mark.parametrize(
    ("model", "reasoning", "thinking", "effort"),
    [
        ("claude-opus-4-8", "high", {"type": "adaptive"}, "high"),
        ("claude-opus-4-8", 9_000, {"type": "adaptive"}, "high"),
        ("claude-opus-4-8", "none", {"type": "disabled"}, None),
        ("claude-opus-4-8", 0, {"type": "disabled"}, None),
        ("claude-sonnet-4-5-20250929", "low", {"type": "enabled", "budget_tokens": 2_048}, None),
        ("claude-sonnet-4-5", 5_000, {"type": "enabled", "budget_tokens": 5_000}, None),
        ("claude-sonnet-4-5", 50, {"type": "enabled", "budget_tokens": 1_024}, None),
        ("claude-sonnet-4-5", "max", {"type": "enabled", "budget_tokens": 7_999}, None),
        ("claude-sonnet-4-5", None, None, None),
    ],
)
def test_reasoning_is_asked_for_as_the_model_takes_it(model: str, reasoning: Any, thinking: Any, effort: Any) -> None:
    sent = body(model, ModelSettings(reasoning=reasoning))
    assert sent.get("thinking") == thinking
    assert sent.get("output_config") == (None if effort is None else {"effort": effort})


def test_a_small_output_limit_leaves_no_room_for_a_budget() -> None:
    assert "thinking" not in body("claude-sonnet-4-5", ModelSettings(reasoning="low"), max_output_tokens=1_000)


def test_no_sampling_field_is_sent() -> None:
    sent = body("claude-opus-5-5", ModelSettings(temperature=0.5, top_p=0.5))
    assert "temperature" not in sent and "top_p" not in sent
    older = ModelSettings(extra_headers={"anthropic-version": "2023-06-01"}, extra_body={"temperature": 0.5})
    assert body("claude-opus-5-5", older)["temperature"] == 0.5
    assert MessagesModel("claude-opus-5-5", older).headers(PLAIN)["anthropic-version"] == "2023-06-01"


def test_beta_names_of_the_user_are_added_to_ours() -> None:
    settings = ModelSettings(extra_headers={"Anthropic-Beta": "my-beta, other"}, reasoning="low")
    assert (
        MessagesModel("claude-opus-5-5", settings).headers(PLAIN)["anthropic-beta"] == f"{BINDING_BETA},my-beta,other"
    )
    assert MessagesModel("claude-haiku-4-5", settings).headers(PLAIN)["anthropic-beta"].startswith(INTERLEAVED_BETA)


def test_tools_have_sorted_keys_and_their_own_order() -> None:
    tools = (
        ToolSpec("z", "d", {"type": "object", "properties": {"b": {}, "a": {}}}),
        ToolSpec("a", "d", {"type": "object"}),
    )
    raw = MessagesModel("m").body(Request("s", tools, [], b"", 1))
    assert raw.index(b'"name":"z"') < raw.index(b'"name":"a"')
    assert raw.index(b'"a":{}') < raw.index(b'"b":{}')


def test_the_base_url_may_end_with_the_version() -> None:
    assert MessagesModel("m", ModelSettings(base_url="https://x.example/v1/")).base_url == "https://x.example"


async def test_the_beta_resource_is_asked(connect: Any) -> None:
    with ProviderServer([Answer("x")], wire="anthropic", strict=True) as server:
        async with connect(server) as ask:
            await ask()
    request = server.requests[0]
    assert request.path == "/v1/messages?beta=true"
    assert request.headers["anthropic-beta"] == BINDING_BETA


# -- signed thinking over a changed prefix


async def two_turns(connect: Any, server: ProviderServer, name: str, **settings: Any) -> Any:
    """A turn with signed thinking and a call, and the items of the request after it."""
    async with connect(server, name, **settings) as ask:
        first = await ask([UserItem(text="go")])
        call = first.items[-1]
        result = ToolResultItem(call_id=call.call_id, name=call.name, status="ok", summary="s", content="long")
        view = [UserItem(text="go"), *first.items, result]
        second = await ask(view)
        changed = [UserItem(text="go, but shorter"), *view[1:], AssistantItem(text="x"), UserItem(text="more")]
        return second, await ask(changed)


async def test_thinking_over_a_changed_prefix_is_dropped_and_reported(connect: Any) -> None:
    """B020: accepted, and the reply says what was dropped."""
    steps = [Answer("", reasoning="plan", calls=[Call("read_file", {"path": "a"})]), Answer("ok"), Answer("ok")]
    with ProviderServer(steps, wire="anthropic", strict=True, bind_reasoning=True) as server:
        same, changed = await two_turns(connect, server, "anthropic:claude-opus-5-5")
    assert same.transformations == ()
    assert [t["reason"] for t in changed.transformations] == ["prefix_binding_mismatch"]
    assert server.rejected == []


async def test_without_the_control_a_changed_prefix_is_an_invalid_history(connect: Any) -> None:
    """B020: the same server, a model that is not known to bind."""
    steps = [Answer("", reasoning="plan", calls=[Call("read_file", {"path": "a"})]), Answer("ok"), Answer("ok")]
    with ProviderServer(steps, wire="anthropic", bind_reasoning=True) as server, pytest.raises(InvalidHistory):
        await two_turns(connect, server, "anthropic:claude-opus-4-8")


async def test_another_model_gets_no_thinking_of_the_first(connect: Any) -> None:
    """B020: after a switch text and calls stay, signed blocks do not."""
    steps = [Answer("said", reasoning="plan", calls=[Call("read_file", {"path": "a"})]), Answer("ok")]
    with ProviderServer(steps, wire="anthropic", strict=True, bind_reasoning=True) as server:
        async with connect(server, "anthropic:claude-opus-5-5") as ask:
            first = await ask([UserItem(text="go")])
        call = first.items[-1]
        result = ToolResultItem(call_id=call.call_id, name=call.name, status="ok", summary="s")
        async with connect(server, "anthropic:claude-sonnet-5-5") as ask:
            assert (await ask([UserItem(text="go"), *first.items, result])).transformations == ()
    assert [b["type"] for b in server.requests[1].json["messages"][1]["content"]] == ["text", "tool_use"]
