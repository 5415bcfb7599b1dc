"""Anthropic Messages, beta resource: `anthropic:`.

Thinking blocks go back as they came. On models that bind them to what stands before (facts, providers 0.1 and 2.6) the
first request already asks for invalid blocks to be dropped instead of failing the request, and what was dropped is
reported in the reply. This version of the API takes no temperature or top_p, so those settings are not sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from worker.errors import BadRequest, InvalidHistory, ModelError
from worker.estimate import estimate_items, estimate_spec, estimate_text
from worker.items import (
    AssistantItem,
    Item,
    OpaqueItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
)
from worker.models.adapter import Assembler, effort
from worker.models.anthropic_stream import COMPACTED, PROVIDER, MessagesAssembler
from worker.models.base import Capabilities, Compacted, Emit, ModelSettings, NativeWay, Request, ToolClearing, ToolSpec
from worker.models.compaction import CompactingModel, focused
from worker.models.encoding import (
    NO_IMAGES,
    SideEncoder,
    dumps,
    images_of,
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

BINDING_BETA = "thinking-binding-controls-2026-08-01"
INTERLEAVED_BETA = "interleaved-thinking-2025-05-14"
CLEARING_BETA = "context-management-2025-06-27"
COMPACT_BETAS: dict[NativeWay, str] = {"summarize": "compact-2026-09-04", "threshold_edit": "compact-2026-01-12"}
"""The beta of each way to compact; a request that carries a compaction needs it too."""

MIN_TRIGGER = 50_000
"""The smallest threshold in input tokens at which the API compacts (facts, providers 2.4)."""

NOT_WITH_COMPACTION = frozenset({"context_management", "stop_sequences", "tool_choice", "output_format"})
"""Fields that a compaction request must not have."""

MIN_BUDGET = 1_024
"""The smallest thinking budget in tokens that the API takes."""

_BUDGETS = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 60_000}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BUDGET_ONLY = re.compile(r"claude-(?:3|opus-4(?:[-.][015]|-20|$)|sonnet-4(?:[-.][05]|-20|$)|haiku-4)")


class MessagesEncoder(SideEncoder):
    """Items as Messages of content blocks: consecutive items of a side are one message, results first."""

    def __init__(self, model: str, *, images: bool = True) -> None:
        super().__init__(PROVIDER, model, images=images)

    def encode(self, items: Sequence[Item]) -> bytes:
        """One message."""
        side, members = self.members(items)
        if side is None:
            return b""
        blocks = self._user(members) if side == "user" else self._model(members)
        if not blocks:
            return b""
        role = b"user" if side == "user" else b"assistant"
        return b'{"role":"' + role + b'","content":[' + b",".join(blocks) + b"]}"

    def _user(self, items: list[Item]) -> list[bytes]:
        blocks: list[bytes] = []
        for item in sorted(items, key=lambda x: x.type != "tool_result"):
            pictures = [_image(x) for x in images_of(item)]
            left_out = bool(pictures) and not self.images
            if left_out:
                pictures = []
            text = result_text(item) if isinstance(item, ToolResultItem) else user_text(item)
            if left_out:
                text = f"{text}\n{NO_IMAGES}".strip()
            texts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
            if not isinstance(item, ToolResultItem):
                blocks += map(dumps, [*pictures, *texts])
                continue
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire_id(item.call_id)}
            block["content"] = [*texts, *pictures] if pictures else text
            if item.status != "ok":
                block["is_error"] = True
            blocks.append(dumps(block))
        return blocks

    def _model(self, items: list[Item]) -> list[bytes]:
        # A message must not end with thinking: what was cut off there is left out whole.
        end = len(items)
        while end and isinstance(items[end - 1], ReasoningItem):
            end -= 1
        blocks: list[bytes] = []
        for item in items[:end]:
            if isinstance(item, AssistantItem):
                blocks.append(dumps({"type": "text", "text": item.text}))
            elif isinstance(item, ToolCallItem):
                call = dumps({"type": "tool_use", "id": wire_id(item.call_id), "name": wire_name(item.name)})
                blocks.append(call[:-1] + b',"input":' + wire_arguments(item).encode() + b"}")
            elif isinstance(item, ReasoningItem | OpaqueItem):
                blocks.append(spliced(item))
        return blocks


def _image(image: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


class MessagesModel(CompactingModel):
    """`anthropic:MODEL`."""

    provider = PROVIDER
    sdk = "anthropic"
    default_base_url = "https://api.anthropic.com"
    default_key_env = "ANTHROPIC_API_KEY"
    path = "/v1/messages?beta=true"
    count_path = "/v1/messages/count_tokens?beta=true"

    def __init__(self, model_id: str, settings: ModelSettings | None = None, *, client: Any = None) -> None:
        super().__init__(model_id, settings, client=client)
        self._encoder = MessagesEncoder(model_id, images=takes_images(model_id))
        row = known(model_id)
        self._bound = row is not None and row.history_binding == "thinking_prefix"
        self._budget_only = _BUDGET_ONLY.search(model_id.lower()) is not None

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do. A model that was found to bind its thinking says so."""
        found = super().capabilities
        if self._bound and found.history_binding == "none":
            return replace(found, history_binding="thinking_prefix")
        return found

    def repair(self, error: ModelError) -> str | None:
        """Asks for thinking blocks of another prefix to be dropped, where that was not done; else leaves them out."""
        bound = isinstance(error, InvalidHistory) and "different conversation" in error.message
        if self._bound or not bound:
            return super().repair(error)
        self._bound = True
        return "thinking that is bound to another prefix is dropped from now on"

    def clean_base_url(self, url: str) -> str:
        """The paths of this API begin with the version, so the base must not end with it."""
        return url.removesuffix("/v1")

    def headers(self, request: Request, *, way: NativeWay | None = None) -> dict[str, str]:
        """With the beta names; those of `extra_headers` are added to ours. `way` is that of a compaction request."""
        headers = super().headers(request)
        betas = [BINDING_BETA] if self._bound else []
        if self._budget_only and self.settings.reasoning is not None:
            betas.append(INTERLEAVED_BETA)
        if way is None and self._clearing() is not None:
            betas.append(CLEARING_BETA)
        # A block does not say by which way it was made: where its item does not either, each is named.
        memory = self._encoder.carried(request.items)
        made_by = () if memory is None else (memory.way,) if memory.way in COMPACT_BETAS else tuple(COMPACT_BETAS)
        betas += [beta for each, beta in COMPACT_BETAS.items() if each == way or each in made_by]
        given = next((name for name in headers if name.lower() == "anthropic-beta"), None)
        if given is not None:
            betas += [x.strip() for x in headers.pop(given).split(",")]
        if betas:
            headers["anthropic-beta"] = ",".join(dict.fromkeys(betas))
        return headers

    def encode_head(self, system: str, tools: tuple[ToolSpec, ...], *, without: Set[str] = frozenset()) -> bytes:
        """Model, cache markers, tools, system prompt. One marker stands behind tools and system, the automatic one at
        the end moves. `without` names keys of `extra_body` that are left out.
        """
        marker = self._marker()
        fields: dict[str, Any] = {"model": self.model_id}
        if marker is not None:
            fields["cache_control"] = marker
        head = b"{" + self.with_extra(fields, static=True, without=without)
        if tools:
            head += b',"tools":' + tool_defs(tools, "anthropic")
            if marker is not None and not system.strip():
                head = head[:-2] + b',"cache_control":' + dumps(marker) + b"}]"
        if system.strip():
            block: dict[str, Any] = {"type": "text", "text": system}
            if marker is not None:
                block["cache_control"] = marker
            head += b',"system":[' + dumps(block) + b"]"
        return head + b',"messages":['

    def body(self, request: Request) -> bytes:
        """Head, messages, and what changes from request to request."""
        tail = self._tail(request) | self._management()
        return b"".join((self.head(request), *request.pieces, b"],", self.with_extra(tail, static=False), b"}"))

    def _tail(self, request: Request) -> dict[str, Any]:
        asked = self.asked(request)
        return {"max_tokens": asked, "stream": True, **self._thinking(asked, request.items)}

    def count_body(self, request: Request) -> bytes:
        """The same input, without what is about the reply."""
        fields = self._thinking(self.asked(request), request.items) | self._management()
        tail = self.with_extra(fields, static=False)
        return b"".join((self.head(request), *request.pieces, b"]", b"," if tail else b"", tail, b"}"))

    async def compact_by(self, way: NativeWay, request: Request) -> Compacted:
        """Both ways are streamed, behind the very prefix of the requests before, so that it is read from the cache."""
        if way == "threshold_edit" and (size := self._size(request)) < MIN_TRIGGER:
            raise BadRequest(
                f"the provider compacts an input of at least {MIN_TRIGGER:,} tokens; this one has about {size:,}",
                model=self.name,
            )
        body, headers = self.compact_body(request, way), self.headers(request, way=way)
        reply = await self.stream_compaction(request, body, headers)
        payload, block = self.block_of(reply)
        content = block.get("content")
        if not isinstance(content, str) or not content.strip() or reply.native_stop != COMPACTED:
            raise self.no_compaction(f"it has no summary (stop: {reply.native_stop})", reply.usage)
        return self.compacted(
            request, way, payload, readable=clean(content), usage=reply.usage, provider_id=reply.provider_id
        )

    def compact_body(self, request: Request, way: NativeWay) -> bytes:
        """The body of a compaction request."""
        extra = self.settings.extra_body
        without = NOT_WITH_COMPACTION & extra.keys()
        if "format" in mapping(extra.get("output_config")):
            without |= {"output_config"}
        head = self.encode_head(request.system, request.tools, without=without) if without else self.head(request)
        tail = self._tail(request)
        if way == "summarize":
            tail["compaction"] = {"type": "summarize", **focused(request)}
        else:
            trigger = {"type": "input_tokens", "value": MIN_TRIGGER}
            edit = {"type": "compact_20260112", "trigger": trigger, "pause_after_compaction": True, **focused(request)}
            tail["context_management"] = {"edits": [edit]}
        fields = self.with_extra(tail, static=False, without=without)
        return b"".join((head, *request.pieces, b"],", fields, b"}"))

    def _size(self, request: Request) -> int:
        """An estimate of the input in tokens."""
        family = self.capabilities.family
        specs = sum(estimate_spec(spec, family) for spec in request.tools)
        return estimate_text(request.system, family) + specs + estimate_items(request.items, family)

    def _clearing(self) -> ToolClearing | None:
        return self.settings.tool_clearing if self.capabilities.tool_clearing else None

    def _management(self) -> dict[str, Any]:
        """The field that asks for old tool results to be cleared."""
        clearing = self._clearing()
        if clearing is None:
            return {}
        edit: dict[str, Any] = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": clearing.trigger},
            "keep": {"type": "tool_uses", "value": clearing.keep},
        }
        if clearing.at_least:
            edit["clear_at_least"] = {"type": "input_tokens", "value": clearing.at_least}
        if clearing.exclude:
            edit["exclude_tools"] = list(clearing.exclude)
        return {"context_management": {"edits": [edit]}}

    def assembler(self, request: Request, emit: Emit) -> Assembler:
        """A reply of this API."""
        return MessagesAssembler(emit, request, self.name, self.model_id)

    def _marker(self) -> dict[str, str] | None:
        match self.settings.cache_ttl:
            case "5m":
                return {"type": "ephemeral"}
            case "1h":
                return {"type": "ephemeral", "ttl": "1h"}
            case _:
                return None

    def _thinking(self, asked: int, items: Sequence[Item]) -> dict[str, Any]:
        """The thinking and effort fields of a request with this output limit."""
        reasoning = self.settings.reasoning
        label = effort(reasoning)
        if label == "none":
            return {"thinking": {"type": "disabled"}}
        if self._budget_only:
            if reasoning is None or label is None:
                return {}
            budget = reasoning if isinstance(reasoning, int) else _BUDGETS.get(label, _BUDGETS["medium"])
            budget = min(max(budget, MIN_BUDGET), asked - 1)
            # A limit that leaves no room for the smallest budget leaves none for thinking.
            if budget < MIN_BUDGET or not self._thought(items):
                return {}
            return {"thinking": {"type": "enabled", "budget_tokens": budget, **self._binding()}}
        if reasoning is None and not self._bound:
            return {}
        fields: dict[str, Any] = {"thinking": {"type": "adaptive", **self._binding()}}
        if label is not None:
            fields["output_config"] = {"effort": label if label in _EFFORTS else "low"}
        return fields

    def _binding(self) -> dict[str, Any]:
        return {"block_binding": {"prefix_mismatch_behavior": "drop_block"}} if self._bound else {}

    def _thought(self, items: Sequence[Item]) -> bool:
        """Whether thinking may be on: models with a budget want the turn of an open tool loop to begin with thinking.

        It does not where another model made that turn.
        """
        at = len(items)
        while at and self._encoder.side(items[at - 1]) != "model":
            at -= 1
        if not any(isinstance(item, ToolResultItem) for item in items[at:]):
            return True
        first: Item | None = None
        while at and self._encoder.side(items[at - 1]) != "user":
            at -= 1
            first = items[at] if self._encoder.side(items[at]) == "model" else first
        return isinstance(first, ReasoningItem)


def create(model_id: str, settings: ModelSettings) -> MessagesModel:
    """The model, for the registry."""
    return MessagesModel(model_id, settings)
