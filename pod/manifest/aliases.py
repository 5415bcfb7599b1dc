"""Old names of keys: those that still work, and those that are gone."""

from __future__ import annotations

from typing import Any

from pod.manifest.errors import KeyPath, Problem, key_label
from pod.manifest.source import Layer, Origin, nearest_origin
from pod.manifest.values import is_table

ALIASES: dict[tuple[str, str], tuple[str, str]] = {
    ("compaction", "prune_protected_tokens"): ("prune", "protected_tokens"),
    ("compaction", "prune_min_savings"): ("prune", "min_savings"),
    ("compaction", "compact_threshold"): ("compaction", "threshold"),
    ("compaction", "compact_request_threshold"): ("compaction", "request_threshold"),
    ("compaction", "compact_retained_tokens"): ("compaction", "retained_tokens"),
    ("compaction", "compact_worker_max_input_tokens"): ("compaction", "worker_context_max_tokens"),
    ("compaction", "compact_worker_max_turns"): ("compaction", "worker_max_turns"),
    ("compaction", "compact_auto_read_budget_tokens"): ("compaction", "auto_read_budget_tokens"),
}
"""Old names that load as the new ones."""

REMOVED: dict[tuple[str, str], str] = {
    (
        "compaction",
        "prune_protected_turns",
    ): "counts turns, which says nothing about size; use [prune] protected_tokens",
    ("compaction", "compact_retained_turns"): "counts turns, which says nothing about size; use retained_tokens",
    ("compaction", "retained_turns"): "counts turns, which says nothing about size; use retained_tokens",
    ("compaction", "worker_max_input_tokens"): "use worker_context_max_tokens, which bounds the worker's whole context",
}
"""Names that no longer work, with what to do."""


def rename(layer: Layer) -> list[Problem]:
    """Moves the values of old names to their new ones in one layer, and takes removed names out.

    An old name beside its new one, or two old names for one key, are problems that name both lines.
    """
    problems: list[Problem] = []
    taken: dict[KeyPath, KeyPath] = {}
    for old, new in ALIASES.items():
        table: Any = layer.data.get(old[0])
        if not is_table(table) or old[1] not in table:
            continue
        target: Any = layer.data.setdefault(new[0], {})
        if not is_table(target):
            continue  # the validation names the table that is none
        other = taken.get(new, new)
        if new[1] in target:
            problems.append(
                layer.problem(
                    old,
                    f"the old name of {key_label(new)}, which is set too ({_line(layer, other)})",
                    key=key_label(old),
                    hint=f"keep {key_label(new)} alone",
                )
            )
            del table[old[1]]
            continue
        target[new[1]] = table.pop(old[1])
        taken[new] = old
        origin = nearest_origin(layer.origins, old)
        if origin is not None:
            layer.origins.pop(old, None)
            layer.origins[new] = Origin(origin.layer, origin.file, origin.line, origin.column, key=old)
    for old, reason in REMOVED.items():
        table = layer.data.get(old[0])
        if is_table(table) and old[1] in table:
            problems.append(layer.problem(old, "this key was removed", key=key_label(old), hint=reason))
            del table[old[1]]
    return problems


def _line(layer: Layer, path: KeyPath) -> str:
    origin = nearest_origin(layer.origins, path)
    return str(origin) if origin else key_label(path)
