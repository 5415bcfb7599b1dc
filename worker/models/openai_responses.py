"""OpenAI Responses, stateless: `openai:`.

Nothing is stored at the provider (`store` is false), and `truncation` is never set, since it drops items in silence.
Reasoning goes back as it came, with its encrypted content, and only together with the item it was made with (facts,
providers 2.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from worker.items import (
    AssistantItem,
    Item,
    OpaqueItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
)
from worker.models.adapter import Assembler, effort
from worker.models.base import Compacted, Emit, ModelSettings, NativeWay, Request, ToolSpec, Usage
from worker.models.classify import classify
from worker.models.compaction import COMPACT_WAIT, CompactingModel
from worker.models.encoding import (
    NO_IMAGES,
    SideEncoder,
    data_url,
    dumps,
    images_of,
    listing,
    mapping,
    raw_object,
    result_text,
    spliced,
    tool_defs,
    user_text,
    wire_arguments,
    wire_id,
    wire_name,
)
from worker.models.openai_stream import PROVIDER, ResponsesAssembler, responses_usage
from worker.models.reported import checked
from worker.models.table import known, takes_images

_TRIGGER = b'{"type":"compaction_trigger"}'
_EXTRA_OF_COMPACT = ("prompt_cache_options", "prompt_cache_retention", "service_tier")
"""Fields of `extra_body` that the endpoint takes too."""

_ENCRYPTED = re.compile(r'"encrypted_content"\s*:\s*"[^"]')


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
        if self.own_memory(first) or self.own_memory(item):
            return False
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


class ResponsesModel(CompactingModel):
    """`openai:MODEL`."""

    provider = PROVIDER
    sdk = "openai"
    default_base_url = "https://api.openai.com/v1"
    default_key_env = "OPENAI_API_KEY"
    path = "/responses"
    count_path = "/responses/input_tokens"
    compact_path = "/responses/compact"

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
        return self._body(request, request.pieces)

    def _body(self, request: Request, pieces: tuple[bytes, ...]) -> bytes:
        tail: dict[str, Any] = {"max_output_tokens": self.asked(request), "stream": True}
        if request.cache_key:
            tail["prompt_cache_key"] = request.cache_key
        return b"".join((self.head(request), *pieces, b"],", self.with_extra(tail, static=False), b"}"))

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

    async def compact_by(self, way: NativeWay, request: Request) -> Compacted:
        """The endpoint answers in one piece, the trigger as a stream."""
        if way == "responses.compact":
            return await self._ask_to_compact(request)
        pieces = (*request.pieces, b",", _TRIGGER) if any(request.pieces) else (_TRIGGER,)
        reply = await self.stream_compaction(request, self._body(request, pieces), self.headers(request))
        payload, block = self.block_of(reply, reasoned=True)
        if reply.native_stop != "completed":
            raise self.no_compaction(f"it ended early ({reply.native_stop})", reply.usage)
        self._check(block, reply.usage)
        return self.compacted(request, way, payload, readable="", usage=reply.usage, provider_id=reply.provider_id)

    async def _ask_to_compact(self, request: Request) -> Compacted:
        """By the endpoint of its own, which takes no tools. Beside the compaction it returns the user's words."""
        fields: dict[str, Any] = {"model": self.model_id}
        if request.system:
            fields["instructions"] = request.system
        if request.cache_key:
            fields["prompt_cache_key"] = request.cache_key
        extra = self.settings.extra_body
        fields |= {key: extra[key] for key in _EXTRA_OF_COMPACT if key in extra}
        body = b"".join((dumps(fields)[:-1], b',"input":[', *request.pieces, b"]}"))
        with self.judging(request):
            answer = await self._transport.ask(
                self.compact_path, body, self.headers(request), wait=COMPACT_WAIT, heard=request.heard
            )
            value = mapping(answer.value)
            if value.get("error"):
                raise classify(200, value, model=self.name)
        usage = checked(responses_usage(mapping(value.get("usage"))))
        output = [mapping(x) for x in listing(value.get("output"))]
        made = [x for x in output if x.get("type") == "compaction"]
        if value.get("object") != "response.compaction" or len(made) != 1:
            kinds = ", ".join(str(x.get("type")) for x in output) or "nothing"
            raise self.no_compaction(f"its answer is {value.get('object') or 'no object'} with {kinds}", usage)
        self._check(made[0], usage)
        return self.compacted(
            request,
            "responses.compact",
            raw_object(answer.text, "output", made[0]),
            readable="",
            usage=usage,
            provider_id=str(value.get("id") or "") or answer.request_id,
        )

    def _check(self, block: dict[str, Any], usage: Usage) -> None:
        if not isinstance(block.get("encrypted_content"), str) or not block["encrypted_content"]:
            raise self.no_compaction("it has no encrypted content", usage)

    def assembler(self, request: Request, emit: Emit) -> Assembler:
        """A reply of this API."""
        return ResponsesAssembler(emit, request, self.name, self.model_id)


def create(model_id: str, settings: ModelSettings) -> ResponsesModel:
    """The model, for the registry."""
    return ResponsesModel(model_id, settings)
