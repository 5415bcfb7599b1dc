"""What a strict provider rejects: rules over the body of a request, each with the words of its refusal."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from worker.testing.provider_wires import WireName

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


def problem(wire: WireName, raw: bytes) -> str | None:
    """What is wrong with a request, or None.

    Checked on all wires: valid UTF-8 and JSON without lone surrogates, tool names and schemas, a result for each call
    and a call for each result, arguments that are a JSON object. Chat and Messages also: roles alternate, no empty
    assistant message. Messages: results stand first in the message right after their calls, and with a thinking budget
    an open tool loop begins with thinking. Responses: reasoning is followed by an item that was made with it, and that
    has its id where the reasoning has.
    """
    try:
        text = raw.decode()
        body: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        return f"the body is not valid JSON: {e}"
    if _surrogate(body):
        return "the body is not valid JSON: no low surrogate in string"
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    request = cast("dict[str, Any]", body)
    if not request.get("model"):
        return "model: field required"
    wrong = _tools(wire, request)
    if wrong:
        return wrong
    match wire:
        case "openai-chat":
            return _chat(cast("list[dict[str, Any]]", request.get("messages") or []))
        case "openai":
            return _responses(request.get("input") or [])
        case "anthropic":
            return _anthropic(request)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _surrogate(value: object) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= ch <= "\udfff" for ch in value) if not value.isascii() else False
    if isinstance(value, list):
        return any(_surrogate(x) for x in cast("list[object]", value))
    if isinstance(value, dict):
        return any(_surrogate(k) or _surrogate(v) for k, v in cast("dict[object, object]", value).items())
    return False


def _tools(wire: WireName, request: dict[str, Any]) -> str | None:
    for i, tool in enumerate(cast("list[dict[str, Any]]", request.get("tools") or [])):
        spec: dict[str, Any] = tool.get("function") or {} if wire == "openai-chat" else tool
        name = spec.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            return f"tools.{i}.name: does not match {_NAME.pattern}"
        schema = spec.get("input_schema" if wire == "anthropic" else "parameters")
        if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
            return f"Invalid schema for function {name!r}: schema must be of type object"
        if not isinstance(cast("dict[str, Any]", schema).get("properties", {}), dict):
            return f"Invalid schema for function {name!r}: properties must be an object"
    return None


def _arguments(text: object, where: str) -> str | None:
    try:
        value: object = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return f"{where}: arguments are not valid JSON"
    if not isinstance(value, dict):
        return f"{where}: arguments must be a JSON object"
    return f"{where}: arguments hold a lone surrogate" if _surrogate(cast("object", value)) else None


def _chat(messages: list[dict[str, Any]]) -> str | None:
    open_calls: list[str] = []
    before = ""
    if not messages:
        return "messages: at least one is required"
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        where = f"messages.[{i}]"
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_calls:
                return f"{where}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            open_calls.remove(cast("str", call_id))
            before = "tool"
            continue
        if open_calls:
            return f"{where}: 'tool_calls' must be followed by tool messages, missing: {open_calls}"
        if role in ("user", "assistant") and role == before:
            return f"{where}: roles must alternate user/assistant"
        if role == "user" and not content:
            return f"{where}: user message is empty"
        if role == "assistant":
            calls = cast("list[dict[str, Any]]", message.get("tool_calls") or [])
            if not content and not calls:
                return f"{where}: assistant message must have content or tool_calls"
            for call in calls:
                function: dict[str, Any] = call.get("function") or {}
                if not _NAME.match(str(function.get("name"))):
                    return f"{where}: function name does not match {_NAME.pattern}"
                wrong = _arguments(function.get("arguments"), where)
                if wrong:
                    return wrong
                open_calls.append(str(call.get("id")))
            if len(set(open_calls)) < len(open_calls):
                return f"{where}: duplicate tool call id"
        before = str(role)
    return (
        f"an assistant message with 'tool_calls' must be followed by tool messages, missing: {open_calls}"
        if open_calls
        else None
    )


def _responses(items: object) -> str | None:
    if not isinstance(items, list) or not items:
        return "input: at least one item is required"
    open_calls: dict[str, int] = {}
    seen: set[str] = set()
    entries = cast("list[dict[str, Any]]", items)
    for i, item in enumerate(entries):
        kind, where = item.get("type", "message"), f"input[{i}]"
        if kind == "function_call":
            wrong = _arguments(item.get("arguments"), where)
            if wrong:
                return wrong
            if str(item.get("call_id")) in seen:
                return f"{where}: duplicate call_id"
            seen.add(str(item.get("call_id")))
            open_calls[str(item.get("call_id"))] = i
            if item.get("id") and not _reasoned(entries, i):
                return f"{where}: function_call was provided without its required reasoning item"
        elif kind == "function_call_output":
            if open_calls.pop(str(item.get("call_id")), None) is None:
                return f"No tool call found for function call output with call_id {item.get('call_id')}"
        elif kind == "reasoning":
            follower = entries[i + 1] if i + 1 < len(entries) else {}
            if follower.get("type") not in ("reasoning", "function_call", "message") or follower.get("role") == "user":
                return f"{where}: reasoning was provided without its required following item"
            if not item.get("encrypted_content"):
                return (
                    f"{where}: item with id {item.get('id')!r} not found: items are not persisted when store is false"
                )
            if item.get("id") and follower.get("type") != "reasoning" and not follower.get("id"):
                return f"{where}: reasoning was provided without its required following item (another id, or none)"
        elif kind == "message" and not item.get("content"):
            return f"{where}: content is empty"
    return f"No tool output found for function call {next(iter(open_calls))}" if open_calls else None


def _reasoned(items: list[dict[str, Any]], index: int) -> bool:
    for item in reversed(items[:index]):
        if item.get("type") == "reasoning":
            return True
        if item.get("type") == "function_call_output" or item.get("role") == "user":
            return False
    return False


def _anthropic(request: dict[str, Any]) -> str | None:
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        return "max_tokens: field required"
    for name in ("temperature", "top_p", "top_k"):
        if name in request:
            return f"{name}: Extra inputs are not permitted"
    budget = cast("dict[str, Any]", request.get("thinking") or {}).get("budget_tokens")
    if isinstance(budget, int) and (budget < 1024 or budget >= request["max_tokens"]):
        return "thinking.budget_tokens: must be at least 1024 and less than max_tokens"
    open_calls: set[str] = set()
    used: set[str] = set()
    before = ""
    messages = cast("list[dict[str, Any]]", request.get("messages") or [])
    if not messages:
        return "messages: at least one message is required"
    wrong = _turn_begins_with_thinking(messages) if isinstance(budget, int) else None
    if wrong:
        return wrong
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        where = f"messages.{i}"
        # A compaction is a message of its own: what was kept behind it begins in either role.
        if role == before and not (i == 1 and _is_memory(messages[0])):
            return f"{where}: roles must alternate between user and assistant"
        if i == 0 and role != "user" and not _is_memory(message):
            return f"{where}: the first message must use the user role"
        if not content:
            return f"{where}: all messages must have non-empty content"
        blocks: list[dict[str, Any]] = (
            cast("list[dict[str, Any]]", content) if isinstance(content, list) else [{"type": "text", "text": content}]
        )
        results = {str(b.get("tool_use_id")) for b in blocks if b.get("type") == "tool_result"}
        if results - open_calls:
            return f"{where}: unexpected tool_use_id in tool_result: no tool_use with it in the previous message"
        if open_calls - results:
            missing = sorted(open_calls - results)
            return f"{where}: tool_use ids were found without tool_result blocks immediately after: {missing}"
        open_calls.clear()
        wrong = _blocks(blocks, where, role == "assistant", open_calls, used)
        if wrong:
            return wrong
        before = str(role)
    if open_calls:
        return f"tool_use ids were found without tool_result blocks immediately after: {sorted(open_calls)}"
    return None


def _is_memory(message: dict[str, Any]) -> bool:
    content = message.get("content")
    blocks = cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
    return bool(blocks) and blocks[0].get("type") == "compaction"


def _turn_begins_with_thinking(messages: list[dict[str, Any]]) -> str | None:
    """With a thinking budget, the assistant message before the last tool results must begin with thinking."""
    content = messages[-1].get("content")
    blocks = cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
    if len(messages) < 2 or not any(block.get("type") == "tool_result" for block in blocks):
        return None
    asked = cast("list[dict[str, Any]]", messages[-2].get("content") or [{}])
    if asked[0].get("type") in ("thinking", "redacted_thinking"):
        return None
    return (
        f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{asked[0].get('type')}`. When `thinking` is enabled, a final `assistant` message must start with a thinking "
        "block"
    )


def _blocks(blocks: list[dict[str, Any]], where: str, assistant: bool, calls: set[str], used: set[str]) -> str | None:
    text_seen = False
    for j, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            text_seen = True
            if not str(block.get("text", "")).strip():
                return f"{where}.content.{j}: text content blocks must contain non-whitespace text"
        elif kind == "tool_result" and text_seen:
            return f"{where}.content.{j}: tool_result blocks must come first"
        elif kind == "tool_use":
            call_id = str(block.get("id"))
            if not isinstance(block.get("input"), dict):
                return f"{where}.content.{j}.input: must be an object"
            if not _NAME.match(call_id) or not _NAME.match(str(block.get("name"))):
                return f"{where}.content.{j}: id or name does not match {_NAME.pattern}"
            if call_id in used:
                return f"{where}.content.{j}: tool_use ids must be unique"
            used.add(call_id)
            calls.add(call_id)
    if assistant and blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        return f"{where}: the final block in an assistant message cannot be thinking"
    return None
