"""Parsed TOML as the loader handles it before it is validated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, TypeGuard

Leaf: TypeAlias = tuple[tuple[str | int, ...], Any, Any, Any]
"""A value's place, what holds it, its name there, the value."""


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a parsed value is a table."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a parsed value is an array."""
    return isinstance(value, list)


def leaves(value: dict[str, Any] | list[Any], path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """All values inside, at any depth, that are neither tables nor arrays."""
    pairs: Iterable[tuple[Any, Any]] = value.items() if is_table(value) else enumerate(value)
    for name, inner in pairs:
        if is_table(inner) or is_array(inner):
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name), value, name, inner


def take_out(holder: Any, name: Any) -> None:
    """Takes a value away where it stands; in an array an empty text keeps the places of the others."""
    if is_table(holder):
        del holder[name]
    else:
        holder[name] = ""
