"""What the encoders share: sides and grouping, the wrapper of data, and text that every provider accepts."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast

from worker.items import (
    ContextItem,
    Image,
    Item,
    OpaqueItem,
    OrderItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)
from worker.models.base import ToolSpec
from worker.text import clean, clean_deep, visible

Side: TypeAlias = Literal["user", "model"]

NO_OUTPUT = "(no output)"
"""Stands for an empty tool result: some providers reject an empty one."""

NO_IMAGES = "[an image was left out: this model does not take images]"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode

# A mark that a reader could take for the wrapper's own: any bracket, slash, case and width of letters, letters of other
# scripts that look alike, with blanks or invisible characters.
_BRACKET = re.compile(r"[<＜﹤‹〈〈⟨❬❮˂ᐸ≺](?=/?(?:[\scCoO]|[^!-~]))")
_MARK = re.compile(r"/?(?:context|order)(?:[\s>/]|$)")
_MARK_CHARS = 9
_ALIKE = {
    "c": "сСϲᴄ", "o": "оОοΟᴏ", "n": "пոɴ", "t": "тТτΤᴛ", "e": "еЕεΕᴇ", "x": "хХχΧ", "r": "гʀ", "d": "ԁᴅ", "/": "⁄∕⧸╱",
    ">": "›〉〉⟩❭❯",
}  # fmt: skip
_LATIN = str.maketrans({char: latin for latin, chars in _ALIKE.items() for char in chars})
_LINE_BREAKS = re.compile(r"[\s\x00-\x1f\x7f]+")
_SEPARATORS = re.compile(r"[\s,]*")
_decoder = json.JSONDecoder()
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
_FRAGILE = re.compile(r"\\u[dD][89a-fA-F]|NaN|Infinity")


def dumps(value: object) -> bytes:
    """Compact JSON as UTF-8. A lone surrogate becomes U+FFFD: one must never brick a session (B145)."""
    text = _encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return clean(text).encode()


def dumps_exact(value: object) -> str:
    """JSON text that holds exactly the strings of `value`, lone surrogates as escapes (B146)."""
    text = _encode(value)
    return text if text.isascii() or clean(text) is text else json.dumps(value, separators=(",", ":"))


def dumps_sorted(value: object) -> bytes:
    """Compact JSON with sorted keys: the same schema always gives the same bytes, so a prefix cache stays warm.

    Entries that are infinite or no number (a default, say) are left out: JSON has no word for them (B137).
    """
    try:
        text = _sorted(value)
    except ValueError:
        text = _sorted(_finite(value))
    return clean(text).encode()


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in cast("dict[str, object]", value).items() if not _endless(v)}
    if isinstance(value, list):
        return [_finite(x) for x in cast("list[object]", value) if not _endless(x)]
    return value


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def neutral(text: str) -> str:
    """`text` with marks that look like the wrapper's own made harmless, so that data cannot close or fake it (B044)."""
    return _BRACKET.sub(lambda found: "&lt;" if _is_mark(text, found.end()) else found[0], text)


def _is_mark(text: str, at: int) -> bool:
    """Whether what follows a bracket reads as one of the wrapper's marks. Looks at a few visible characters."""
    word = ""
    for char in (text[n] for n in range(at, len(text))):
        if char.isspace():
            word += " " if word.strip("/") else ""
        else:
            word += _plain(char)
        if len(word) >= _MARK_CHARS or (word and word.removeprefix("/")[:1] not in {"", "c", "o"}):
            break
    return _MARK.match(word) is not None


@lru_cache(maxsize=2048)
def _plain(char: str) -> str:
    """A character as a reader takes it: nothing for what is invisible, the Latin letter that it looks like."""
    if char.isascii():
        return char.lower() if char.isprintable() else ""
    if visible(char) != char or char in "\u200c\u200d" or unicodedata.category(char) in {"Cf", "Cc", "Mn"}:
        return ""
    parts = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", char))
    return "".join(c for c in parts if unicodedata.category(c) != "Mn").translate(_LATIN).lower()


def attribute(value: str) -> str:
    """A value that cannot leave its quotes or its line."""
    return neutral(html.escape(_LINE_BREAKS.sub(" ", value), quote=True))


def context_text(item: ContextItem) -> str:
    """A context item as the model reads it: wrapped and attributed."""
    source = f' source="{attribute(item.source)}"' if item.source else ""
    return f'<context kind="{item.kind}"{source}>\n{neutral(item.text)}\n</context>'


def order_text(item: OrderItem) -> str:
    """An order as the model reads it: outside the data wrapper, with the session's tag."""
    return f'<order tag="{attribute(item.tag)}">\n{neutral(item.text)}\n</order>'


def user_text(item: Item) -> str:
    """The text of an item of the user's side. The user's own words are sent as they are."""
    match item.type:
        case "user":
            return item.text
        case "context":
            return context_text(item)
        case "order":
            return order_text(item)
        case "opaque" if item.is_memory:
            return context_text(item.as_summary())
        case _:
            return ""


def images_of(item: Item) -> tuple[Image, ...]:
    """The pictures of an item."""
    return item.images if isinstance(item, UserItem | ToolResultItem) else ()


def mapping(value: object) -> dict[str, Any]:
    """A JSON object as a dict, and an empty one for any other value: what a provider sends is never trusted to have its
    shape.
    """
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listing(value: object) -> list[Any]:
    """A JSON list, and an empty one for any other value."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def count(value: object) -> int:
    """A number of tokens, 0 for any other value."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf else 0


def result_text(item: ToolResultItem) -> str:
    """The text of a tool result, never empty."""
    text = item.text()
    return text if text.strip() else NO_OUTPUT


def data_url(image: Image) -> str:
    """An image as a `data:` URL."""
    return f"data:{image.media_type};base64,{image.data}"


def wire_id(call_id: str, limit: int = 64) -> str:
    """An id that every provider takes, equal for a call and its result. Ids of another provider can be longer or of
    other letters.
    """
    if len(call_id) <= limit and call_id and _NOT_ID.search(call_id) is None:
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return _NOT_ID.sub("_", call_id)[: limit - 13] + "_" + digest


def wire_name(name: str) -> str:
    """A tool name that every provider takes: a made-up one in the history must not make each later request fail."""
    return _NOT_ID.sub("_", name)[:64] or "unknown"


def wire_arguments(call: ToolCallItem) -> str:
    """The arguments of a call as valid JSON of an object, whatever was received: no half characters, no NaN."""
    text = call.wire_arguments()
    if not text.strip():
        return "{}"
    if _FRAGILE.search(text) is None:
        return text
    return clean(_encode(clean_deep(json.loads(text, parse_constant=str))))


class SideEncoder:
    """Grouping by side. Base of the encoders.

    Consecutive items of one side are one message. Items that are never sent (empty text, reasoning or opaque items of
    another provider or model) belong to whatever stands before them, so that their neighbours join over them.
    A memory goes to its own model as its provider made it, a message of its own; to any other as a summary to read.
    `reasoning` says whether reasoning is sent at all. `rejected` are the hashes of memories that the provider does not
    take back: they go as a summary too.
    """

    reasoning = True
    rejected: frozenset[str] = frozenset()

    def __init__(self, provider: str, model: str, *, images: bool = True) -> None:
        self.provider = provider
        self.model = model
        self.images = images

    def side(self, item: Item) -> Side | None:
        """The side that an item is sent on, None where it is not sent."""
        match item.type:
            case "user":
                return "user" if item.text.strip() or item.images else None
            case "context" | "order" | "tool_result":
                return "user"
            case "assistant":
                return "model" if item.text.strip() else None
            case "tool_call":
                return "model"
            case "reasoning":
                return "model" if self.sends(item) else None
            case "opaque":
                return "model" if self.sends(item) else ("user" if item.is_memory else None)

    def sends(self, item: ReasoningItem | OpaqueItem) -> bool:
        """Whether a provider's own item goes back: to the provider and model that made it only."""
        if isinstance(item, ReasoningItem) and not self.reasoning:
            return False
        if isinstance(item, OpaqueItem) and item.is_memory and self._returned(item):
            return False
        return item.provider == self.provider and item.model == self.model

    def _returned(self, memory: OpaqueItem) -> bool:
        """Whether the provider does not take a memory back."""
        return memory.is_damaged or (bool(self.rejected) and memory.digest in self.rejected)

    def lead(self, items: Sequence[Item]) -> Side | None:
        """The side of a message: that of its first item that is sent."""
        for item in items:
            side = self.side(item)
            if side is not None:
                return side
        return None

    def own_memory(self, item: Item) -> bool:
        """Whether an item is a memory that goes as its provider made it."""
        return isinstance(item, OpaqueItem) and item.is_memory and self.side(item) == "model"

    def carried(self, items: Sequence[Item]) -> OpaqueItem | None:
        """The memory that a history begins with and that goes as its provider made it; none stands anywhere else."""
        first = items[0] if items else None
        return first if isinstance(first, OpaqueItem) and self.own_memory(first) else None

    def joins(self, open_items: Sequence[Item], item: Item) -> bool:
        """Whether `item` belongs to the message of `open_items`."""
        side = self.side(item)
        if side is None:
            return True
        lead = next((x for x in open_items if self.side(x) is not None), None)
        if lead is None:
            return True
        return side == self.side(lead) and not self.own_memory(lead) and not self.own_memory(item)

    def members(self, items: Sequence[Item]) -> tuple[Side | None, list[Item]]:
        """The side of a message and its items that are sent on it."""
        lead = self.lead(items)
        return lead, [item for item in items if self.side(item) == lead] if lead else []


def raw_object(data: str, key: str, value: dict[str, Any]) -> str:
    """The text of the object `value` in JSON text, byte for byte, where it is what `key` names or stands in its list.

    Where it is not found, it is written anew.
    """
    for found in re.finditer(rf'"{re.escape(key)}"\s*:\s*', data):
        at = found.end()
        try:
            if data[at : at + 1] != "[":
                each, end = _decoder.raw_decode(data, at)
                if each == value:
                    return data[at:end]
                continue
            at += 1
            while True:
                at = cast("re.Match[str]", _SEPARATORS.match(data, at)).end()
                each, end = _decoder.raw_decode(data, at)
                if each == value:
                    return data[at:end]
                at = end
        except (ValueError, RecursionError):
            # The end of this list: there is no value behind it.
            continue
    return dumps_exact(value)


def spliced(item: ReasoningItem | OpaqueItem) -> bytes:
    """A provider's own JSON text, byte for byte."""
    return item.payload.encode()


def tool_defs(tools: Sequence[ToolSpec], shape: Literal["chat", "responses", "anthropic"]) -> bytes:
    """The tools as a JSON list, in order, each with sorted keys."""
    return b"[" + b",".join(dumps_sorted(_tool(tool, shape)) for tool in tools) + b"]"


def _tool(tool: ToolSpec, shape: str) -> dict[str, Any]:
    base: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if shape == "anthropic":
        return base | {"input_schema": tool.parameters}
    if shape == "responses":
        # This API takes a missing `strict` for true, and then rejects schemas with optional parameters.
        return base | {"type": "function", "parameters": tool.parameters, "strict": False}
    return {"type": "function", "function": base | {"parameters": tool.parameters}}
