"""What the adapters share: one attempt from a request to a complete reply."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Generator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from worker.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    InvalidHistory,
    ModelError,
    ModelNotFound,
    ProviderDown,
    StreamBroken,
)
from worker.ids import uuid7
from worker.items import OpaqueItem, ReplyItem, ToolCallItem, make_call
from worker.memory import memory_of
from worker.models.base import (
    FALLBACK_OUTPUT,
    Capabilities,
    Delta,
    Emit,
    ModelSettings,
    Refusals,
    Reply,
    Request,
    StopReason,
    ToolSpec,
    Usage,
)
from worker.models.chat_quirks import check_key
from worker.models.classify import classify, empty_stream, silent_overflow
from worker.models.encoding import SideEncoder, dumps, images_of, listing, mapping
from worker.models.encoding import count as whole_number
from worker.models.reported import OVERRUN, checked
from worker.models.table import capabilities
from worker.models.transport import SDK, Transport, check_base_url, is_loopback
from worker.pacing import Account
from worker.text import clean, sha256

RESERVED = frozenset({"messages", "input", "stream", "tools", "system", "instructions"})
"""Fields of a request that `extra_body` cannot set: they are the runtime's own."""

_ABOUT_REASONING = re.compile(r"thinking|reasoning|signature|encrypted.content", re.IGNORECASE)
_OF_REASONING = re.compile(r"thinking|reasoning|\brs_", re.IGNORECASE)
_ABOUT_PICTURES = re.compile(r"\bimages?\b|\bpictures?\b|media.?type|base64", re.IGNORECASE)
_ABOUT_MEMORY = re.compile(r"compaction|\bcmp_", re.IGNORECASE)

EFFORTS = ((0, "none"), (2_048, "low"), (8_192, "medium"))
"""Reasoning budgets in tokens and the effort that stands for each, where a model takes a label only."""


KEPT_REJECTED = 16
"""Rejected memories that are remembered; a session holds one at a time."""


class Assembler:
    """Builds one reply from the events of its stream. Base of the three wires; see `Sink` for `complete` and
    `finished`.
    """

    def __init__(self, emit: Emit, request: Request, model: str) -> None:
        self.complete = False
        self.finished = False
        self.empty = False
        """A clean answer in which there was nothing at all."""
        self.usage = Usage()
        self.stop: StopReason = "unknown"
        self.native_stop = ""
        self.provider_id: str | None = None
        self.model_name = ""
        self.transformations: list[dict[str, Any]] = []
        self._emit = emit
        self._request = request
        self._model = model

    def event(self, name: str, data: str) -> bool:
        """Takes one event and says whether it carries content."""
        raise NotImplementedError

    def items(self) -> list[ReplyItem]:
        """The reply so far, in the order of the provider."""
        raise NotImplementedError

    def plain(self, status: int, content_type: str, body: bytes) -> None:
        """An answer without events: an error in JSON, a page, or nothing at all (facts, providers 0.2)."""
        value = self.parse(body) if body.lstrip()[:1] in (b"{", b"[") else None
        if self.whole(mapping(value)):
            return
        if mapping(value) or listing(value):
            raise classify(status, value, model=self._model)
        if body.strip() and "event-stream" not in content_type:
            raise ProviderDown(
                f"neither an event stream nor JSON came back ({content_type or 'no content type'}): is base_url right?",
                status=status,
                model=self._model,
            )
        self.empty = True

    def whole(self, value: dict[str, Any]) -> bool:
        """Takes a reply that came in one piece although a stream was asked for; False where this is none."""
        return False

    def parse(self, data: str | bytes) -> object:
        """The JSON of an event. Raises `StreamBroken` where it is none: a reply with a hole is not a reply."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise StreamBroken(f"an event of the stream is not valid JSON ({e})", model=self._model) from None

    def text(self, kind: Literal["text", "reasoning", "call"], text: str) -> None:
        """Shows a piece of the reply."""
        if text:
            self._emit(Delta(kind, clean(text)))

    def error(self, value: object) -> ModelError:
        """The error that an event of the stream means."""
        return classify(None, value, model=self._model)

    def cut(self) -> bool:
        """Whether the output limit ended the reply, whatever the provider says the reason is (B111)."""
        most = self._request.max_output_tokens
        # An output far above its limit is no figure that can be true.
        return self.stop == "length" or 0 < most <= self.usage.output_tokens <= int(most * OVERRUN)


class CallParts:
    """A call while it streams."""

    __slots__ = ("arguments", "call_id", "name", "native_id")

    def __init__(self, call_id: str = "", name: str = "", native_id: str | None = None) -> None:
        self.call_id = call_id
        self.name = name
        self.native_id = native_id
        self.arguments: list[str] = []


def build_call(parts: CallParts, *, cut: bool, last: bool) -> ToolCallItem:
    """A call as an item. Where the output limit cut the reply, an unfinished last call can never run (B110, B111)."""
    text = "".join(parts.arguments)
    call_id = clean(parts.call_id) or f"call_{uuid7().replace('-', '')}"
    try:
        call = make_call(call_id, parts.name, text, cut=cut, native_id=parts.native_id)
    except RecursionError:
        error = "the arguments are nested too deeply"
        return ToolCallItem(
            call_id=call_id, name=clean(parts.name), arguments=clean(text), error=error, native_id=parts.native_id
        )
    if cut and last and not text.strip():
        error = "the call was cut off by the output limit before its arguments: make it again"
        return call.model_copy(update={"error": error})
    return call


def effort(reasoning: str | int | None) -> str | None:
    """The effort label of a reasoning setting, None where nothing was set."""
    if reasoning is None:
        return None
    if isinstance(reasoning, str):
        label = reasoning.strip().lower()
        return "none" if label == "off" else label
    return next((label for budget, label in EFFORTS if reasoning <= budget), "high")


class HttpModel:
    """A model behind an HTTP API. Base of the adapters; see `Model` for what `send` promises.

    `client` is a ready client of the provider's SDK (for Azure, Vertex, a proxy); its owner closes it. `count_path` is
    where the API counts tokens, empty where it does not.
    """

    provider: str
    sdk: SDK
    default_base_url: str
    default_key_env: str
    path: str
    count_path: str = ""
    _encoder: SideEncoder

    def __init__(self, model_id: str, settings: ModelSettings | None = None, *, client: Any = None) -> None:
        self.model_id = model_id
        self.settings = settings or ModelSettings()
        bad = RESERVED & self.settings.extra_body.keys()
        if bad:
            raise ConfigError(f"extra_body cannot set {', '.join(sorted(bad))}: the runtime writes these fields itself")
        self.base_url = self.clean_base_url(check_base_url(self.settings.base_url or self.default_base_url))
        self.local = is_loopback(self.base_url)
        self._server = sha256(self.base_url)[:16]
        self.official = self.base_url == self.default_base_url
        if self.settings.api_key_env and client is None:
            check_key(self.settings.api_key_env, self.base_url, anthropic=self.sdk == "anthropic", model=self.name)
        self._learned: int | None = None
        self._counts = bool(self.count_path)
        self._accepted: set[str] = set()
        self._doubted: set[str] = set()
        self.memories_rejected = 0
        """How many memories were rejected since the provider last took one back."""
        self._capabilities: Capabilities | None = None
        self._head: tuple[str, tuple[ToolSpec, ...], bytes] | None = None
        self._transport = Transport(
            self.sdk,
            base_url=self.base_url,
            key_env=self.key_env(),
            settings=self.settings,
            model=self.name,
            client=client,
        )

    @property
    def name(self) -> str:
        """`provider:model`."""
        return f"{self.provider}:{self.model_id}"

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do. Looked up at the first use, and again after `learn`."""
        if self._capabilities is None:
            self._capabilities = capabilities(
                self.provider,
                self.model_id,
                self.settings,
                learned=self._learned,
                base_url=None if self.official else self.base_url,
                local=self.local,
            )
            if not self._counts and self._capabilities.counting == "provider":
                self._capabilities = replace(self._capabilities, counting="none")
        return self._capabilities

    @property
    def account(self) -> Account:
        """What its provider limits as one; its requests keep to the pace of that (see `worker.pacing`)."""
        return self._transport.account

    @property
    def encoder(self) -> SideEncoder:
        """How this API writes items. Another one after `repair`."""
        return self._encoder

    def repair(self, error: ModelError) -> str | None:
        """Sends the history in another form from now on, after the provider has rejected its reasoning, its memory or its pictures.

        A memory that this server never took yet is doubted at any refusal, whatever its words: a server that does not
        know such blocks has many. Returns what is different, or None where there is no other form.
        """
        if not isinstance(error, InvalidHistory | BadRequest | ModelNotFound) and not _server_error(error):
            return None
        if isinstance(error, BadRequest) and error.pictures and _ABOUT_PICTURES.search(error.message):
            self._encoder = copy.copy(self._encoder)
            self._encoder.images = False
            return "pictures are left out from now on"
        about_memory = (error.code or "").startswith("compaction_") or _ABOUT_MEMORY.search(error.message) is not None
        about_reasoning = not about_memory and _ABOUT_REASONING.search(error.message) is not None
        reasoned = isinstance(error, InvalidHistory) and about_reasoning and self._encoder.reasoning
        unknown = error.memory not in self._accepted
        # Refusals of encrypted content or of a signature do not say whose it is: a memory that was taken before is not it.
        if error.memory and (about_memory or unknown) and not (reasoned and _OF_REASONING.search(error.message)):
            return self._doubt(error.memory)
        if reasoned:
            self._encoder = copy.copy(self._encoder)
            self._encoder.reasoning = False
            return "earlier reasoning is left out from now on"
        return self._doubt(error.memory) if error.memory and about_reasoning else None

    def _doubt(self, memory: str) -> str:
        self._doubted.add(memory)
        self._send_rejected(self._encoder.rejected | {memory})
        return "what the provider has compacted is sent as readable text from now on"

    def _send_rejected(self, rejected: frozenset[str]) -> None:
        self._encoder = copy.copy(self._encoder)
        self._encoder.rejected = rejected

    def believe(self, memory: str) -> None:
        """Sends a memory as it is again: it was not what the provider rejected."""
        self._doubted.discard(memory)
        self._send_rejected(self._encoder.rejected - {memory})

    def rejects(self, memory: OpaqueItem) -> bool:
        """Whether the provider rejected this memory, so that it is sent in words."""
        return bool(self._encoder.rejected) and memory.digest in self._encoder.rejected

    @contextmanager
    def judging(self, request: Request) -> Generator[None]:
        """Learns from one request whether the provider takes the memory in it; an error names the memory."""
        own = self._encoder.carried(request.items)
        sent = "" if own is None else own.digest
        try:
            yield
        except ModelError as e:
            e.memory = sent
            e.pictures = self._encoder.images and any(images_of(item) for item in request.items)
            raise
        if sent:
            self._accepted.add(sent)
            self.memories_rejected = 0
        elif self._doubted and (memory := memory_of(request.items)) and memory.digest in self._doubted:
            self._doubted.discard(memory.digest)
            self.memories_rejected += 1

    @property
    def refusals(self) -> Refusals:
        """What this server is known not to take. A memory that is only doubted is not among it."""
        judged = tuple(sorted(self._encoder.rejected - self._doubted))
        return Refusals(server=self._server, memories=judged[-KEPT_REJECTED:], in_a_row=self.memories_rejected)

    def recall(self, refusals: Refusals) -> None:
        """Goes on from what was known of this server; of another one, nothing changes."""
        if refusals.server == self._server:
            self._send_rejected(self._encoder.rejected | set(refusals.memories))
            self.memories_rejected = max(self.memories_rejected, refusals.in_a_row)

    def learn(self, window: int) -> None:
        """Takes a window in tokens that the provider named; a window from the manifest outranks it."""
        self._learned = window
        self._capabilities = None

    def clean_base_url(self, url: str) -> str:
        """The base URL as the SDK wants it."""
        return url

    def key_env(self) -> str | None:
        """The variable that holds the key. The usual one is never sent to another host than the vendor's; a named one that
        is known as another vendor's is refused when the model is made."""
        if self.settings.api_key_env:
            return self.settings.api_key_env
        return self.default_key_env if self.official else None

    async def aclose(self) -> None:
        """Closes connections. Called in the event loop that sent."""
        await self._transport.aclose()

    async def send(self, request: Request, emit: Emit) -> Reply:
        """One attempt. Raises `ModelError`; cancelled, the connection is closed and nothing is left behind."""
        return await self.stream(request, self.body(request), self.headers(request), emit)

    async def stream(
        self, request: Request, body: bytes, headers: dict[str, str], emit: Emit, *, wait: float = 0.0
    ) -> Reply:
        """Sends a body that was made of a request, and reads the reply. As `send`.

        `wait` is how many seconds without content are borne, where that is more than the settings allow.
        """
        sink = self.assembler(request, emit)
        with self.judging(request):
            try:
                answer = await self._transport.exchange(self.path, body, headers, sink, wait=wait, heard=request.heard)
            except StreamBroken:
                if sink.empty:
                    raise self._empty(body) from None
                raise
        return self._reply(request, sink, answer.get("x-request-id") or answer.get("request-id"))

    async def prepare(self) -> None:
        """Makes the client, which takes seconds the first time. Raises `ModelError`."""
        await self._transport.prepare()

    async def count(self, request: Request) -> int:
        """The input's tokens as the provider counts them. Raises `ModelError`; cancelled, nothing is left behind.

        A server that has no such endpoint is not asked again.
        """
        try:
            answer = await self._transport.ask(self.count_path, self.count_body(request), self.headers(request))
        except (ModelNotFound, BadRequest):
            self._counts = False
            self._capabilities = None
            raise
        return whole_number(mapping(answer.value).get("input_tokens"))

    def count_body(self, request: Request) -> bytes:
        """What is counted, for an API that can."""
        raise NotImplementedError

    def body(self, request: Request) -> bytes:
        """The whole request as bytes: one join."""
        raise NotImplementedError

    def headers(self, request: Request) -> dict[str, str]:
        """Headers of a request beside those of the SDK."""
        return {"content-type": "application/json", **self.settings.extra_headers}

    def assembler(self, request: Request, emit: Emit) -> Assembler:
        """What builds the reply."""
        raise NotImplementedError

    def asked(self, request: Request) -> int:
        """The output limit of a request in tokens."""
        return request.max_output_tokens or self.settings.max_output_tokens or FALLBACK_OUTPUT

    def with_extra(self, fields: dict[str, Any], *, static: bool, without: Set[str] = frozenset()) -> bytes:
        """Fields of a body without their braces. `extra_body`, but for the keys of `without`, outranks them; its fields
        stand in the static head.
        """
        extra = {k: v for k, v in self.settings.extra_body.items() if k not in without}
        merged = {**fields, **extra} if static else {k: v for k, v in fields.items() if k not in extra}
        return dumps(merged)[1:-1]

    def head(self, request: Request) -> bytes:
        """The part before the messages, kept as long as system prompt and tools are the same."""
        kept = self._head
        if kept is None or kept[0] != request.system or kept[1] != request.tools:
            kept = self._head = (request.system, request.tools, self.encode_head(request.system, request.tools))
        return kept[2]

    def encode_head(self, system: str, tools: tuple[ToolSpec, ...]) -> bytes:
        """Everything that does not change from request to request."""
        raise NotImplementedError

    def _empty(self, body: bytes) -> ModelError:
        caps = self.capabilities
        if empty_stream(size=len(body), window=caps.window, known=self.official):
            return ContextOverflow(
                "the provider answered with an empty stream: the input may be larger than its window",
                status=200,
                code="empty_stream",
                model=self.name,
            )
        return StreamBroken(
            "the provider answered with an empty stream", status=200, code="empty_stream", model=self.name
        )

    def _reply(self, request: Request, sink: Assembler, request_id: str | None) -> Reply:
        items = sink.items()
        caps, usage = self.capabilities, checked(sink.usage, self.asked(request))
        why = silent_overflow(
            stop=sink.stop,
            produced=any(item.type in ("assistant", "tool_call") for item in items),
            asked=self.asked(request),
            usage=usage,
            window=caps.window,
            window_known=caps.window_source != "fallback",
        )
        if why is not None:
            raise ContextOverflow(
                why,
                limit=None,
                requested=usage.input_tokens,
                status=200,
                code=sink.native_stop or None,
                request_id=request_id,
                model=self.name,
            )
        return Reply(
            items=tuple(items),
            usage=usage,
            stop=sink.stop,
            native_stop=sink.native_stop,
            provider_id=sink.provider_id or request_id,
            model=sink.model_name or self.model_id,
            transformations=tuple(sink.transformations),
        )


def _server_error(error: ModelError) -> bool:
    """Whether the server broke over a request: it may have met something in it that it does not know."""
    return isinstance(error, ProviderDown) and (error.status or 0) >= 500
