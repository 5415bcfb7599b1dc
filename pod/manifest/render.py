"""A manifest for people and for other programs: a table with origins, TOML, JSON Schema."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from pod.manifest.errors import KeyPath
from pod.manifest.expand import FILES, ROOTS, URLS, escape, in_place
from pod.manifest.fitting import Lowered
from pod.manifest.load import Loaded, dotted, values_of
from pod.manifest.locate import locate
from pod.manifest.model import Manifest
from pod.manifest.project import Tightened
from pod.manifest.values import is_array, is_table

_LONGEST_VALUE = 60


def show(loaded: Loaded) -> str:
    """Each value with its origin, one a line, in columns. Long values are cut; keys cannot stand in a manifest."""
    lowered = {dotted(each.key): each for each in loaded.lowered}
    rows = [
        (dotted(path), _brief(value), _source(loaded, lowered, dotted(path)))
        for path, value in values_of(loaded.manifest)
        if path != ("extends",)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}".rstrip() + "\n" for key, value, source in rows)


def _source(loaded: Loaded, lowered: Mapping[str, Lowered], key: str) -> str:
    if (each := lowered.get(key)) is not None:
        return f"default {each.was}, lowered to fit {each.reason[-1]}"
    source = loaded.sources[key]
    if (was := tightened_values(loaded).get(key)) is not None:
        return f"{source}, tightened from {'unset' if was.value is None else f'{_brief(was.value)} ({was.origin})'}"
    return str(source)


def tightened_values(loaded: Loaded) -> dict[str, Tightened]:
    """The values that stand as the working folder's own configuration tightened them, with what they were, by key."""
    if loaded.project is None:
        return {}
    known = {dotted(path): was for path, was in loaded.project.tightened.items()}
    return {key: was for key, was in known.items() if loaded.sources[key].layer == "project"}


def to_toml(manifest: Manifest) -> str:
    """The manifest as TOML, defaults included, so that a later version with other defaults reads the same.

    Loading it again gives an equal manifest: unset keys are left out, and `$` is doubled where it would be expanded.
    """
    import tomli_w

    data = manifest.model_dump(mode="json", exclude_none=True)
    for path in (*URLS, *FILES, *ROOTS):
        _escape_at(data, path)
    for name in ("mcp", "hooks", "interceptors"):
        if not data[name]:
            del data[name]
    # The writer's multi-line form does not keep carriage returns.
    return tomli_w.dumps(data, multiline_strings="\\r" not in json.dumps(data))


def to_toml_with_sources(loaded: Loaded) -> str:
    """`to_toml` with the source of each value in a comment: behind it, above it where it takes several lines."""
    text = to_toml(loaded.manifest)
    lowered = {dotted(each.key): each for each in loaded.lowered}
    lines = text.split("\n")
    places = {place.line: path for path, place in locate(text).items() if dotted(path) in loaded.sources}
    for number, path in places.items():
        line, source = lines[number - 1], _comment_text(_source(loaded, lowered, dotted(path)))
        if line.startswith("["):
            lines[number - 1] = f"{line}  # {source}" if isinstance(path[-1], int) else line
            continue
        try:
            tomllib.loads(line)
            lines[number - 1] = f"{line}  # {source}"
        except tomllib.TOMLDecodeError:
            lines[number - 1] = f"{line[: len(line) - len(line.lstrip())]}# {source}\n{line}"
    return "\n".join(lines)


def _comment_text(text: str) -> str:
    """A text as it may stand in a comment."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, for editors (`#:schema` in the first line of the file)."""
    schema = Manifest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Pod manifest"}


def toml_value(value: Any) -> str:
    """One value as TOML on one line. Numbers of whole seconds are written without a fraction."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # JSON writes strings as TOML does, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        entries: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # of a manifest
        return "[" + ", ".join(toml_value(entry) for entry in entries) + "]"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if is_table(value):
        pairs = value
        inner = ", ".join(f"{_toml_key(name)} = {toml_value(entry)}" for name, entry in pairs.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(str(value))


def _toml_key(name: str) -> str:
    return name if name and name.isascii() and name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _brief(value: Any) -> str:
    text = "-" if value is None else toml_value(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _escape_at(data: dict[str, Any], path: KeyPath) -> None:
    *tables, name = path
    holder: Any = data
    for table in tables:
        holder = holder.get(table)
        if holder is None:
            return
    value = holder.get(name)
    if isinstance(value, str):
        holder[name] = value if in_place(path, value) else escape(value)
    elif is_array(value):
        holder[name] = [escape(entry) for entry in value]
