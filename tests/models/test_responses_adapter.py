"""OpenAI Responses: stateless, with sealed reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import ContextOverflow, ModelError, Overloaded, ProviderDown, Refused
from worker.items import OpaqueItem, ReasoningItem, ToolResultItem, UserItem
from worker.models.base import ModelSettings, Request
from worker.models.openai_responses import ResponsesModel
from worker.models.openai_stream import responses_usage
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, Raw, Tokens

pytestmark = pytest.mark.anyio


def body(model_id: str = "gpt-6-sol", settings: ModelSettings | None = None, **rest: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "system": "s",
        "tools": (),
        "items": [],
        "encoded": b"{}",
        "max_output_tokens": 50,
        "cache_key": "k",
    }
    return json.loads(ResponsesModel(model_id, settings).body(Request(**{**fields, **rest})))


def done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def completed(**rest: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "model": "gpt-x", "status": "completed", "output": [], **rest}
    return {"type": f"response.{response['status']}", "response": response}


MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


async def reply_to(connect: Any, *events: Any) -> Any:
    with ProviderServer([Raw(events)], wire="openai") as server:
        async with connect(server) as ask:
            return await ask()


# -- what is sent


def test_nothing_is_stored_and_nothing_is_cut_in_silence() -> None:
    sent = body()
    assert sent["store"] is False and sent["stream"] is True
    assert sent["prompt_cache_key"] == "k" and sent["max_output_tokens"] == 50 and sent["instructions"] == "s"
    for name in ("truncation", "previous_response_id", "conversation", "context_management"):
        assert name not in sent
    assert "prompt_cache_key" not in body(cache_key="")


def test_settings_reach_the_body() -> None:
    sent = body(
        settings=ModelSettings(reasoning="high", temperature=0.1, top_p=0.5, extra_body={"service_tier": "flex"})
    )
    assert sent["reasoning"] == {"effort": "high"} and sent["service_tier"] == "flex"
    assert (sent["temperature"], sent["top_p"]) == (0.1, 0.5)
    assert "reasoning" not in body() and body()["include"] == ["reasoning.encrypted_content"]
    assert "include" not in body("gpt-4.1")


def test_tools_are_not_strict() -> None:
    from worker.models.base import ToolSpec

    tool = ToolSpec("t", "d", {"type": "object", "properties": {}})
    assert body(tools=(tool,))["tools"] == [
        {
            "type": "function",
            "name": "t",
            "description": "d",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]


# -- replies


async def test_reasoning_is_kept_byte_for_byte_from_the_final_event(connect: Any) -> None:
    """B146: the value of the first event may be partial, and the text of the last one is kept as it is."""
    summary = '[{"type":"summary_text","text":"th\\u00e9 \\ud83d"}]'
    raw = '{ "type":"reasoning", "id":"rs_1","summary":' + summary + ',"encrypted_content":"AB==" }'
    event = f'data: {{"type":"response.output_item.done","output_index":0,"item":{raw},"sequence_number":3}}\n\n'
    added = {"type": "response.output_item.added", "item": {"type": "reasoning", "encrypted_content": "A"}}
    reply = await reply_to(connect, added, event.encode(), done(MESSAGE, 1), completed())
    assert isinstance(reply.items[0], ReasoningItem)
    assert reply.items[0].payload == raw
    assert reply.items[0].text == "thé \ufffd"


async def test_a_conversation_with_sealed_reasoning_is_accepted(connect: Any) -> None:
    steps = [Answer("", reasoning="plan", calls=[Call("read_file", {"path": "a"})]), Answer("ok"), Answer("ok")]
    with ProviderServer(steps, wire="openai", strict=True, bind_reasoning=True) as server:
        async with connect(server) as ask:
            first = await ask([UserItem(text="go")])
            call = first.items[-1]
            result = ToolResultItem(call_id=call.call_id, name=call.name, status="ok", summary="s")
            same = await ask([UserItem(text="go"), *first.items, result])
            changed = await ask([UserItem(text="shorter"), *first.items, result])
    assert server.rejected == []
    sent = server.requests[1].json["input"]
    assert [x["type"] for x in sent] == ["message", "reasoning", "function_call", "function_call_output"]
    assert sent[2]["id"] == "fc_1_0"
    assert same.transformations == ()
    assert [t["reason"] for t in changed.transformations] == ["prefix_mismatch"], "B020: dropped and recorded"


async def test_items_of_unknown_type_are_kept_to_be_sent_back(connect: Any) -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    reply = await reply_to(connect, done(item), done(MESSAGE, 1), completed())
    assert isinstance(reply.items[0], OpaqueItem) and json.loads(reply.items[0].payload) == item
    assert reply.items[1].text == "hi"


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("max_output_tokens", "length"), ("content_filter", "refusal"), ("steered", "unknown")],
)
async def test_an_incomplete_response_says_why(connect: Any, reason: str, stop: str) -> None:
    """B108, B117."""
    reply = await reply_to(
        connect, done(MESSAGE), completed(status="incomplete", incomplete_details={"reason": reason})
    )
    assert (reply.stop, reply.native_stop, reply.items[0].text) == (stop, reason, "hi")


async def test_a_cut_call_that_stands_only_in_the_last_event_does_not_run(connect: Any) -> None:
    """B110."""
    call = {
        "type": "function_call",
        "id": "fc",
        "call_id": "call_aaaaaaaaaaaaaaaa",
        "name": "t",
        "arguments": '{"a":',
        "status": "incomplete",
    }
    end = completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[MESSAGE, call])
    reply = await reply_to(connect, done(MESSAGE), end)
    assert [item.type for item in reply.items] == ["assistant", "tool_call"]
    assert reply.items[1].parsed is None and "cut off" in reply.items[1].error


async def test_a_response_that_stopped_for_length_with_nothing_near_the_window_is_an_overflow(connect: Any) -> None:
    """B059."""
    with ProviderServer([Answer(stop="length", usage=Tokens(1_049_000, 0))], wire="openai") as server:
        async with connect(server) as ask:
            with pytest.raises(ContextOverflow):
                await ask()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "context_length_exceeded", "message": "x"}, ContextOverflow),
        ({"code": "server_error", "message": "x"}, ProviderDown),
        ({"code": "server_is_overloaded", "type": "overloaded_error", "message": "x"}, Overloaded),
        ({"code": "bio_policy", "message": "x"}, Refused),
        (None, ProviderDown),
    ],
)
async def test_a_failed_response_is_an_error(connect: Any, error: Any, kind: type[ModelError]) -> None:
    failed = {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error}}
    with pytest.raises(kind):
        await reply_to(connect, done(MESSAGE), failed)


async def test_a_nested_error_object_is_an_error(connect: Any) -> None:
    with pytest.raises(ContextOverflow):
        await reply_to(connect, {"type": "error", "error": {"code": "context_length_exceeded", "message": "x"}})


async def test_a_response_in_one_piece_is_accepted(connect: Any) -> None:
    response = {
        "object": "response",
        "id": "r",
        "status": "completed",
        "output": [MESSAGE],
        "usage": {"input_tokens": 4},
    }
    with ProviderServer([Http(200, response)], wire="openai") as server:
        async with connect(server) as ask:
            reply = await ask()
    assert reply.items[0].text == "hi" and reply.usage.input_tokens == 4


async def test_a_refusal_part_is_a_refusal(connect: Any) -> None:
    """B117."""
    message = {**MESSAGE, "content": [{"type": "refusal", "refusal": "no"}]}
    reply = await reply_to(connect, done(message), completed())
    assert (reply.stop, reply.items[0].text) == ("refusal", "no")


@pytest.mark.parametrize(
    ("usage", "total", "cached", "written"),
    [
        ({"input_tokens": 184_704, "input_tokens_details": {"cached_tokens": 183_936}}, 184_704, 183_936, 0),
        ({"input_tokens": 768, "input_tokens_details": {"cached_tokens": 183_936}}, 184_704, 183_936, 0),
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 20}}, 100, 10, 20),
        ({"input_tokens": 7, "input_tokens_details": None}, 7, 0, 0),
        ({}, None, 0, 0),
    ],
)
def test_the_input_includes_what_was_cached(usage: Any, total: Any, cached: int, written: int) -> None:
    """B048."""
    read = responses_usage(usage)
    assert (read.input_tokens, read.cached_tokens, read.cache_write_tokens) == (total, cached, written)
