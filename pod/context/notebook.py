"""The agent's own notes across windows: a file that it keeps, shown at the start of each new window."""

from __future__ import annotations

from pod.context.opening import ReadRange
from pod.context.policy import Plan
from worker.estimate import estimate_text
from worker.items import ContextItem
from worker.text import byte_prefix
from worker.tools import ToolFault

NOTES = "context-notes.md"
"""The file, in the agent's working folder. The runtime never makes it."""

SLOT_BYTES = 8_192
"""Bytes of it that a window begins with at most."""

SLOT_TOKENS = 2_000
"""Tokens of them at most."""


def snapshot(read: ReadRange, path: str) -> ContextItem | None:
    """The notes as they stand now, cut with a mark where they are longer than the slot; None where there are none.

    Reads a file: not for the event loop.
    """
    try:
        text, _, _, digest = read(path, 1, None)
    except (ToolFault, OSError):
        return None
    if not text.strip():
        return None
    shown = byte_prefix(text, SLOT_BYTES)
    while estimate_text(shown) > SLOT_TOKENS:
        shown = byte_prefix(shown, len(shown.encode()) * 9 // 10)
    if shown != text:
        left = len(text.encode()) - len(shown.encode())
        shown += f"\n[... {left} bytes more; read_file {path} shows them. Shorten your notes ...]"
    return ContextItem(
        kind="notes", text=shown, source=f"{path}, written by you", trust="model", path=path, sha256=digest
    )


def warning(used: int, end: int, notes: str | None) -> str:
    """What the agent is told before a window ends."""
    where = (
        f"Write what you must not lose (decisions, open points, results still needed) to {notes} now, in a few lines: it "
        "stands at the start of the new window"
        if notes
        else "Notes can't be written here; session_history shows what stands in this window"
    )
    return (
        f"The context holds {used:,} tokens; at {end:,} ({round(100 * used / max(end, 1))} % are used) a new window begins "
        f"without them. {where}. session_history finds everything else. Then go on with the task."
    )


def small_window(plan: Plan) -> str:
    """What the user is told where a window ends after one reply."""
    return (
        f"a window ended after one reply: {plan.before.tokens:,} tokens are above [rollover] at ({plan.limits.lowest:,}), and "
        f"what stands in any window takes {plan.limits.standing.mandatory:,} of them (system prompt and tool schemas {plan.before.overhead:,}). "
        "The limit is too small for this task: raise [rollover] at or the model's window, or enable fewer tools."
    )
