"""What one activation does: opens a pod by its order, goes on with it from its log, and says what became of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from pod.engine.orders import Order, Orders
from pod.engine.port import CONTINUE, Activation, Ended, Following, Reason
from pod.errors import PodBusy, StoreError
from pod.host import DRAINED, Hosted, PodHost
from pod.log.folder import PodFolder
from pod.result import RunResult
from pod.standing import ALONE_FROM, Standing, given_up, standing_of
from pod.store.port import Fenced, Unreachable
from worker.errors import told

QUARANTINE = "quarantine"
"""The queue of what brings its process down: one after the other, in a process of its own."""

PARKED = 365 * 86400.0
"""Seconds for which an activation waits for a human, unless it is woken."""

BUSY, BUSY_MOST = 1.0, 60.0
"""Seconds after which a pod that another process has is tried again: the first time, and at most."""


class PodRuns:
    """Runs activations with the pods of a home. Use it as an async context manager; the block ends when all its pods are over."""

    def __init__(self, home: Path, *, tell: Callable[[str], object] = lambda text: None, **options: Any) -> None:
        self.orders = Orders(home)
        self._home = home
        self._options = options
        self._tell = tell
        self._host = PodHost(concurrency=1_000_000)
        self._under_way: dict[str, Hosted] = {}
        self._cancelled: set[str] = set()
        self._draining = False

    async def __aenter__(self) -> Self:
        await self._host.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._host.__aexit__(kind, error, trace)

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._under_way)

    async def run(self, activation: Activation) -> Ended:
        """As `pod.engine.port.Runs` says. Raises nothing but cancellation."""
        try:
            return await self._run(activation)
        except Exception as error:
            return Ended("failed", _one_line(f"{type(error).__name__}: {told(error)}"))

    def cancel(self, activation_id: str) -> None:
        """Ends its run now, resumable."""
        hosted = self._under_way.get(activation_id)
        if hosted is not None:
            self._cancelled.add(activation_id)
            hosted.interrupt()

    async def drain(self, within: float) -> None:
        """Each run ends before its next request; after so many seconds it is ended where it stands."""
        self._draining = True
        self._host.halt()
        self._tell(f"{self.running} runs come to their end")
        await self._host.drain(within)

    # -- one activation ---------------------------------------------------------------------------------------

    async def _run(self, activation: Activation) -> Ended:
        order = await anyio.to_thread.run_sync(self.orders.require, activation.session)
        if order.cancelled:
            return Ended("cancelled", "it was cancelled before it began")
        if activation.n < order.n:
            return Ended("superseded", f"{order.activation.id} goes on", _following(order))
        if self._draining:
            return await self._drained(activation)
        folder = PodFolder(self._home, order.session)
        standing = await anyio.to_thread.run_sync(standing_of, folder)
        if standing is not None and (ended := await self._without_run(activation, order, folder, standing)):
            return ended
        loaded = await anyio.to_thread.run_sync(self.orders.loaded, order)
        if self._draining:
            return await self._drained(activation)
        hosted = self._host.start(
            loaded, order.task, name=order.session, key=order.key, home=self._home, cwd=order.cwd, **self._options
        )
        self._under_way[activation.id] = hosted
        try:
            result = await hosted.wait()
        finally:
            self._under_way.pop(activation.id, None)
        # A node lives for long, and need not keep a copy of each pod that it ever ran.
        await anyio.to_thread.run_sync(folder.files.leave, folder.path)
        return await self._ended(activation, hosted, result)

    async def _without_run(
        self, activation: Activation, order: Order, folder: PodFolder, standing: Standing
    ) -> Ended | None:
        """What its log already says: its end, or that it was begun too often."""
        if (
            standing.ended is not None
            and activation.reason != "retry"
            and standing.ended.status in {"finished", "failed"}
        ):
            return _of(standing.ended)
        if standing.waits:
            return None
        if standing.starts >= order.attempts:
            return Ended(
                "poisoned", given_up(folder, standing.starts, f"`pod queue retry {order.session}` tries it again")
            )
        if standing.starts >= ALONE_FROM and not order.quarantined:
            return await self._follow(
                activation, "quarantine", "its process ended twice with nothing having come of it", quarantined=True
            )
        return None

    async def _ended(self, activation: Activation, hosted: Hosted, result: RunResult) -> Ended:
        if hosted.error is not None and _puts_off(hosted.error):
            return await self._follow(activation, "busy", told(hosted.error))
        if result.status == "cancelled":
            if activation.id in self._cancelled:
                self._cancelled.discard(activation.id)
                return Ended("cancelled", "it was cancelled while it ran")
            if self._draining or result.why_runtime_stopped == DRAINED:
                return await self._drained(activation)
        if result.status in {"paused", "yielded"}:
            return await self._follow(activation, "parked", _of(result).detail)
        return _of(result)

    async def _drained(self, activation: Activation) -> Ended:
        return await self._follow(activation, "drained", "its node came to a halt")

    async def _follow(self, activation: Activation, reason: Reason, detail: str, **values: Any) -> Ended:
        """The activation goes on in another one, which is on record before this one ends."""
        order = await anyio.to_thread.run_sync(partial(self.orders.follow, activation, reason, **values))
        outcome = "parked" if reason == "parked" else "drained" if reason == "drained" else "superseded"
        return Ended(outcome, _one_line(detail), _following(order))


def _following(order: Order) -> Following:
    """The newest activation of an order, and where it waits."""
    queue = QUARANTINE if order.quarantined else order.queue
    delay = {"parked": PARKED, "busy": min(BUSY * 2.0 ** min(order.times, 10), BUSY_MOST)}.get(order.reason)
    return Following(order.activation, queue, min(CONTINUE, order.priority), delay, order.partition)


def _puts_off(error: BaseException) -> bool:
    """Whether a pod is tried again: another process has it or took it over, the home's database was away for too long, or there is no
    room in the home.
    """
    return isinstance(error, PodBusy) or (
        isinstance(error, StoreError) and (error.meets_all or isinstance(error.cause, Fenced | Unreachable))
    )


def _of(result: RunResult) -> Ended:
    """A run's end as that of its activation."""
    said = result.error or result.why_runtime_stopped
    match result.status:
        case "finished":
            return Ended("done")
        case "paused" | "yielded":
            return Ended("parked", _one_line(result.why_runtime_stopped))
        case "cancelled":
            return Ended("cancelled", _one_line(said))
        case status:
            kind = f"limit {result.error_kind}" if status == "limit" else result.error_kind or "failed"
            return Ended("failed", _one_line(f"{kind}: {said}"))


def _one_line(text: str, most: int = 500) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
