"""Chat Completions: what compatible servers do differently, and what is sent to whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import ConfigError, ContextOverflow, Overloaded, ProviderDown, RateLimited, StreamBroken
from worker.items import AssistantItem, ReasoningItem, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import ModelSettings, Request, Usage
from worker.models.openai_chat import ChatModel, chat_usage, quirks
from worker.models.registry import create_model
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, Raw, Tokens

pytestmark = pytest.mark.anyio


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason}], **rest}


def part(
    index: int | None = 0, call_id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not None}
    fields = {"index": index, "id": call_id, "function": function}
    return chunk({"tool_calls": [{k: v for k, v in fields.items() if v is not None}]})


async def reply_to(connect: Any, *events: object, output: int = 1_000, items: Any = (), **settings: Any) -> Any:
    with ProviderServer([Raw(events)]) as server:
        async with connect(server, **settings) as ask:
            return await ask(items, output=output)


# -- streams of compatible servers


async def test_a_stream_without_usage_has_no_input_tokens(connect: Any) -> None:
    reply = await reply_to(connect, chunk({"content": "hi"}), chunk(reason="stop"), "[DONE]")
    assert reply.usage == Usage() and reply.usage.input_tokens is None
    assert reply.stop == "end"


async def test_a_stream_with_a_reason_needs_no_done(connect: Any) -> None:
    reply = await reply_to(connect, chunk({"content": "hi"}), chunk(reason="stop"))
    assert reply.items[0].text == "hi"


async def test_usage_may_come_anywhere(connect: Any) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    for events in (
        [
            chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1}),
            chunk(reason="stop", usage=usage),
        ],
        [chunk({"content": "a"}), chunk(reason="stop"), {"choices": [], "usage": usage}],
        [chunk({"content": "a"}), chunk(reason="stop"), {"choices": None, "usage": usage}],
        [chunk({"content": "a"}), {"choices": [{"delta": {}, "finish_reason": "stop", "usage": usage}]}],
        [chunk({"content": "a"}), chunk(reason="stop", x_groq={"usage": usage})],
    ):
        reply = await reply_to(connect, *events)
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (9, 2)


async def test_a_reply_that_is_complete_does_not_wait_for_a_server_that_lingers(connect: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("worker.models.transport.GRACE", 0.2)
    with ProviderServer([Answer("hi", usage=None, fault="silence", after=4)]) as server:
        async with connect(server, idle_timeout=15) as ask:
            assert (await ask()).items[0].text == "hi"


async def test_a_reset_after_the_reason_takes_nothing_away(connect: Any) -> None:
    with ProviderServer([Answer("hi", fault="cut", after=4)]) as server:
        async with connect(server) as ask:
            assert (await ask()).stop == "end"


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 3, "completion_tokens": 1}])
async def test_a_null_reason_with_the_terminal_mark_is_accepted(connect: Any, usage: Any) -> None:
    """B109."""
    reply = await reply_to(connect, chunk({"content": "whole"}, usage=usage), "[DONE]")
    assert reply.stop == "unknown" and reply.items[0].text == "whole"
    with ProviderServer([Answer("whole", stop="")], wire="openai-chat") as server:
        async with connect(server) as ask:
            assert (await ask()).stop == "unknown"


async def test_a_null_reason_without_the_mark_is_a_broken_stream(connect: Any) -> None:
    """B107, B109."""
    with pytest.raises(StreamBroken):
        await reply_to(connect, chunk({"content": "half"}))


async def test_a_stream_of_the_mark_alone_is_empty(connect: Any) -> None:
    with pytest.raises(ContextOverflow):
        await reply_to(connect, "[DONE]")


async def test_names_that_are_repeated_in_each_chunk_stand_once(connect: Any) -> None:
    reply = await reply_to(
        connect,
        part(0, "call_1234567890abcdef", "read_file", '{"pa'),
        part(0, "call_1234567890abcdef", "read_file", 'th":"a"}'),
        chunk(reason="tool_calls"),
        "[DONE]",
    )
    assert [(c.name, c.parsed) for c in reply.items] == [("read_file", {"path": "a"})]


async def test_calls_without_an_index_or_all_at_index_zero_are_told_apart(connect: Any) -> None:
    for first, second in ((0, 0), (None, None)):
        reply = await reply_to(
            connect,
            part(first, "call_aaaaaaaaaaaaaaaa", "read_file", '{"path":"a"}'),
            part(second, "call_bbbbbbbbbbbbbbbb", "read_file", '{"path":"b"}'),
            chunk(reason="stop"),
        )
        assert [c.parsed for c in reply.items] == [{"path": "a"}, {"path": "b"}]
        assert reply.stop == "tool_calls"
    reply = await reply_to(connect, part(None, None, "t", "{}"), part(None, None, "u", "{}"), chunk(reason="stop"))
    assert [c.name for c in reply.items] == ["t", "u"]
    assert len({c.call_id for c in reply.items}) == 2


async def test_arguments_that_are_an_object_become_their_text(connect: Any) -> None:
    reply = await reply_to(connect, part(0, "call_aaaaaaaaaaaaaaaa", "t", {"path": "é"}), chunk(reason="stop"))
    assert reply.items[0].parsed == {"path": "é"}


async def test_a_call_without_an_id_gets_one(connect: Any) -> None:
    for call_id in (None, ""):
        reply = await reply_to(connect, part(0, call_id, "t", "{}"), chunk(reason="stop"))
        assert reply.items[0].call_id.startswith("call_")


async def test_reasoning_is_kept_in_the_field_it_came_in(connect: Any) -> None:
    reply = await reply_to(
        connect,
        chunk({"reasoning_content": "a\ud83d"}),
        chunk({"reasoning_content": "b"}),
        chunk({"content": "x"}),
        chunk(reason="stop"),
    )
    assert json.loads(reply.items[0].payload) == {"reasoning_content": "a\ud83db"}
    assert reply.items[0].text == "a\ufffdb"
    assert reply.items[0].payload.isascii()
    detail = {"type": "reasoning.text", "index": 0, "text": "th", "format": "f"}
    reply = await reply_to(
        connect,
        chunk({"reasoning": "th", "reasoning_details": [detail]}),
        chunk({"reasoning": "ink", "reasoning_details": [{**detail, "text": "ink", "signature": "s"}]}),
        chunk({"content": "x"}, "stop"),
    )
    payload = json.loads(reply.items[0].payload)
    assert payload["reasoning"] == "think"
    assert payload["reasoning_details"] == [{**detail, "text": "think", "signature": "s"}]


async def test_content_in_parts_is_text(connect: Any) -> None:
    reply = await reply_to(
        connect,
        chunk({"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "x"}]}),
        chunk(reason="stop"),
    )
    assert [item.text for item in reply.items] == ["x"]


async def test_a_completion_in_one_piece_is_accepted(connect: Any) -> None:
    call = {"id": "call_aaaaaaaaaaaaaaaa", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    body = {
        "object": "chat.completion",
        "choices": [
            {"message": {"role": "assistant", "content": "hi", "tool_calls": [call]}, "finish_reason": "tool_calls"}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    with ProviderServer([Http(200, body)]) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert [type(i) for i in reply.items] == [AssistantItem, ToolCallItem]
    assert reply.usage.input_tokens == 5


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, RateLimited),
        ([{"error": {"code": 503, "message": "slow", "status": "UNAVAILABLE"}}], Overloaded),
        ({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "up"}}]}, ProviderDown),
        ({"choices": [{"delta": {}, "finish_reason": "error"}]}, ProviderDown),
        ({"choices": [{"delta": {}, "finish_reason": "model_context_window_exceeded"}]}, ContextOverflow),
        ({"error": "Trying to keep the first 9000 tokens when context the overflows"}, ContextOverflow),
    ],
)
async def test_errors_in_chunks_keep_their_meaning(connect: Any, event: Any, kind: type) -> None:
    with pytest.raises(kind):
        await reply_to(connect, chunk({"content": "x"}), event)


# -- stops and cut calls


@pytest.mark.parametrize(
    ("native", "stop"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("model_length", "length"),
        ("content_filter", "refusal"),
        ("novel", "unknown"),
    ],
)
async def test_each_reason_has_its_meaning(connect: Any, native: str, stop: str) -> None:
    """B108, B117."""
    reply = await reply_to(connect, chunk({"content": "part"}), chunk(reason=native), "[DONE]")
    assert (reply.stop, reply.native_stop, reply.items[0].text) == (stop, native, "part")


async def test_a_call_that_the_limit_cut_does_not_run(connect: Any) -> None:
    """B110."""
    call = Call("write_file", '{"path":"a","content":"xxx')
    with ProviderServer([Answer(calls=[call], stop="length")]) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert reply.stop == "length" and reply.items[0].parsed is None
    assert "smaller parts" in reply.items[0].error


async def test_a_cut_call_that_claims_to_be_complete_does_not_run(connect: Any) -> None:
    """B111."""
    call = Call("write_file", '{"path":"a","content":"xxx')
    with ProviderServer([Answer(calls=[call], usage=Tokens(10, 1_000))]) as server:
        async with connect(server) as ask:
            reply = await ask(output=1_000)
    assert reply.stop == "tool_calls" and "was cut off by the output limit" in reply.items[0].error


async def test_a_call_cut_before_its_arguments_is_no_call_without_arguments(connect: Any) -> None:
    """B110."""
    with ProviderServer(
        [Answer(calls=[Call("delete_all", "")], stop="length"), Answer(calls=[Call("now", "")])]
    ) as server:
        async with connect(server) as ask:
            assert (await ask()).items[0].parsed is None
            assert (await ask()).items[0].parsed == {}


async def test_a_reply_cut_with_nothing_in_it_near_the_window_is_an_overflow(connect: Any) -> None:
    """B059."""
    answer = Answer(stop="length", usage=Tokens(7_900, 0))
    with ProviderServer([answer, answer]) as server:
        async with connect(server, context_window=8_000) as ask:
            with pytest.raises(ContextOverflow) as caught:
                await ask()
        assert caught.value.requested == 7_900
        async with connect(server, context_window=100_000) as ask:
            assert (await ask()).stop == "length"


async def test_deeply_nested_arguments_do_no_harm(connect: Any) -> None:
    deep = '{"a":' * 100_000
    with ProviderServer([Answer(calls=[Call("t", deep)])]) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert reply.items[0].error


# -- usage


@pytest.mark.parametrize(
    ("usage", "total", "cached", "written"),
    [
        ({"prompt_tokens": 184_704, "prompt_tokens_details": {"cached_tokens": 183_936}}, 184_704, 183_936, 0),
        ({"prompt_tokens": 768, "prompt_tokens_details": {"cached_tokens": 183_936}}, 184_704, 183_936, 0),
        ({"prompt_tokens": 184_704, "prompt_cache_hit_tokens": 183_936}, 184_704, 183_936, 0),
        ({"prompt_tokens": 184_704, "cached_tokens": 183_936}, 184_704, 183_936, 0),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 80}}, 100, 10, 80),
        ({"prompt_tokens": 7, "prompt_tokens_details": None, "completion_tokens_details": None}, 7, 0, 0),
        ({"completion_tokens": 3}, None, 0, 0),
    ],
)
def test_each_dialect_of_usage_gives_the_whole_input(usage: Any, total: Any, cached: int, written: int) -> None:
    """B048."""
    read = chat_usage(usage)
    assert (read.input_tokens, read.cached_tokens, read.cache_write_tokens) == (total, cached, written)


# -- what is sent


def body(settings: ModelSettings, **rest: Any) -> dict[str, Any]:
    model = ChatModel("m", settings)
    fields = {
        "system": "s",
        "tools": (),
        "items": [],
        "encoded": b'{"role":"user","content":"u"}',
        "max_output_tokens": 77,
    }
    return json.loads(model.body(Request(**{**fields, **rest})))


def test_openai_is_asked_with_its_own_names_and_others_with_the_common_ones() -> None:
    ours = body(ModelSettings(), cache_key="k")
    assert ours["max_completion_tokens"] == 77 and "max_tokens" not in ours and ours["prompt_cache_key"] == "k"
    theirs = body(ModelSettings(base_url="https://llm.example.com/v1"), cache_key="k")
    assert theirs["max_tokens"] == 77 and "max_completion_tokens" not in theirs and "prompt_cache_key" not in theirs
    assert theirs["stream"] is True and theirs["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(ModelSettings(base_url="https://api.mistral.ai/v1"))


def test_settings_reach_the_body() -> None:
    sent = body(
        ModelSettings(temperature=0.2, top_p=0.9, reasoning="high", extra_body={"seed": 7, "max_completion_tokens": 5})
    )
    assert (sent["temperature"], sent["top_p"], sent["reasoning_effort"], sent["seed"]) == (0.2, 0.9, "high", 7)
    assert sent["max_completion_tokens"] == 5
    router = ModelSettings(base_url="https://openrouter.ai/api/v1", reasoning=4_000)
    assert body(router)["reasoning"] == {"max_tokens": 4_000}
    assert body(ModelSettings(reasoning=4_000))["reasoning_effort"] == "medium"


def test_the_head_is_made_once_for_the_same_system_and_tools() -> None:
    model = ChatModel("m", ModelSettings())
    request = Request("s", (), [], b"", 1)
    assert model.head(request) is model.head(request)
    assert model.head(Request("other", (), [], b"", 1)) != model.head(request)
    assert json.loads(model.body(Request("s", (), [], b"", 1)))["messages"] == [{"role": "system", "content": "s"}]
    assert json.loads(model.body(Request("", (), [], b'{"role":"user"}', 1)))["messages"] == [{"role": "user"}]


@pytest.mark.parametrize(
    ("url", "env"),
    [
        (None, "OPENAI_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://me.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY"),
        ("https://llm.example.com/v1", None),
        ("https://openrouter.ai.evil.example/v1", None),
        ("http://127.0.0.1:8080/v1", None),
    ],
)
def test_each_endpoint_has_its_own_key_variable(url: str | None, env: str | None) -> None:
    assert ChatModel("m", ModelSettings(base_url=url)).key_env() == env
    assert ChatModel("m", ModelSettings(base_url=url, api_key_env="MINE")).key_env() == "MINE"


@pytest.mark.parametrize("provider", ["openai-chat", "openai", "anthropic"])
def test_plain_http_is_for_loopback_only(provider: str) -> None:
    for url in ("http://127.0.0.1:1/v1", "http://localhost:1", "http://[::1]:1/v1", "https://llm.example.com"):
        create_model(f"{provider}:m", ModelSettings(base_url=url))
    for url in (
        "http://llm.example.com/v1",
        "http://127.0.0.1.example.com",
        "ftp://x",
        "llm.example.com",
        "https://u:p@x.example",
    ):
        with pytest.raises(ConfigError, match="base_url"):
            create_model(f"{provider}:m", ModelSettings(base_url=url))


def test_the_runtimes_own_fields_cannot_be_overridden() -> None:
    with pytest.raises(ConfigError, match="messages"):
        ChatModel("m", ModelSettings(extra_body={"messages": []}))


def test_quirks_are_found_by_host() -> None:
    assert quirks("https://api.openai.com/v1").max_tokens == "max_completion_tokens"
    assert quirks("https://other.example/api.openai.com").max_tokens == "max_tokens"


async def test_a_ready_client_is_used_as_it_is_and_left_open(connect: Any, asker: Any) -> None:
    import openai

    class AsyncProxyOpenAI(openai.AsyncOpenAI):
        """A client that rewrites requests from the fields of their body, as those for Azure do."""

        def _build_request(self, options: Any, **rest: Any) -> Any:
            seen.append(options.json_data["model"] if options.json_data else None)
            return super()._build_request(options, **rest)

    seen: list[str | None] = []
    with ProviderServer([Answer("a"), Answer("b")]) as server:
        for kind, expected in ((openai.AsyncOpenAI, []), (AsyncProxyOpenAI, ["m"])):
            client = kind(base_url=server.url, api_key="k", max_retries=5)
            async with client:
                model = ChatModel("m", ModelSettings(), client=client)
                assert (await asker(model)()).stop == "end"
                await model.aclose()
                assert not client.is_closed()
            assert seen == expected
        assert server.requests[0].json == server.requests[1].json


async def test_reasoning_of_the_server_goes_back_in_the_next_request(connect: Any) -> None:
    steps = [Answer("", reasoning="plan", calls=[Call("read_file", {"path": "a"})]), Answer("done")]
    with ProviderServer(steps, strict=True) as server:
        async with connect(server) as ask:
            first = await ask([UserItem(text="go")])
            call = first.items[-1]
            result = ToolResultItem(call_id=call.call_id, name=call.name, status="ok", summary="s")
            await ask([UserItem(text="go"), *first.items, result])
    message = server.requests[1].json["messages"][2]
    assert message["reasoning_content"] == "plan" and message["tool_calls"][0]["id"] == call.call_id
    assert isinstance(first.items[0], ReasoningItem)
