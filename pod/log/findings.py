"""What the doctor reports: findings, the state of segments and pods, and what a repair did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Code: TypeAlias = Literal[
    "pointer", "segment_missing", "damage", "torn_tail", "beginning_lost", "entries_missing", "newer_format",
    "orphan_segment", "rewound_segment", "unreadable", "stale_temporary", "blob_missing", "blob_altered", "left_over", "mode",
]  # fmt: skip
Severity: TypeAlias = Literal["error", "warning", "note"]

LOSSES: frozenset[Code] = frozenset(
    {"segment_missing", "damage", "beginning_lost", "entries_missing", "blob_missing", "blob_altered"}
)
"""Findings that say that entries or texts of the session are lost, or can't be read as they stand."""


ORDINARY: frozenset[Code] = frozenset({"rewound_segment"})
"""Findings that only tell what ordinary use left."""


class Finding(BaseModel):
    """One thing that is not as it should be. `line` (1-based), `offset` and `length` (bytes) where it is in a log. What is
    `passing` is put right by the next run.
    """

    model_config = ConfigDict(frozen=True)

    code: Code
    severity: Severity
    path: Path
    text: str
    line: int | None = None
    offset: int | None = None
    length: int | None = None
    repairable: bool = False
    passing: bool = False


class SegmentReport(BaseModel):
    """A segment's log: whole entries, bytes, and how it belongs to the session (`origin`: to one that the pod was forked
    from).
    """

    model_config = ConfigDict(frozen=True)

    id: str
    state: Literal["active", "earlier", "origin", "orphan"]
    entries: int
    bytes: int
    whole: bool


class PodReport(BaseModel):
    """What was found in one pod. `owner` is what the writer wrote of itself, where one is alive."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: Path
    session: str = ""
    segment: str = ""
    busy: bool = False
    owner: dict[str, Any] = Field(default_factory=dict[str, Any])
    segments: tuple[SegmentReport, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def fine(self) -> bool:
        """Whether nothing is found but what ordinary use leaves."""
        return all(f.code in ORDINARY for f in self.findings)

    @property
    def ok(self) -> bool:
        """Whether a run can open it: no error."""
        return all(f.severity != "error" for f in self.findings)

    @property
    def whole(self) -> bool:
        """Whether, besides, nothing of what it should hold is lost or damaged and stays so."""
        return self.ok and all(f.code not in LOSSES or f.severity == "note" or f.passing for f in self.findings)


class Report(BaseModel):
    """What was found in one pod or in all pods of a home."""

    model_config = ConfigDict(frozen=True)

    home: Path
    pods: tuple[PodReport, ...]

    @property
    def ok(self) -> bool:
        """Whether all pods can be opened."""
        return all(pod.ok for pod in self.pods)


class Quarantined(BaseModel):
    """Bytes put aside: where they stood, how many entries were lost with them, and the file that has them now."""

    model_config = ConfigDict(frozen=True)

    segment: str
    offset: int
    length: int
    numbers: int
    kept_as: str | None


class Repair(BaseModel):
    """What a repair did, and how the pod is after it. `kept_aside` are altered texts, a damaged pointer and what is no
    file, where they lie now; `pointed_to` is the segment that a pointer made anew names.
    """

    model_config = ConfigDict(frozen=True)

    quarantined: tuple[Quarantined, ...]
    removed: tuple[Path, ...]
    kept_aside: tuple[Path, ...] = ()
    pointed_to: str = ""
    after: PodReport
