"""What a model sees: items.

An item is frozen, has an id (UUIDv7) and a `type`. The log stores items as they were made; what a request shows of
them (its view) may replace some by smaller ones, never reorder them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from worker.ids import uuid7
from worker.text import clean, clean_deep, half_in_json, sha256, size

UNREADABLE = (
    "[An earlier part of this session was compacted by its model's provider, in a form that only that model reads.]"
)
"""What others read of a memory that came without a readable text."""

SUMMARY_CHARS = 400
"""A tool output's summary has at most this many characters."""

SUMMARY_LINES = 10
"""A plain text of more lines than this is content, however short."""

ContextKind: TypeAlias = Literal[
    "summary",
    "user_words",
    "auto_read",
    "references",
    "state",
    "notice",
    "warning",
    "lead_in",
    "instructions",
    "pin",
    "notes",
]
Trust: TypeAlias = Literal["runtime", "user", "project", "model", "tool"]
ResultStatus: TypeAlias = Literal["ok", "error", "denied", "interrupted"]


class _Base(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", revalidate_instances="never", defer_build=True)

    id: str = Field(default_factory=uuid7)


class Image(BaseModel):
    """A picture: base64 data with its media type. Costs tokens by the provider's rule, never by its length."""

    model_config = ConfigDict(frozen=True)

    media_type: str
    data: str


class UserItem(_Base):
    """The user's words. They are stored on arrival and reach the model once, byte for byte."""

    type: Literal["user"] = "user"
    text: str
    images: tuple[Image, ...] = ()


class AssistantItem(_Base):
    """Text by the model. `reply` names the reply that it is part of, `native_id` is the provider's id of the message."""

    type: Literal["assistant"] = "assistant"
    text: str
    native_id: str | None = None
    reply: str = ""


class ReasoningItem(_Base):
    """The model's reasoning as the provider sent it: `payload` is JSON text, kept and sent back byte for byte.

    It goes back to the provider and model that made it only. `text` is what may be shown to a person; it is not sent.
    """

    type: Literal["reasoning"] = "reasoning"
    provider: str
    model: str
    payload: str
    text: str = ""
    reply: str = ""


class ToolCallItem(_Base):
    """A call of a tool. `arguments` is the raw text as received; `parsed` is the object in it, or `error` says why not.

    What is sent back to a provider is `arguments` where they parse to an object, else an object that holds the raw text, so
    that a history with a damaged call stays valid (cases B110 to B112). `masked` says that a secret stood in what was
    received: it ran, or was to run, with that, which is not kept (`worker.gate`).
    """

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: str
    error: str | None = None
    native_id: str | None = None
    reply: str = ""
    masked: Literal[True] | None = None

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The arguments as an object, or None where they are damaged."""
        return None if self.error else parse_arguments(self.arguments)[0]

    def wire_arguments(self) -> str:
        """JSON text of an object, whatever was received."""
        if self.error is None:
            return self.arguments or "{}"
        return json.dumps({"unparsed_arguments": self.arguments}, ensure_ascii=False)


class FileRange(BaseModel):
    """Lines of a file: 1-based, both ends included (0 and 0 for the whole of a written file), and the hash of the file then.

    `last` below `first` means that only parts of a line were shown: such a range covers no line. An empty `sha256` means that the
    model does not know what the file holds now.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    first: int
    last: int
    sha256: str


class ToolResultItem(_Base):
    """What became of a call. `summary` always stays; `content` is what a prune drops.

    `prunable` is the tool's own word on whether content may go; `artifact` names the whole output where it was spooled.
    `reads` and `writes` say which file the call saw or left; `state` holds new values of the pod's tool state by key
    (tasks, processes): the log is where that state lives.
    """

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    status: ResultStatus
    summary: str
    content: str | None = None
    images: tuple[Image, ...] = ()
    pruned: bool = False
    prunable: bool = True
    artifact: str | None = None
    reads: FileRange | None = None
    writes: FileRange | None = None
    state: dict[str, Any] | None = None

    def text(self) -> str:
        """What the model reads: the summary and, below it, the content."""
        return self.summary if self.content is None else f"{self.summary}\n{self.content}"


class ContextItem(_Base):
    """Text that the runtime puts before the model: data without authority, wrapped and attributed when it is sent."""

    type: Literal["context"] = "context"
    kind: ContextKind
    text: str
    source: str = ""
    trust: Trust = "runtime"
    path: str | None = None
    sha256: str | None = None
    pruned: bool = False


class OrderItem(_Base):
    """What the runtime itself asks of the model. It carries the session's tag, which no data can imitate."""

    type: Literal["order"] = "order"
    text: str
    tag: str


class OpaqueItem(_Base):
    """A provider's own item (a native compaction, an unknown block): JSON text, bound to provider and model.

    One that stands for other items has their `source_hash`, and `readable`: what everybody else reads in its place, another
    model too. `tokens` is what it takes of the window by the provider's word, 0 where that is not known. `way` is how it
    was made (a `NativeWay`), empty where that is not known.
    """

    type: Literal["opaque"] = "opaque"
    provider: str
    model: str
    payload: str
    source_hash: str = ""
    readable: str = ""
    tokens: int = 0
    way: str = ""
    reply: str = ""

    @property
    def is_memory(self) -> bool:
        """Whether it stands for other items."""
        return bool(self.source_hash)

    @property
    def is_damaged(self) -> bool:
        """Whether half a character stands in it, so that no provider takes it back: its own model reads it in words too."""
        return half_in_json(self.payload)

    @property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return _digest(self.payload)

    def as_summary(self) -> ContextItem:
        """A memory as everybody but its own model reads it."""
        source = f"compacted by {self.provider}:{self.model}"
        return ContextItem(id=self.id, kind="summary", text=self.readable or UNREADABLE, source=source, trust="model")


Item: TypeAlias = Annotated[
    UserItem | AssistantItem | ReasoningItem | ToolCallItem | ToolResultItem | ContextItem | OrderItem | OpaqueItem,
    Field(discriminator="type"),
]
ReplyItem: TypeAlias = Annotated[AssistantItem | ReasoningItem | ToolCallItem | OpaqueItem, Field(discriminator="type")]


@lru_cache(maxsize=4)
def _digest(payload: str) -> str:
    """Asked of the same memory at every request."""
    return sha256(payload)


def source_hash(items: Iterable[Item]) -> str:
    """The hash of the items that a memory stands for: of their ids, in order."""
    return sha256("\n".join(item.id for item in items))


items_adapter: TypeAdapter[list[Item]] = TypeAdapter(list[Item], config=ConfigDict(defer_build=True))
item_adapter: TypeAdapter[Item] = TypeAdapter(Item, config=ConfigDict(defer_build=True))


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of a call as an object, or None and what is wrong with them. An empty text means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value: object = json.loads(text)
    except ValueError as e:
        return None, f"the arguments are not valid JSON ({e}); they may have been cut off"
    if not isinstance(value, dict):
        return None, f"the arguments must be a JSON object, not {type(value).__name__}"
    # An escape can make half a character, which no file, hash or request takes (case B145).
    return cast("dict[str, Any]", clean_deep(cast("object", value)) if "\\u" in text else value), None


def make_call(
    call_id: str, name: str, arguments: str, *, cut: bool = False, native_id: str | None = None
) -> ToolCallItem:
    """A call as a provider's reply holds it; `cut` says that the reply ended at its output limit."""
    arguments = clean(arguments)
    _, error = parse_arguments(arguments)
    if cut and error:
        error = "the call was cut off by the output limit: make it in smaller parts"
    return ToolCallItem(call_id=call_id, name=clean(name), arguments=arguments, error=error, native_id=native_id)


class ToolOutput(BaseModel):
    """What a tool returns: `summary` says what was done (at most 400 characters) and stays; `content` can be pruned.

    `reads`, `writes` and `state` are the durable side of the call; see `ToolResultItem`.
    """

    model_config = ConfigDict(frozen=True)

    summary: str
    content: str | None = None
    images: tuple[Image, ...] = ()
    is_error: bool = False
    artifact: str | None = None
    reads: FileRange | None = None
    writes: FileRange | None = None
    state: dict[str, Any] | None = None

    @field_validator("summary", "content")
    @classmethod
    def _valid_unicode(cls, value: str | None) -> str | None:
        return None if value is None else clean(value)

    @classmethod
    def from_text(cls, text: str, *, label: str = "", is_error: bool = False) -> ToolOutput:
        """A plain text as an output: short ones are summary only, longer ones get a summary and are content.

        Up to 400 characters and 10 lines count as short. The summary of a longer text is `label` with its size, or its first line.
        """
        text = clean(text)
        if len(text) <= SUMMARY_CHARS and text.count("\n") < SUMMARY_LINES:
            return cls(summary=text, is_error=is_error)
        if label:
            summary = f"{label}, {size(len(text.encode()))}"
        else:
            summary = next((line for line in text.splitlines() if line.strip()), "").strip()
        return cls(summary=summary[:SUMMARY_CHARS], content=text, is_error=is_error)
