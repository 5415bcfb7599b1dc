"""Which texts can be a pod's name."""

from __future__ import annotations

import re

RESERVED = frozenset({"inbox", "blobs", "artifacts", "jobs", "origin", "quarantine", "lock", "pod.json", "cursor.key"})
"""Names inside a pod's folder."""

SET_ASIDE = "artifacts-before-"
"""How the names of the folders begin in which a clear puts the artifacts of before."""

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}"
"""Up to four groups with `/` between them."""


def unfit_name(name: str) -> str | None:
    """Why a text can't be a pod's name; None where it can."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        return (
            "letters, digits, '.', '_' and '-' (up to 4 groups with '/', each up to 128 characters), "
            "beginning with a letter or digit"
        )
    taken = next((part for part in name.split("/") if of_a_pod(part)), None)
    return None if taken is None else f"{taken!r} is the name of something inside a pod's folder"


def as_name(text: str) -> str:
    """A text as a name, or a part of one: other characters become dashes. Empty where nothing of it makes a name."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "-_." else "-" for c in text).strip("-._")


def of_a_pod(part: str) -> bool:
    """Whether a pod's own folder uses this name: no part of a pod's name can be one of these."""
    return part in RESERVED or part.endswith(".jsonl") or part.startswith(SET_ASIDE)
