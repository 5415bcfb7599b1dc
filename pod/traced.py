"""The works of a pod that a tracing is told of (`worker.tracing` is the port)."""

from __future__ import annotations

from dataclasses import dataclass

from worker.tracing import Work


@dataclass(frozen=True, slots=True)
class PodWork(Work):
    """What all works of a pod name: the pod, its session, the active segment, the model that is asked next (`provider:model`)."""

    pod: str
    session: str
    segment: str
    model: str


@dataclass(frozen=True, slots=True)
class RunWork(PodWork):
    """A run, or one stretch of it, is driven. `earlier` is the `traceparent` of the stretch before, where it goes on and that was traced."""

    earlier: str = ""


@dataclass(frozen=True, slots=True)
class SegmentWork(PodWork):
    """The run works in one segment, until it ends or yields for a compaction."""


@dataclass(frozen=True, slots=True)
class CompactionWork(PodWork):
    """A compaction goes down its ladder. `tokens` is the occupancy before it."""

    trigger: str = ""
    tokens: int = 0
