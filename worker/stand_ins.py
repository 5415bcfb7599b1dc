"""What stands in a history for items that a damaged log lost, the same on every load."""

from __future__ import annotations

from worker.items import ContextItem, Item, ToolCallItem, ToolResultItem

LOST = "lost-"
"""What the id of a result begins with that stands for one lost from a damaged log; the id of its call follows."""

LOST_BEFORE = "before-"
"""The same for what was said before a history's first reply."""


def stand_in(label: str, item: Item) -> Item:
    """What stands for an item lost from the log, by its id, the same on every load; `item` is the one that needs it."""
    return lost_result(item) if isinstance(item, ToolCallItem) and label.startswith(LOST) else lost_before(item)


def lost_before(item: Item) -> ContextItem:
    """What stands before a reply whose history lost its beginning."""
    text = "What was said here was lost from the damaged log."
    return ContextItem(id=f"{LOST_BEFORE}{item.id}", kind="notice", text=text, source="the runtime")


def lost_result(call: ToolCallItem) -> ToolResultItem:
    """The result of a call whose own was lost."""
    return ToolResultItem(
        id=f"{LOST}{call.id}", call_id=call.call_id, name=call.name, status="interrupted", prunable=False,
        summary=f"{call.name}: the result was lost from the damaged log; what the call did is unknown",
    )  # fmt: skip
