"""What asks for a compaction; a checkpoint and the facts in it, as they stand in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from worker.text import sha256

SCHEMA = 1
"""The version of a checkpoint's schema. One of another version is not taken up."""

STRATEGY = "extract-2"
"""How checkpoints are made here, with the version of the rules. One of another strategy is not taken up."""

LABELS = ("untrusted-memory", "no-approvals", "no-authority")
"""What every checkpoint is."""

Trigger: TypeAlias = Literal[
    "threshold", "request_threshold", "rollover.at", "overflow", "ceiling", "uncleared", "hand", "agent"
]
"""What asked for a new segment: a trigger of the manifest by its key, else what happened; `agent`: the agent itself, by the tool
`new_context`; `uncleared`: the size of what the provider leaves out of requests."""


def trigger_of(detail: Mapping[str, Any]) -> Trigger:
    """What a yield `compact` names as its trigger; `request_threshold` where it names none that there is."""
    named = detail.get("trigger")
    return next((known for known in get_args(Trigger) if known == named), "request_threshold")


FactKind: TypeAlias = Literal["words", "summary", "file", "command", "error", "call", "said"]


class Fact(BaseModel):
    """Something that was said or done in the summarised range, redacted and without claims of authority.

    `entry` is the place in the log of the item it stands in (0 where the item came from an earlier segment), `run` the
    run. `subject` is the path of a file. `changes` counts the writes to files that came before it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    kind: FactKind
    text: str
    item: str
    entry: int = 0
    run: str = ""
    subject: str = ""
    changes: int = 0


class Checkpoint(BaseModel):
    """An extract of a range of the session, bound to it by hashes. Derived: without it nothing is lost but its reuse.

    `source_hash` is that of the redacted items before the cut, in a chain that begins with `base` (the source hash of the
    checkpoint that this one took up, or nothing); `tail_hash` that of the ids of the `tail_items` behind the cut. `first` to
    `last` are log entries of `segment`, `items` the items of its view before the cut, `messages` all that were ever
    summarised. `tokens` is the raw estimate of `text` for `model`. `facts` holds what was kept, shown or not, `dropped`
    how many of a kind were not; `excluded` lines claimed authority, `redacted` counts secrets.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    schema_version: int = SCHEMA
    strategy: str = STRATEGY
    segment: str
    first: int
    last: int
    items: int
    messages: int
    base: str = ""
    source_hash: str
    tail_items: int
    tail_hash: str
    model: str
    tokens: int
    at: str
    labels: tuple[str, ...] = LABELS
    excluded: int = 0
    redacted: int = 0
    changes: int = 0
    facts: tuple[Fact, ...] = ()
    dropped: dict[FactKind, int] = {}
    text_hash: str
    text: str

    def fault(self) -> str:
        """Why it can't be used, whatever the log holds; nothing where it can."""
        if (self.schema_version, self.strategy) != (SCHEMA, STRATEGY):
            return f"it was made by another version ({self.strategy}, schema {self.schema_version})"
        if sha256(self.text) != self.text_hash:
            return "its text does not have its hash"
        return "" if set(LABELS) <= set(self.labels) else "its safety labels are missing"

    def provenance(self) -> dict[str, object]:
        """What it is and where it comes from, for display and for the log's figures: hashes and counts, no content."""
        shown = self.model_dump(exclude={"facts", "text", "dropped"})
        return {**shown, "labels": list(self.labels), "facts": len(self.facts)}
