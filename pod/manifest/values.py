"""Parsed TOML as the loader handles it before it is validated."""

from __future__ import annotations

import re
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


_OBJECT = re.compile(r'\s*\{\s*["}]')


def is_json_object(text: str) -> bool:
    """Whether a text begins as a JSON object does, which no path needs to: `{manifest_dir}/x` does not."""
    return _OBJECT.match(text) is not None


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
