"""The keys that a manifest may have, read from the models: for hints, documents and generated files."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pod.manifest.errors import KeyPath, key_label
from pod.manifest.model import Manifest


@dataclass(frozen=True)
class Key:
    """One key of the manifest.

    `section` is the model where the key is a table; `repeated` says that it is an array of tables; `kind` is the
    type in words.
    """

    path: tuple[str, ...]
    field: FieldInfo
    kind: str
    section: type[BaseModel] | None = None
    repeated: bool = False

    @property
    def only_text(self) -> bool:
        """Whether the key takes a string and nothing else."""
        arguments: tuple[Any, ...] = get_args(self.field.annotation) or (self.field.annotation,)
        return all(
            argument is str or argument is types.NoneType or _kind(argument) == "string" for argument in arguments
        )

    @property
    def optional(self) -> bool:
        """Whether the key is unset by default."""
        return self.field.default is None

    @property
    def default(self) -> Any:
        """The default value; None where unset or required."""
        return None if self.field.is_required() else self.field.get_default(call_default_factory=True)


@cache
def keys() -> dict[tuple[str, ...], Key]:
    """All keys by path, tables before what they hold, in the order of the models."""
    return {key.path: key for key in _walk(Manifest, ())}


def children(table: tuple[str, ...]) -> list[Key]:
    """The keys directly in a table (`()` for the top)."""
    return [key for path, key in keys().items() if path[:-1] == table]


def key_at(path: KeyPath) -> Key | None:
    """The key at a place, positions in arrays left out."""
    return keys().get(tuple(part for part in path if isinstance(part, str)))


def label(path: KeyPath) -> str:
    """A place as a person writes it, tables in their brackets: `[prune] enabled`, `[rollover]`, `[[mcp]]`."""
    key = key_at(path)
    if key is None or key.section is None or not isinstance(path[-1], str):
        return key_label(path)
    return _short(key)


KEY_ALIASES = {"max_steps": "max_requests", "max_turns": "max_requests", "max_iterations": "max_requests"}
"""What other runtimes call keys of `[worker]`, and what they are called here."""


def nearest(path: KeyPath) -> str:
    """A hint for an unknown key: the nearest in the same table, else in another, else what the table knows."""
    import difflib

    *table_parts, name = (part for part in path if isinstance(part, str))
    table = tuple(table_parts)
    if (alias := KEY_ALIASES.get(name)) is not None and table[:1] != ("compaction",):
        return f"did you mean {alias if table == ('worker',) else key_label(('worker', alias))}?"
    near = {key.path[-1]: key for key in children(table)}
    found = difflib.get_close_matches(name, near, 1, 0.6)
    if found:
        return f"did you mean {_short(near[found[0]])}?"
    elsewhere = {key.path[-1]: key for key in reversed(keys().values()) if key.path[:-1] != table}
    for cutoff in (0.99, 0.85):
        found = difflib.get_close_matches(name, elsewhere, 1, cutoff)
        if found:
            key = elsewhere[found[0]]
            return f"did you mean {_short(key) if key.section else key_label(key.path)}?"
    return f"known here: {', '.join(near)}" if 0 < len(near) <= 12 else ""


def _short(key: Key) -> str:
    if key.section is None:
        return key.path[-1]
    return f"[[{'.'.join(key.path)}]]" if key.repeated else f"[{'.'.join(key.path)}]"


def _walk(model: type[BaseModel], table: tuple[str, ...]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        path = (*table, name)
        section, repeated = _section(field.annotation)
        extra: Any = field.json_schema_extra
        kind = str(extra["kind"]) if extra else _kind(field.annotation)
        yield Key(path, field, kind, section, repeated)
        if section is not None:
            yield from _walk(section, path)


def _section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    repeated = get_origin(annotation) is tuple
    for argument in get_args(annotation):
        found, inner = _section(argument)
        if found is not None:
            return found, repeated or inner
    return None, False


_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _kind(annotation: Any) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(_kind(argument) for argument in arguments if argument is not types.NoneType)
    if origin is tuple:
        entry = _kind(arguments[0])
        return f"array of {entry}s" if entry.isalpha() else f"array of {entry}"
    return "table"
