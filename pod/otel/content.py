"""What was said, as attributes of spans: only where that was asked for, masked, and bounded. Pure but for the environment's secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pod.log.redacting import gate_of
from pod.otel.records import why_ended
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
"""Characters of a history beyond which no older message is taken along."""

PART = 16 * 1024
"""Characters of one text."""


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
        messages, left_out = self._newest(work.items)
        found: Attributes = {
            "gen_ai.system_instructions": _json([{"type": "text", "content": self._text(work.system)}]),
            "gen_ai.input.messages": _json(messages),
        }
        return found | ({"pod.content.left_out": left_out} if left_out else {})

    def answered(self, reply: ReplyRecord) -> Attributes:
        """The message of a reply."""
        parts = [part for item in reply.items if (part := self._part(item)) is not None]
        message = {"role": "assistant", "parts": parts, "finish_reason": why_ended(reply)}
        return {"gen_ai.output.messages": _json([message])}

    def called(self, work: ToolWork) -> Attributes:
        """The arguments of a call."""
        return {"gen_ai.tool.call.arguments": self._text(work.call.arguments)}

    def resulted(self, result: ToolResult) -> Attributes:
        """What came of it."""
        return {"gen_ai.tool.call.result": self._text(result.item.text())}

    def _newest(self, items: Sequence[Item]) -> tuple[list[dict[str, Any]], int]:
        """The newest messages for which there is room, and how many are left out."""
        room, found, left_out = LONGEST, list[dict[str, Any]](), 0
        for item in reversed(items):
            if room <= 0:
                left_out += 1
            elif (part := self._part(item)) is not None:
                message = {"role": _role(item), "parts": [part]}
                room -= len(_json(message))
                found.append(message)
        return found[::-1], left_out

    def _text(self, text: str) -> str:
        """Masked while it is whole: a cut could leave a half that nothing knows."""
        return clipped(self._gate.masked(text), PART)

    def _part(self, item: Item) -> dict[str, Any] | None:
        match item:
            case UserItem() | AssistantItem() | ContextItem() | OrderItem():
                return {"type": "text", "content": self._text(item.text)}
            case ReasoningItem():
                return {"type": "reasoning", "content": self._text(item.text)} if item.text else None
            case ToolCallItem():
                arguments: Any = self._gate.masked(item.parsed) if len(item.arguments) <= PART else None
                given = self._text(item.arguments) if arguments is None else arguments
                return {"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": given}
            case ToolResultItem():
                return {"type": "tool_call_response", "id": item.call_id, "response": self._text(item.text())}
            case OpaqueItem():
                read = read_by_others(item)
                return None if isinstance(read, OpaqueItem) else self._part(read)


def _role(item: Item) -> str:
    match item:
        case AssistantItem() | ReasoningItem() | ToolCallItem():
            return "assistant"
        case ToolResultItem():
            return "tool"
        case _:
            return "user"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
