"""The tool `new_context`: the agent itself asks for a new window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.tools import ToolContext, ToolFault, tool


@dataclass(frozen=True, slots=True)
class Window:
    """What the tool needs of its pod: how many replies this window has seen, and why none could follow, if so."""

    replies: Callable[[], int]
    refused: str = ""


@tool(effect="read", prunable=False)
async def new_context(context: ToolContext) -> str:
    """Begins a new, nearly empty context window before your next step. Use it between two separate pieces of work.

    What stands in this window leaves your sight, but stays on record. Write down first what the next piece of work needs.
    """
    window = context.get(Window)
    if window.refused:
        raise ToolFault(window.refused)
    if window.replies() <= 1:
        raise ToolFault("this window has only just begun: a new one would hold the same")
    return "A new window begins before your next step."
