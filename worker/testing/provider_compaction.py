"""Context management by the provider server: how a compaction looks on each wire, and what the model then sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from worker.items import ContextItem
from worker.models.base import NativeWay
from worker.models.encoding import context_text
from worker.testing.provider_seals import open_memory, seal_memory
from worker.testing.provider_steps import Compaction
from worker.testing.provider_wires import Frames, Tokens, WireName, history, sse

COMPACT_PATH = "/v1/responses/compact"
CLEARED = "[old tool result cleared by the provider]"
CLEAR, COMPACT = "clear_tool_uses_20250919", "compact_20260112"

Block: TypeAlias = dict[str, Any]


class Seen(NamedTuple):
    """What the model behind the server reads of a request, and what was cleared from it."""

    body: dict[str, Any]
    applied: list[dict[str, Any]]


def seen(wire: WireName, body: dict[str, Any]) -> Seen:
    """A request as the model reads it: memories opened, old tool results cleared where that was asked for.

    A memory is a text of the user's side, wrapped as a context item of kind `summary`.
    """
    if wire == "openai":
        items: list[Block] = []
        for item in cast("list[Block]", body.get("input") or []):
            if item.get("type") == "compaction":
                # What stood before the newest one is in it.
                items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": _text(item)}]}]
            elif item.get("type") != "compaction_trigger":
                items.append(item)
        return Seen(body | {"input": items}, [])
    if wire == "anthropic":
        messages: list[Block] = []
        for message in cast("list[Block]", body.get("messages") or []):
            content = message.get("content")
            blocks = cast("list[Block]", content) if isinstance(content, list) else []
            if blocks and blocks[0].get("type") == "compaction":
                messages.append({"role": "user", "content": [{"type": "text", "text": _text(blocks[0])}]})
                if blocks[1:]:
                    messages.append(message | {"content": blocks[1:]})
            else:
                messages.append(message)
        return _cleared(body | {"messages": messages})
    return Seen(body, [])


def way_of(wire: WireName, path: str, body: dict[str, Any]) -> NativeWay | None:
    """The way by which a request asks for a compaction, None where it does not."""
    if wire == "openai":
        if path == COMPACT_PATH:
            return "responses.compact"
        items = cast("list[Any]", body.get("input") or [])
        triggers = any(isinstance(x, dict) and cast("Block", x).get("type") == "compaction_trigger" for x in items)
        return "compaction_trigger" if triggers else None
    if wire == "anthropic":
        if body.get("compaction") is not None:
            return "summarize"
        edit = next((x for x in edits(body) if x.get("type") == COMPACT), None)
        if edit is not None and size(body) >= threshold(edit):
            return "threshold_edit"
    return None


def edits(body: dict[str, Any]) -> list[Block]:
    """The context edits that a request asks for."""
    managed = body.get("context_management")
    return cast("list[Block]", cast("Block", managed).get("edits") or []) if isinstance(managed, dict) else []


def threshold(edit: Block) -> int:
    """The trigger of an edit in input tokens."""
    return int(cast("Block", edit.get("trigger") or {}).get("value", 150_000))


def size(body: object) -> int:
    """The tokens of a request as this server counts them."""
    return max(len(json.dumps(body)) // 4, 1)


def compaction_answer(way: NativeWay, step: Compaction, body: dict[str, Any], number: int) -> Frames | Block:
    """The events of a compaction, or for the endpoint of its own the whole answer."""
    usage = step.usage
    if usage == "auto":
        usage = Tokens(size(body), max(len(step.summary or "") // 4, 1))
    if way in ("summarize", "threshold_edit"):
        return _messages(step, body, number, usage)
    return _responses(way, step, body, number, usage)


def _messages(step: Compaction, body: dict[str, Any], number: int, usage: Tokens) -> Frames:
    events: list[bytes] = []

    def emit(kind: str, **rest: Any) -> None:
        events.append(sse({"type": kind, **rest}, kind))

    message: Block = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
    }
    emit("message_start", message=message | {"usage": {"input_tokens": 0, "output_tokens": 0}})
    block: Block = {"type": "compaction", "content": None, "encrypted_content": None}
    block["signature"] = seal_memory(body, history("anthropic", body), step.summary or "")
    emit("content_block_start", index=0, content_block=block)
    if step.summary is not None:
        emit("content_block_delta", index=0, delta={"type": "compaction_delta", "content": step.summary})
    emit("content_block_stop", index=0)
    if step.beside:
        emit("content_block_start", index=1, content_block={"type": "text", "text": step.beside})
        emit("content_block_stop", index=1)
    end = len(events)
    iteration = {
        "type": "compaction",
        "input_tokens": usage.input - usage.cached - usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": usage.output,
    }
    delta = {"stop_reason": "end_turn" if step.beside else "compaction", "stop_sequence": None}
    emit("message_delta", delta=delta, usage={"output_tokens": 0, "iterations": [iteration]})
    emit("message_stop")
    return Frames(events, end)


def _responses(way: NativeWay, step: Compaction, body: dict[str, Any], number: int, usage: Tokens) -> Frames | Block:
    blocks = [(role, x) for role, x in history("openai", body) if x.get("type") != "compaction_trigger"]
    output: list[Block] = []
    if step.beside:
        content = [{"type": "output_text", "text": step.beside, "annotations": list[Any]()}]
        output.append({"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content})
    if step.summary is not None:
        sealed = seal_memory(body, blocks, step.summary)
        output.append({"id": f"cmp_{number}", "type": "compaction", "encrypted_content": sealed})
    figures = {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
    if way == "responses.compact":
        said = [x for role, x in blocks if role == "user"]
        answer = {"id": f"resp_{number}", "object": "response.compaction", "created_at": 0}
        return answer | {"output": [*said, *output], "usage": figures}
    response: Block = {"id": f"resp_{number}", "object": "response", "model": body.get("model"), "output": []}
    events = [sse({"type": "response.created", "response": response | {"status": "in_progress"}}, "response.created")]
    for index, item in enumerate(output):
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        events.append(sse(done, "response.output_item.done"))
    final = response | {"status": "completed", "output": output, "usage": figures}
    return Frames([*events, sse({"type": "response.completed", "response": final}, "response.completed")], len(events))


def _text(block: Block) -> str:
    memory = open_memory(block)
    return context_text(ContextItem(kind="summary", text=memory.summary if memory else "", source="the provider"))


def _cleared(body: dict[str, Any]) -> Seen:
    """The request without the content of its old tool results, where an edit asks for that."""
    edit = next((x for x in edits(body) if x.get("type") == CLEAR), None)
    if edit is None or size(body) <= threshold(edit):
        return Seen(body, [])
    messages = cast("list[Block]", body.get("messages") or [])
    blocks = [block for _, block in history("anthropic", body)]
    names = {block.get("id"): block.get("name") for block in blocks if block.get("type") == "tool_use"}
    keep = int(cast("Block", edit.get("keep") or {}).get("value", 3))
    kept = set(list(names)[max(len(names) - keep, 0) :])
    kept |= {call for call, name in names.items() if name in cast("list[Any]", edit.get("exclude_tools") or [])}
    removed: list[int] = []

    def clear(block: Block) -> Block:
        if block.get("type") != "tool_result" or block.get("tool_use_id") in kept or block.get("content") == CLEARED:
            return block
        removed.append(len(json.dumps(block.get("content"))) // 4)
        return block | {"content": CLEARED}

    changed = [_mapped(message, clear) for message in messages]
    if not removed or sum(removed) < int(cast("Block", edit.get("clear_at_least") or {}).get("value", 0)):
        return Seen(body, [])
    applied = {"type": CLEAR, "cleared_tool_uses": len(removed), "cleared_input_tokens": sum(removed)}
    return Seen(body | {"messages": changed}, [applied])


def _mapped(message: Block, change: Callable[[Block], Block]) -> Block:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": [change(block) for block in cast("list[Block]", content)]}
