"""What a pod's export says of itself: its first part lists all others, in order, with their hashes."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pod.reading import End, Segment

FORMAT = 1
"""The version of the export."""

CONTENTS = "contents.json"
"""The name of the first part."""

POINTER = "pod.json"
"""The name of the pointer's part."""

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_KINDS = tuple(
    re.compile(pattern)
    for pattern in (
        re.escape(POINTER),
        rf"{_SEGMENT}\.jsonl",
        rf"origin/{_SEGMENT}\.jsonl",
        rf"{_SEGMENT}\.compact-[0-9]{{1,6}}\.jsonl",
        r"blobs/[0-9a-f]{64}",
        r"artifacts/[A-Za-z0-9_][A-Za-z0-9._-]{0,199}",
    )
)


class Part(BaseModel):
    """A file of the pod: its place in the pod's folder, its length in bytes, its SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Contents(BaseModel):
    """The first part. `end` says why the session has no segments before the oldest one here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["pod-export"] = "pod-export"
    format: int = FORMAT
    pod: str
    session: str
    segment: str
    end: End
    parts: tuple[Part, ...]


def allowed(name: str) -> bool:
    """Whether a part can have this name: one of a pod's own files, which no name of another form can be."""
    return any(kind.fullmatch(name) for kind in _KINDS)


def segment_of(name: str) -> str | None:
    """The segment whose log this part is; None for other parts, also for a compact worker's log and a fork's origin."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot and ending == "jsonl" and ".compact-" not in stem and "/" not in stem else None


def is_origin(name: str) -> bool:
    """Whether this part is the log of a session that a fork took along."""
    return name.startswith("origin/")


def part_of(segment: Segment) -> str:
    """The name of the part that a segment's log is."""
    return f"{'origin/' if segment.origin else ''}{segment.id}.jsonl"


def side_of(name: str) -> str | None:
    """The segment beside which a compact worker wrote this log; None for other parts."""
    stem, mark, _ = name.partition(".compact-")
    return stem if mark and name.endswith(".jsonl") and "/" not in name else None
