"""Finds whole numbers that TOML does not promise: each is kept in 64 bits."""

from __future__ import annotations

from pod.manifest.errors import Problem, key_label
from pod.manifest.source import LARGEST, TOO_LARGE, Layer
from pod.manifest.values import leaves, take_out


def take_large(layer: Layer) -> list[Problem]:
    """Problems for each whole number of a layer that needs more than 64 bits. It is taken out: nothing later has to write
    it down or send it.
    """
    problems: list[Problem] = []
    for path, holder, name, value in list(leaves(layer.data)):
        if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
            problems.append(layer.problem(path, TOO_LARGE, key=key_label(path)))
            take_out(holder, name)
    return problems
