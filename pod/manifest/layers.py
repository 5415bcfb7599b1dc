"""The layers that no file holds: environment variables and `--set`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pod.manifest.errors import Problem
from pod.manifest.schema import key_at
from pod.manifest.source import DEEPEST, LARGEST, Layer, Origin
from pod.manifest.values import is_table

PREFIX = "POD__"
"""What the names of the environment layer begin with: `POD__COMPACTION__THRESHOLD=80000`."""


def environment_layer(env: Mapping[str, str], cwd: Path) -> Layer:
    """The variables `POD__SECTION__KEY` as a layer. Values are read as TOML, else as text."""
    layer = Layer("environment", None, cwd, {})
    for name in sorted(env):
        if name.upper().startswith(PREFIX):
            path = tuple(part.lower() for part in name[len(PREFIX) :].split("__"))
            _put(layer, path, env[name], Origin("environment", name))
    return layer


class Flag(NamedTuple):
    """An argument that stands for a key of the manifest: `--model` for `model.name`. `flag` is what was typed."""

    flag: str
    key: str
    value: str


Override: TypeAlias = str | Flag
"""`section.key=value`, as `--set` takes it, or a flag that stands for one."""


def set_layer(overrides: Iterable[Override], cwd: Path) -> tuple[Layer, list[Problem]]:
    """The `--set section.key=value` arguments, and other flags that stand for keys, as a layer; a later one wins."""
    layer = Layer("set", None, cwd, {})
    problems: list[Problem] = []
    for given in overrides:
        if isinstance(given, Flag):
            _put(layer, tuple(given.key.split(".")), given.value, Origin("set", given.flag))
            continue
        name, equals, value = given.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        if not equals or not all(path):
            # The text itself is not shown behind the name: a value may be a secret.
            problems.append(Problem("should be written section.key=value", file=f"--set {name}"))
            continue
        _put(layer, path, value.strip(), Origin("set", f"--set {name}"))
    return layer, problems


def _put(layer: Layer, path: tuple[str, ...], text: str, origin: Origin) -> None:
    path = path[:DEEPEST]  # a deeper key is as unknown as its table
    table: dict[str, Any] = layer.data
    for part in path[:-1]:
        inner = table.get(part)
        if not is_table(inner):
            inner = table[part] = {}
        table = inner
    table[path[-1]] = _toml_value(path, text)
    layer.origins[path] = origin


def _toml_value(path: tuple[str, ...], text: str) -> Any:
    """The text as a TOML value. Where the key takes text alone, or the text is no TOML value, the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    except ValueError:  # the interpreter's own bound on the digits of a number
        parsed = {"value": LARGEST + 1}
    value = parsed["value"]
    key = key_at(path)
    only_text = key is not None and key.only_text
    return text if len(parsed) > 1 or (only_text and not isinstance(value, str)) else value
