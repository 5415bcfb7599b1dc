"""Tools as a server lists them: each is looked at alone, so that a bad one costs itself and no other (case B137)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from worker.mcp.words import Screen, TooDeep
from worker.schemas import BadSchema, checked_schema
from worker.text import clean, clipped, size

MOST_TOOLS = 10_000
"""Tools of one server that are looked at."""

MOST_DESCRIBED = 8_000
"""Characters of a description."""

LONGEST_SCHEMA = 65_536
"""Bytes of one tool's schema."""

MOST_SCHEMAS = 16 * 1024 * 1024
"""Bytes of all schemas of a server: what is behind them is not looked at."""

MOST_LISTED = 32 * 1024 * 1024
"""Bytes of all that a server lists, as JSON: one that lists more has no tools."""

LONGEST_NAME = 512
"""Characters of a server's own name for a tool."""

_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_AT_THE_ROOT = ("anyOf", "oneOf", "allOf", "not", "$ref", "enum")


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool: what it is called here, and by the server."""

    name: str
    tool: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server that can be used, by its own names, and the others with the reason."""

    tools: tuple[Definition, ...] = ()
    unfit: tuple[tuple[str, str], ...] = ()


def listing_of(listed: Iterable[object], named: Callable[[str], str] = str, screen: Screen | None = None) -> Listing:
    """What a server's list holds. Pure; raises nothing for what stands in it.

    `named` gives what a tool is called here; two that would be called the same are offered neither way: whichever was meant, a call
    could reach the other.
    """
    screen = screen or Screen()
    tables: dict[str, dict[str, Any]] = {}
    unfit: dict[str, str] = {}
    for number, each in enumerate(listed, 1):
        table = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name = table.get("name")
        if not isinstance(name, str) or not name:
            unfit[f"tool {number}"] = "it has no name"
            continue
        name = clean(name)
        if len(name) > LONGEST_NAME:
            unfit[f"tool {number}"] = f"its name has {len(name):,} characters: at most {LONGEST_NAME}"
        elif name in tables or name in unfit:
            tables.pop(name, None)
            unfit[name] = "it is listed twice"
        elif screen.gate.masked(name) != name:
            unfit[name] = "its name holds a secret"
        else:
            tables[name] = table
    unfit |= _of_one_name(tables, named)
    good: list[Definition] = []
    room = MOST_SCHEMAS
    for name in sorted(tables.keys() - unfit.keys()):
        table = tables[name]
        description = table.get("description")
        try:
            text = _text(table.get("inputSchema"), room)
            room -= len(text)
            schema = _schema(text, screen)
        except BadSchema as error:
            unfit[name] = f"its inputSchema {error}"
            continue
        said = screen.text(description, MOST_DESCRIBED) if isinstance(description, str) else ""
        good.append(Definition(named(name), name, said, schema))
    return Listing(tuple(good), tuple(sorted(unfit.items())))


def weight(listed: Iterable[object]) -> int:
    """The bytes of tools as JSON; some for one that can't be written so."""
    return sum(map(_weight, listed))


def _weight(tool: object) -> int:
    try:
        return len(json.dumps(tool))
    except (ValueError, RecursionError):
        return 16 * LONGEST_SCHEMA


def _of_one_name(tools: Iterable[str], named: Callable[[str], str]) -> dict[str, str]:
    """Tools that would be called the same here, each with the reason."""
    mine: dict[str, list[str]] = {}
    for tool in tools:
        mine.setdefault(named(tool), []).append(tool)
    return {
        tool: f"another one would be called {name!r} too"
        for name, same in mine.items()
        if len(same) > 1
        for tool in same
    }


def _text(value: object, room: int) -> str:
    """A schema as text, within its bounds. Raises `BadSchema`."""
    if not isinstance(value, dict):
        raise BadSchema("is no object")
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError) as error:
        raise BadSchema(_unread(error)) from error
    if len(text) > LONGEST_SCHEMA:
        raise BadSchema(f"has {size(len(text))}: at most {size(LONGEST_SCHEMA)}")
    if len(text) > room:
        raise BadSchema(f"is not looked at: all schemas of its server have more than {size(MOST_SCHEMAS)}")
    return text


def _schema(text: str, screen: Screen) -> dict[str, Any]:
    """A schema that every provider takes. Raises `BadSchema`."""
    try:
        schema = cast("dict[str, Any]", screen.value(json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise BadSchema(_unread(error)) from error
    for key in _AT_THE_ROOT:
        if key in schema:
            raise BadSchema(f"has {key!r} at its root, which providers refuse")
    if schema.setdefault("type", "object") != "object":
        raise BadSchema(f'is of the type {clipped(json.dumps(schema["type"]), 60)} at its root, not "object"')
    properties = schema.setdefault("properties", {})
    if isinstance(properties, dict):
        for key in cast("dict[str, Any]", properties):
            if _PROPERTY.fullmatch(key) is None:
                raise BadSchema(
                    f"has a property {clipped(key, 80)!r}: providers take letters, digits, '_', '.' and '-', at most 64"
                )
    try:
        return cast("dict[str, Any]", checked_schema(json.dumps(schema)))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, BadSchema) else BadSchema(_unread(error)) from error


def _unread(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, TooDeep)
        else "is nested too deep"
        if isinstance(error, RecursionError)
        else f"can't be read: {error}"
    )
