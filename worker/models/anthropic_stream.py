"""A streamed reply of Anthropic Messages: content blocks put together from their deltas."""

from __future__ import annotations

from typing import Any

from worker.errors import ContextOverflow
from worker.items import AssistantItem, OpaqueItem, ReasoningItem, ReplyItem
from worker.models.adapter import Assembler, CallParts, build_call
from worker.models.base import Emit, Request, StopReason, Usage
from worker.models.encoding import dumps_exact, listing, mapping
from worker.models.reported import Reading
from worker.text import clean

PROVIDER = "anthropic"

COMPACTED = "compaction"
"""The stop reason of a reply that is a compaction."""


class _Block:
    """A content block while it streams."""

    __slots__ = ("json", "texts", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.json: list[str] = []
        self.texts: dict[str, list[str]] = {}

    def add(self, field: str, text: str) -> None:
        self.texts.setdefault(field, []).append(text)

    def whole(self) -> dict[str, Any]:
        """The block with its pieces put together, every other field as it came."""
        value = dict(self.value)
        for field, pieces in self.texts.items():
            value[field] = (value.get(field) or "") + "".join(pieces)
        return value


_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


class MessagesAssembler(Assembler):
    """Builds a reply from the events of a message."""

    def __init__(self, emit: Emit, request: Request, model: str, model_id: str) -> None:
        super().__init__(emit, request, model)
        self._model_id = model_id
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._dropped: list[dict[str, Any]] = []
        self._cleared: list[dict[str, Any]] = []

    def event(self, name: str, data: str) -> bool:
        """Takes one event."""
        event = mapping(self.parse(data))
        match "error" if name == "error" else event.get("type") or name:
            case "message_start":
                message = mapping(event.get("message"))
                self.provider_id = _str(message.get("id")) or None
                self.model_name = _str(message.get("model"))
                self._merge_usage(message)
                self._transformed(message)
            case "content_block_start":
                self._start(int(event.get("index") or 0), mapping(event.get("content_block")))
            case "content_block_delta":
                self._delta(int(event.get("index") or 0), mapping(event.get("delta")))
            case "message_delta":
                delta = mapping(event.get("delta"))
                self.native_stop = _str(delta.get("stop_reason")) or self.native_stop
                self._merge_usage(event)
                self._transformed(event)
                self._transformed(delta)
            case "message_stop":
                self._stop()
            case "error":
                raise self.error(event)
            case "ping":
                return False
            case _:
                if event.get("error"):
                    raise self.error(event)
        return True

    def items(self) -> list[ReplyItem]:
        """The content in order; blocks of unknown type are kept and sent back as they are."""
        found: list[ReplyItem] = []
        cut = self.cut()
        last = max(self._blocks, default=0)
        for index in sorted(self._blocks):
            block = self._blocks[index]
            value = block.whole()
            match value.get("type"):
                case "text":
                    text = clean(_str(value.get("text")))
                    if text.strip():
                        found.append(AssistantItem(text=text))
                case "thinking" | "redacted_thinking":
                    found.append(
                        ReasoningItem(
                            provider=PROVIDER,
                            model=self._model_id,
                            payload=dumps_exact(value),
                            text=clean(_str(value.get("thinking"))),
                        )
                    )
                case "tool_use":
                    parts = CallParts(_str(value.get("id")), _str(value.get("name")))
                    parts.arguments = block.json or ([dumps_exact(value["input"])] if value.get("input") else [])
                    found.append(build_call(parts, cut=cut, last=index == last))
                case _:
                    if block.json:
                        value["input"] = self.parse("".join(block.json))
                    found.append(OpaqueItem(provider=PROVIDER, model=self._model_id, payload=dumps_exact(value)))
        return found

    def whole(self, value: dict[str, Any]) -> bool:
        """A message in one piece, from a server that does not stream."""
        if value.get("type") != "message" or not value.get("stop_reason"):
            return False
        self._blocks = {i: _Block(mapping(x)) for i, x in enumerate(listing(value.get("content")))}
        self.provider_id = _str(value.get("id")) or None
        self.model_name = _str(value.get("model"))
        self.native_stop = _str(value.get("stop_reason"))
        self._merge_usage(value)
        self._transformed(value)
        self._stop()
        return True

    def _start(self, index: int, value: dict[str, Any]) -> None:
        self._blocks[index] = _Block(value)
        if value.get("type") == "tool_use":
            self.text("call", _str(value.get("name")))

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks.setdefault(index, _Block({"type": "text"}))
        kind = _str(delta.get("type"))
        if kind == "compaction_delta":
            # A field that stays null is sent back as null: it says that there is no summary.
            for field in ("content", "encrypted_content"):
                if isinstance(delta.get(field), str):
                    block.add(field, delta[field])
            return
        if kind == "input_json_delta":
            block.json.append(_str(delta.get("partial_json")))
            return
        if kind not in _DELTAS:
            return
        field, source = _DELTAS[kind]
        text = _str(delta.get(source))
        block.add(field, text)
        if kind == "text_delta":
            self.text("text", text)
        elif kind == "thinking_delta":
            self.text("reasoning", text)

    def _stop(self) -> None:
        kinds = {mapping(x).get("type") for x in listing(self._usage.get("iterations"))}
        made = self.native_stop == COMPACTED or ("compaction" in kinds and "message" not in kinds)
        self.usage = compaction_usage(self._usage) if made else messages_usage(self._usage)
        if not self.native_stop:
            # Without a reason the end of the body is judged as a broken stream.
            self.finished = True
            return
        if self.native_stop == "model_context_window_exceeded":
            raise ContextOverflow(
                "the reply ran into the end of the model's window",
                requested=self.usage.input_tokens,
                status=200,
                code=self.native_stop,
                model=self._model,
            )
        stops: dict[str, StopReason] = {
            "end_turn": "end",
            "stop_sequence": "end",
            "tool_use": "tool_calls",
            "max_tokens": "length",
            "refusal": "refusal",
            "pause_turn": "pause",
        }
        self.stop = stops.get(self.native_stop, "unknown")
        self.complete = self.finished = True

    def _merge_usage(self, holder: dict[str, Any]) -> None:
        self._usage |= {k: v for k, v in mapping(holder.get("usage")).items() if v is not None}

    def _transformed(self, holder: dict[str, Any]) -> None:
        if isinstance(holder.get("input_transformations"), list):
            self._dropped = [mapping(x) for x in holder["input_transformations"]]
        managed = mapping(holder.get("context_management"))
        if "applied_edits" in managed:
            self._cleared = [mapping(x) for x in listing(managed["applied_edits"])]
        self.transformations = [*self._dropped, *self._cleared]


def messages_usage(usage: dict[str, Any]) -> Usage:
    """Usage of this API: what was read from and written to the cache is not in `input_tokens`, so the three are summed
    (B048).

    With several iterations the size of the context is that of the last one that is a message.
    """
    rounds = [mapping(x) for x in listing(usage.get("iterations"))]
    last = next((x for x in reversed(rounds) if x.get("type") == "message"), usage)
    reading = Reading()
    cached = reading.tokens("cache_read_input_tokens", last.get("cache_read_input_tokens"))
    written = reading.tokens("cache_creation_input_tokens", last.get("cache_creation_input_tokens"))
    fresh = reading.tokens("input_tokens", last.get("input_tokens"))
    # Where one of three is no number, their sum is none.
    whole = None if fresh is None or reading.faults else fresh + (cached or 0) + (written or 0)
    thought = mapping(usage.get("output_tokens_details")).get("thinking_tokens")
    return reading.usage(
        read=whole,
        cached=cached,
        written=written,
        output=reading.tokens("output_tokens", usage.get("output_tokens")),
        reasoning=reading.tokens("thinking_tokens", thought),
    )


def compaction_usage(usage: dict[str, Any]) -> Usage:
    """Usage of a reply that is a compaction: that of the compaction itself, which the totals leave out."""
    rounds = [mapping(x) for x in listing(usage.get("iterations"))]
    made = [messages_usage(x) for x in rounds if x.get("type") == "compaction"]
    if not made:
        return messages_usage(usage)
    return Usage(
        input_tokens=sum(x.input_tokens or 0 for x in made),
        cached_tokens=sum(x.cached_tokens for x in made),
        cache_write_tokens=sum(x.cache_write_tokens for x in made),
        output_tokens=sum(x.output_tokens for x in made),
        faults=tuple(fault for x in made for fault in x.faults or ()) or None,
    )


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
