"""The probe matrix of facts, providers 1.2: every way a provider fails, on the three wires and both backends."""

from __future__ import annotations

import gc
import json
import logging
import threading
import warnings
from typing import Any

import anyio
import anyio.to_thread
import pytest

from worker.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    Overloaded,
    ProviderDown,
    QuotaExhausted,
    RateLimited,
    Refused,
    StreamBroken,
    StreamStalled,
)
from worker.items import AssistantItem, ReasoningItem, ToolCallItem, UserItem
from worker.models.base import Delta, ModelSettings
from worker.models.registry import create_model
from worker.testing.provider_server import Answer, Call, Drop, Empty, ErrorEvent, Http, ProviderServer, Raw, Tokens

pytestmark = pytest.mark.anyio


def error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


async def failure(connect: Any, server: ProviderServer, **settings: Any) -> ModelError:
    async with connect(server, **settings) as ask:
        with pytest.raises(ModelError) as caught:
            await ask()
    return caught.value


# -- success


async def test_a_reply_with_every_part_is_assembled(wire: Any, connect: Any) -> None:
    answer = Answer(
        "hé𝄞llo",
        reasoning="because 思",
        calls=[Call("read_file", {"path": "ä"}), Call("read_file", {"path": "b"})],
        usage=Tokens(100, 20, cached=60, cache_write=10),
    )
    with ProviderServer([answer], wire=wire, strict=True) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert [type(item) for item in reply.items] == [ReasoningItem, AssistantItem, ToolCallItem, ToolCallItem]
    assert reply.items[0].text == "because 思"
    assert reply.items[1].text == "hé𝄞llo" == ask.shown()
    assert [item.parsed for item in reply.items[2:]] == [{"path": "ä"}, {"path": "b"}]
    assert ask.shown("reasoning") == "because 思" and ask.shown("call") == "read_fileread_file"
    assert reply.stop == "tool_calls"
    assert reply.usage.input_tokens == 100
    assert (reply.usage.cached_tokens, reply.usage.cache_write_tokens, reply.usage.output_tokens) == (60, 10, 20)
    assert reply.provider_id and reply.model


@pytest.mark.parametrize("size", [1, 3])
async def test_characters_split_over_packets_are_whole(wire: Any, connect: Any, size: int) -> None:
    with ProviderServer([Answer("日本語 𝄞 é", pings=1, split=size)], wire=wire) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert reply.items[0].text == "日本語 𝄞 é" == ask.shown()
    assert "\ufffd" not in ask.shown()


async def test_many_streams_share_one_client(wire: Any, connect: Any) -> None:
    with ProviderServer(lambda request: Answer("x" * 200, pings=1), wire=wire) as server:
        async with connect(server) as ask, anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
    assert len(server.requests) == 20
    assert ask.shown() == "x" * 4_000


async def test_a_finished_stream_gives_its_connection_back(wire: Any, connect: Any) -> None:
    with ProviderServer([Answer("a"), Answer("b"), Answer("c")], wire=wire) as server:
        async with connect(server) as ask:
            for _ in range(3):
                await ask()
            assert server.connections == 1


# -- statuses


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, RateLimited),
        (500, ProviderDown),
        (529, Overloaded),
        (408, ProviderDown),
        (409, ProviderDown),
        (503, Overloaded),
    ],
)
async def test_a_busy_provider_is_asked_once_and_named(wire: Any, connect: Any, status: int, kind: type) -> None:
    """B103, B105: no hidden retry of the SDK; status, id and wait are kept."""
    with ProviderServer([Http(status, error("later", ""), {"retry-after": "7"})], wire=wire) as server:
        raised = await failure(connect, server)
    assert type(raised) is kind
    assert (raised.status, raised.request_id, raised.retry_after) == (status, "req_1", 7.0)
    assert raised.retryable and len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error("unknown field"), BadRequest),
        (401, error("wrong key"), AuthFailed),
        (403, error("no access"), AuthFailed),
        (402, error("pay", "billing_error"), QuotaExhausted),
        (413, error("too big", "request_too_large"), ContextOverflow),
        (413, None, ContextOverflow),
        (400, [error("input token count (9) exceeds the maximum number of tokens allowed (5)")], ContextOverflow),
        (502, "<html>bad gateway</html>", ProviderDown),
    ],
)
async def test_a_refused_request_gets_its_class(wire: Any, connect: Any, status: int, body: Any, kind: type) -> None:
    with ProviderServer([Http(status, body)], wire=wire) as server:
        raised = await failure(connect, server)
    assert type(raised) is kind, raised
    assert raised.status == status


async def test_the_providers_own_overflow_error_is_an_overflow(wire: Any, connect: Any) -> None:
    with ProviderServer([Answer("never")], wire=wire, max_input_tokens=20) as server:
        raised = await failure(connect, server)
        assert server.remaining == 1
    assert type(raised) is ContextOverflow
    assert raised.limit == (None if wire == "openai" else 20)


# -- connections and streams that break


async def test_a_connection_closed_before_the_answer(wire: Any, connect: Any) -> None:
    with ProviderServer([Drop()], wire=wire) as server:
        assert type(await failure(connect, server)) is ProviderDown


async def test_a_refused_connection(wire: Any, connect: Any) -> None:
    with ProviderServer([], wire=wire) as server:
        closing = connect(server)
        ask = await closing.__aenter__()
    with pytest.raises(ProviderDown) as caught:
        await ask()
    await closing.__aexit__(None, None, None)
    assert caught.value.status is None and caught.value.retryable


@pytest.mark.parametrize("fault", ["cut", "reset", "eof"])
@pytest.mark.parametrize("calls", [(), (Call("read_file", {"path": "a"}),)])
async def test_a_stream_without_its_terminal_event_is_no_reply(wire: Any, connect: Any, fault: Any, calls: Any) -> None:
    """B107: also when a complete call came before the end."""
    with ProviderServer([Answer("half an answer", calls=calls, fault=fault)], wire=wire) as server:
        async with connect(server) as ask:
            with pytest.raises(StreamBroken) as caught:
                await ask()
    assert ask.shown() == "half an answer"
    assert caught.value.retryable and caught.value.request_id == "req_1"


async def test_a_failed_attempt_leaves_the_next_one_untouched(wire: Any, connect: Any) -> None:
    """B060: both requests hold the user's message once."""
    with ProviderServer([Answer("ab", fault="cut"), Answer("done")], wire=wire, strict=True) as server:
        async with connect(server) as ask:
            with pytest.raises(StreamBroken):
                await ask([UserItem(text="the task")])
            assert (await ask([UserItem(text="the task")])).items[0].text == "done"
    assert server.requests[0].body == server.requests[1].body
    assert server.requests[1].body.count(b"the task") == 1


@pytest.mark.parametrize("before", ["", "some text"])
async def test_an_error_event_inside_a_stream_is_raised(wire: Any, connect: Any, before: str) -> None:
    event = {"type": "overloaded_error", "message": "Overloaded"}
    if wire == "openai":
        event = {"code": "overloaded_error", "message": "Overloaded"}
    with ProviderServer([ErrorEvent(event, before)], wire=wire) as server:
        assert type(await failure(connect, server)) is Overloaded


async def test_an_overflow_inside_a_stream_is_an_overflow(wire: Any, connect: Any) -> None:
    event = {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}
    with ProviderServer([ErrorEvent(event)], wire=wire) as server:
        assert type(await failure(connect, server)) is ContextOverflow


async def test_a_success_that_holds_an_error_is_an_error(wire: Any, connect: Any) -> None:
    with ProviderServer(
        [Http(200, error("no credit", "insufficient_quota", "insufficient_quota"))], wire=wire
    ) as server:
        raised = await failure(connect, server)
    assert type(raised) is QuotaExhausted and raised.message == "no credit"


async def test_a_success_without_any_event_is_a_candidate_for_overflow(wire: Any, connect: Any) -> None:
    with ProviderServer([Empty()], wire=wire) as server:
        raised = await failure(connect, server)
    assert type(raised) is ContextOverflow and raised.code == "empty_stream"


async def test_a_page_instead_of_a_stream_is_a_provider_that_is_down(wire: Any, connect: Any) -> None:
    with ProviderServer([Http(200, "<html>Log in</html>")], wire=wire) as server:
        raised = await failure(connect, server)
    assert type(raised) is ProviderDown and "base_url" in raised.message


@pytest.mark.parametrize("garbage", [b"data: {not json\n\n", b'data: {"a": "' + b"[" * 10 + b"\n\n"])
async def test_an_event_that_is_no_json_breaks_the_stream(wire: Any, connect: Any, garbage: bytes) -> None:
    with ProviderServer([Raw([garbage])], wire=wire) as server:
        assert type(await failure(connect, server)) is StreamBroken


# -- silence


async def test_a_silent_stream_stalls(wire: Any, connect: Any) -> None:
    """B106."""
    with ProviderServer([Answer("one two", fault="silence", after=4)], wire=wire) as server:
        raised = await failure(connect, server, idle_timeout=0.3)
        assert type(raised) is StreamStalled and raised.retryable
        assert await anyio.to_thread.run_sync(server.requests[0].left.wait, 5)


async def test_pings_do_not_keep_a_stream_alive(wire: Any, connect: Any) -> None:
    """B106."""
    with ProviderServer([Answer("ab", pings=60, pause=0.05)], wire=wire) as server:
        raised = await failure(connect, server, idle_timeout=0.5)
    assert type(raised) is StreamStalled


async def test_slow_fragments_of_arguments_are_no_silence(wire: Any, connect: Any) -> None:
    """B106: the whole takes longer than the limit, each gap does not."""
    answer = Answer("", calls=[Call("read_file", {"path": "abcdefgh"})], pause=0.06)
    with ProviderServer([answer], wire=wire) as server:
        async with connect(server, idle_timeout=0.4) as ask:
            started = anyio.current_time()
            reply = await ask()
            assert anyio.current_time() - started > 0.4
    assert reply.items[0].parsed == {"path": "abcdefgh"}


async def test_the_read_timeout_before_the_answer_is_a_provider_that_is_down(wire: Any, connect: Any) -> None:
    release = threading.Event()

    def hold(request: Any) -> Answer:
        release.wait(10)
        return Answer("late")

    with ProviderServer(hold, wire=wire) as server:
        raised = await failure(connect, server, read_timeout=0.3)
        release.set()
    assert type(raised) is ProviderDown


async def test_the_read_timeout_in_mid_stream_is_a_stall(wire: Any, connect: Any) -> None:
    with ProviderServer([Answer("one two", fault="silence", after=3)], wire=wire) as server:
        raised = await failure(connect, server, read_timeout=0.3)
    assert type(raised) is StreamStalled


# -- cancellation and what is left behind


async def test_a_cancelled_stream_closes_its_connection_and_the_model_goes_on(wire: Any, connect: Any) -> None:
    with ProviderServer([Answer("one two", fault="silence", after=4), Answer("again")], wire=wire) as server:
        async with connect(server) as ask:
            seen = anyio.Event()

            def emit(delta: Delta) -> None:
                seen.set()

            async with anyio.create_task_group() as group:

                async def run() -> None:
                    await ask(emit=emit)
                    raise AssertionError("the stream cannot end")

                group.start_soon(run)
                await seen.wait()
                group.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(server.requests[0].left.wait, 5)
            assert (await ask()).items[0].text == "again"


async def test_cancelled_while_waiting_for_the_answer(wire: Any, connect: Any) -> None:
    release = threading.Event()

    def hold(request: Any) -> Answer:
        release.wait(10)
        return Answer("late")

    with ProviderServer(hold, wire=wire) as server:
        async with connect(server) as ask, anyio.create_task_group() as group:
            group.start_soon(ask)
            while not server.requests:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        release.set()
        assert await anyio.to_thread.run_sync(server.requests[0].left.wait, 5)


async def test_an_observer_that_raises_is_not_taken_for_a_broken_stream(wire: Any, connect: Any) -> None:
    def emit(delta: Delta) -> None:
        raise OSError("the terminal is gone")

    with ProviderServer([Answer("hello there")], wire=wire) as server:
        async with connect(server) as ask:
            with pytest.raises(OSError, match="terminal is gone"):
                await ask(emit=emit)
        assert await anyio.to_thread.run_sync(server.requests[0].left.wait, 5)


async def test_no_way_to_end_leaves_a_warning_behind(wire: Any, connect: Any) -> None:
    """The ini file forgives generators of the SDKs; here nothing is forgiven."""
    steps = [
        Answer("ok"),
        Answer("x y", fault="eof"),
        Answer("x y", fault="cut"),
        Answer("x y", fault="reset"),
        Answer("x y", fault="silence"),
        ErrorEvent({"type": "overloaded_error", "message": "m"}, "x"),
        Empty(),
        Http(200, error("x")),
        Http(500, error("x")),
        Raw([b"data: nonsense\n\n", b"data: more\n\n"]),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ProviderServer(steps, wire=wire) as server:
            async with connect(server, idle_timeout=0.3) as ask:
                for _ in steps:
                    try:
                        await ask()
                    except ModelError:
                        pass
                gc.collect()
            assert server.remaining == 0
        gc.collect()
    assert [str(w.message) for w in caught] == []


# -- keys


async def test_a_missing_key_is_named_at_the_first_send(wire: Any, connect: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("POD_TEST_KEY", raising=False)
    with ProviderServer([Answer("x")], wire=wire) as server:
        async with connect(server, api_key_env="POD_TEST_KEY") as ask:
            with pytest.raises(AuthFailed, match="POD_TEST_KEY"):
                await ask()
            monkeypatch.setenv("POD_TEST_KEY", "sk-pod-secret-0123456789")
            assert (await ask()).stop == "end"
    headers = server.requests[0].headers
    assert "sk-pod-secret-0123456789" in (headers.get("authorization") or "") + (headers.get("x-api-key") or "")


async def test_the_vendors_key_goes_to_no_other_host(wire: Any, connect: Any, monkeypatch: Any) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-vendor-secret-0123456789")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    with ProviderServer([Answer("x")], wire=wire) as server:
        async with connect(server) as ask:
            await ask()
    sent = json.dumps(server.requests[0].headers)
    assert "sk-vendor" not in sent and "org-secret" not in sent


async def test_a_key_reaches_no_log_and_no_error(wire: Any, connect: Any, monkeypatch: Any, caplog: Any) -> None:
    secret = "sk-pod-secret-0123456789"
    monkeypatch.setenv("POD_TEST_KEY", secret)
    caplog.set_level(logging.DEBUG)
    steps = [Answer("x"), Http(401, error(f"the key {secret} is wrong")), Answer("x y", fault="cut")]
    with ProviderServer(steps, wire=wire) as server:
        async with connect(server, api_key_env="POD_TEST_KEY") as ask:
            await ask()
            for _ in range(2):
                with pytest.raises(ModelError) as caught:
                    await ask()
                chain = [caught.value, caught.value.__cause__, caught.value.__context__]
                assert secret not in repr(chain) + str(caught.value)
    assert secret not in caplog.text


def test_one_model_serves_one_event_loop_after_another(wire: Any, asker: Any) -> None:
    """B165."""

    async def run(model: Any) -> str:
        reply = await asker(model)()
        await model.aclose()
        return reply.items[0].text

    with ProviderServer([Answer("a"), Answer("b")], wire=wire) as server:
        names = {"openai-chat": "openai-chat:m", "openai": "openai:m", "anthropic": "anthropic:m"}
        model = create_model(names[wire], ModelSettings(base_url=server.url))
        assert anyio.run(run, model, backend="asyncio") == "a"
        assert anyio.run(run, model, backend="trio") == "b"


async def test_a_refusal_keeps_its_text(wire: Any, connect: Any) -> None:
    """B117."""
    with ProviderServer([Answer("I cannot help", refusal=True)], wire=wire) as server:
        async with connect(server) as ask:
            reply = await ask()
    assert reply.stop == "refusal"
    assert reply.items[0].text == "I cannot help"
    assert reply.usage.output_tokens > 0


async def test_a_refused_prompt_is_a_refusal(wire: Any, connect: Any) -> None:
    """B117."""
    with ProviderServer([Http(400, error("blocked", "invalid_request_error", "content_filter"))], wire=wire) as server:
        assert type(await failure(connect, server)) is Refused


@pytest.mark.parametrize("key", ["sk-“quoted”", "sk-one\nsk-two", "sk one"])
async def test_a_key_with_impossible_characters_is_named_by_its_variable_only(
    wire: Any, connect: Any, monkeypatch: Any, key: str
) -> None:
    monkeypatch.setenv("POD_TEST_KEY", key)
    with ProviderServer([Answer("x")], wire=wire) as server:
        raised = await failure(connect, server, api_key_env="POD_TEST_KEY")
    assert type(raised) is AuthFailed and "POD_TEST_KEY" in raised.message and key not in raised.message


async def test_a_stream_under_the_wrong_content_type_is_read(connect: Any) -> None:
    events = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    with ProviderServer([Http(200, events)]) as server:
        async with connect(server) as ask:
            assert (await ask()).items[0].text == "hi"
