"""Checks of a script's steps when they are made: a mistake shows where it stands, not in the thread of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast


def of_type(where: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raises `TypeError` where a value is none of these types. True and False are no numbers."""
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise TypeError(f"{where} must be {wanted}, not {type(value).__name__} {value!r:.80}")


def at_least(where: str, value: object, least: float, *, whole: bool = True) -> None:
    """Raises `TypeError` where a value is no number, `ValueError` where it is too small."""
    of_type(where, value, int if whole else (int, float), "a whole number" if whole else "a number")
    if cast("float", value) < least:
        raise ValueError(f"{where} must be at least {least}, not {value!r}")


def one_of(where: str, value: object, known: Sequence[object]) -> None:
    """Raises `ValueError` where a value is not among the known ones."""
    if value not in known:
        raise ValueError(f"{where} must be {', '.join(map(repr, known))}, not {value!r:.80}")


def listed(where: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raises `TypeError` where a value is no list (a text is none) or one of its elements is of another type."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"{where} must be a list, not {type(value).__name__} {value!r:.80}")
    for number, element in enumerate(cast("Sequence[object]", value)):
        of_type(f"{where}[{number}]", element, kinds, wanted)


def as_json(where: str, value: object) -> None:
    """Raises `TypeError` where a value can't be written as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as e:
        raise TypeError(f"{where} can't be written as JSON: {e}") from e


def texts(where: str, value: object) -> None:
    """Raises `TypeError` where a value is no mapping of texts to texts."""
    of_type(where, value, Mapping, "a mapping")
    for key, text in cast("Mapping[Any, Any]", value).items():
        of_type(f"{where}: the name", key, str, "a text")
        of_type(f"{where}[{key!r}]", text, str, "a text")
