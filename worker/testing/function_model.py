"""A model that is a function from the request to the reply: no key, no network, the whole runtime around it real."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import anyio.lowlevel

from worker.errors import ContextOverflow
from worker.estimate import IMAGE_TOKENS, MESSAGE_TOKENS, estimate_item, estimate_spec, estimate_text
from worker.ids import uuid7
from worker.items import ReplyItem
from worker.models.base import Capabilities, Delta, Emit, Encoder, Reply, Request, StopReason, Usage
from worker.testing.plain_encoder import PlainEncoder

ReplyFunction: TypeAlias = Callable[[Request], Reply | Awaitable[Reply]]

COUNTED = Usage(input_tokens=-1)
"""Stands for "count it yourself": a `FunctionModel` replaces it by its own count. `Usage()` means that nothing is
reported."""

_NO_TEXT = frozenset({"role", "type", "id", "tool_call_id", "media_type"})
_CACHES = 16


def make_reply(*items: ReplyItem, usage: Usage = COUNTED, stop: StopReason | None = None) -> Reply:
    """A complete reply of these items. Without `stop` it ends for its calls, or because it is done."""
    if stop is None:
        stop = "tool_calls" if any(item.type == "tool_call" for item in items) else "end"
    return Reply(items=items, usage=usage, stop=stop, native_stop=stop)


@dataclass(slots=True)
class _Sent:
    """The last request with one cache key: what a prefix cache would still hold."""

    head: str
    head_tokens: int
    messages: bytes
    tokens: int


class FunctionModel:
    """A model that answers with what a function makes of the request in front of it.

    `function` may be sync or async; it runs in the event loop and must not block. Where its reply carries the usage
    `COUNTED` (the default of `make_reply`), the model reports its own count of what was sent: system prompt, tools
    and messages by the o200k estimator, and as cached what is a common prefix with the previous request of the same
    cache key. Items of a reply without a reply id get one. With `enforce_window` an input larger than the window
    raises `ContextOverflow`, as a provider would.
    """

    def __init__(
        self,
        name: str,
        function: ReplyFunction,
        *,
        capabilities: Capabilities | None = None,
        encoder: Encoder | None = None,
        enforce_window: bool = True,
    ) -> None:
        self._name = name
        self._function = function
        self._capabilities = capabilities or Capabilities(
            window=200_000, window_source="table", max_output=16_384, max_output_source="table", family="o200k"
        )
        provider, _, model = name.partition(":")
        self._encoder = encoder or PlainEncoder(provider, model)
        self._enforce_window = enforce_window
        self._sent: dict[str, _Sent] = {}

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the model is said to do."""
        return self._capabilities

    @property
    def encoder(self) -> Encoder:
        """How items are written."""
        return self._encoder

    async def send(self, request: Request, emit: Emit) -> Reply:
        """The function's reply. Raises what it raises, and `ContextOverflow`; cancelled, it leaves nothing."""
        await anyio.lowlevel.checkpoint()
        usage = self._count(request)
        window = self._capabilities.window
        if self._enforce_window and (usage.input_tokens or 0) > window:
            text = f"the input of {usage.input_tokens} tokens is larger than the window of {window} tokens"
            raise ContextOverflow(text, limit=window, requested=usage.input_tokens, model=self._name)
        answer = self._function(request)
        reply = await answer if inspect.isawaitable(answer) else answer
        number = uuid7()
        items = tuple(item if item.reply else item.model_copy(update={"reply": number}) for item in reply.items)
        _show(items, emit)
        if reply.usage is COUNTED:
            output = sum(estimate_item(item, "o200k") for item in items)
            reply = replace(reply, usage=usage.model_copy(update={"output_tokens": output}))
        return replace(reply, items=items, model=reply.model or self._name.partition(":")[2])

    async def aclose(self) -> None:
        """Forgets what it had sent."""
        self._sent.clear()

    def _count(self, request: Request) -> Usage:
        schemas = json.dumps([spec._asdict() for spec in request.tools])
        head = f"{request.system}\0{schemas}"
        old = self._sent.pop(request.cache_key, None)
        warm = old is not None and old.head == head
        if old is not None and warm:
            head_tokens = old.head_tokens
        else:
            specs = sum(estimate_spec(spec, "o200k") for spec in request.tools)
            head_tokens = estimate_text(request.system, "o200k") + specs
        messages = request.messages
        if old is not None and warm and messages.startswith(old.messages):
            tokens = old.tokens + count_messages(messages[len(old.messages) :])
            cached = head_tokens + old.tokens
        else:
            tokens = count_messages(messages)
            shared = common_prefix(old.messages, messages) if old is not None and warm else 0
            cached = head_tokens + tokens * shared // max(len(messages), 1) if warm else 0
        self._sent[request.cache_key] = _Sent(head, head_tokens, messages, tokens)
        while len(self._sent) > _CACHES:
            del self._sent[next(iter(self._sent))]
        return Usage(input_tokens=head_tokens + tokens, cached_tokens=cached)


def count_messages(messages: bytes) -> int:
    """Tokens of encoded messages (JSON, joined by commas): their texts, a fixed cost an image, the framing of each."""
    values: list[Any] = json.loads(b"[" + messages.strip(b", \n") + b"]")
    return sum(MESSAGE_TOKENS + _count(value) for value in values)


def _count(value: object) -> int:
    if isinstance(value, str):
        return estimate_text(value, "o200k")
    if isinstance(value, list):
        return sum(_count(part) for part in cast("list[object]", value))
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if str(fields.get("type", "")).startswith("image"):
            return IMAGE_TOKENS
        return sum(_count(part) for key, part in fields.items() if key not in _NO_TEXT)
    return 0


def common_prefix(a: bytes, b: bytes) -> int:
    """How many bytes two texts share at their start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _show(items: tuple[ReplyItem, ...], emit: Emit) -> None:
    for item in items:
        match item.type:
            case "assistant":
                emit(Delta("text", item.text))
            case "reasoning":
                emit(Delta("reasoning", item.text))
            case "tool_call":
                emit(Delta("call", item.name))
            case "opaque":
                pass
