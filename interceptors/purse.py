"""A purse: what the runs of several pods may spend together. Each request is reserved in it before it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from worker.results import Failed, LimitReached

TOGETHER = "max_cost_together"
"""What the limit is called in the result of a run that it ended (`error_kind`)."""


@dataclass(frozen=True, slots=True)
class Aside:
    """What a pod set aside for its newest request, US dollars, and what was booked of it when it did: booked the same after a kill, that
    request may have been billed.
    """

    ahead_usd: float
    at_usd: float


@dataclass(frozen=True, slots=True)
class Booked:
    """What a pod's whole session has cost, US dollars; `unpriced` counts the replies whose price is not known."""

    cost_usd: float = 0.0
    unpriced: int = 0


@dataclass(eq=False)
class Purse:
    """At most `limit_usd` US dollars for all pods that share it, in one event loop. `known` is what pods have cost that are not open, by name.
    `keep` is given a function that says what open pods have set aside, by name, and returns when what it says is durable; only then a
    request is sent.

    What a request may cost is set aside before it is sent, and comes free when its figures are booked: together they never pass the
    limit by more than what a provider bills above its own prices. Where only what others set aside stands in the way, a request
    waits for them; where the limit would be passed for good, its run ends.
    """

    limit_usd: float
    known: dict[str, float] = field(default_factory=dict[str, float])
    keep: Callable[[Callable[[], Mapping[str, Aside]]], Awaitable[None]] | None = None
    _closed_usd: float = field(init=False)
    _open: set[Share] = field(default_factory=set["Share"])
    _changed: anyio.Event | None = None

    def __post_init__(self) -> None:
        self._closed_usd = sum(self.known.values())

    def join(self, pod: str, booked: Callable[[], Booked]) -> Share:
        """A pod's share from now on; `booked` says at any moment what its session has cost, earlier processes included."""
        self._closed_usd -= self.known.pop(pod, 0.0)
        share = Share(self, pod, booked)
        self._open.add(share)
        return share

    @property
    def spent_usd(self) -> float:
        """What is booked, US dollars."""
        return self._closed_usd + sum(share.booked().cost_usd for share in self._open)

    def wake(self) -> None:
        """Something was booked, or set free: whoever waits looks again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def wait(self) -> None:
        """Until something changes. Cancelled, nothing is held."""
        self._changed = self._changed or anyio.Event()
        await self._changed.wait()

    def aside(self) -> dict[str, Aside]:
        """What the open pods set aside for their newest requests, by name; a booked one stays in it: its figures may not be durable."""
        return {share.pod: share.newest for share in self._open if share.newest is not None}

    def aside_usd(self, but: Share) -> float:
        """What the others have set aside, US dollars."""
        return sum(share.aside_usd for share in self._open if share is not but)

    def left(self, share: Share) -> None:
        """A pod is closed: what it spent stays spent."""
        if share in self._open:
            self._open.remove(share)
            cost = self.known[share.pod] = share.booked().cost_usd
            self._closed_usd += cost
            self.wake()


@dataclass(eq=False)
class Share:
    """One pod's hold on a purse; it has at most one request under way."""

    purse: Purse
    pod: str
    booked: Callable[[], Booked]
    newest: Aside | None = None
    _ahead: float = 0.0
    _at: float = 0.0

    @property
    def aside_usd(self) -> float:
        """What is set aside for the request under way; nothing once it is booked."""
        return self._ahead if self.booked().cost_usd == self._at else 0.0

    async def take(self, ahead_usd: float | None, more_usd: float = 0.0) -> LimitReached | Failed | None:
        """Sets aside what the next request may cost (None: not known), US dollars; `more_usd` is spent and not booked yet.

        Waits while only what others have set aside stands in the way. Gives the end of the run where the limit would be passed, or
        where the cost can't be bounded. Cancelled, nothing is set aside. Raises what the purse's `keep` does.
        """
        self._ahead = 0.0
        while True:
            booked = self.booked()
            if ahead_usd is None or booked.unpriced:
                return Failed(
                    "unknown_price",
                    "a limit on the cost of all pods together is set, but the price of a model is not known, so the cost cannot be "
                    "bounded. Leave the limit out, or take a model with a known price.",
                )
            spent, wanted = self.purse.spent_usd, ahead_usd + more_usd
            if spent + wanted > self.purse.limit_usd:
                return LimitReached(
                    TOGETHER,
                    f"{spent:.6f} USD were spent by all together and the next request may cost {ahead_usd:.6f} USD; together they may "
                    f"spend {self.purse.limit_usd:g} USD",
                    {"used": round(spent, 6), "limit": self.purse.limit_usd, "reserved": round(wanted, 6)},
                )
            if spent + self.purse.aside_usd(self) + wanted <= self.purse.limit_usd:
                self._ahead, self._at = wanted, booked.cost_usd
                await self._kept(Aside(wanted, booked.cost_usd))
                return None
            await self.purse.wait()

    async def _kept(self, aside: Aside) -> None:
        """Has what was set aside on record, where somebody keeps one."""
        if self.purse.keep is None or aside == self.newest:
            return
        self.newest = aside
        try:
            await self.purse.keep(self.purse.aside)
        except BaseException:
            self.release()
            raise

    def settled(self) -> None:
        """A figure may have been booked: what was set aside for it is free."""
        self.purse.wake()

    def release(self) -> None:
        """No request is under way any more: nothing is set aside."""
        self._ahead, self.newest = 0.0, None
        self.purse.wake()

    def leave(self) -> None:
        """The pod is closed."""
        self.purse.left(self)
