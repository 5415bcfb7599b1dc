"""The three wires of the provider server: how a scripted answer looks as a stream, an error as a body."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from worker.testing.checked import as_json, of_type

WireName: TypeAlias = Literal["openai-chat", "openai", "anthropic"]

PATHS: dict[str, WireName] = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai",
    "/v1/messages": "anthropic",
}

COUNT_PATHS: dict[str, WireName] = {"/v1/responses/input_tokens": "openai", "/v1/messages/count_tokens": "anthropic"}
"""Where a wire counts the tokens of an input; `openai-chat` has no such place."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an answer. `arguments` is an object, or the raw text to send, valid or not."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict[str, Any])
    id: str = ""

    def __post_init__(self) -> None:
        of_type("Call.name", self.name, str, "a text")
        of_type("Call.arguments", self.arguments, (dict, str), "an object or the raw text")
        of_type("Call.id", self.id, str, "a text")
        if isinstance(self.arguments, dict):
            as_json("Call.arguments", self.arguments)

    def text(self) -> str:
        """The arguments as they are streamed."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class Tokens(NamedTuple):
    """The usage that an answer reports. `input` is the whole input with what was cached; each wire writes its own
    dialect.
    """

    input: int
    output: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Frames(NamedTuple):
    """A stream as bytes of events; those from `end` on are the terminal part."""

    events: list[bytes]
    end: int


class Content(NamedTuple):
    """What a wire builder streams: the parts of an answer, made definite."""

    model: str
    number: int
    pieces: Sequence[str]
    reasoning: str
    calls: Sequence[tuple[str, str, Sequence[str]]]
    usage: Tokens | None
    stop: str
    refusal: bool
    sign: Callable[[list[Any]], str] | None
    transformations: list[dict[str, Any]]
    applied: list[dict[str, Any]]


def sse(value: object, name: str = "") -> bytes:
    """One event. Strings with lone surrogates are written as escapes."""
    text = value if isinstance(value, str) else _json(value)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "surrogatepass")


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def chat_frames(c: Content) -> Frames:
    """A Chat Completions stream: chunks, a chunk with the reason, the usage chunk, `[DONE]`."""
    base: dict[str, Any] = {
        "id": f"chatcmpl-{c.number}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": c.model,
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        return sse(base | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    events = [chunk({"role": "assistant", "content": ""})]
    if c.reasoning:
        events += [chunk({"reasoning_content": part}) for part in _halves(c.reasoning)]
    events += [chunk({"refusal" if c.refusal else "content": piece}) for piece in c.pieces]
    for index, (call_id, name, arguments) in enumerate(c.calls):
        function = {"name": name, "arguments": ""}
        events.append(
            chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        )
        events += [chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]}) for part in arguments]
    end = len(events)
    events.append(chunk({}, c.stop or None))
    if c.usage is not None:
        usage = {
            "prompt_tokens": c.usage.input,
            "completion_tokens": c.usage.output,
            "total_tokens": c.usage.input + c.usage.output,
            "prompt_tokens_details": {"cached_tokens": c.usage.cached, "cache_write_tokens": c.usage.cache_write},
            "completion_tokens_details": {"reasoning_tokens": c.usage.reasoning},
        }
        events.append(sse({**base, "choices": list[Any](), "usage": usage}))
    events.append(sse("[DONE]"))
    return Frames(events, end)


def responses_frames(c: Content) -> Frames:
    """A Responses stream: created, each item added and done, and the terminal event with the whole response."""
    response: dict[str, Any] = {"id": f"resp_{c.number}", "object": "response", "model": c.model, "output": []}
    events: list[bytes] = []

    def emit(kind: str, **rest: Any) -> None:
        events.append(sse({"type": kind, "sequence_number": len(events), **rest}, kind))

    emit("response.created", response=response | {"status": "in_progress"})
    output: list[dict[str, Any]] = []

    def done(item: dict[str, Any]) -> None:
        emit("response.output_item.done", output_index=len(output), item=item)
        output.append(item)

    if c.reasoning or c.sign:
        sealed = c.sign(output) if c.sign else f"sealed-{c.number}"
        summary = [{"type": "summary_text", "text": c.reasoning}]
        item = {"id": f"rs_{c.number}", "type": "reasoning", "summary": summary, "encrypted_content": sealed}
        emit("response.output_item.added", output_index=len(output), item=item | {"encrypted_content": "partial"})
        for part in _halves(c.reasoning):
            emit("response.reasoning_summary_text.delta", output_index=len(output), delta=part)
        done(item)
    if c.pieces:
        kind, field_name = ("refusal", "refusal") if c.refusal else ("output_text", "text")
        content: list[dict[str, Any]] = [{"type": kind, field_name: "".join(c.pieces), "annotations": list[Any]()}]
        item = {"id": f"msg_{c.number}", "type": "message", "role": "assistant", "status": "completed"}
        emit("response.output_item.added", output_index=len(output), item=item | {"content": []})
        for piece in c.pieces:
            emit(f"response.{kind}.delta", output_index=len(output), content_index=0, delta=piece)
        done(item | {"content": content})
    for index, (call_id, name, arguments) in enumerate(c.calls):
        item = {"id": f"fc_{c.number}_{index}", "type": "function_call", "call_id": call_id, "name": name}
        emit("response.output_item.added", output_index=len(output), item=item | {"arguments": ""})
        for part in arguments:
            emit("response.function_call_arguments.delta", output_index=len(output), delta=part)
        done(item | {"arguments": "".join(arguments), "status": "completed"})
    end = len(events)
    final = response | {"output": output, "status": "completed", "input_transformations": c.transformations}
    if c.usage is not None:
        final["usage"] = {
            "input_tokens": c.usage.input,
            "input_tokens_details": {"cached_tokens": c.usage.cached, "cache_write_tokens": c.usage.cache_write},
            "output_tokens": c.usage.output,
            "output_tokens_details": {"reasoning_tokens": c.usage.reasoning},
            "total_tokens": c.usage.input + c.usage.output,
        }
    if c.stop not in ("completed", ""):
        final |= {"status": "incomplete", "incomplete_details": {"reason": c.stop}}
    kind = f"response.{final['status']}"
    emit(kind, response=final)
    return Frames(events, end)


def anthropic_frames(c: Content) -> Frames:
    """A Messages stream: start, blocks, the reason with the usage, stop. Cached input stands beside `input_tokens`."""
    events: list[bytes] = []
    content: list[dict[str, Any]] = []

    def emit(kind: str, **rest: Any) -> None:
        events.append(sse({"type": kind, **rest}, kind))

    def block(start: dict[str, Any], deltas: Sequence[dict[str, Any]], whole: dict[str, Any]) -> None:
        index = len(content)
        emit("content_block_start", index=index, content_block=start)
        for delta in deltas:
            emit("content_block_delta", index=index, delta=delta)
        emit("content_block_stop", index=index)
        content.append(whole)

    message: dict[str, Any] = {
        "id": f"msg_{c.number}",
        "type": "message",
        "role": "assistant",
        "model": c.model,
        "content": [],
        "stop_reason": None,
        "input_transformations": c.transformations,
    }
    if c.usage is not None:
        message["usage"] = {
            "input_tokens": c.usage.input - c.usage.cached - c.usage.cache_write,
            "cache_read_input_tokens": c.usage.cached,
            "cache_creation_input_tokens": c.usage.cache_write,
            "output_tokens": 1,
        }
    emit("message_start", message=message)
    if c.reasoning or c.sign:
        signature = c.sign(content) if c.sign else f"signature-{c.number}"
        thought = [{"type": "thinking_delta", "thinking": part} for part in _halves(c.reasoning)]
        block(
            {"type": "thinking", "thinking": "", "signature": ""},
            [*thought, {"type": "signature_delta", "signature": signature}],
            {"type": "thinking", "thinking": c.reasoning, "signature": signature},
        )
    if c.pieces:
        deltas = [{"type": "text_delta", "text": piece} for piece in c.pieces]
        block({"type": "text", "text": ""}, deltas, {"type": "text", "text": "".join(c.pieces)})
    for call_id, name, arguments in c.calls:
        start: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        block(start, [{"type": "input_json_delta", "partial_json": part} for part in arguments], start)
    end = len(events)
    usage = {"output_tokens": c.usage.output} if c.usage is not None else {}
    delta = {"stop_reason": c.stop or None, "stop_sequence": None}
    managed = {"context_management": {"applied_edits": c.applied}} if c.applied else {}
    emit("message_delta", delta=delta, usage=usage, **managed)
    emit("message_stop")
    return Frames(events, end)


FRAMES: dict[WireName, Callable[[Content], Frames]] = {
    "openai-chat": chat_frames,
    "openai": responses_frames,
    "anthropic": anthropic_frames,
}

STOPS: dict[WireName, dict[str, str]] = {
    "openai-chat": {"end": "stop", "tool_calls": "tool_calls", "length": "length", "refusal": "stop"},
    "openai": {"end": "completed", "tool_calls": "completed", "length": "max_output_tokens", "refusal": "completed"},
    "anthropic": {
        "end": "end_turn",
        "tool_calls": "tool_use",
        "length": "max_tokens",
        "refusal": "refusal",
        "pause": "pause_turn",
    },
}
"""Our names of stop reasons and each wire's own. A name that is not listed is sent as it is."""


def error_body(
    wire: WireName, message: str, *, kind: str = "invalid_request_error", code: str | None = None
) -> dict[str, Any]:
    """An error in the shape of the wire."""
    if wire == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"}
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


def error_event(wire: WireName, error: dict[str, Any]) -> bytes:
    """An error inside a stream of status 200."""
    if wire == "openai-chat":
        return sse({"error": error})
    if wire == "openai":
        return sse({"type": "error", **error}, "error")
    return sse({"type": "error", "error": error}, "error")


def overflow_body(wire: WireName, requested: int, limit: int) -> dict[str, Any]:
    """The wire's own way to say that the input is larger than the window."""
    if wire == "anthropic":
        return error_body(wire, f"prompt is too long: {requested} tokens > {limit} maximum")
    if wire == "openai":
        return error_body(
            wire,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            code="context_length_exceeded",
        )
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {requested} tokens."
    )
    return error_body(wire, message, code="context_length_exceeded")


def count_body(wire: WireName, tokens: int) -> dict[str, Any]:
    """The wire's answer to a count."""
    return {"input_tokens": tokens} | ({"object": "response.input_tokens"} if wire == "openai" else {})


def history(wire: WireName, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The blocks of a request in order, each with its role: what a signature of reasoning is bound to."""
    blocks: list[tuple[str, dict[str, Any]]] = []
    if wire == "openai":
        return [
            (str(x.get("role", x.get("type", ""))), x) for x in cast("list[dict[str, Any]]", body.get("input") or [])
        ]
    for message in cast("list[dict[str, Any]]", body.get("messages") or []):
        content = message.get("content")
        parts: list[Any] = (
            cast("list[Any]", content) if isinstance(content, list) else [{"type": "text", "text": content}]
        )
        blocks += [(str(message.get("role")), part) for part in parts]
    return blocks


def _halves(text: str) -> list[str]:
    middle = (len(text) + 1) // 2
    return [part for part in (text[:middle], text[middle:]) if part]
