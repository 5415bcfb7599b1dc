"""A streamed reply of OpenAI Responses: its output items, and what its terminal event says."""

from __future__ import annotations

from typing import Any

from worker.errors import ModelError
from worker.items import AssistantItem, OpaqueItem, ReasoningItem, ReplyItem
from worker.models.adapter import Assembler, CallParts, build_call
from worker.models.base import Emit, Request, StopReason, Usage
from worker.models.classify import classify
from worker.models.encoding import dumps_exact, listing, mapping, raw_object
from worker.models.reported import Reading
from worker.text import clean

PROVIDER = "openai"


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
                own = item.get("type") not in ("message", "function_call")
                raw = raw_object(data, "item", item) if own else ""
                self._done[index if isinstance(index, int) else len(self._done)] = (item, raw)
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
        """The finished items, each as it came (B146); one that the end cut off stands in the last event only."""
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
    reading = Reading()
    thought = mapping(usage.get("output_tokens_details")).get("reasoning_tokens")
    return reading.usage(
        read=reading.tokens("input_tokens", usage.get("input_tokens")),
        cached=reading.tokens("cached_tokens", details.get("cached_tokens")),
        written=reading.tokens("cache_write_tokens", details.get("cache_write_tokens")),
        output=reading.tokens("output_tokens", usage.get("output_tokens")),
        reasoning=reading.tokens("reasoning_tokens", thought),
    ).with_cached()


def _summary(item: dict[str, Any]) -> str:
    parts = [*listing(item.get("summary")), *listing(item.get("content"))]
    return clean("\n\n".join(text for text in (_str(mapping(part).get("text")) for part in parts) if text))


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
