"""OpenAI Responses, stateless: `openai:`.

Nothing is stored at the provider (`store` is false), and `truncation` is never set, since it drops items in silence.
Reasoning goes back as it came, with its encrypted content, and only together with the item it was made with (facts,
providers 2.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from worker.errors import ModelError
from worker.items import (
    AssistantItem,
    Item,
    OpaqueItem,
    ReasoningItem,
    ReplyItem,
    ToolCallItem,
    ToolResultItem,
)
from worker.models.adapter import Assembler, CallParts, HttpModel, build_call, effort
from worker.models.base import Emit, ModelSettings, Request, StopReason, ToolSpec, Usage
from worker.models.classify import classify
from worker.models.encoding import (
    NO_IMAGES,
    SideEncoder,
    count,
    data_url,
    dumps,
    dumps_exact,
    images_of,
    listing,
    mapping,
    result_text,
    spliced,
    tool_defs,
    user_text,
    wire_arguments,
    wire_id,
    wire_name,
)
from worker.models.table import known, takes_images
from worker.text import clean

PROVIDER = "openai"

_ENCRYPTED = re.compile(r'"encrypted_content"\s*:\s*"[^"]')
_ITEM = re.compile(r'"item"\s*:\s*')
_decoder = json.JSONDecoder()


class ResponsesEncoder(SideEncoder):
    """Items as input items of the Responses API.

    Items of the user's side stand alone. The items of one reply are one group, so that its reasoning, and the ids that
    depend on it, are sent whole or not at all.
    """

    def __init__(self, model: str, *, images: bool = True) -> None:
        super().__init__(PROVIDER, model, images=images)

    def sends(self, item: ReasoningItem | OpaqueItem) -> bool:
        """Own items only; reasoning that was not stored is worth nothing without its encrypted content."""
        if not super().sends(item):
            return False
        return isinstance(item, OpaqueItem) or _ENCRYPTED.search(item.payload) is not None

    def joins(self, open_items: Sequence[Item], item: Item) -> bool:
        """Whether `item` belongs to the reply of `open_items`, or is not sent at all."""
        side = self.side(item)
        if side is None:
            return True
        first = next((x for x in open_items if self.side(x) is not None), None)
        if first is None:
            return True
        if side == "user" or self.side(first) == "user":
            return False
        return getattr(item, "reply", "") == getattr(first, "reply", "")

    def encode(self, items: Sequence[Item]) -> bytes:
        """The input items, joined by commas."""
        side, members = self.members(items)
        if side is None:
            return b""
        if side == "user":
            return b",".join(self._user(item) for item in members)
        return self._model(members)

    def _user(self, item: Item) -> bytes:
        images = images_of(item)
        if isinstance(item, ToolResultItem):
            output: str | list[dict[str, Any]] = self._text(result_text(item), bool(images))
            if images and self.images:
                output = [{"type": "input_text", "text": output}, *(_image(x) for x in images)]
            return dumps({"type": "function_call_output", "call_id": wire_id(item.call_id), "output": output})
        text = self._text(user_text(item), bool(images))
        content: list[dict[str, Any]] = [_image(x) for x in images] if self.images else []
        if text.strip():
            content.append({"type": "input_text", "text": text})
        return dumps({"type": "message", "role": "user", "content": content})

    def _text(self, text: str, pictures: bool) -> str:
        return f"{text}\n{NO_IMAGES}".strip() if pictures and not self.images else text

    def _model(self, items: list[Item]) -> bytes:
        parts: list[bytes] = []
        reasoned = False
        waiting: list[bytes] = []
        for item in items:
            if isinstance(item, ReasoningItem):
                waiting.append(spliced(item))
                continue
            # Reasoning is valid only when an item follows that was made with it.
            reasoned = reasoned or bool(waiting)
            parts += waiting
            waiting.clear()
            if isinstance(item, AssistantItem):
                parts.append(dumps(self._said(item, with_id=reasoned)))
            elif isinstance(item, ToolCallItem):
                parts.append(dumps(self._call(item, with_id=reasoned)))
            elif isinstance(item, OpaqueItem):
                parts.append(spliced(item))
        return b",".join(parts)

    def _said(self, item: AssistantItem, *, with_id: bool) -> dict[str, Any]:
        """Text of the model; behind its reasoning under its own id, since reasoning wants the very item it was made
        with (facts, providers 2.1)."""
        content: dict[str, Any] = {"type": "output_text", "text": item.text}
        if not (with_id and item.native_id):
            return {"type": "message", "role": "assistant", "content": [content]}
        said: dict[str, Any] = {"type": "message", "id": item.native_id, "role": "assistant", "status": "completed"}
        return said | {"content": [content | {"annotations": []}]}

    def _call(self, item: ToolCallItem, *, with_id: bool) -> dict[str, Any]:
        call: dict[str, Any] = {"type": "function_call"}
        if with_id and item.native_id:
            call["id"] = item.native_id
        return call | {
            "call_id": wire_id(item.call_id),
            "name": wire_name(item.name),
            "arguments": wire_arguments(item),
        }


def _image(image: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(image)}


class ResponsesAssembler(Assembler):
    """Builds a reply from the events of a response."""

    def __init__(self, emit: Emit, request: Request, model: str, model_id: str) -> None:
        super().__init__(emit, request, model)
        self._model_id = model_id
        self._done: dict[int, tuple[dict[str, Any], str]] = {}
        self._refused = False
        self._final: list[Any] = []

    def event(self, name: str, data: str) -> bool:
        """Takes one event."""
        if data.strip() == "[DONE]":
            return False
        value = self.parse(data)
        event = mapping(value)
        kind = "error" if name == "error" else event.get("type") or name
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._refused = self._refused or kind == "response.refusal.delta"
                self.text("text", _str(event.get("delta")))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.text("reasoning", _str(event.get("delta")))
            case "response.output_item.added":
                item = mapping(event.get("item"))
                if item.get("type") == "function_call":
                    self.text("call", _str(item.get("name")))
            case "response.output_item.done":
                item = mapping(event.get("item"))
                index = event.get("output_index")
                self._done[index if isinstance(index, int) else len(self._done)] = (item, _raw(data, item))
            case "response.completed" | "response.incomplete" | "response.done":
                self._end(mapping(event.get("response")))
            case "response.failed":
                self._record(mapping(event.get("response")))
                raise self._failed(mapping(event.get("response")), value)
            case "error":
                raise self.error(value)
            case "response.queued" | "keepalive" | "ping":
                return False
            case _:
                if event.get("error") or listing(value):
                    raise self.error(value)
        return True

    def whole(self, value: dict[str, Any]) -> bool:
        """A response in one piece, from a server that does not stream."""
        if value.get("object") != "response" or value.get("error"):
            return False
        self._end(value)
        return True

    def items(self) -> list[ReplyItem]:
        """The output items in order; those of unknown type are kept and sent back as they are."""
        done = self._outputs()
        found: list[ReplyItem] = []
        cut = self.cut()
        for index, (item, raw) in enumerate(done):
            match item.get("type"):
                case "message":
                    text = clean("".join(self._content(item)))
                    if text:
                        found.append(AssistantItem(text=text, native_id=_str(item.get("id")) or None))
                case "reasoning":
                    found.append(
                        ReasoningItem(provider=PROVIDER, model=self._model_id, payload=raw, text=_summary(item))
                    )
                case "function_call":
                    parts = CallParts(_str(item.get("call_id")), _str(item.get("name")), _str(item.get("id")) or None)
                    parts.arguments.append(_str(item.get("arguments")))
                    unfinished = cut or item.get("status") == "incomplete"
                    found.append(build_call(parts, cut=unfinished, last=index == len(done) - 1))
                case _:
                    found.append(OpaqueItem(provider=PROVIDER, model=self._model_id, payload=raw))
        return found

    def _outputs(self) -> list[tuple[dict[str, Any], str]]:
        """The finished items; one that the end cut off stands in the last event only."""
        done = [self._done[index] for index in sorted(self._done)]
        return done + [(mapping(x), dumps_exact(x)) for x in self._final[len(done) :]]

    def _content(self, item: dict[str, Any]) -> list[str]:
        texts: list[str] = []
        for part in map(mapping, listing(item.get("content"))):
            if part.get("type") == "refusal":
                self._refused = True
                texts.append(_str(part.get("refusal")))
            else:
                texts.append(_str(part.get("text")))
        return texts

    def _record(self, response: dict[str, Any]) -> None:
        self.provider_id = _str(response.get("id")) or None
        self.model_name = _str(response.get("model"))
        self.usage = responses_usage(mapping(response.get("usage")))
        self.transformations = [mapping(x) for x in listing(response.get("input_transformations"))]

    def _end(self, response: dict[str, Any]) -> None:
        self._record(response)
        self._final = listing(response.get("output"))
        if response.get("error"):
            raise self._failed(response, response)
        reason = _str(mapping(response.get("incomplete_details")).get("reason"))
        status = _str(response.get("status")) or "completed"
        self.native_stop = reason or status
        self.complete = self.finished = True
        kinds = [item.get("type") for item, _ in self._outputs()]
        stops: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
        if reason:
            self.stop = stops.get(reason, "unknown")
        elif status != "completed":
            self.stop = "unknown"
        elif "function_call" in kinds:
            self.stop = "tool_calls"
        else:
            self.stop = "refusal" if self._says_no() else "end"

    def _says_no(self) -> bool:
        parts = [mapping(part) for item, _ in self._outputs() for part in listing(item.get("content"))]
        return self._refused or any(p.get("type") == "refusal" for p in parts)

    def _failed(self, response: dict[str, Any], value: object) -> ModelError:
        error = response.get("error")
        return classify(None, {"error": error} if error else value, model=self._model)


def responses_usage(usage: dict[str, Any]) -> Usage:
    """Usage of this API: the input includes what was read from and written to the cache (B048)."""
    details = mapping(usage.get("input_tokens_details"))
    cached, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    total = None if usage.get("input_tokens") is None else count(usage["input_tokens"])
    if total is not None and cached + written > total:
        total += cached + written
    return Usage(
        input_tokens=total,
        cached_tokens=cached,
        cache_write_tokens=written,
        output_tokens=count(usage.get("output_tokens")),
        reasoning_tokens=count(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _raw(data: str, item: dict[str, Any]) -> str:
    """The text of the item inside the event, byte for byte, as it must be sent back (B146)."""
    if item.get("type") not in ("message", "function_call"):
        found = _ITEM.search(data)
        if found is not None:
            try:
                value, end = _decoder.raw_decode(data, found.end())
            except ValueError:
                return dumps_exact(item)
            if value == item:
                return data[found.end() : end]
    return dumps_exact(item)


def _summary(item: dict[str, Any]) -> str:
    parts = [*listing(item.get("summary")), *listing(item.get("content"))]
    return clean("\n\n".join(text for text in (_str(mapping(part).get("text")) for part in parts) if text))


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


class ResponsesModel(HttpModel):
    """`openai:MODEL`."""

    provider = PROVIDER
    sdk = "openai"
    default_base_url = "https://api.openai.com/v1"
    default_key_env = "OPENAI_API_KEY"
    path = "/responses"
    count_path = "/responses/input_tokens"

    def __init__(self, model_id: str, settings: ModelSettings | None = None, *, client: Any = None) -> None:
        super().__init__(model_id, settings, client=client)
        self._encoder = ResponsesEncoder(model_id, images=takes_images(model_id))

    def encode_head(self, system: str, tools: tuple[ToolSpec, ...]) -> bytes:
        """Model, settings, instructions, tools."""
        settings = self.settings
        fields: dict[str, Any] = {"model": self.model_id, "store": False}
        row = known(self.model_id)
        if row is None or row.turn_bound_reasoning:
            fields["include"] = ["reasoning.encrypted_content"]
        label = effort(settings.reasoning)
        if label is not None:
            fields["reasoning"] = {"effort": label}
        if settings.temperature is not None:
            fields["temperature"] = settings.temperature
        if settings.top_p is not None:
            fields["top_p"] = settings.top_p
        if system:
            fields["instructions"] = system
        head = b"{" + self.with_extra(fields, static=True)
        if tools:
            head += b',"tools":' + tool_defs(tools, "responses")
        return head + b',"input":['

    def body(self, request: Request) -> bytes:
        """Head, input items, and what changes from request to request."""
        tail: dict[str, Any] = {"max_output_tokens": self.asked(request), "stream": True}
        if request.cache_key:
            tail["prompt_cache_key"] = request.cache_key
        return b"".join((self.head(request), *request.pieces, b"],", self.with_extra(tail, static=False), b"}"))

    def count_body(self, request: Request) -> bytes:
        """The same input, without what is about the reply."""
        fields: dict[str, Any] = {"model": self.model_id}
        if request.system:
            fields["instructions"] = request.system
        label = effort(self.settings.reasoning)
        if label is not None:
            fields["reasoning"] = {"effort": label}
        tools = b',"tools":' + tool_defs(request.tools, "responses") if request.tools else b""
        return b"".join((dumps(fields)[:-1], tools, b',"input":[', *request.pieces, b"]}"))

    def assembler(self, request: Request, emit: Emit) -> Assembler:
        """A reply of this API."""
        return ResponsesAssembler(emit, request, self.name, self.model_id)


def create(model_id: str, settings: ModelSettings) -> ResponsesModel:
    """The model, for the registry."""
    return ResponsesModel(model_id, settings)
