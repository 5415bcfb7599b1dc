"""The tool `new_context`: the agent itself asks for a new window."""

from __future__ import annotations

from pod.tools.lent import Window
from worker.tools import ToolContext, ToolFault, tool


@tool(effect="read", prunable=False)
async def new_context(context: ToolContext) -> str:
    """Begins a new, nearly empty context window before your next step. Use it between two separate pieces of work.

    What stands in this window leaves your sight, but stays on record. Write down first what the next piece of work needs.
    """
    window = context.get(Window)
    if reason := window.refused():
        raise ToolFault(f"no new window: {reason}")
    return "A new window begins before your next step."
