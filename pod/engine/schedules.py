"""Schedules: a task, and the times at which a pod of its own begins with it.

A schedule is one value, replaced as a whole and only as the one that was read: of several nodes that see the same time come, one decides
what is done about it. What it decided stands in the schedule before the pod is on its queue, so a node that dies between the two leaves
that to the next one, and the pod's name (the schedule's and its time) makes doing it twice the same as once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from pod.engine.cron import Cron, cron_of, local
from pod.engine.orders import Order
from pod.engine.port import NORMAL
from pod.log.lines import now

GRACE = 60.0
"""Seconds after which a time counts as missed."""

OPEN = 20
"""Pods of one schedule that are looked after, the newest."""


class Schedule(BaseModel):
    """A schedule. Times are seconds since 1970, by the engine's clock.

    `manifest`, `base`, `cwd`, `attempts`, `queue`, `priority` and `partition` are those of its orders. `missed` says what is done about
    times that came while no node served the queue, `overlap` what is done while a former pod is not over. All times up to `decided` are
    dealt with; `due` is a pod that may not be on its queue yet; `open` are pods that were not over when it was looked; `fired` and `pod`
    tell of the last that began, `skipped` and `why` of the last that did not.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    version: int = 1
    name: str
    cron: str
    zone: str = "UTC"
    queue: str
    priority: int = NORMAL
    partition: str = ""
    task: str
    manifest: str
    source: str = ""
    base: str
    cwd: str
    attempts: int = 3
    missed: Literal["once", "skip"] = "once"
    overlap: Literal["skip", "allow"] = "skip"
    paused: bool = False
    decided: float = 0.0
    due: str | None = None
    open: tuple[str, ...] = ()
    fired: float | None = None
    pod: str | None = None
    skipped: float | None = None
    why: str = ""
    made: str = Field(default_factory=now)

    @property
    def times(self) -> Cron:
        """When it is due. Raises `UsageProblem` where this machine knows its zone no more."""
        return cron_of(self.cron, self.zone)

    def order(self, pod: str) -> Order:
        """What one of its pods is to do."""
        return Order(
            session=pod, queue=self.queue, priority=self.priority, partition=self.partition, task=self.task, manifest=self.manifest,
            base=self.base, cwd=self.cwd, attempts=self.attempts,
        )  # fmt: skip

    def begun(self, pod: str, moment: float, running: Sequence[str]) -> Schedule:
        """It with one more pod, which is not on its queue yet."""
        opened = (*running, pod)[-OPEN:]
        return self.model_copy(update={"due": pod, "open": opened, "fired": moment, "pod": pod})


def pod_of(name: str, moment: float) -> str:
    """The pod of a schedule and a time."""
    return f"{name}/{local(moment, 'UTC'):%Y%m%dT%H%M%SZ}"


def pod_by_hand(name: str, moment: float) -> str:
    """The pod of a schedule that was begun by hand; the milliseconds tell two of them apart."""
    return f"{name}/{local(moment, 'UTC'):%Y%m%dT%H%M%S}.{int(moment * 1000) % 1000:03}Z"


def due(schedule: Schedule, moment: float) -> float | None:
    """The newest time that has come and is not dealt with; earlier ones fall to it."""
    return None if schedule.paused else schedule.times.newest(schedule.decided, moment)


def decided(schedule: Schedule, at: float, moment: float, running: Sequence[str]) -> Schedule:
    """The schedule once it is decided what is done about a time that has come. `running` are those of its pods that are not over."""
    skipped = ""
    if schedule.missed == "skip" and moment - at > GRACE:
        skipped = "no node served its queue at that time"
    elif schedule.overlap == "skip" and running:
        skipped = f"{running[-1]} was not over"
    if skipped:
        news: dict[str, object] = {"decided": at, "skipped": at, "why": skipped, "open": tuple(running)}
        return schedule.model_copy(update=news)
    return schedule.model_copy(update={"decided": at}).begun(pod_of(schedule.name, at), at, running)


class Kept(NamedTuple):
    """What an engine keeps: the time by its clock, its schedules by their names, and for each name whose schedule does not read (a
    later version wrote it, or somebody by hand) why.
    """

    now: float
    schedules: list[Schedule]
    unread: Mapping[str, str] = MappingProxyType({})


class Schedules(Protocol):
    """The schedules of an engine."""

    async def read(self) -> Kept:
        """All that there is. One that does not read keeps no other from being read."""
        ...

    async def put(self, schedule: Schedule) -> bool:
        """Keeps a schedule durably: one that is new as version 1, else the version after the one that is there. False where that is not
        so: somebody else was there first.
        """
        ...

    async def remove(self, name: str) -> bool:
        """Takes one away; whether it was there. What it began goes on."""
        ...


class MemorySchedules:
    """Schedules in this process alone."""

    def __init__(self) -> None:
        self._all: dict[str, Schedule] = {}

    async def read(self) -> Kept:
        """As the port says."""
        return Kept(time.time(), [self._all[name] for name in sorted(self._all)])

    async def put(self, schedule: Schedule) -> bool:
        """As the port says."""
        old = self._all.get(schedule.name)
        if (schedule.version, schedule.made) != ((1, schedule.made) if old is None else (old.version + 1, old.made)):
            return False
        self._all[schedule.name] = schedule
        return True

    async def remove(self, name: str) -> bool:
        """As the port says."""
        return self._all.pop(name, None) is not None


def changed(schedule: Schedule, **values: object) -> Schedule:
    """The next version of a schedule, with other values."""
    return schedule.model_copy(update={"version": schedule.version + 1, **values})
