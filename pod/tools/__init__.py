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


POD_TOOLS: dict[str, Callable[[], Tool]] = {"session_history": _session_history, "context": _context}
"""Tools of this floor by name, made when they are asked for."""
