"""The contract between a worker and a model: what is asked, what comes back, what a model can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from worker.errors import BadRequest, ModelError
from worker.items import Item, OpaqueItem, ReplyItem

Source: TypeAlias = Literal["manifest", "learned", "provider", "table", "fallback"]
Family: TypeAlias = Literal["o200k", "claude", "claude_old", "unknown"]
Counting: TypeAlias = Literal["none", "tokenizer", "provider"]
NativeWay: TypeAlias = Literal["responses.compact", "compaction_trigger", "summarize", "threshold_edit"]
"""How a provider compacts a history itself: OpenAI's own endpoint, or a last item of an ordinary request; Anthropic's
compaction request, or its edit at a threshold with a pause behind it."""

FOCUSED_WAYS: frozenset[NativeWay] = frozenset({"summarize", "threshold_edit"})
"""Those that take instructions for the summary (facts, providers 2.4); OpenAI's have no field for it, since what its endpoint
calls instructions is the system prompt."""

StopReason: TypeAlias = Literal["end", "tool_calls", "length", "refusal", "pause", "unknown"]

FALLBACK_WINDOW = 32_768
"""Tokens assumed for a model that nothing knows: a small number is safer than no decision."""

FALLBACK_OUTPUT = 4_096
"""Output tokens assumed for a model that nothing knows."""


class Usage(BaseModel):
    """What the provider reported for one request, in tokens.

    `input_tokens` is the whole input: uncached, read from and written to the cache, whatever the provider's own dialect
    (cases B048). It is None where the provider reported nothing, or nothing that can be true. `faults` names the figures
    that could not be (see `worker.models.reported`).
    """

    model_config = ConfigDict(frozen=True)

    input_tokens: int | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    faults: tuple[str, ...] | None = None

    def with_cached(self, *, always: bool = False) -> Usage:
        """With what was cached added to the input, where it can't be a part of it since it is more, or `always`: some servers
        leave it out (B048)."""
        read, beside = self.input_tokens, self.cached_tokens + self.cache_write_tokens
        if read is None or not (always or beside > read):
            return self
        return self.model_copy(update={"input_tokens": read + beside})


class NoCompaction(BadRequest):
    """The answer to a compaction request is complete and holds no usable compaction. `usage` was paid for all the same."""

    def __init__(self, message: str, *, usage: Usage, **rest: object) -> None:
        super().__init__(message, **rest)  # type: ignore[arg-type]  # the keywords of ModelError, passed through
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, with where the figures come from and of what date they are."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    source: str
    date: str = ""

    def cost(self, usage: Usage) -> float:
        """The price of one request in US dollars."""
        total = usage.input_tokens or 0
        fresh = max(total - usage.cached_tokens - usage.cache_write_tokens, 0)
        parts = (
            fresh * self.input,
            usage.cached_tokens * self.cache_read,
            usage.cache_write_tokens * self.cache_write,
            usage.output_tokens * self.output,
        )
        return sum(parts) / 1_000_000


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model can do. Every number has its source.

    `family` chooses the token estimator. `history_binding` says that reasoning is bound to the prefix before it, so that an edit of
    that prefix makes it invalid (facts, providers 0.1 and 2.6). `turn_bound_reasoning` says that the reasoning of an open tool
    loop must go back whole. `cache_markers` says that the cache is looked for at marked places only, so that a change far from the
    end loses all behind the system prompt. `cache_least` is how many tokens a beginning has at least, for the cache to keep it: a
    shorter one is never read from it. `counting` says how a request can be counted before it is sent.

    `native_compaction` holds the ways in which the provider compacts a history itself, in the order in which they are tried; empty
    where it does not. `tool_clearing` says that the provider can clear old tool results itself, so that what the client sends stays
    as it was and no reasoning loses its prefix.

    `window_origin` and `max_output_origin` name a figure's source with its date.
    """

    window: int = FALLBACK_WINDOW
    window_source: Source = "fallback"
    max_output: int = FALLBACK_OUTPUT
    max_output_source: Source = "fallback"
    family: Family = "unknown"
    images: bool = True
    history_binding: Literal["none", "thinking_prefix"] = "none"
    turn_bound_reasoning: bool = False
    native_compaction: tuple[NativeWay, ...] = ()
    tool_clearing: bool = False
    cache_ttl: float = 300.0
    cache_least: int = 0
    cache_markers: bool = False
    price: Price | None = None
    counting: Counting = "none"
    window_origin: str = ""
    max_output_origin: str = ""


Heard: TypeAlias = Callable[[Mapping[str, str]], None]
"""Takes headers of an answer, names in lower case."""


class ToolSpec(NamedTuple):
    """A tool as a model is told of it: `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Encoder(Protocol):
    """How a provider writes items. Pure and stateless: the same items always give the same bytes."""

    def joins(self, open_items: Sequence[Item], item: Item) -> bool:
        """Whether `item` belongs to the same message as `open_items` (consecutive items, at least one)."""
        ...

    def encode(self, items: Sequence[Item]) -> bytes:
        """One message as JSON (for an API with bare items: its items, joined by commas). Empty where nothing is left to send."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the view as items and as the encoded messages (with commas between them, without brackets), whole or in
    pieces that follow each other. `focus` is what a compaction of it should look at above all, where its way can be told.
    `heard` wants the headers of the answer that are about limits, as soon as they are there, names in lower case (see
    `worker.pacing`).
    """

    system: str
    tools: tuple[ToolSpec, ...]
    items: Sequence[Item]
    encoded: bytes | tuple[bytes, ...]
    max_output_tokens: int
    cache_key: str = ""
    focus: str = ""
    heard: Heard | None = field(default=None, compare=False, repr=False)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The encoded messages as they go into a body: a body that joins them is the only copy."""
        return self.encoded if isinstance(self.encoded, tuple) else (self.encoded,)

    @property
    def messages(self) -> bytes:
        """The encoded messages in one piece."""
        return b"".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply. `stop` is ours, `native_stop` the provider's word. `transformations` are what the provider did to the input."""

    items: tuple[ReplyItem, ...]
    usage: Usage
    stop: StopReason
    native_stop: str = ""
    provider_id: str | None = None
    model: str = ""
    transformations: tuple[dict[str, Any], ...] = ()


class Delta(NamedTuple):
    """A piece of a reply while it streams, for display only: nothing streamed is state until the reply is complete."""

    kind: Literal["text", "reasoning", "call"]
    text: str


Emit: TypeAlias = Callable[[Delta], None]


class Model(Protocol):
    """A model of a provider.

    `name` is `provider:model`. `send` raises `worker.errors.ModelError`; cancelled, it closes its connection and leaves nothing behind.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def encoder(self) -> Encoder: ...

    async def send(self, request: Request, emit: Emit) -> Reply:
        """One attempt: sends, streams, and returns the complete reply. No retries: they are the worker's."""
        ...

    async def aclose(self) -> None:
        """Closes connections. Called in the event loop that sent."""
        ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """A history as its provider has compacted it: `item` stands for all items of the request, for this model only.

    `item.readable` is filled where the provider lets its summary be read. `way` is how it was made, `focused` whether the
    provider was told of the request's focus.
    """

    item: OpaqueItem
    usage: Usage
    way: NativeWay
    provider_id: str | None = None
    focused: bool = False


@runtime_checkable
class CompactsNatively(Protocol):
    """A model whose provider compacts histories."""

    async def compact(self, request: Request) -> Compacted:
        """One attempt, by the first way of `Capabilities.native_compaction` that the server takes. No retries.

        The items of `request` end at a settled point: no call is open. Raises `ModelError` (`BadRequest` where no way is
        left); cancelled, the connection is closed and nothing is left behind.
        """
        ...


class Refusals(BaseModel):
    """What a model's server did not take, as far as it is known: hashes of `memories` that it rejected, how many of them
    `in_a_row`, and the `ways` to compact that it does not know, with its words. `server` tells one server from another.
    """

    model_config = ConfigDict(frozen=True)

    server: str = ""
    memories: tuple[str, ...] = ()
    in_a_row: int = 0
    ways: dict[NativeWay, str] = Field(default_factory=dict[NativeWay, str])


@runtime_checkable
class RemembersRefusals(Protocol):
    """A model that can go on from what its server refused of another process."""

    @property
    def refusals(self) -> Refusals:
        """What is known."""
        ...

    def recall(self, refusals: Refusals) -> None:
        """Goes on from what was known, where it is of this server; else nothing changes."""
        ...


@runtime_checkable
class JudgesMemories(Protocol):
    """A model that finds out which memories its provider takes back: a rejected one is sent in words from then on.

    A memory is named by the hash of its payload.
    """

    memories_rejected: int
    """How many were rejected since the provider last took one back."""

    def repair(self, error: ModelError) -> str | None:
        """Sends the history in another form from now on, where the error may come from its form.

        Returns what is different, None where there is no other form.
        """
        ...

    def believe(self, memory: str) -> None:
        """Sends a memory as it is again: it was not what the provider rejected."""
        ...

    def rejects(self, memory: OpaqueItem) -> bool:
        """Whether the provider rejected this memory, so that it is sent in words."""
        ...


@dataclass(frozen=True, slots=True)
class ToolClearing:
    """When the provider clears old tool results of a request itself: above `trigger` input tokens, all but the newest
    `keep` uses, where that clears `at_least` tokens; never those of `exclude`.
    """

    trigger: int
    keep: int = 3
    at_least: int = 0
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a manifest's `[model]` says, resolved. `api_key_env` names the variable; the key itself is read when a client is made.

    `context_window` and `max_output_tokens` of 0 mean: from the table. `tool_clearing` is used where the model has that
    capability.
    """

    base_url: str | None = None
    api_key_env: str | None = None
    max_output_tokens: int = 0
    context_window: int = 0
    reasoning: str | int | None = None
    cache_ttl: str = "5m"
    temperature: float | None = None
    top_p: float | None = None
    connect_timeout: float = 10.0
    read_timeout: float = 120.0
    idle_timeout: float = 120.0
    tool_clearing: ToolClearing | None = None
    extra_headers: dict[str, str] = field(default_factory=dict[str, str])
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
