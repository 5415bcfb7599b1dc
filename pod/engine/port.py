"""The engine as the rest sees it: which activation of which pod is due, and what became of each.

The engine owns queueing, dispatch, priorities, delays and who runs what. What the agent did stands in its pod's log, which has
the last word. No type of an adapter's library comes through here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from pod.engine.limits import Limits

if TYPE_CHECKING:
    from pod.engine.schedules import Schedules

Reason: TypeAlias = Literal["start", "drained", "parked", "busy", "quarantine", "retry"]
"""Why there is an activation: the first one; its node came to a halt; a human must answer first; another process had the pod; its
process died twice with nothing having come of it; somebody asked for it again.
"""

Outcome: TypeAlias = Literal["done", "parked", "drained", "cancelled", "poisoned", "superseded", "failed"]
"""What became of an activation. After `parked`, `drained` and `superseded` a later one goes on."""

Phase: TypeAlias = Literal["queued", "delayed", "running", "ended"]
"""Where an activation is."""

GOES_ON = frozenset({"drained", "superseded"})
"""Outcomes after which the next activation is what counts."""

CONTINUE, NORMAL, BATCH = 10, 100, 200
"""Priorities; the smaller comes first. What was begun goes before what is new."""

FIRST, LAST = 1, 2**31 - 1
"""Which priorities there are."""


@dataclass(frozen=True, slots=True)
class Activation:
    """One stretch of a pod's work in one process. `session` is the pod's name, `n` counts from 1, `times` how often in a row it was
    put off for the same reason.
    """

    session: str
    n: int = 1
    reason: Reason = "start"
    times: int = 0

    @property
    def id(self) -> str:
        """What makes it one: submitted twice, it is there once."""
        return f"{self.session}@{self.n}"

    def text(self) -> str:
        """It as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Activation:
        """What `text` made. Raises `ValueError`."""
        value: Any = json.loads(text)
        try:
            made = cls(str(value["session"]), int(value["n"]), value["reason"], int(value.get("times", 0)))
        except (TypeError, KeyError) as error:
            raise ValueError(f"no activation: {text[:200]}") from error
        if made.reason not in get_args(Reason):
            raise ValueError(f"no activation: {text[:200]}")
        return made


@dataclass(frozen=True, slots=True)
class Following:
    """The activation that goes on after one, and where it waits. `delay` in seconds."""

    activation: Activation
    queue: str
    priority: int = CONTINUE
    delay: float | None = None
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an activation ended. `following` is submitted before that is on record: a crash between the two submits it once more,
    which is the same.
    """

    outcome: Outcome
    detail: str = ""
    following: Following | None = None

    def text(self) -> str:
        """Outcome and detail as JSON."""
        return json.dumps({"outcome": self.outcome, "detail": self.detail})


@dataclass(frozen=True, slots=True)
class ActivationStatus:
    """Where an activation is. Times are seconds since 1970; `worker` is the node that has it or had it last."""

    activation: Activation
    queue: str
    phase: Phase
    priority: int = NORMAL
    outcome: Outcome | None = None
    detail: str = ""
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    due: float | None = None
    worker: str | None = None
    partition: str = ""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue that a node serves. `concurrency` bounds what runs of it at once in each node, the queue's own limits beside that;
    `interval` is how often it is looked into, in seconds.
    """

    name: str
    concurrency: int = 50
    interval: float = 0.2


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive. `seen` is how many seconds ago it last said so."""

    id: str
    queues: tuple[str, ...]
    seen: float


class Runs(Protocol):
    """Who runs activations for an engine, in its event loop."""

    async def run(self, activation: Activation) -> Ended:
        """Runs one to its end. Raises nothing."""
        ...

    def cancel(self, activation_id: str) -> None:
        """Ends one that runs, soon; nothing where it does not."""
        ...

    async def drain(self, within: float) -> None:
        """Has all that run come to a halt in so many seconds; what is run from now on is `drained` at once."""
        ...


class Engine(Protocol):
    """A queue of activations and its nodes. Use it as an async context manager; one that is left can't be used again."""

    @property
    def schedules(self) -> Schedules:
        """The schedules that nodes look after, while the engine is entered."""
        ...

    async def submit(
        self,
        activations: Sequence[Activation],
        *,
        queue: str,
        priority: int = NORMAL,
        delay: float | None = None,
        partitions: Mapping[str, str] | None = None,
    ) -> None:
        """Puts them on a queue, durably; one that was ever there stays as it is. `delay` in seconds. `partitions` by session; those
        without one share the partition that has no name.
        """
        ...

    async def limit(self, queue: str, limits: Limits) -> None:
        """Bounds a queue over all nodes from now on, durably, also while nodes serve it; what runs already runs on."""
        ...

    async def limits(self) -> dict[str, Limits]:
        """What bounds queues, by their names."""
        ...

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancels what has not ended: what waits does not begin, what runs is ended soon."""
        ...

    async def wake(self, activation_id: str) -> None:
        """Makes one due now that is delayed; nothing for others."""
        ...

    async def status(self, ids: Collection[str]) -> list[ActivationStatus]:
        """Where these are; what is not known is left out."""
        ...

    def list(
        self,
        *,
        queue: str | None = None,
        phases: Collection[Phase] = (),
        session: str | None = None,
        limit: int | None = None,
        since: float | None = None,
    ) -> AsyncIterator[ActivationStatus]:
        """The activations of a queue, in some phases, of one session, made at a time (`created`) or later: the newest first."""
        ...

    async def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        ...

    async def serve(self, runs: Runs, *, queues: Sequence[QueueSpec]) -> None:
        """Runs what is due until `drain` ends it. Cancelled, it drains within no time at all; all is resumable. One at a time."""
        ...

    async def drain(self, within: float) -> None:
        """Begins nothing more, has what runs come to a halt within so many seconds, and ends `serve`."""
        ...
