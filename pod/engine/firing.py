"""What a node does about schedules: has a pod begin at each time of those whose queue it serves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from pod.engine.orders import Orders
from pod.engine.placing import place_once
from pod.engine.port import GOES_ON, Engine
from pod.engine.schedules import Schedule, changed, decided, due
from pod.errors import PodError, UsageProblem

LOOK = 1.0
"""Seconds between two looks at the schedules, at most."""

LEAST = 0.02
"""Seconds between two looks, at least."""


@dataclass
class Firing:
    """The schedules of some queues. Any number of nodes may do this at once: each time is decided by one of them."""

    engine: Engine
    orders: Orders
    queues: Collection[str]
    tell: Callable[[str], object] = lambda text: None
    _told: dict[str, str] = field(default_factory=dict[str, str])

    async def run(self) -> None:
        """Goes on until it is cancelled; what fails is told once and tried again."""
        while True:
            rest = LOOK
            try:
                rest = await self.once()
                self._told.pop("", None)
            except Exception as error:  # the database is away: nothing is lost, the next look repeats it
                self._tell("", f"the schedules can't be read ({type(error).__name__}: {error}); trying again")
            await anyio.sleep(rest)

    async def once(self) -> float:
        """Does what is due; how many seconds may pass until the next look. Cancelled, the next look goes on."""
        now, schedules, unread = await self.engine.schedules.read()
        rest = LOOK
        for name, why in unread.items():
            self._tell(name, f"schedule {name} can't be read: {why}; the others go on")
        for schedule in schedules:
            if schedule.queue in self.queues:
                try:
                    await self._one(schedule, now)
                    following = None if schedule.paused else schedule.times.after(now)
                    rest = min(rest, following - now if following is not None else LOOK)
                    self._told.pop(schedule.name, None)
                except PodError as error:
                    self._tell(schedule.name, f"schedule {schedule.name}: {error}")
        return max(rest, LEAST)

    async def _one(self, schedule: Schedule, now: float) -> None:
        if schedule.due is not None:  # a node decided that, and did not come to it
            placed = await self.place(schedule)
            if placed is None:
                return
            schedule = placed
        at = due(schedule, now)
        if at is None:
            return
        running = await still_open(self.engine, self.orders, schedule)
        made = decided(schedule, at, now, running).model_copy(update={"version": schedule.version + 1})
        if not await self.engine.schedules.put(made):
            return  # another node decided
        if made.due is None:
            self.tell(f"schedule {made.name}: a time is left out, {made.why}")
        else:
            self.tell(f"schedule {made.name}: {made.due} begins")
            await self.place(made)

    async def place(self, schedule: Schedule) -> Schedule | None:
        """Has the pod on its queue that is due; the schedule without it. None where somebody else changed the schedule meanwhile."""
        assert schedule.due is not None
        await place_once(self.engine, self.orders, schedule.order(schedule.due))
        made = changed(schedule, due=None)
        return made if await self.engine.schedules.put(made) else None

    def _tell(self, about: str, text: str) -> None:
        if self._told.get(about) != text:
            self._told[about] = text
            self.tell(text)


async def still_open(engine: Engine, orders: Orders, schedule: Schedule) -> list[str]:
    """Which pods of a schedule are not over: they wait on a queue, run, or wait for a human."""
    activations: dict[str, list[str]] = {}
    for pod in schedule.open:
        try:
            order = await anyio.to_thread.run_sync(orders.read, pod)
        except UsageProblem:  # its order is lost: nothing can begin it again
            continue
        if order is not None:
            # The one before as well: the newest is on record in the order a moment before it is on the queue.
            activations[pod] = [f"{pod}@{n}" for n in (order.n, order.n - 1) if n > 0]
    found = {s.activation.id: s for s in await engine.status([id_ for ids in activations.values() for id_ in ids])}
    newest = {pod: next((found[id_] for id_ in ids if id_ in found), None) for pod, ids in activations.items()}
    return [pod for pod, s in newest.items() if s is not None and (s.phase != "ended" or s.outcome in GOES_ON)]
