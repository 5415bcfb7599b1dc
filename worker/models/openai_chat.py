"""OpenAI Chat Completions, for every server that speaks it: `openai-chat:`.

Compatible servers differ in many small ways; what is tolerated stands in facts, providers 2.2 and recommendation 24,
what has to be known beforehand in the table of quirks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from worker.errors import ContextOverflow, ProviderDown
from worker.items import AssistantItem, Item, ReasoningItem, ReplyItem, ToolResultItem
from worker.models.adapter import Assembler, CallParts, HttpModel, build_call, effort
from worker.models.base import Emit, ModelSettings, Request, StopReason, ToolSpec, Usage
from worker.models.chat_quirks import Quirks, quirks
from worker.models.encoding import (
    NO_IMAGES,
    Side,
    SideEncoder,
    data_url,
    dumps,
    dumps_exact,
    images_of,
    listing,
    mapping,
    result_text,
    tool_defs,
    user_text,
    wire_arguments,
    wire_id,
    wire_name,
)
from worker.models.reported import Reading
from worker.models.table import takes_images
from worker.text import clean

PROVIDER = "openai-chat"

_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


class ChatEncoder(SideEncoder):
    """Items as Chat Completions messages.

    The user's side of a turn is one group: first a `tool` message for each result, then one `user` message with the
    rest.
    """

    def __init__(self, model: str, *, images: bool = True, id_limit: int = 64) -> None:
        super().__init__(PROVIDER, model, images=images)
        self._id_limit = id_limit

    def side(self, item: Item) -> Side | None:
        """The side of an item. This API has no items of the provider's own beside reasoning."""
        if item.type == "opaque":
            return "user" if item.is_memory else None
        return super().side(item)

    def encode(self, items: Sequence[Item]) -> bytes:
        """The messages of one side, joined by commas."""
        side, members = self.members(items)
        if side is None:
            return b""
        return self._user(members) if side == "user" else self._assistant(members)

    def _user(self, items: list[Item]) -> bytes:
        messages: list[bytes] = []
        texts: list[str] = []
        parts: list[dict[str, Any]] = []
        pictures = False
        for item in sorted(items, key=lambda x: x.type != "tool_result"):
            text = user_text(item)
            if isinstance(item, ToolResultItem):
                call_id = wire_id(item.call_id, self._id_limit)
                messages.append(dumps({"role": "tool", "tool_call_id": call_id, "content": result_text(item)}))
            images = images_of(item)
            if images and not self.images:
                text = f"{text}\n{NO_IMAGES}" if text else NO_IMAGES
            elif images:
                pictures = True
                if isinstance(item, ToolResultItem):
                    # A `tool` message holds text only, so its pictures follow in the user's.
                    parts.append({"type": "text", "text": f"Images of the result of {wire_name(item.name)}:"})
                parts += [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
            if text.strip():
                texts.append(text)
                parts.append({"type": "text", "text": text})
        if pictures:
            messages.append(dumps({"role": "user", "content": parts}))
        elif texts:
            # Many compatible servers take only text here, so several items become one text.
            messages.append(dumps({"role": "user", "content": "\n\n".join(texts)}))
        return b",".join(messages)

    def _assistant(self, items: list[Item]) -> bytes:
        texts = [item.text for item in items if item.type == "assistant"]
        calls = [
            {
                "id": wire_id(item.call_id, self._id_limit),
                "type": "function",
                "function": {"name": wire_name(item.name), "arguments": wire_arguments(item)},
            }
            for item in items
            if item.type == "tool_call"
        ]
        if not texts and not calls:
            return b""
        message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
        if calls:
            message["tool_calls"] = calls
        body = dumps(message)
        # Only the last reasoning has a place: the fields of a message stand once.
        reasoning = next((item for item in reversed(items) if item.type == "reasoning"), None)
        fields = reasoning.payload.strip()[1:-1] if isinstance(reasoning, ReasoningItem) else ""
        return body[:-1] + b"," + fields.encode() + b"}" if fields else body


class ChatAssembler(Assembler):
    """Builds a reply from `chat.completion.chunk` events."""

    def __init__(self, emit: Emit, request: Request, model: str, model_id: str) -> None:
        super().__init__(emit, request, model)
        self.events = 0
        self._model_id = model_id
        self._text: list[str] = []
        self._refused = False
        self._reasoning: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []
        self._calls: list[CallParts] = []
        self._by_index: dict[int, CallParts] = {}

    def event(self, name: str, data: str) -> bool:
        """Takes one chunk."""
        if data.strip() == "[DONE]":
            self.finished = True
            self.empty = self.events == 0
            # A server that sends null for the reason has still said that it is done (B109).
            self.complete = self.complete or self.events > 0
            return False
        value = self.parse(data)
        chunk = mapping(value)
        if chunk.get("error") or name == "error" or listing(value):
            raise self.error(value)
        if not chunk:
            return False
        self.events += 1
        self.provider_id = self.provider_id or _str(chunk.get("id")) or None
        self.model_name = self.model_name or _str(chunk.get("model"))
        choice = mapping(next(iter(listing(chunk.get("choices"))), None))
        usage = mapping(chunk.get("usage") or choice.get("usage") or mapping(chunk.get("x_groq")).get("usage"))
        if usage:
            self.usage = chat_usage(usage)
        content = self._delta(mapping(choice.get("delta") or choice.get("message")))
        if choice.get("error"):
            raise self.error(choice)
        reason = choice.get("finish_reason")
        if reason:
            self._finish(str(reason))
        return content or bool(reason or usage)

    def whole(self, value: dict[str, Any]) -> bool:
        """A `chat.completion` in one piece, from a server that does not stream."""
        if value.get("error") or not value.get("choices"):
            return False
        self.event("", json.dumps(value))
        self.complete = self.finished = True
        return True

    def items(self) -> list[ReplyItem]:
        """The reply: reasoning, text, calls."""
        found: list[ReplyItem] = []
        fields: dict[str, Any] = {name: "".join(parts) for name, parts in self._reasoning.items()}
        shown = next((text for text in fields.values() if text), "")
        if self._details:
            fields["reasoning_details"] = self._details
        if any(fields.values()):
            payload = dumps_exact(fields)
            found.append(
                ReasoningItem(provider=PROVIDER, model=self._model_id, payload=payload, text=clean(str(shown)))
            )
        text = clean("".join(self._text))
        if text:
            found.append(AssistantItem(text=text))
        cut = self.cut()
        last = self._calls[-1] if self._calls else None
        found += [build_call(parts, cut=cut, last=parts is last) for parts in self._calls]
        return found

    def _finish(self, reason: str) -> None:
        self.native_stop = reason
        if reason == "error":
            raise ProviderDown("the provider ended the stream with an error", code="error", model=self._model)
        if reason == "model_context_window_exceeded":
            raise ContextOverflow("the model's window is exceeded", code=reason, status=200, model=self._model)
        stops: dict[str, StopReason] = {
            "stop": "end",
            "tool_calls": "tool_calls",
            "function_call": "tool_calls",
            "length": "length",
            "model_length": "length",
            "max_tokens": "length",
            "content_filter": "refusal",
        }
        self.stop = stops.get(reason, "unknown")
        if self.stop == "end" and self._calls:
            self.stop = "tool_calls"
        if self.stop == "end" and self._refused:
            self.stop = "refusal"
        self.complete = True

    def _delta(self, delta: dict[str, Any]) -> bool:
        content = False
        for text in _texts(delta.get("content")):
            content = True
            self._text.append(text)
            self.text("text", text)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            content = self._refused = True
            self._text.append(refusal)
            self.text("text", refusal)
        for field in _REASONING_FIELDS:
            value = delta.get(field)
            if isinstance(value, str) and value:
                content = True
                # Some servers send the same words in two fields: they are shown once.
                if not self._reasoning or next(iter(self._reasoning)) == field:
                    self.text("reasoning", value)
                self._reasoning.setdefault(field, []).append(value)
            elif listing(value):
                content = True
                _merge_details(self._details, listing(value))
        for part in listing(delta.get("tool_calls")):
            content = True
            self._call_part(mapping(part))
        if mapping(delta.get("function_call")):
            content = True
            self._call_part({"index": 0, "function": delta["function_call"]})
        return content

    def _call_part(self, part: dict[str, Any]) -> None:
        function = mapping(part.get("function"))
        index, call_id, name = part.get("index"), _str(part.get("id")), _str(function.get("name"))
        call = self._by_index.get(index) if isinstance(index, int) else (self._calls[-1] if self._calls else None)
        # Servers that repeat id and name in each chunk go on with a call; another id with a name begins one, even at
        # the same index.
        anew = bool(call_id and name and call and call.call_id and call_id != call.call_id)
        if call is None or anew or (index is None and name and not call_id):
            call = CallParts(call_id, name)
            self._calls.append(call)
            if name:
                self.text("call", name)
        call.call_id = call.call_id or call_id
        if not call.name and name:
            call.name = name
            self.text("call", name)
        if isinstance(index, int):
            self._by_index[index] = call
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif mapping(arguments):
            call.arguments.append(dumps_exact(arguments))


def chat_usage(usage: dict[str, Any]) -> Usage:
    """Usage of this API: the input includes what was cached.

    Some servers leave the cached part out of the total; it cannot be larger than the total, so there it is added
    (B048).
    """
    details = mapping(usage.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or usage.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    thought = mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
    reading = Reading()
    return reading.usage(
        read=reading.tokens("prompt_tokens", usage.get("prompt_tokens")),
        cached=reading.tokens("cached_tokens", cached),
        written=reading.tokens("cache_write_tokens", details.get("cache_write_tokens")),
        output=reading.tokens("completion_tokens", usage.get("completion_tokens")),
        reasoning=reading.tokens("reasoning_tokens", thought),
    ).with_cached()


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    parts = [mapping(part) for part in listing(content)]
    return [
        _str(p.get("text")) for p in parts if p.get("type") in (None, "text", "output_text") and _str(p.get("text"))
    ]


def _merge_details(kept: list[dict[str, Any]], new: list[Any]) -> None:
    """Joins streamed `reasoning_details`: pieces of one index and type are one entry whose texts grow."""
    for value in new:
        piece = mapping(value)
        same = next(
            (x for x in kept if x.get("index") == piece.get("index") and x.get("type") == piece.get("type")), None
        )
        if same is None or piece.get("index") is None:
            kept.append(dict(piece))
            continue
        for key, part in piece.items():
            if key in ("text", "summary", "data") and isinstance(part, str) and isinstance(same.get(key), str):
                same[key] += part
            elif part is not None:
                same[key] = part


class ChatModel(HttpModel):
    """`openai-chat:MODEL`. Without `base_url` it speaks to OpenAI."""

    provider = PROVIDER
    sdk = "openai"
    default_base_url = "https://api.openai.com/v1"
    default_key_env = "OPENAI_API_KEY"
    path = "/chat/completions"

    def __init__(self, model_id: str, settings: ModelSettings | None = None, *, client: Any = None) -> None:
        self._quirks = Quirks()
        super().__init__(model_id, settings, client=client)
        self._encoder = ChatEncoder(model_id, images=takes_images(model_id), id_limit=self._quirks.id_limit)

    def key_env(self) -> str | None:
        """The variable of the endpoint's key; None where nothing is known of it."""
        self._quirks = quirks(self.base_url)
        return self.settings.api_key_env or self._quirks.key_env

    def encode_head(self, system: str, tools: tuple[ToolSpec, ...]) -> bytes:
        """Model, settings, tools, and the system prompt as the first message."""
        settings = self.settings
        fields: dict[str, Any] = {"model": self.model_id}
        if settings.temperature is not None:
            fields["temperature"] = settings.temperature
        if settings.top_p is not None:
            fields["top_p"] = settings.top_p
        label = effort(settings.reasoning)
        if label is not None and self._quirks.effort == "reasoning":
            budget = settings.reasoning
            fields["reasoning"] = {"max_tokens": budget} if isinstance(budget, int) and budget else {"effort": label}
        elif label is not None:
            fields["reasoning_effort"] = label
        head = b"{" + self.with_extra(fields, static=True)
        if tools:
            head += b',"tools":' + tool_defs(tools, "chat")
        head += b',"messages":['
        return head + dumps({"role": "system", "content": system}) if system else head

    def body(self, request: Request) -> bytes:
        """Head, messages, and what changes from request to request."""
        head = self.head(request)
        tail: dict[str, Any] = {self._quirks.max_tokens: self.asked(request), "stream": True}
        if self._quirks.stream_usage:
            tail["stream_options"] = {"include_usage": True}
        if self._quirks.cache_key and request.cache_key:
            tail["prompt_cache_key"] = request.cache_key
        comma = b"," if request.system and any(request.pieces) else b""
        return b"".join((head, comma, *request.pieces, b"],", self.with_extra(tail, static=False), b"}"))

    def assembler(self, request: Request, emit: Emit) -> Assembler:
        """A reply of this API."""
        return ChatAssembler(emit, request, self.name, self.model_id)


def create(model_id: str, settings: ModelSettings) -> ChatModel:
    """The model, for the registry."""
    return ChatModel(model_id, settings)
