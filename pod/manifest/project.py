"""What the configuration that comes with a folder may say: only what tightens, unless the user trusts the folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pod.manifest.errors import KeyPath, Problem, key_label
from pod.manifest.schema import key_at, label
from pod.manifest.source import Layer, Origin, shown
from pod.manifest.values import is_array, is_table

Tightening: TypeAlias = Literal["lower", "higher"] | tuple[frozenset[Any], ...] | Mapping[str, frozenset[str]]
"""A direction; values in steps, each tighter than those of the steps before; or for each value those that are tighter."""

_POLICY_ORDER = (
    frozenset({"off"}),
    frozenset({"warn"}),
    frozenset({"compact", "rollover", "checkpoint", "native"}),
)

MOST_LEFT_OUT = 8
"""Values that were left out of a folder's configuration and are told one by one."""

RULES: KeyPath = ("permissions", "rules")

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

Standing: TypeAlias = Literal["trusted", "untrusted", "changed", "ignored"]
"""How a folder's configuration stands: trusted as it is, not trusted, changed since it was trusted, or left out whole."""


class LeftOut(NamedTuple):
    """A value that a folder's configuration asks for and does not get. `before` is what holds instead; a rule has none."""

    path: KeyPath
    value: Any
    before: Any
    problem: Problem


class Tightened(NamedTuple):
    """What a value was before a folder's configuration tightened it, and where that came from."""

    value: Any
    origin: Origin


@dataclass(frozen=True)
class Project:
    """The configuration of the working folder, and what became of it. `decided` is when the user decided about the folder;
    `refused` says why a decision that is there was not taken; `digest` and `text` are those of the file.
    """

    file: Path
    standing: Standing
    left_out: tuple[LeftOut, ...] = ()
    tightened: Mapping[KeyPath, Tightened] = field(default_factory=dict[KeyPath, Tightened])
    digest: str = ""
    text: str = ""
    decided: str = ""
    refused: str = ""


def bound(layer: Layer, below: dict[str, Any]) -> list[LeftOut]:
    """Takes out of a project's layer what may not stand there and what does not tighten the layers below it.

    `below` holds their values, without defaults. What is of a wrong type, and keys that nobody knows, stay: the validation
    names them.
    """
    found: list[LeftOut] = []
    for path, value in list(_leaves(layer.data, ())):
        if path == RULES:
            found += _loose_rules(layer, value)
            continue
        if path == ("version",) or key_at(path) is None:
            continue
        order = TIGHTENING.get(path)
        now = value_at(below, path)
        if order is None:
            found.append(_left_out(layer, path, value, now, "only the configuration of a trusted folder may set this"))
        elif not tightens(order, now, value):
            found.append(
                _left_out(layer, path, value, now, f"{json.dumps(value)} is not tighter than {json.dumps(now)}")
            )
    for each in found:
        if each.path[:2] != RULES:
            _take(layer, each.path)
    _without_rules(layer, {each.path[2] for each in found if each.path[:2] == RULES})
    _drop_empty(layer.data, ())
    return found


def tightened(layer: Layer, below: dict[str, Any], origins: Mapping[KeyPath, Origin]) -> dict[KeyPath, Tightened]:
    """What each value was that a project's layer tightens; its own rules have nothing before them."""
    found: dict[KeyPath, Tightened] = {}
    for path, value in _leaves(layer.data, ()):
        if path in TIGHTENING and (now := value_at(below, path)) != value:
            found[path] = Tightened(now, origins.get(path, Origin("default")))
    return found


def said_of(project: Project) -> list[Problem]:
    """What a user should know of a project's configuration that is not in force as it stands: warnings."""
    told = [each.problem for each in project.left_out[:MOST_LEFT_OUT]]
    more = len(project.left_out) - len(told)
    file = shown(project.file)
    if more:
        told.append(Problem(f"and {more} more values are left out", file=file, severity="warning"))
    if project.refused:
        message = f"what was decided about the folder is not taken: {project.refused}"
        told.append(Problem(message, file=file, hint="decide again with `pod trust`", severity="warning"))
    if project.standing == "changed":
        message = f"changed since you trusted it ({project.decided[:10]}), and is not trusted any more"
        hint = f"`{trust_command(project, '--diff')}` shows what changed, `{trust_command(project)}` trusts it as it is now"
        told.append(Problem(message, file=file, hint=hint, severity="warning"))
    elif project.left_out:
        message = "the folder is not trusted, so this file may only tighten"
        hint = f"`{trust_command(project)}` shows what it asks for, and trusts it"
        told.append(Problem(message, file=file, hint=hint, severity="warning"))
    return told


def trust_command(project: Project, flag: str = "") -> str:
    """The command about this folder, as one types it."""
    return " ".join(part for part in ("pod trust", flag, shlex.quote(str(project.file.parent.parent))) if part)


def with_way_out(problems: Iterable[Problem], project: Project) -> list[Problem]:
    """The first mistake in the file of a folder that is not trusted says how to do without that file."""
    found = list(problems)
    file = shown(project.file)
    for number, problem in enumerate(found):
        if problem.file == file and problem.severity == "error" and project.standing != "trusted":
            way = f"`{trust_command(project, '--ignore')}` leaves the file out"
            found[number] = replace(problem, hint=f"{problem.hint}; {way}" if problem.hint else way)
            break
    return found


def _left_out(layer: Layer, path: KeyPath, value: Any, now: Any, why: str) -> LeftOut:
    problem = layer.problem(path, f"left out: {why}", key=label(path), severity="warning")
    return LeftOut(path, value, now, problem)


def _loose_rules(layer: Layer, rules: Any) -> Iterator[LeftOut]:
    for number, rule in enumerate(rules if is_array(rules) else []):
        action: Any = rule.get("action") if is_table(rule) else None
        if action in ("allow", "ask"):
            path = (*RULES, number)
            why = "left out: a folder that is not trusted may only add rules that deny"
            yield LeftOut(path, rule, None, layer.problem(path, why, key=key_label(path), severity="warning"))


def _take(layer: Layer, path: KeyPath) -> None:
    holder: Any = layer.data
    for part in path[:-1]:
        holder = holder[part]
    del holder[path[-1]]
    for known in [known for known in layer.origins if known[: len(path)] == path]:
        del layer.origins[known]


def _without_rules(layer: Layer, numbers: set[str | int]) -> None:
    """Takes rules out; those behind them move up, with their places."""
    if not numbers:
        return
    rules: list[Any] = layer.data["permissions"]["rules"]
    kept = [number for number in range(len(rules)) if number not in numbers]
    layer.data["permissions"]["rules"] = [rules[number] for number in kept]
    place: dict[str | int, int] = {before: now for now, before in enumerate(kept)}
    moved: dict[KeyPath, Origin] = {}
    for known, origin in layer.origins.items():
        if known[:2] != RULES or len(known) == 2:
            moved[known] = origin
        elif known[2] in place:
            moved[(*RULES, place[known[2]], *known[3:])] = origin
    layer.origins.clear()
    layer.origins.update(moved)
    if not kept:
        _take(layer, RULES)


def _drop_empty(data: dict[str, Any], path: KeyPath) -> None:
    """An optional table asks for something by being there, even where nothing stands in it (any more)."""
    for name, value in list(data.items()):
        here = (*path, name)
        if is_table(value) and key_at(here) is not None:
            _drop_empty(value, here)
            if not value:
                del data[name]


def tightens(order: Tightening, now: Any, value: Any) -> bool:
    """Whether a value is as tight as the one that holds now, or tighter. One of a wrong type is: the validation names it."""
    if now is None or now == value:
        return True
    if isinstance(order, Mapping):
        return any(not isinstance(x, str) or x not in order for x in (now, value)) or value in order[now]
    if isinstance(order, tuple):
        ranks = [
            next((n for n, values in enumerate(order) if any(x == each for each in values)), -1) for x in (now, value)
        ]
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


def value_at(below: Mapping[str, Any], path: KeyPath) -> Any:
    """The value below, else the default."""
    found: Any = below
    for part in path:
        found = found.get(part) if is_table(found) and isinstance(part, str) else None
    if found is not None:
        return found
    if path == ("context", "policy"):
        return "warn"
    key = key_at(path)
    return None if key is None else key.default


def _leaves(value: dict[str, Any], path: KeyPath) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        here: Any = (*path, name)
        key = key_at(here)
        if is_table(inner) and (key is None or (key.section is not None and not key.repeated)):
            yield from _leaves(inner, here)
        else:
            yield here, inner
