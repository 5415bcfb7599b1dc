"""Bringing a text down to a number of bytes and tokens."""

from __future__ import annotations

from worker.estimate import estimate_text
from worker.models.base import Family
from worker.text import byte_prefix


def clip(text: str, *, tokens: int, size: int | None = None, family: Family = "unknown") -> str:
    """The longest start of `text` of at most `size` bytes that is estimated at no more than `tokens`."""
    if size is not None:
        text = byte_prefix(text, size)
    if tokens <= 0:
        return ""
    if estimate_text(text, family) <= tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate_text(text[:middle], family) <= tokens else (low, middle - 1)
    return text[:low]
