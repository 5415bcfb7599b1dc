"""Items as `session_history` shows them: each a row, without what must not come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from worker.items import AssistantItem, ContextItem, Image, Item, ToolCallItem, ToolResultItem, UserItem
from worker.memory import read_by_others

OWN = "session_history"
"""The tool's name: its own answers are never given again."""

SHOWN_CONTEXT = frozenset({"summary", "auto_read"})
"""Context items that hold something to look up; the others are the runtime's."""

STUB = "\n[pruned: the log that held its full text is not here, this is all that is left of it]"
"""Stands behind the text of a result that a segment began with in pruned form, where nothing older can be read."""

Older: TypeAlias = Literal["whole", "cut", "gone"]
"""What can be read before a segment: all of it; not the end of the log before it; nothing."""

RowType: TypeAlias = Literal["user", "assistant", "tool_call", "tool_result", "context"]


@dataclass(frozen=True, slots=True)
class Row:
    """An item as history shows it.

    `text` is None for what is left out: `mark` says why; a marked text is not searched.
    """

    segment: str
    seq: int
    at: str
    item: str
    type: str
    text: str | None
    tool: str = ""
    status: str = ""
    mark: str = ""


def row_of(item: Item, segment: str, seq: int, at: str) -> Row:
    """An item as a row: reasoning, provider items and the runtime's words left out, media and own answers marked."""
    item = read_by_others(item)
    match item:
        case UserItem():
            return Row(segment, seq, at, item.id, "user", item.text + _media(item.images))
        case AssistantItem():
            return Row(segment, seq, at, item.id, "assistant", item.text)
        case ToolCallItem():
            mark = "a question to session_history" if item.name == OWN else ""
            return Row(segment, seq, at, item.id, "tool_call", item.arguments, item.name, mark=mark)
        case ToolResultItem(name=name) if name == OWN:
            mark = "an answer of session_history"
            return Row(segment, seq, at, item.id, "tool_result", f"[{mark}: not repeated]", name, item.status, mark)
        case ToolResultItem():
            text = item.text() + _media(item.images) + (STUB if item.pruned else "")
            return Row(segment, seq, at, item.id, "tool_result", text, item.name, item.status)
        case ContextItem(kind=kind) if kind in SHOWN_CONTEXT:
            return Row(segment, seq, at, item.id, "context", item.text, kind)
        case ContextItem():
            return Row(segment, seq, at, item.id, "context", None, mark=f"the runtime's own {item.kind}")
        case _:
            return Row(segment, seq, at, item.id, item.type, None, mark=f"{item.type} is not shown")


def _media(images: tuple[Image, ...]) -> str:
    return "".join(f"\n[image, {image.media_type}: not shown]" for image in images)


def is_shown(item: Item, older: Older) -> bool:
    """Whether an item that a segment began with is a row of it.

    Where the log before was cut, what may have been lost with its end is shown here (what stands there too, twice); but no
    stub of a result whose full text may still be read there.
    """
    if older == "gone" or (isinstance(item, ContextItem) and item.kind in SHOWN_CONTEXT):
        return True
    return older == "cut" and not (isinstance(item, ToolResultItem) and item.pruned)
