"""What was said, as attributes of spans: only where that was asked for, masked, and bounded. Pure but for the environment's secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pod.log.redacting import gate_of
from pod.otel.works import Attributes
from worker.items import (
    AssistantItem,
    ContextItem,
    Item,
    OpaqueItem,
    OrderItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)
from worker.memory import read_by_others
from worker.records import ReplyRecord, ToolResult
from worker.text import clipped
from worker.tracing import ModelWork, ToolWork

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Asks for content where code does not say."""

LONGEST = 64 * 1024
"""Characters of one attribute; of a history the newest messages stay, whole."""


def wanted(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for content on spans."""
    given = (os.environ if environment is None else environment).get(VARIABLE, "")
    return given.strip().lower() in {"true", "1", "span_only", "span_and_event"}


class Content:
    """What is said, through a gate of its own: also where a pod's `[log] redact` is off, secrets leave with no span."""

    def __init__(self) -> None:
        self._gate = gate_of(True)

    def asked(self, work: ModelWork) -> Attributes:
        """The instructions and the messages of a request."""
        system = [{"type": "text", "content": clipped(work.system, LONGEST)}]
        messages, left_out = self._newest(work.items)
        found: Attributes = {
            "gen_ai.system_instructions": self._text(system),
            "gen_ai.input.messages": self._text(messages),
        }
        return found | ({"pod.content.left_out": left_out} if left_out else {})

    def answered(self, reply: ReplyRecord) -> Attributes:
        """The message of a reply."""
        parts = [part for item in reply.items for part in _parts(item)]
        message = {"role": "assistant", "parts": parts, "finish_reason": reply.native_stop or reply.stop}
        return {"gen_ai.output.messages": self._text([message])}

    def called(self, work: ToolWork) -> Attributes:
        """The arguments of a call."""
        return {"gen_ai.tool.call.arguments": self._gate.masked(clipped(work.call.arguments, LONGEST))}

    def resulted(self, result: ToolResult) -> Attributes:
        """What came of it."""
        return {"gen_ai.tool.call.result": self._gate.masked(clipped(result.item.text(), LONGEST))}

    def _newest(self, items: Sequence[Item]) -> tuple[list[dict[str, Any]], int]:
        room, found = LONGEST, list[dict[str, Any]]()
        for message in _messages(reversed(items)):
            room -= len(json.dumps(message, ensure_ascii=False))
            if room < 0:
                break
            found.append(message)
        found.reverse()
        return found, sum(1 for _ in _messages(items)) - len(found)

    def _text(self, value: Any) -> str:
        return json.dumps(self._gate.masked(value), ensure_ascii=False)


def _messages(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    for item in items:
        if parts := _parts(item):
            yield {"role": _role(item), "parts": parts}


def _role(item: Item) -> str:
    match item:
        case AssistantItem() | ReasoningItem() | ToolCallItem():
            return "assistant"
        case ToolResultItem():
            return "tool"
        case _:
            return "user"


def _parts(item: Item) -> list[dict[str, Any]]:
    match item:
        case UserItem() | AssistantItem() | ContextItem() | OrderItem():
            return [{"type": "text", "content": item.text}]
        case ReasoningItem():
            return [{"type": "reasoning", "content": item.text}] if item.text else []
        case ToolCallItem():
            return [{"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": item.parsed}]
        case ToolResultItem():
            return [{"type": "tool_call_response", "id": item.call_id, "response": item.text()}]
        case OpaqueItem():
            read = read_by_others(item)
            return [] if isinstance(read, OpaqueItem) else _parts(read)
