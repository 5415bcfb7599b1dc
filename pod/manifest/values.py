"""Parsed TOML as the loader handles it before it is validated."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a parsed value is a table."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a parsed value is an array."""
    return isinstance(value, list)
