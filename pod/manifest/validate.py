"""Turns merged values into a `Manifest`, and everything that stands against it into problems with their places."""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pod.manifest.errors import Finding, KeyPath, ManifestError, Problem, in_order, key_label
from pod.manifest.model import Manifest
from pod.manifest.schema import keys, nearest
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
    manifest, problems = read(values, origins)
    if problems:
        raise ManifestError(in_order(problems))
    return manifest


def read(values: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> tuple[Manifest, list[Problem]]:
    """The manifest of these values as far as they can be read, with defaults in the place of the rest, and what is wrong
    with that.
    """
    problems: list[Problem] = []
    left = copy.deepcopy(dict(values))
    while True:
        try:
            return Manifest.parsed(left), problems
        except ValidationError as e:
            errors = e.errors(include_url=False)
        problems = problems or [_problem(error, left, origins) for error in errors]
        paths = {_path(error["loc"], left, keep_last=error["type"] == "missing") for error in errors}
        if not _leave_out(left, paths):
            return Manifest(), problems


def explained(error: ValidationError, section: type[BaseModel], given: object) -> ManifestError:
    """What is wrong with values that code gave for a manifest or one of its tables, in the words of a file's problems."""
    values: Any = given
    if isinstance(given, str | bytes | bytearray):
        try:
            values = json.loads(given)
        except ValueError:
            values = None
    table = next((key.path for key in keys().values() if key.section is section), ())
    found = [_problem(each, values, {}, table) for each in error.errors(include_url=False)]
    return ManifestError(in_order(found))


def _leave_out(values: dict[str, Any], paths: Iterable[KeyPath]) -> bool:
    """Takes values out; whether there were any. In an array of tables that is the whole array, for places name its
    entries by number.
    """
    done = False
    for path in sorted(paths, reverse=True):  # the last entry of an array first
        holder: Any = values
        for number, part in enumerate(path[:-1]):
            inner = _inner(holder, part)
            if is_array(inner) and any(is_table(entry) for entry in inner):
                path = path[: number + 1]
                break
            holder = inner
        if path and _inner(holder, path[-1]) is not None:
            del holder[path[-1]]
            done = True
    return done


def _problem(error: Any, values: Mapping[str, Any], origins: Mapping[KeyPath, Origin], table: KeyPath = ()) -> Problem:
    """A mistake with its place; `table` is that of the values, where they are not a whole manifest's."""
    path = (*table, *_path(error["loc"], values, keep_last=error["type"] == "missing"))
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
        wanted = (
            "" if isinstance(value, int) and not isinstance(value, bool) else f", a whole number, not {_kind(value)}"
        )
        return f"this runtime reads version 1{wanted}", ""
    if kind == "extra_forbidden":
        return "unknown key", nearest(path)
    if kind == "missing":
        return "is missing", ""
    if kind in _WANTED:
        return f"should be {_WANTED[kind]}, not {_kind(value)}", _as_array(path, value) if kind == "tuple_type" else ""
    if kind == "literal_error":
        if not isinstance(value, str):
            return f"should be {context['expected']}, not {_kind(value)}", ""
        import difflib
        import re

        near = difflib.get_close_matches(value, re.findall(r"'([^']+)'", str(context["expected"])), 1, 0.6)
        return f"should be {context['expected']}", f"did you mean '{near[0]}'?" if near else ""
    if kind == "value_error":
        return str(context["error"]), ""
    if kind in ("too_short", "string_too_short"):
        return "should not be empty", ""
    if kind == "string_unicode":
        return "holds bytes that are not UTF-8", ""
    message = str(error["msg"]).removeprefix("Input ")
    if isinstance(value, int | float) and not isinstance(value, bool):
        message += f", not {value}"
    return message, ""


def _as_array(path: KeyPath, value: object) -> str:
    """How what stands where an array should is written as one."""
    if not path or not isinstance(path[-1], str):
        return ""
    if is_table(value):
        name = ".".join(str(part) for part in path if isinstance(part, str))
        return f"each one stands below a line [[{name}]] of its own"
    return "put it in brackets: [...]"


def _kind(value: object) -> str:
    names: dict[type, str] = {
        bool: "a truth value",
        int: "a whole number",
        float: str(value),
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
    origin = nearest_origin(origins, path) or Origin("default")
    return Problem(message, file=origin.file, line=origin.line, column=origin.column, key=label, hint=hint, path=path)


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
        path=main,
    )
