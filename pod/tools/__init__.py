"""Tools that look at the pod itself: its history, its context."""

from __future__ import annotations

from collections.abc import Callable

from worker.tools import Tool


def _session_history() -> Tool:
    from pod.tools.session_history import session_history

    return session_history


def _context() -> Tool:
    from pod.tools.context import context

    return context


def _new_context() -> Tool:
    from pod.tools.new_context import new_context

    return new_context


POD_TOOLS: dict[str, Callable[[], Tool]] = {
    "session_history": _session_history,
    "context": _context,
    "new_context": _new_context,
}
"""Tools of this floor by name, made when they are asked for."""
