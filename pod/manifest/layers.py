"""The layers beside the manifest's own files: environment variables, `--set`, and what a project folder may change."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pod.manifest.errors import KeyPath, Problem, key_label
from pod.manifest.schema import key_at, label
from pod.manifest.source import DEEPEST, LARGEST, Layer, Origin
from pod.manifest.values import is_array, is_table

PREFIX = "POD__"
"""What the names of the environment layer begin with: `POD__COMPACTION__THRESHOLD=80000`."""

Tightening: TypeAlias = Literal["lower", "higher"] | tuple[frozenset[Any], ...] | Mapping[str, frozenset[str]]
"""A direction; values in steps, each tighter than those of the steps before; or for each value those that are tighter."""

_POLICY_ORDER = (
    frozenset({"off"}),
    frozenset({"warn"}),
    frozenset({"compact", "rollover", "checkpoint", "native"}),
)

TIGHTENING: dict[tuple[str, ...], Tightening] = {
    ("worker", "max_requests"): "lower",
    ("model", "max_output_tokens"): "lower",
    ("tools", "shell", "timeout"): "lower",
    ("tools", "shell", "max_output"): "lower",
    # `unattended` never asks, also where a rule would: nothing is tighter, for `read-only` lets rules ask.
    ("permissions", "profile"): {
        "workspace-write": frozenset({"safe", "unattended", "read-only"}),
        "safe": frozenset({"read-only"}),
        "unattended": frozenset(),
        "read-only": frozenset(),
    },
    ("permissions", "when_headless"): (frozenset({"pause"}), frozenset({"deny"})),
    ("sandbox", "mode"): (frozenset({"off"}), frozenset({"workspace"}), frozenset({"read-only"})),
    ("sandbox", "network"): (frozenset({True}), frozenset({False})),
    ("sandbox", "git"): (frozenset({"writable"}), frozenset({"read-only"})),
    ("context", "policy"): _POLICY_ORDER,
    ("context", "buffer_tokens"): "higher",
    ("compaction", "threshold"): "lower",
    ("compaction", "request_threshold"): "lower",
    ("compaction", "worker_context_max_tokens"): "lower",
    ("compaction", "worker_max_turns"): "lower",
    ("compaction", "deadline"): "lower",
    ("compaction", "final_reserve_tokens"): "higher",
    ("compaction", "finish_warning_remaining_tokens"): "higher",
    ("compaction", "auto_read_budget_tokens"): "lower",
    ("compaction", "result_context_max_tokens"): "lower",
    ("limits", "max_cost_usd"): "lower",
    ("limits", "max_total_tokens"): "lower",
    ("limits", "max_wall_seconds"): "lower",
    ("limits", "max_tool_calls"): "lower",
    ("limits", "repeat_call", "stop"): "lower",
    ("limits", "stall", "stop"): "lower",
    ("retry", "max_attempts"): "lower",
    ("retry", "max_seconds"): "lower",
    ("log", "redact"): (frozenset({False}), frozenset({True})),
}
"""What `.pod/config.toml` of a folder that is not trusted may set, and which direction is tighter."""


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


def loosened(layer: Layer, below: dict[str, Any]) -> list[Problem]:
    """Problems for each key of a project layer that may not stand there or that does not tighten what is below it. What may
    not stand there is taken out, so that nothing later acts on it.

    `below` holds the values of the layers below, without defaults.
    """
    problems: list[Problem] = []
    for path, value in list(_leaves(layer.data, ())):
        if path == ("permissions", "rules"):
            problems += _loose_rules(layer, value)
            continue
        if path == ("version",) or key_at(path) is None:
            continue  # the validation names an unknown key
        order = TIGHTENING.get(path)
        if order is None:
            problems.append(
                layer.problem(
                    path,
                    "a project's own configuration may only tighten, and may not set this",
                    key=label(path),
                    hint="set it in the manifest, or with --set",
                )
            )
            del _holder(layer.data, path)[path[-1]]
            continue
        now = _value_at(below, path)
        if not tightens(order, now, value):
            problems.append(
                layer.problem(
                    path,
                    f"a project's own configuration may only tighten: {value!r} is not tighter than {now!r}",
                    key=key_label(path),
                )
            )
    return problems


def _loose_rules(layer: Layer, rules: Any) -> Iterator[Problem]:
    for number, rule in enumerate(rules if is_array(rules) else []):
        action: Any = rule.get("action") if is_table(rule) else None
        if action in ("allow", "ask"):
            path = ("permissions", "rules", number)
            yield layer.problem(path, "a project's own configuration may only add rules that deny", key=key_label(path))


def tightens(order: Tightening, now: Any, value: Any) -> bool:
    """Whether a value is as tight as the one that holds now, or tighter. One of a wrong type is: the validation names it."""
    if now is None or now == value:
        return True
    if isinstance(order, Mapping):
        return any(not isinstance(x, str) or x not in order for x in (now, value)) or value in order[now]
    if isinstance(order, tuple):
        ranks = [next((n for n, values in enumerate(order) if x in values), -1) for x in (now, value)]
        return -1 in ranks or ranks[1] > ranks[0]
    if _is_percent(now) and _is_percent(value):
        now, value = float(now[:-1]), float(value[:-1])
    if not (_is_number(now) and _is_number(value)):
        # Tokens and a share cannot be compared. Anything else is of a wrong type, which the validation names.
        return not (_is_number(value) or _is_percent(value))
    if order == "higher":
        return value > now
    # 0 means "the largest that is possible" where a key allows it.
    return value != 0 and (now == 0 or value < now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_percent(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value) is not None


def _value_at(below: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The value below, else the default."""
    found: Any = below
    for part in path:
        found = found.get(part) if is_table(found) else None
    if found is not None:
        return found
    if path == ("context", "policy"):
        return "warn"
    key = key_at(path)
    return None if key is None else key.default


def _holder(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for part in path[:-1]:
        data = data[part]
    return data


def _leaves(value: dict[str, Any], path: KeyPath) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        here: Any = (*path, name)
        key = key_at(here)
        if is_table(inner) and (key is None or key.section is not None):
            yield from _leaves(inner, here)
        else:
            yield here, inner
