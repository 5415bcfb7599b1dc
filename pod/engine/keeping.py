"""What each node does beside running activations: gives signs of life, takes over what dead nodes left, hears of cancellations,
and sweeps away what ended long ago. In a thread of its own: an event loop that hangs must look dead.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from pod.engine.database import Nodes
from worker.errors import told

STUCK_EXIT = 75
"""Exit code of a node whose event loop hung."""

LOST = 60.0
"""Seconds after which an activation that stands as this node's, and does not run here, is put on its queue again."""

SWEEP = 3600.0
"""Seconds between two sweeps."""


class Table(Protocol):
    """What the engine's own table answers. Everything blocks."""

    def holders(self) -> dict[str, list[str]]:
        """The ids of running activations, by the node that has them."""
        ...

    def recover(self, nodes: Sequence[str]) -> None:
        """Puts what these nodes have on its queue again; what is not theirs any more stays."""
        ...

    def cancelled(self, ids: Collection[str]) -> list[str]:
        """Which of these are cancelled."""
        ...

    def put_back(self, activation_id: str) -> None:
        """Puts one on its queue again, whoever has it."""
        ...

    def sweep(self) -> int:
        """Deletes what ended long ago; how many."""
        ...


@dataclass
class Keeper:
    """The thread. `pulse` counts up as the event loop moves; `local` gives the ids of what runs here; `cancel` ends one of these."""

    id: str
    process: str
    queues: Sequence[str]
    nodes: Nodes
    table: Table
    lease: float
    local: Callable[[], Collection[str]]
    cancel: Callable[[str], object]
    tell: Callable[[str], object]
    pulse: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _unbroken: float | None = None
    _last: float = 0.0
    _heard: tuple[int, float] = (0, 0.0)
    _looked: float = 0.0
    _away: bool = False
    _lost: dict[str, float] = field(default_factory=dict[str, float])
    _swept: float = float("-inf")

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return min(self.lease / 5.0, 0.5)

    def start(self) -> None:
        """Gives the first sign of life, and goes on. Blocks until that is written."""
        self.nodes.beat(self.id, self.process, self.queues)
        self._heard = (self.pulse, time.monotonic())
        self._thread = threading.Thread(target=self._run, name="pod-node-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it, and takes the node out of the table. Blocks."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(Exception):  # where the database is away, the others find it silent
            self.nodes.forget([self.id])

    def _run(self) -> None:
        while not self._stop.wait(self.tick):
            try:
                self.once()
            except Exception as error:
                # The database is away or locked: the next look repeats what failed, and none of ours counts as unbroken.
                self._unbroken = None
                if not self._away:
                    self.tell(
                        f"the engine's database does not answer ({told(error).partition(chr(10))[0]}); trying again"
                    )
                self._away = True
            else:
                if self._away:
                    self.tell("the engine's database answers again")
                self._away = False

    def once(self) -> None:
        """One look."""
        now = time.monotonic()
        stuck = self._stuck(now)
        if stuck > 2 * self.lease:
            self.tell(f"the event loop hangs for {stuck:.0f} s: this node ends, others take over what it had")
            os._exit(STUCK_EXIT)
        if stuck <= self.lease:
            self._beat(now)
        local = set(self.local())
        for id_ in self.table.cancelled(local) if local else ():
            self.cancel(id_)
        self._reconcile(now)
        if now - self._swept > SWEEP:
            self._swept = now
            self._sweep()

    def _stuck(self, now: float) -> float:
        """For how long the loop did not move. Time in which this thread did not run either doesn't count."""
        pulse, since = self._heard
        looked, self._looked = self._looked, now
        if self.pulse != pulse or now - looked > self.lease / 2:
            self._heard = (self.pulse, now)
            return 0.0
        return now - since

    def _beat(self, now: float) -> None:
        if self._unbroken is None or now - self._last > self.lease / 2:
            self._unbroken = now
        self.nodes.beat(self.id, self.process, self.queues)
        self._last = now

    def _reconcile(self, now: float) -> None:
        """Takes over what dead nodes have. Looked at anew each time, so nothing that failed once is left behind."""
        holders = self.table.holders()
        self._put_lost_back(now, holders.pop(self.id, []))
        if not holders:
            return
        signs = {sign.id: sign for sign in self.nodes.signs()}
        trusted = self._unbroken is not None and now - self._unbroken >= self.lease
        dead = [
            id_
            for id_ in holders
            if (trusted and (id_ not in signs or signs[id_].is_dead(self.lease)))
            or (id_ in signs and signs[id_].is_dead(float("inf")))
        ]
        if dead:
            self.table.recover(dead)
            many = sum(len(holders[id_]) for id_ in dead)
            self.tell(f"{', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead: {many} activations begin again")

    def _put_lost_back(self, now: float, mine: Sequence[str]) -> None:
        local = set(self.local())
        self._lost = {id_: self._lost.get(id_, now) for id_ in mine if id_ not in local}
        for id_, since in list(self._lost.items()):
            if now - since > LOST:
                self.table.put_back(id_)
                self.tell(f"{id_} stood as ours and did not run: it begins again")

    def _sweep(self) -> None:
        """One node of all, the first by its id."""
        signs = self.nodes.signs()
        alive = [sign.id for sign in signs if not sign.is_dead(self.lease)]
        if alive[:1] != [self.id]:
            return
        self.nodes.forget([sign.id for sign in signs if sign.ago > 86400.0])
        many = self.table.sweep()
        if many:
            self.tell(f"{many} activations that ended long ago were taken out of the table")
