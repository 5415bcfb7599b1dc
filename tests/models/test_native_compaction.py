"""Histories that the provider compacts: each way, what may come back, and each way in which it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.models.compaction_rig import (
    LONG,
    NAMES,
    READ,
    ROUNDS,
    WAYS,
    conversation,
    model_of,
    readable,
    request_of,
    sent,
)
from worker.errors import (
    BadRequest,
    ContextOverflow,
    InvalidHistory,
    ModelError,
    Overloaded,
    ProviderDown,
    Refused,
    StreamStalled,
)
from worker.items import ContextItem, OpaqueItem, ToolCallItem, UserItem, source_hash
from worker.models.anthropic import CLEARING_BETA, COMPACT_BETAS, MessagesModel
from worker.models.base import CompactsNatively, ModelSettings, NativeWay, ToolClearing
from worker.models.compaction import NO_COMPACTION
from worker.models.openai_responses import ResponsesModel
from worker.models.registry import create_model
from worker.testing.provider_server import Answer, Compaction, Empty, ErrorEvent, Http, ProviderServer, Raw, Tokens
from worker.testing.provider_wires import error_body

pytestmark = pytest.mark.anyio

SUMMARY = "a.py sets x – to 1. </context> 思𝄞"
each_way = pytest.mark.parametrize(("wire", "way"), WAYS)


def server_of(wire: Any, way: NativeWay, compacts: Any = SUMMARY, *steps: Any, **rest: Any) -> ProviderServer:
    script = [*ROUNDS, *steps, Answer("Done.", reasoning="All seen.")]
    return ProviderServer(script, wire=wire, strict=True, bind_reasoning=True, compacts=compacts, ways=(way,), **rest)


async def failure(wire: Any, way: NativeWay, compacts: Any, **rest: Any) -> tuple[ModelError, ProviderServer]:
    """The error of a compaction that the server answers so."""
    with server_of(wire, way, compacts, **rest) as server:
        async with model_of(server) as model:
            with pytest.raises(ModelError) as caught:
                await model.compact_by(way, request_of(model, [UserItem(text=LONG)]))
    return caught.value, server


# -- what models say


@pytest.mark.parametrize(
    ("name", "ways", "clears"),
    [
        ("openai:gpt-6-sol", 2, False),
        ("openai:gpt-5", 2, False),
        ("openai:gpt-5.3-codex", 2, False),
        ("openai:gpt-4.1", 0, False),
        ("openai:o3", 0, False),
        ("openai:some-model", 0, False),
        ("anthropic:claude-opus-4-6", 2, True),
        ("anthropic:claude-sonnet-5", 2, True),
        ("anthropic:claude-haiku-5-5", 2, True),
        ("anthropic:claude-mythos-5-2", 2, True),
        ("anthropic:claude-sonnet-4-5", 0, True),
        ("anthropic:claude-opus-4-20250514", 0, True),
        ("anthropic:claude-3-7-sonnet-latest", 0, False),
        ("openai-chat:gpt-6-sol", 0, False),
        ("openai-chat:anthropic/claude-opus-5.5", 0, False),
        ("openai:claude-opus-5-5", 0, False),
    ],
)
def test_a_model_says_how_its_provider_compacts(name: str, ways: int, clears: bool) -> None:
    found = create_model(name, ModelSettings()).capabilities
    assert (len(found.native_compaction), found.tool_clearing) == (ways, clears)


# -- what comes back


@each_way
async def test_a_compaction_stands_for_the_items_of_its_request(wire: str, way: NativeWay) -> None:
    with server_of(wire, way, lambda _: Compaction(SUMMARY, usage=Tokens(60_000, 200, 50_000, 100))) as server:
        async with model_of(server) as model:
            assert isinstance(model, CompactsNatively)
            source, _ = await conversation(model)
            made = await model.compact_by(way, request_of(model, source))
    assert made.way == way and made.provider_id
    assert made.item.is_memory and made.item.source_hash == source_hash(source)
    assert f"{made.item.provider}:{made.item.model}" == NAMES[wire]
    assert made.item.tokens == made.usage.output_tokens == 200
    assert made.usage.input_tokens == 60_000, "the compaction's own input, which the totals of Messages leave out"
    assert (made.usage.cached_tokens, made.usage.cache_write_tokens) == (50_000, 100)
    assert made.item.readable == (SUMMARY if wire == "anthropic" else "")
    assert json.loads(made.item.payload)["type"] == "compaction"


@each_way
async def test_a_memory_goes_back_byte_for_byte_and_its_model_reads_on_from_it(wire: str, way: NativeWay) -> None:
    with server_of(wire, way) as server:
        async with model_of(server) as model:
            source, kept = await conversation(model)
            memory = readable(await model.compact_by(way, request_of(model, source)))
            reply = await sent(model, [memory, *kept, UserItem(text="Go on.")])
        body = server.requests[-1].body
    assert server.rejected == []
    assert memory.payload.encode() in body
    assert b"call_a" not in body and b"call_b" in body
    assert reply.transformations == (), "the kept turn's reasoning is valid directly behind its memory"
    if wire == "openai":
        assert b'{"id": "cmp_' in body, "the server writes blanks behind colons, which nothing of ours does"


@pytest.mark.parametrize("way", ["responses.compact", "compaction_trigger"])
async def test_an_item_keeps_the_very_bytes_in_which_it_came(way: NativeWay) -> None:
    """B146: blanks, escapes and fields that nobody here knows."""
    item = r'{ "type" : "compaction","novel":{"b":1.0,"a":[ ]},"id":"cmp \u00e9", "encrypted_content":"g\/A\ud83d" }'
    response = f'{{"object":"response","id":"r","status":"completed","output":[{item}]}}'
    answer: Any = Http(200, f'{{"object": "response.compaction", "output":[{{"type":"message"}}, {item} ]}}'.encode())
    if way == "compaction_trigger":
        done = f'data: {{"type":"response.output_item.done","output_index":0,"item":{item}}}\n\n'
        answer = Raw([done.encode(), f'data: {{"type":"response.completed","response":{response}}}\n\n'.encode()])
    with server_of("openai", way, lambda _: answer) as server:
        async with model_of(server) as model:
            made = await model.compact_by(way, request_of(model, [UserItem(text="x")]))
    assert made.item.payload == item
    assert made.item.tokens == 0 and made.usage.input_tokens is None, "no usage was reported"


@each_way
async def test_reasoning_of_a_kept_turn_is_worth_nothing_behind_something_else(wire: str, way: NativeWay) -> None:
    with server_of(wire, way) as server:
        async with model_of(server) as model:
            source, kept = await conversation(model)
            memory = readable(await model.compact_by(way, request_of(model, source)))
            between = ContextItem(kind="user_words", text="Read.", trust="user")
            reply = await sent(model, [memory, between, *kept, UserItem(text="Go on.")])
    assert [x["reason"] for x in reply.transformations] in (["prefix_mismatch"], ["prefix_binding_mismatch"])


@each_way
async def test_reasoning_of_a_kept_turn_is_worth_nothing_where_the_tools_changed(wire: str, way: NativeWay) -> None:
    with server_of(wire, way) as server:
        async with model_of(server) as model:
            source, kept = await conversation(model)
            memory = readable(await model.compact_by(way, request_of(model, source)))
            reply = await sent(model, [memory, *kept], tools=(READ, READ._replace(name="other")))
    assert len(reply.transformations) == 1


@each_way
async def test_a_memory_is_compacted_with_what_follows_it(wire: str, way: NativeWay) -> None:
    with server_of(wire, way) as server:
        async with model_of(server) as model:
            source, kept = await conversation(model)
            memory = readable(await model.compact_by(way, request_of(model, source)))
            later = [memory, *kept, UserItem(text=LONG)]
            again = readable(await model.compact_by(way, request_of(model, later)))
            await sent(model, [again, UserItem(text="Go on.")])
    assert server.rejected == [] and len(server.compacted) == 2
    assert memory.payload.encode() not in server.requests[-1].body


@each_way
async def test_a_compaction_request_begins_with_the_bytes_of_the_requests_before(wire: str, way: NativeWay) -> None:
    """So it reads from the cache. The endpoint of its own takes no tools: there only the messages are the same."""
    with server_of(wire, way) as server:
        async with model_of(server) as model:
            source, _ = await conversation(model)
            await model.compact_by(way, request_of(model, source))
        before, asked = server.requests[1].body, server.compacted[0].body
    start = (
        before.index(b"[", before.index(b'"input":' if wire == "openai" else b'"messages":'))
        if way == "responses.compact"
        else 0
    )
    end = before.index(b'],"max_')
    assert before[start:end] in asked
    assert asked.startswith(before[:end]) or way == "responses.compact"


# -- the ways in turn


async def test_the_first_way_that_the_server_takes_is_remembered() -> None:
    for wire, first, second in (("openai", *WAYS[0:2]), ("anthropic", *WAYS[2:4])):
        with server_of(wire, second[1]) as server:
            async with model_of(server) as model:
                request = request_of(model, [UserItem(text=LONG)])
                assert model.capabilities.native_compaction == (first[1], second[1])
                assert [(await model.compact(request)).way for _ in range(2)] == [second[1]] * 2
                assert model.capabilities.native_compaction == (second[1],)
        assert len(server.compacted) == 3, "the refused way is asked for once"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_server_that_cannot_compact_is_told_apart_and_not_asked_again(wire: Any) -> None:
    with ProviderServer([], wire=wire) as server:
        async with model_of(server) as model:
            request = request_of(model, [UserItem(text=LONG)])
            for _ in range(2):
                with pytest.raises(BadRequest, match=f"no way to have {NAMES[wire]} compacted"):
                    await model.compact(request)
            assert model.capabilities.native_compaction == ()
    assert len(server.compacted) == 2


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "no such path"),
        (405, "Method Not Allowed"),
        (501, "not implemented"),
        (400, "Unknown parameter: 'input'."),
    ],
)
async def test_each_refusal_of_the_form_leads_to_the_other_way(status: int, message: str) -> None:
    answers = iter([Http(status, error_body("openai", message)), SUMMARY])
    with ProviderServer([], wire="openai", compacts=lambda _: next(answers)) as server:
        async with model_of(server) as model:
            assert (await model.compact(request_of(model, [UserItem(text="x")]))).way == "compaction_trigger"


async def test_a_short_input_is_not_sent_to_a_threshold() -> None:
    """The provider compacts at 50,000 tokens or more: below that it would answer, at the price of a reply."""
    with server_of("anthropic", "threshold_edit") as server:
        async with model_of(server) as model:
            with pytest.raises(BadRequest, match="at least 50,000 tokens; this one has about"):
                await model.compact(request_of(model, [UserItem(text="short")]))
            assert model.capabilities.native_compaction == ("threshold_edit",), "a longer input can still be compacted"
    assert len(server.compacted) == 1 and server.requests == []


# -- failures


@each_way
@pytest.mark.parametrize(
    ("status", "kind", "code", "error"),
    [
        (500, "api_error", None, ProviderDown),
        (529, "overloaded_error", None, Overloaded),
        (529, "overloaded_error", "compaction_unavailable", Overloaded),
        (400, "invalid_request_error", "compaction_incomplete_turn", InvalidHistory),
        (400, "invalid_request_error", "compaction_signature_invalid", InvalidHistory),
        (400, "invalid_request_error", "compaction_nothing_to_summarize", BadRequest),
        (400, "invalid_request_error", "compaction_too_many_tool_references", BadRequest),
    ],
)
async def test_each_refusal_has_its_error_and_leaves_the_way(
    wire: Any, way: NativeWay, status: int, kind: str, code: str | None, error: type[ModelError]
) -> None:
    body = error_body(wire, "The compaction cannot be made.", kind=kind)
    body["error"]["details"] = {"error_code": code}
    answers = iter([Http(status, body), SUMMARY])
    with server_of(wire, way, lambda _: next(answers)) as server:
        async with model_of(server) as model:
            model.refused = frozenset(each for _, each in WAYS if each != way)
            request = request_of(model, [UserItem(text=LONG)])
            with pytest.raises(error) as caught:
                await model.compact(request)
            assert caught.value.kind == error.kind
            assert caught.value.retryable == (status >= 500)
            assert (await model.compact(request)).way == way, "asked again it is made"


@each_way
async def test_an_input_above_the_window_is_an_overflow(wire: str, way: NativeWay) -> None:
    error, _ = await failure(wire, way, SUMMARY, max_input_tokens=1_000)
    assert isinstance(error, ContextOverflow)


@each_way
async def test_a_summary_that_failed_keeps_the_history(wire: str, way: NativeWay) -> None:
    """Null content, or no compaction at all (facts, providers 2.5)."""
    error, _ = await failure(wire, way, lambda _: Compaction(None))
    assert isinstance(error, BadRequest) and error.code == NO_COMPACTION and not error.retryable


@each_way
async def test_a_reply_with_a_text_beside_is_no_compaction(wire: str, way: NativeWay) -> None:
    """The endpoint's answer is a list of what to send from now on, so there a text is a part of the history."""
    if way == "responses.compact":
        return
    error, _ = await failure(wire, way, lambda _: Compaction(SUMMARY, beside="I would rather talk."))
    assert isinstance(error, BadRequest) and "compaction" in error.message and "assistant" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        Http(200, {"object": "list", "data": []}),
        Http(200, {"object": "response.compaction", "output": []}),
        Http(200, {"object": "response.compaction", "output": [{"type": "compaction", "encrypted_content": None}]}),
        Http(200, {"object": "response.compaction", "output": [{"type": "compaction", "encrypted_content": "x"}] * 2}),
        Http(200, [1]),
        Http(200, "<html>hello</html>"),
    ],
)
async def test_an_answer_of_the_endpoint_in_another_shape_is_no_compaction(answer: Http) -> None:
    error, _ = await failure("openai", "responses.compact", lambda _: answer)
    assert isinstance(error, BadRequest) and not error.retryable


async def test_an_error_dressed_as_a_success_is_that_error() -> None:
    answer = Http(200, error_body("openai", "overloaded", kind="overloaded_error"))
    error, _ = await failure("openai", "responses.compact", lambda _: answer)
    assert isinstance(error, Overloaded)


@each_way
@pytest.mark.parametrize("fault", ["cut", "reset", "eof"])
async def test_an_answer_that_ends_early_is_no_compaction(wire: str, way: NativeWay, fault: Any) -> None:
    error, _ = await failure(wire, way, lambda _: Compaction(SUMMARY, fault=fault))
    assert error.kind in ("stream_broken", "bad_request")
    assert error.retryable or way == "responses.compact"


@pytest.mark.parametrize(("wire", "way"), WAYS[1:])
async def test_an_error_inside_the_stream_has_its_kind(wire: str, way: NativeWay) -> None:
    event = ErrorEvent({"type": "overloaded_error", "message": "busy", "code": "overloaded"}, before="")
    error, _ = await failure(wire, way, lambda _: event)
    assert isinstance(error, Overloaded)
    error, _ = await failure(wire, way, lambda _: Empty())
    assert error.code == "empty_stream"


async def test_a_refusal_to_summarise_is_a_refusal() -> None:
    events = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    error, _ = await failure("anthropic", "summarize", lambda _: Raw(events))
    assert isinstance(error, Refused)


async def test_a_response_that_stopped_for_length_is_no_compaction() -> None:
    item = {"id": "cmp", "type": "compaction", "encrypted_content": "x"}
    response = {"id": "r", "object": "response", "status": "incomplete", "output": [item]}
    end = {
        "type": "response.incomplete",
        "response": response | {"incomplete_details": {"reason": "max_output_tokens"}},
    }
    end["response"]["usage"] = {"input_tokens": 9, "output_tokens": 4_000}
    error, _ = await failure("openai", "compaction_trigger", lambda _: Raw([end]))
    assert error.code == NO_COMPACTION and "max_output_tokens" in error.message


@each_way
async def test_a_cancelled_compaction_leaves_no_connection(wire: str, way: NativeWay) -> None:
    asked, token = anyio.Event(), anyio.lowlevel.current_token()

    def hold(_: object) -> Compaction:
        anyio.from_thread.run_sync(asked.set, token=token)
        return Compaction(SUMMARY, fault="silence", after=1)

    with server_of(wire, way, hold) as server:
        async with model_of(server) as model:
            async with anyio.create_task_group() as group:
                group.start_soon(model.compact_by, way, request_of(model, [UserItem(text=LONG)]))
                with anyio.fail_after(20):
                    await asked.wait()
                group.cancel_scope.cancel()
            left = await anyio.to_thread.run_sync(server.compacted[0].left.wait, 10)
            assert left
            made = await sent(model, [UserItem(text="Go on.")])
            assert made.items, "the model is as it was"


@pytest.mark.parametrize(("wire", "way"), WAYS[1:])
async def test_a_compaction_may_take_longer_than_a_reply_may_be_silent(
    wire: str, way: NativeWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in one piece at the end: cut off by the idle limit of a reply it would be paid for again and again."""
    monkeypatch.setattr("worker.models.compaction.COMPACT_WAIT", 0.05)
    with server_of(wire, way, lambda _: Compaction(SUMMARY, fault="silence", after=1)) as server:
        async with model_of(server, idle_timeout=0.01) as model:
            with pytest.raises(StreamStalled, match=r"no content for 0\.05 s"):
                await model.compact_by(way, request_of(model, [UserItem(text=LONG)]))


async def test_reasoning_about_a_compaction_takes_nothing_of_the_window() -> None:
    usage = Tokens(60_000, 700, reasoning=500)
    with server_of("openai", "compaction_trigger", lambda _: Compaction(SUMMARY, usage=usage)) as server:
        async with model_of(server) as model:
            made = await model.compact_by("compaction_trigger", request_of(model, [UserItem(text="x")]))
    assert (made.item.tokens, made.usage.output_tokens) == (200, 700)


# -- later requests


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_memory_that_the_provider_rejects_is_read_as_text_from_then_on(wire: Any) -> None:
    """B013: another account, or a provider that forgot, must not brick the session."""
    with server_of(wire, WAYS[0][1] if wire == "openai" else WAYS[2][1]) as server:
        async with model_of(server) as model:
            memory = readable(await model.compact(request_of(model, [UserItem(text="x")])))
            value = json.loads(memory.payload)
            value |= {key: "memory-e30=.0" for key in ("signature", "encrypted_content") if value.get(key)}
            items = [memory.model_copy(update={"payload": json.dumps(value)}), UserItem(text="Go on.")]
            for _ in range(3):
                try:
                    await sent(model, items)
                    break
                except InvalidHistory as e:
                    assert model.repair(e)
            assert model.repair(InvalidHistory("compaction: broken", code="compaction_signature_invalid")) is None
            assert model.rejects(items[0]) and model.memories_rejected == 1
        last = server.requests[-1].body.decode()
    assert '<context kind=\\"summary\\" source=\\"compacted by ' in last and '"type":"compaction"' not in last
    assert server.rejected, "it was tried in the form that is its own first"
    assert model.encoder.reasoning, "reasoning is not lost where it was the memory"


def test_an_error_about_a_memory_that_was_not_sent_changes_nothing() -> None:
    model = MessagesModel("claude-opus-5-5")
    assert model.repair(InvalidHistory("the signature is invalid", code="compaction_signature_invalid")) is None
    assert model.encoder.reasoning and not model.encoder.rejected


def memory_of(provider: str, model: str) -> OpaqueItem:
    payload = '{"type":"compaction","content":"C","signature":"s"}'
    return OpaqueItem(id="m", provider=provider, model=model, payload=payload, source_hash="h", readable=SUMMARY)


def test_a_request_with_a_memory_names_the_beta_of_its_way_and_of_every_way_where_it_is_not_known() -> None:
    model = MessagesModel("claude-opus-5-5")
    own = request_of(model, [memory_of("anthropic", "claude-opus-5-5"), UserItem(text="x")])
    other = request_of(model, [memory_of("anthropic", "claude-opus-5"), UserItem(text="x")])
    assert set(COMPACT_BETAS.values()) <= set(model.headers(own)["anthropic-beta"].split(","))
    assert "compact-" not in model.headers(other)["anthropic-beta"]
    assert json.loads(model.body(own))["messages"][0]["role"] == "assistant"
    for way, beta in COMPACT_BETAS.items():
        memory = memory_of("anthropic", "claude-opus-5-5").model_copy(update={"way": way})
        model.refused = frozenset(COMPACT_BETAS)
        betas = model.headers(request_of(model, [memory, UserItem(text="x")]))["anthropic-beta"]
        assert [b for b in betas.split(",") if b.startswith("compact-")] == [beta], "also where no more are made so"


async def test_a_compaction_request_asks_for_nothing_that_must_not_stand_beside_it() -> None:
    extra = {
        "stop_sequences": ["x"],
        "tool_choice": {"type": "any"},
        "context_management": {"edits": []},
        "output_config": {"format": {"type": "json_schema"}},
        "metadata": {"user_id": "u"},
    }
    clearing = ToolClearing(trigger=1_000)
    with server_of("anthropic", "summarize") as server:
        async with model_of(server, extra_body=extra, tool_clearing=clearing) as model:
            await model.compact(request_of(model, [UserItem(text="x")]))
    body = server.compacted[0].json
    assert server.rejected == [] and not {*extra} - {"metadata"} & body.keys()
    assert body["metadata"] == {"user_id": "u"} and body["compaction"] == {"type": "summarize"}
    assert CLEARING_BETA not in server.compacted[0].headers["anthropic-beta"]


async def test_fields_of_the_user_that_the_endpoint_takes_are_sent() -> None:
    with server_of("openai", "responses.compact") as server:
        async with model_of(server, extra_body={"service_tier": "flex", "metadata": {"a": "b"}}) as model:
            await model.compact(request_of(model, [UserItem(text="x")]))
    assert server.compacted[0].json.keys() == {"model", "instructions", "input", "prompt_cache_key", "service_tier"}


# -- tool clearing


CLEARING = ToolClearing(trigger=1_000, keep=1, at_least=100, exclude=("notes",))


def test_tool_clearing_is_asked_for_where_the_model_has_it() -> None:
    model = MessagesModel("claude-opus-5-5", ModelSettings(tool_clearing=CLEARING))
    request = request_of(model, [UserItem(text="x")])
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 1_000},
        "keep": {"type": "tool_uses", "value": 1},
        "clear_at_least": {"type": "input_tokens", "value": 100},
        "exclude_tools": ["notes"],
    }
    for body in (model.body(request), model.count_body(request)):
        assert json.loads(body)["context_management"] == {"edits": [edit]}
    assert CLEARING_BETA in model.headers(request)["anthropic-beta"].split(",")
    bare = MessagesModel("claude-opus-5-5", ModelSettings(tool_clearing=ToolClearing(trigger=9)))
    assert json.loads(bare.body(request))["context_management"]["edits"][0].keys() == {"type", "trigger", "keep"}


@pytest.mark.parametrize("make", [MessagesModel, ResponsesModel])
def test_tool_clearing_is_not_asked_of_a_model_without_it(make: Callable[..., Any]) -> None:
    model = make("some-model", ModelSettings(tool_clearing=CLEARING))
    request = request_of(model, [UserItem(text="x")])
    assert b"context_management" not in model.body(request) + model.count_body(request)
    assert CLEARING_BETA not in model.headers(request).get("anthropic-beta", "")


async def test_what_the_provider_cleared_is_in_the_reply_and_reasoning_stays_valid() -> None:
    with server_of("anthropic", "summarize") as server:
        async with model_of(server, tool_clearing=replace(CLEARING, at_least=0)) as model:
            source, kept = await conversation(model)
            reply = await sent(model, [*source, *kept])
    (applied,) = reply.transformations
    assert applied["type"] == "clear_tool_uses_20250919" and applied["cleared_tool_uses"] == 1
    assert server.rejected == []
    assert not any(isinstance(item, ToolCallItem) for item in reply.items)
