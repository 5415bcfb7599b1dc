"""Tools as a server lists them: each is looked at alone, so that a bad one costs itself and no other (case B137)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from worker.schemas import BadSchema, checked_schema
from worker.text import clean, clean_deep

MOST_TOOLS = 10_000
"""Tools of one server that are looked at."""

_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_AT_THE_ROOT = ("anyOf", "oneOf", "allOf", "not", "$ref", "enum")


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool by the server's own name."""

    tool: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server that can be used, by name, and the others with the reason."""

    tools: tuple[Definition, ...] = ()
    unfit: tuple[tuple[str, str], ...] = ()


def listing_of(listed: Iterable[object]) -> Listing:
    """What a server's list holds. Pure; raises nothing for what stands in it."""
    good: dict[str, Definition] = {}
    unfit: dict[str, str] = {}
    for number, each in enumerate(listed, 1):
        table = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name = table.get("name")
        if not isinstance(name, str) or not name:
            unfit[f"tool {number}"] = "it has no name"
            continue
        name = clean(name)
        if name in good or name in unfit:
            # Whichever was meant, a call could reach the other.
            good.pop(name, None)
            unfit[name] = "it is listed twice"
            continue
        description = table.get("description")
        try:
            schema = _schema(table.get("inputSchema"))
        except BadSchema as error:
            unfit[name] = f"its inputSchema {error}"
            continue
        good[name] = Definition(name, clean(description) if isinstance(description, str) else "", schema)
    return Listing(tuple(good[name] for name in sorted(good)), tuple(sorted(unfit.items())))


def _schema(value: object) -> dict[str, Any]:
    """A schema that every provider takes. Raises `BadSchema`."""
    if not isinstance(value, dict):
        raise BadSchema("is no object")
    schema = cast("dict[str, Any]", clean_deep(cast("object", value)))
    for key in _AT_THE_ROOT:
        if key in schema:
            raise BadSchema(f"has {key!r} at its root, which providers refuse")
    if schema.setdefault("type", "object") != "object":
        raise BadSchema(f'is of the type {json.dumps(schema["type"])[:60]} at its root, not "object"')
    properties = schema.setdefault("properties", {})
    if isinstance(properties, dict):
        for key in cast("dict[str, Any]", properties):
            if _PROPERTY.fullmatch(key) is None:
                raise BadSchema(
                    f"has a property {key[:80]!r}: providers take letters, digits, '_', '.' and '-', at most 64"
                )
    try:
        return cast("dict[str, Any]", checked_schema(json.dumps(schema)))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, BadSchema) else BadSchema(f"can't be read: {error}") from error
