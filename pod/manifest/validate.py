"""Turns merged values into a `Manifest`, and everything that stands against it into problems with their places."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from pydantic import ValidationError

from pod.manifest.errors import Finding, KeyPath, ManifestError, Problem, key_label
from pod.manifest.model import Manifest
from pod.manifest.schema import nearest
from pod.manifest.source import Origin, nearest_origin
from pod.manifest.values import is_array, is_table

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def validate(values: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> Manifest:
    """The manifest of these values. Raises `ManifestError` with all that is wrong; no value of a string is repeated in
    it.
    """
    try:
        return Manifest.model_validate(values)
    except ValidationError as e:
        errors = e.errors(include_url=False)
        raise ManifestError([_problem(error, values, origins) for error in errors]) from None


def _problem(error: Any, values: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> Problem:
    path = _path(error["loc"], values, keep_last=error["type"] == "missing")
    message, hint = _message(error, path)
    label = key_label(path)
    if error["type"] == "extra_forbidden" and isinstance(error.get("input"), dict):
        label = f"[{'.'.join(str(part) for part in path)}]"
        message = "unknown table"
    return place(path, message, label, origins, hint=hint)


def _path(loc: tuple[str | int, ...], values: Any, *, keep_last: bool) -> KeyPath:
    """The part of pydantic's location that stands in the values."""
    path: KeyPath = ()
    found: Any = values
    for part in loc:
        inner = _inner(found, part)
        if inner is None:
            return (*path, part) if keep_last and part == loc[-1] else path
        found = inner
        path += (part,)
    return path


def _inner(value: object, part: str | int) -> object:
    """An entry of a table or array; None where there is none, for TOML knows no such value."""
    if is_table(value) and isinstance(part, str):
        return value.get(part)
    if is_array(value) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _message(error: Any, path: KeyPath) -> tuple[str, str]:
    kind: str = error["type"]
    context: Mapping[str, Any] = error.get("ctx", {})
    value: Any = error.get("input")
    if path == ("version",):
        return "this runtime reads version 1", ""
    if kind == "extra_forbidden":
        return "unknown key", nearest(path)
    if kind == "missing":
        return "is missing", ""
    if kind in _WANTED:
        return f"should be {_WANTED[kind]}, not {_kind(value)}", ""
    if kind == "literal_error":
        if not isinstance(value, str):
            return f"should be {context['expected']}, not {_kind(value)}", ""
        import difflib
        import re

        near = difflib.get_close_matches(value, re.findall(r"'([^']+)'", str(context["expected"])), 1, 0.6)
        return f"should be {context['expected']}", f"did you mean '{near[0]}'?" if near else ""
    if kind == "value_error":
        return str(context["error"]), ""
    message = str(error["msg"]).removeprefix("Input ").removeprefix("String ").removeprefix("Tuple ")
    if isinstance(value, int | float) and not isinstance(value, bool):
        message += f", not {value}"
    return message, ""


def _kind(value: object) -> str:
    names: dict[type, str] = {
        bool: "a truth value",
        int: "a whole number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "a table",
    }
    return names.get(value.__class__, "a date or time")


def place(
    path: KeyPath,
    message: str,
    label: str,
    origins: Mapping[KeyPath, Origin],
    *,
    hint: str = "",
) -> Problem:
    """A problem with the place of the key, as far as a file or an argument holds it."""
    origin = nearest_origin(origins, path)
    if origin is None:
        return Problem(message, key=label, hint=hint)
    return Problem(message, file=origin.file, line=origin.line, column=origin.column, key=label, hint=hint)


def place_finding(finding: Finding, origins: Mapping[KeyPath, Origin], lowered: Container[KeyPath] = ()) -> Problem:
    """A contradiction with the place of the first of its keys that someone wrote; the others are named in the hint.

    `lowered` are keys whose defaults gave way to a small window.
    """
    written = [key for key in finding.keys if key in origins]
    main = written[0] if written else finding.keys[0]
    hints = [finding.hint] if finding.hint else []
    for key in finding.keys:
        if key != main:
            default = "is what the window leaves" if key in lowered else "has its default"
            hints.append(f"{key[-1]} is set at {origins[key]}" if key in origins else f"{key[-1]} {default}")
    origin = origins.get(main) or nearest_origin(origins, main)
    return Problem(
        finding.message,
        file=origin.file if origin else None,
        line=origin.line if origin else None,
        column=origin.column if origin else None,
        key=key_label(main),
        hint=", ".join(hints),
        severity=finding.severity,
    )
