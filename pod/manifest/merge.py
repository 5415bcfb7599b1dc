"""Lays the layers over each other and keeps, for each value, where it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from pod.manifest.errors import KeyPath
from pod.manifest.source import Layer, Origin
from pod.manifest.values import is_array, is_table

ADDED_UP: frozenset[KeyPath] = frozenset({("permissions", "rules"), ("hooks",)})
"""Arrays whose entries of all layers add up, the lowest layer first; every other array is replaced as a whole."""

MODELS: tuple[tuple[str, ...], ...] = (("model",), ("compaction", "model"))
"""The tables that name a model with the variable of its key."""


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[KeyPath, Origin]]:
    """The values of all layers, the later over the earlier, and their origins. The layers stay as they are."""
    values: dict[str, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    for layer in layers:
        for table in MODELS:
            _leave_key(values, layer.data, table, origins)
        _lay(values, layer.data, (), layer.origins, origins)
    return values, origins


def _leave_key(
    under: dict[str, Any], over: dict[str, Any], table: tuple[str, ...], origins: dict[KeyPath, Origin]
) -> None:
    """Drops the key's variable of the layers below where a layer names a model of another provider: it was for that one."""
    old, new = _table(under, table), _table(over, table)
    providers = [str(each["name"]).partition(":")[0] for each in (old, new) if each.get("name")]
    if len({*providers}) == 2 and old.pop("api_key_env", None) is not None:
        origins.pop((*table, "api_key_env"), None)


def _table(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    found: Any = values
    for part in path:
        found = found.get(part)
        if not is_table(found):
            return {}
    return found


def _lay(
    under: dict[str, Any],
    over: dict[str, Any],
    path: KeyPath,
    over_origins: dict[KeyPath, Origin],
    origins: dict[KeyPath, Origin],
) -> None:
    for key, value in over.items():
        here = (*path, key)
        old = under.get(key)
        if is_table(value) and is_table(old):
            if here in over_origins:
                origins[here] = over_origins[here]
            _lay(old, value, here, over_origins, origins)
            continue
        shift = 0
        if here in ADDED_UP and is_array(value) and is_array(old):
            shift = len(old)
            under[key] = [*old, *copy.deepcopy(value)]
        else:
            for known in [known for known in origins if known[: len(here)] == here]:
                del origins[known]
            under[key] = copy.deepcopy(value)
        for known, origin in over_origins.items():
            if known[: len(here)] == here:
                origins[_shifted(known, len(here), shift)] = origin


def _shifted(path: KeyPath, position: int, shift: int) -> KeyPath:
    if len(path) <= position:
        return path
    index = path[position]
    return (*path[:position], index + shift, *path[position + 1 :]) if isinstance(index, int) else path
