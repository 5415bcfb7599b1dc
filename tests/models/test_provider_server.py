"""The scripted provider server itself: what strict mode refuses, what is recorded, that it ends."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from worker.testing.provider_rules import problem
from worker.testing.provider_server import (
    Answer,
    Call,
    Empty,
    ErrorEvent,
    Http,
    ProviderServer,
    Raw,
    RecordedRequest,
    Tokens,
)

CHAT, MESSAGES, RESPONSES = "/chat/completions", "/v1/messages", "/responses"


def post(server: ProviderServer, path: str, body: object) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def chat(*messages: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **rest}


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def asks(*ids: str, arguments: str = "{}", name: str = "t") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


CHAT_WRONG = {
    "an orphan result": (chat(user(), tool("a")), "preceding message"),
    "an unanswered call": (chat(user(), asks("a")), "must be followed"),
    "a call answered too late": (chat(user(), asks("a"), user()), "must be followed"),
    "one of two calls unanswered": (chat(user(), asks("a", "b"), tool("a"), user()), "must be followed"),
    "two user messages": (chat(user(), user()), "alternate"),
    "an empty assistant message": (chat(user(), {"role": "assistant", "content": ""}), "must have content"),
    "an empty user message": (chat(user("")), "empty"),
    "broken arguments": (chat(user(), asks("a", arguments='{"x'), tool("a")), "not valid JSON"),
    "arguments that are no object": (chat(user(), asks("a", arguments="[1]"), tool("a")), "JSON object"),
    "half a character in arguments": (chat(user(), asks("a", arguments='{"x":"\\ud83d"}'), tool("a")), "surrogate"),
    "a bad tool name in history": (chat(user(), asks("a", name="x y"), tool("a")), "name"),
    "a doubled id": (chat(user(), asks("a", "a"), tool("a"), tool("a")), "duplicate"),
    "no model": ({"messages": [user()]}, "model"),
    "no message": (chat(), "at least one"),
    "a bad tool name": (
        chat(user(), tools=[{"function": {"name": "a b", "parameters": {"type": "object"}}}]),
        "tools.0.name",
    ),
    "a schema of another type": (
        chat(user(), tools=[{"function": {"name": "a", "parameters": {"type": "string"}}}]),
        "schema",
    ),
    "half a character": (chat(user("\ud83d")), "surrogate"),
    "not JSON": (b"{", "not valid JSON"),
    "NaN": (b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}', "NaN"),
    "not UTF-8": (b'{"model":"\xff"}', "not valid JSON"),
}


def block(kind: str, **rest: Any) -> dict[str, Any]:
    return {"type": kind, **rest}


def says(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


USE, RESULT = block("tool_use", id="a", name="t", input={}), block("tool_result", tool_use_id="a", content="r")
TEXT = block("text", text="x")


def messages(*parts: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": list(parts), **rest}


MESSAGES_WRONG = {
    "an orphan result": (messages(user([RESULT])), "unexpected tool_use_id"),
    "an unanswered call": (messages(user(), says(USE)), "without tool_result"),
    "a call answered too late": (
        messages(user(), says(USE), user([TEXT]), says(TEXT), user([RESULT])),
        "without tool_result",
    ),
    "a result behind text": (messages(user(), says(USE), user([TEXT, RESULT])), "must come first"),
    "two user messages": (messages(user(), user()), "alternate"),
    "an assistant message first": (messages(says(TEXT)), "first message"),
    "empty content": (messages(user(), says()), "non-empty"),
    "blank text": (messages(user([block("text", text=" ")])), "non-whitespace"),
    "thinking at the end": (messages(user(), says(block("thinking", thinking="t", signature="s"))), "final block"),
    "a doubled id": (messages(user(), says(USE), user([RESULT]), says(USE), user([RESULT])), "unique"),
    "input that is no object": (messages(user(), says({**USE, "input": "x"}), user([RESULT])), "must be an object"),
    "a bad id": (
        messages(user(), says({**USE, "id": "a b"}), user([{**RESULT, "tool_use_id": "a b"}])),
        "does not match",
    ),
    "temperature": (messages(user(), temperature=1), "not permitted"),
    "no max_tokens": ({"model": "m", "messages": [user()]}, "max_tokens"),
    "a budget above the limit": (
        messages(user(), thinking={"type": "enabled", "budget_tokens": 2_000}),
        "budget_tokens",
    ),
}

FC, FCO = (
    block("function_call", call_id="a", name="t", arguments="{}"),
    block("function_call_output", call_id="a", output="r"),
)
REASONING = block("reasoning", id="rs", encrypted_content="x")
ASK = block("message", role="user", content="x")

RESPONSES_WRONG = {
    "an orphan output": ([ASK, FCO], "No tool call found"),
    "an unanswered call": ([ASK, FC], "No tool output found"),
    "broken arguments": ([ASK, {**FC, "arguments": "{"}, FCO], "not valid JSON"),
    "reasoning alone": ([ASK, REASONING], "following item"),
    "reasoning before a user message": ([REASONING, ASK], "following item"),
    "an id without its reasoning": ([ASK, {**FC, "id": "fc"}, FCO], "required reasoning item"),
    "reasoning that was not stored": ([ASK, {**REASONING, "encrypted_content": None}, FC, FCO], "not persisted"),
    "an empty message": ([{**ASK, "content": []}], "empty"),
    "no input": ([], "at least one"),
}


@pytest.mark.parametrize("name", CHAT_WRONG)
def test_strict_chat_refuses(name: str) -> None:
    body, words = CHAT_WRONG[name]
    refused("openai-chat", CHAT, body, words)


@pytest.mark.parametrize("name", MESSAGES_WRONG)
def test_strict_messages_refuses(name: str) -> None:
    body, words = MESSAGES_WRONG[name]
    refused("anthropic", MESSAGES, body, words)


@pytest.mark.parametrize("name", RESPONSES_WRONG)
def test_strict_responses_refuses(name: str) -> None:
    items, words = RESPONSES_WRONG[name]
    refused("openai", RESPONSES, {"model": "m", "input": items}, words)


def refused(wire: Any, path: str, body: object, words: str) -> None:
    with ProviderServer([Answer("ok")], wire=wire, strict=True) as server:
        status, answer = post(server, path, body)
        assert status == 400 and words in json.loads(answer)["error"]["message"]
        assert len(server.rejected) == 1 and server.remaining == 1
    with ProviderServer([Empty()], wire=wire) as server:
        if isinstance(body, dict):
            assert post(server, path, body)[0] == 200, "without strict it is taken"


def test_strict_mode_takes_what_is_right() -> None:
    good = chat(user(), asks("a", "b"), tool("b"), tool("a"), user(), {"role": "assistant", "content": "x"}, user())
    assert problem("openai-chat", json.dumps(good).encode()) is None
    history = messages(user(), says(block("thinking", thinking="t", signature="s"), USE), user([RESULT, TEXT]))
    assert problem("anthropic", json.dumps(history).encode()) is None
    items = [ASK, REASONING, {**FC, "id": "fc"}, FCO, ASK]
    assert problem("openai", json.dumps({"model": "m", "input": items}).encode()) is None


def test_requests_are_recorded_and_a_script_that_is_used_up_says_so() -> None:
    with ProviderServer([Answer("one")]) as server:
        assert post(server, CHAT, chat(user()))[0] == 200
        status, answer = post(server, CHAT, chat(user("again")))
        assert status == 400 and b"no step" in answer
        assert [r.json["messages"][0]["content"] for r in server.requests] == ["hi", "again"]
        assert server.requests[0].path == "/v1/chat/completions" and server.requests[0].method == "POST"
        assert server.requests[0].headers["content-type"] == "application/json"
        assert server.remaining == 0


def test_a_function_can_answer() -> None:
    def respond(request: RecordedRequest) -> Http:
        return Http(418, {"echo": request.json["model"]}, {"x-y": "z"})

    with ProviderServer(respond) as server:
        assert post(server, CHAT, chat(user())) == (418, b'{"echo": "m"}')


def test_another_path_is_not_found() -> None:
    with ProviderServer([Answer("x")], wire="anthropic") as server:
        assert post(server, "/v1/chat/completions", chat(user()))[0] == 404
        assert server.remaining == 1


@pytest.mark.parametrize(("wire", "path"), [("openai-chat", CHAT), ("openai", RESPONSES), ("anthropic", MESSAGES)])
def test_a_window_answers_with_the_wires_overflow(wire: Any, path: str) -> None:
    body = {
        "openai-chat": chat(user("x" * 900)),
        "openai": {"model": "m", "input": [ASK, ASK] * 20},
        "anthropic": messages(user("x" * 900)),
    }[wire]
    with ProviderServer([Answer("x")], wire=wire, max_input_tokens=100) as server:
        status, answer = post(server, path, body)
    assert status == 400
    assert {
        "openai-chat": b"maximum context length is 100",
        "openai": b"context_length_exceeded",
        "anthropic": b"> 100 maximum",
    }[wire] in answer


def test_usage_is_written_in_each_wires_dialect() -> None:
    tokens = Tokens(100, 5, cached=60, cache_write=30)
    with ProviderServer([Answer("x", usage=tokens)], wire="anthropic") as server:
        assert b'"input_tokens": 10, "cache_read_input_tokens": 60' in post(server, MESSAGES, messages(user()))[1]
    with ProviderServer([Answer("x", usage=tokens)]) as server:
        assert b'"prompt_tokens": 100' in post(server, CHAT, chat(user()))[1]


def test_leaving_the_block_ends_every_thread_and_socket_also_of_a_silent_stream() -> None:
    before = set(threading.enumerate())
    with ProviderServer([Answer("a b", fault="silence"), Answer("a", calls=[Call("t")])]) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        held = socket.create_connection(("127.0.0.1", port), timeout=10)
        body = json.dumps(chat(user())).encode()
        held.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert held.recv(15) == b"HTTP/1.1 200 OK"
        idle = socket.create_connection(("127.0.0.1", port), timeout=10)
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    held.close()
    idle.close()
    with pytest.raises(RuntimeError):
        _ = server.url


WRONG: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "an error event of text": (ErrorEvent, "boom", "ErrorEvent.error must be an object"),
    "an error that is no JSON": (ErrorEvent, {"message": object()}, "ErrorEvent.error can't be written"),
    "a text before that is none": (lambda x: ErrorEvent({}, x), 3, "ErrorEvent.before"),
    "an answer of bytes": (Answer, b"hello", "Answer.text"),
    "one call instead of a list": (lambda x: Answer(calls=x), Call("t"), "Answer.calls must be a list"),
    "calls by name": (lambda x: Answer(calls=x), ["t"], r"Answer.calls\[0\] must be a Call"),
    "usage as a number": (lambda x: Answer(usage=x), 12, "Answer.usage"),
    "usage below nothing": (lambda x: Answer(usage=x), Tokens(-1, 0), "Answer.usage.input"),
    "a fault of another name": (lambda x: Answer(fault=x), "slow", "Answer.fault must be None, 'cut'"),
    "a negative pause": (lambda x: Answer(pause=x), -1.0, "Answer.pause"),
    "pings that are no number": (lambda x: Answer(pings=x), True, "Answer.pings"),
    "a status of text": (Http, "429", "Http.status must be a whole number"),
    "a status that is none": (Http, 42, "Http.status must be at least 100"),
    "a status above all": (Http, 777, "Http.status must be at most 599"),
    "a body that is no JSON": (lambda x: Http(200, x), {1, 2}, "Http.body can't be written"),
    "a header that is a number": (lambda x: Http(429, headers=x), {"retry-after": 1}, "retry-after"),
    "events as one text": (Raw, "data: x", "Raw.events must be a list"),
    "an event that is no JSON": (Raw, [object()], r"Raw.events\[0\]"),
    "arguments as a list": (lambda x: Call("t", x), [1], "Call.arguments must be an object"),
    "one step instead of a list": (ProviderServer, Answer("x"), "a script must be a list of steps"),
    "a text among the steps": (ProviderServer, [Answer("x"), "boom"], r"steps\[1\] must be a step"),
    "a wire of another name": (lambda x: ProviderServer([], wire=x), "chat", "wire must be 'openai-chat'"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_wrong_step_raises_where_it_is_made(case: str) -> None:
    make, value, words = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=words):
        make(value)


def test_a_function_that_gives_no_step_is_named_in_the_answer() -> None:
    with ProviderServer(lambda _: "boom") as server:  # type: ignore[arg-type, return-value]
        status, body = post(server, CHAT, chat(user()))
    assert status == 400 and b"gave no step, but str 'boom'" in body
