"""The tool `context`: what is in the window, and which items must stay."""

from __future__ import annotations

from typing import Literal

from pod.tools.lent import Pins
from worker.items import ContextItem, ToolResultItem
from worker.tools import ToolContext, ToolFault, tool


@tool(effect="read", prunable=False)
async def context(
    context: ToolContext, action: Literal["list", "pin", "unpin"] = "list", item: str | None = None
) -> str:
    """Shows which large items are in the context, and pins items that must stay through prunes and summaries.

    Args:
        action: list shows results and files with their ids and sizes; pin and unpin take the id of an item.
        item: The id of the item to pin or unpin.
    """
    pins = context.get(Pins)
    history, pinned = pins.history(), pins.pinned()
    if action == "list":
        rows: list[str] = []
        for found, tokens in zip(history.view, history.tokens, strict=True):
            if isinstance(found, ToolResultItem | ContextItem):
                label = found.name if isinstance(found, ToolResultItem) else found.kind
                marks = " pinned" * (found.id in pinned) + " pruned" * found.pruned
                text = found.summary if isinstance(found, ToolResultItem) else found.source
                rows.append(f"{found.id} {label} ~{tokens} tokens{marks}: {text[:120]}")
        return "\n".join(rows[-200:]) or "the context holds no results and no files"
    if item is None or item not in history.index:
        raise ToolFault(f"no item {item!r} is in the context; action 'list' shows the ids")
    if action == "unpin":
        pins.set(item, False)
        return f"{item} is no longer pinned"
    used = sum(history.tokens[history.index[i]] for i in pinned if i in history.index)
    size = history.tokens[history.index[item]]
    if used + size > pins.budget:
        raise ToolFault(
            f"{item} has {size} tokens; pinned items have {used} of {pins.budget} already: unpin something first"
        )
    pins.set(item, True)
    return f"{item} is pinned ({size} tokens; {used + size} of {pins.budget})"
