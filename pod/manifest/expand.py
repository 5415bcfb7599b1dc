"""What is filled into a manifest: environment variables in paths and addresses, folders, and the names in a prompt.

In `base_url` and in paths (`extends`, `system_prompt_file`, `output_schema`, the scope's roots) `${NAME}` stands
for the environment variable NAME, and `$$` for one `$`. A variable that is undefined or empty is an error: nothing
silently loses its middle. No other text is touched; a `$` elsewhere stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pod.manifest.errors import KeyPath, Problem, key_label
from pod.manifest.source import Layer
from pod.manifest.values import is_array, is_json_object, is_table

_VARIABLE = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROMPT_NAME = re.compile(r"(\$?)\$(?:(cwd|platform|tools|pod)(?![A-Za-z0-9_])|\{(cwd|platform|tools|pod)\})")

URLS: tuple[tuple[str, ...], ...] = (("model", "base_url"), ("compaction", "model", "base_url"))
FILES: tuple[tuple[str, ...], ...] = (("worker", "system_prompt_file"), ("worker", "output_schema"))
"""Keys that name files."""
SCHEMA = ("worker", "output_schema")
"""The one of them that may be a file or what would stand in it."""

ROOTS: tuple[tuple[str, ...], ...] = (("scope", "read"), ("scope", "write"))

MANIFEST_DIR = "{manifest_dir}"
"""Stands, at the start of a path, for the folder of the manifest that names it."""


class BadText(ValueError):
    """A `${...}` or `{manifest_dir}` cannot be filled in, or a path is none. The text says which and why."""


def expand(text: str, env: Mapping[str, str]) -> str:
    """`text` with its `${NAME}` filled in. Raises `BadText` for an undefined, empty or badly written one."""

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name = found[1]
        if name is None:
            raise BadText("a ${ without its }; write $${ for the characters themselves")
        if not _NAME.fullmatch(name):
            raise BadText(f"${{{name}}} is not a variable; only ${{NAME}} is known, and $$ for one $")
        if not env.get(name):
            state = "is empty" if name in env else "is not defined"
            raise BadText(f"the environment variable {name} {state}")
        return env[name]

    return _VARIABLE.sub(fill, text)


def absolute(text: str, base: Path, manifest_dir: Path, env: Mapping[str, str]) -> str:
    """A path as an absolute one, resolved once (case B141): from `base`, the manifest's folder, or the home folder.

    Raises `BadText` where `{manifest_dir}` stands elsewhere than at the start, or a path can't be one.
    """
    if "\0" in text:
        raise BadText("holds a NUL character, which no path can")
    if text == MANIFEST_DIR or text.startswith((f"{MANIFEST_DIR}/", f"{MANIFEST_DIR}\\")):
        base, text = manifest_dir, text.removeprefix(MANIFEST_DIR).lstrip("/\\") or "."
    elif text == "~" or text.startswith("~/"):
        base, text = Path(env["HOME"]) if env.get("HOME") else Path.home(), text[1:].lstrip("/") or "."
    if MANIFEST_DIR in text:
        raise BadText(f"{MANIFEST_DIR} stands only at the start of a path")
    return os.path.realpath(base / text)


def resolve_layer(layer: Layer, *, cwd: Path, manifest_dir: Path, env: Mapping[str, str]) -> list[Problem]:
    """Fills in the variables of a layer and makes its paths absolute. What has a wrong type is left as it is."""
    problems: list[Problem] = []
    own = manifest_dir if layer.name in ("environment", "set") else layer.base

    def url(text: str) -> str:
        return expand(text, env)

    def file(text: str) -> str:
        return absolute(expand(text, env), layer.base, own, env)

    def root(text: str) -> str:
        return absolute(expand(text, env), cwd, own, env)

    for paths, change in ((URLS, url), (FILES, file), (ROOTS, root)):
        for path in paths:
            holder = _table(layer.data, path[:-1])
            if holder is not None and path[-1] in holder and not in_place(path, holder[path[-1]]):
                holder[path[-1]] = _changed(holder[path[-1]], change, layer, path, problems)
    return problems


def in_place(path: KeyPath, value: Any) -> bool:
    """Whether a key that may name a file holds what would stand in it: no path, so nothing is filled in."""
    return path == SCHEMA and isinstance(value, str) and is_json_object(value)


def _table(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    found: Any = data
    for part in path:
        found = found.get(part) if is_table(found) else None
    return found if is_table(found) else None


def _changed(value: Any, change: Callable[[str], str], layer: Layer, path: KeyPath, problems: list[Problem]) -> Any:
    if is_array(value):
        return [_changed(inner, change, layer, (*path, n), problems) for n, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    if not value:
        problems.append(layer.problem(path, "is empty", key=key_label(_named(path))))
        return value
    try:
        return change(value)
    except BadText as e:
        problems.append(layer.problem(path, str(e), key=key_label(_named(path))))
        return value


def _named(path: KeyPath) -> KeyPath:
    return path[:-1] if isinstance(path[-1], int) else path


def escape(text: str) -> str:
    """The opposite of `expand`, for a value that is written to a file."""
    return text.replace("$", "$$")


def fill_prompt(text: str, *, cwd: str, platform: str, tools: str, pod: str) -> str:
    """A system prompt with `$cwd`, `$platform`, `$tools` and `$pod` (or `${cwd}` and so on) filled in.

    `$$cwd` stands for the characters `$cwd`. Every other `$` is left as it is, so that a prompt may speak of shells
    (case B140).
    """
    values = {"cwd": cwd, "platform": platform, "tools": tools, "pod": pod}

    def fill(found: re.Match[str]) -> str:
        return found[0][1:] if found[1] else values[found[2] or found[3]]

    return _PROMPT_NAME.sub(fill, text)
