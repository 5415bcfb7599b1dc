"""A small encoder for models that are not behind a wire: items as JSON messages in the manner of Chat Completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from worker.items import Image, Item, OpaqueItem, ReasoningItem
from worker.models.encoding import data_url, dumps, result_text, user_text, wire_arguments

Role: TypeAlias = Literal["user", "assistant", "tool"]


class PlainEncoder:
    """Writes items as JSON messages. Pure and stateless.

    Consecutive items in the user role are one message, a reply is one message, each tool result is its own. Empty
    texts and reasoning of another model than `provider:model` are left out; a memory of another is a summary to read.
    """

    def __init__(self, provider: str = "offline", model: str = "") -> None:
        self._origin = (provider, model)

    def role(self, item: Item) -> Role | None:
        """The role that an item is sent in, None where it is not sent."""
        match item.type:
            case "user":
                return "user" if item.text.strip() or item.images else None
            case "context" | "order":
                return "user"
            case "tool_result":
                return "tool"
            case "assistant":
                return "assistant" if item.text.strip() else None
            case "tool_call":
                return "assistant"
            case "reasoning":
                return "assistant" if self._own(item) else None
            case "opaque":
                return "assistant" if self._own(item) else ("user" if item.is_memory else None)

    def _own(self, item: ReasoningItem | OpaqueItem) -> bool:
        return (item.provider, item.model) == self._origin

    def joins(self, open_items: Sequence[Item], item: Item) -> bool:
        """Whether `item` belongs to the same message as `open_items`. What is not sent joins anything."""
        role = self.role(item)
        last = next((each for each in reversed(open_items) if self.role(each)), None)
        if role is None or last is None:
            return True
        if role == "tool" or self.role(last) != role:
            return False
        return role == "user" or getattr(last, "reply", "") == getattr(item, "reply", "")

    def encode(self, items: Sequence[Item]) -> bytes:
        """One message as JSON; empty where nothing is left to send."""
        sent = [item for item in items if self.role(item)]
        if not sent:
            return b""
        role = self.role(sent[0])
        if role == "user":
            return dumps(_user(sent))
        return dumps(_assistant(sent) if role == "assistant" else _result(sent[0]))


def encode_items(encoder: PlainEncoder, items: Sequence[Item]) -> bytes:
    """All messages of a view, joined by commas, as a `Request` holds them."""
    groups: list[list[Item]] = []
    for item in items:
        if groups and encoder.joins(groups[-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return b",".join(message for group in groups if (message := encoder.encode(group)))


def _user(items: Sequence[Item]) -> dict[str, Any]:
    texts: list[str] = []
    images: list[Image] = []
    for item in items:
        texts.append(user_text(item))
        if item.type == "user":
            images.extend(item.images)
    return _with_images("user", "\n\n".join(texts), images)


def _assistant(items: Sequence[Item]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    payloads: list[str] = []
    text = ""
    for item in items:
        match item.type:
            case "assistant":
                text += item.text
            case "tool_call":
                function = {"name": item.name, "arguments": wire_arguments(item)}
                calls.append({"id": item.call_id, "type": "function", "function": function})
            case "reasoning" | "opaque":
                payloads.append(item.payload)
            case _:
                pass
    message: dict[str, Any] = {"role": "assistant"}
    return message | {
        key: value for key, value in (("content", text), ("reasoning", payloads), ("tool_calls", calls)) if value
    }


def _result(item: Item) -> dict[str, Any]:
    assert item.type == "tool_result"
    return _with_images("tool", result_text(item), item.images) | {"tool_call_id": item.call_id}


def _with_images(role: Role, text: str, images: Sequence[Image]) -> dict[str, Any]:
    if not images:
        return {"role": role, "content": text}
    pictures = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return {"role": role, "content": [{"type": "text", "text": text}, *pictures]}
