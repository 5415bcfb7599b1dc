"""One pace for each account, shared by all workers of the process: who waits, in which order, and for how long.

An account is what a provider limits: an address, a key, a model. What its answers say of limits, and its refusals, hold
for every worker that asks it, so that a batch does not find out one by one. `worker/pace.py` decides, this waits.

Workers may run in several threads with an event loop each.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from worker.errors import ModelError, Overloaded, RateLimited
from worker.pace import Pace, Reason, Refusal, Ticket, Verdict
from worker.rates import KINDS, Kind, readings

KEPT = 256
"""Accounts that are remembered at least; above, those are forgotten of which nothing matters any more."""

TOLD_AFTER = 1.0
"""Seconds of waiting after which it is told."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a provider limits as one: `model` is `provider:model`, `key` stands for the key and is none."""

    model: str
    base_url: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit as it is known now. `remaining` has what is on its way taken off; `resets_in` is in seconds, None where
    that is not known."""

    kind: Kind
    remaining: int
    limit: int | None
    resets_in: float | None


@dataclass(frozen=True, slots=True)
class PaceView:
    """An account at one moment. `most` is how many requests may be in flight (None: any number), `held` the seconds for
    which all wait after a refusal, `reason` what the first one waits for."""

    model: str
    base_url: str
    in_flight: int
    waiting: int
    most: int | None = None
    held: float = 0.0
    reason: Reason | None = None
    limits: tuple[LimitView, ...] = ()


@dataclass(frozen=True, slots=True)
class Waits:
    """What a request waits for: `reason` and `seconds` are those of the first one in the queue (0: not known), which has
    `waiting` requests in all."""

    reason: Reason
    seconds: float
    waiting: int


class Turn:
    """The right to send one request: made by `Paces.turn`, and ended when the request is no longer on its way.

    `waited` is in seconds; `moved` says that the account gave an answer to somebody in the meantime.
    """

    __slots__ = ("_shared", "_ticket", "moved", "waited")

    def __init__(self, shared: Shared | None = None, ticket: Ticket | None = None) -> None:
        self._shared = shared
        self._ticket = ticket
        self.waited = 0.0
        self.moved = False

    def heard(self, headers: Mapping[str, str]) -> None:
        """The headers of the answer came: those about limits, names in lower case."""
        if self._shared is not None and self._ticket is not None:
            self._shared.heard(self._ticket, headers)

    def answered(self, output: int) -> None:
        """The request was answered, with so many output tokens."""
        shared, ticket = self._shared, self._ticket
        self._shared = self._ticket = None
        if shared is not None and ticket is not None:
            shared.answered(ticket, output)

    def failed(self, error: ModelError, hold: float | None) -> None:
        """The request failed. A refusal for rate or load makes all wait for `hold` seconds; None: nobody waits."""
        if self._shared is not None and self._ticket is not None:
            if isinstance(error, RateLimited | Overloaded):
                self._shared.refused(
                    self._ticket, "overloaded" if isinstance(error, Overloaded) else "rate_limited", hold
                )
            self.end()

    def end(self) -> None:
        """The request is no longer on its way. Again, it does nothing."""
        shared, ticket = self._shared, self._ticket
        self._shared = self._ticket = None
        if shared is not None and ticket is not None:
            shared.end(ticket)


class _Waiter:
    """A request in the queue. Its event belongs to the loop of its thread."""

    __slots__ = ("_event", "_loop", "_thread", "last", "need", "ticket", "until")

    def __init__(self, need: tuple[int, ...]) -> None:
        self.need = need
        self.ticket: Ticket | None = None
        self.last: float | None = None
        """Once it is the first one: when it goes whatever is known."""
        self.until = math.inf
        """Once it is the first one: when it looks again by itself."""
        self._event = anyio.Event()
        self._loop: Any = anyio.lowlevel.current_token()
        self._thread = threading.get_ident()

    def wake(self) -> None:
        """Has it look again; from any thread. One whose loop has ended is left alone."""
        if self._thread == threading.get_ident():
            self._event.set()
            return
        native = getattr(self._loop, "native_token", self._loop)
        soon = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        try:
            soon(self._set)
        except RuntimeError:
            # The loop has ended, and everything in it was cancelled.
            return

    def _set(self) -> None:
        self._event.set()

    async def woken(self, seconds: float | None) -> None:
        """Waits until it is woken, at most so long. Cancelled, nothing has happened."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


class Shared:
    """One account's pace with its queue, for all threads: whoever changes it looks who may go now."""

    def __init__(self, account: Account, pace: Pace, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.account = account
        self.gone = False
        """Whether it was forgotten: who is here ends here, others begin anew."""
        self._pace = pace
        self._clock = clock
        self._wall = wall
        # Reentrant: the garbage collector may end a request that waits anywhere, also in here.
        self._lock = threading.RLock()
        self._queue: OrderedDict[int, _Waiter] = OrderedDict()

    def enter(self, tokens: int, output: int) -> Ticket | _Waiter | None:
        """A ticket where the request may go at once, else its place in the queue; None where this is forgotten."""
        with self._lock:
            if self.gone:
                return None
            pace, now = self._pace, self._clock()
            need = pace.need(tokens, output)
            if not self._queue and pace.verdict(need, now).at <= now:
                return pace.take(need, now)
            waiter = _Waiter(need)
            self._queue[id(waiter)] = waiter
            return waiter

    @property
    def answers(self) -> int:
        """How many requests were answered."""
        return self._pace.answers

    def look(self, waiter: _Waiter) -> tuple[float | None, Waits | None]:
        """Lets go whoever may. For one that still waits: how long to sleep (None: until it is woken), and what for."""
        with self._lock:
            now = self._clock()
            woken, verdict = self._let_go(now)
            waits = seconds = None
            if waiter.ticket is None:
                known = 0.0 if verdict.at == math.inf else min(verdict.at - now, self._pace.horizon)
                waits = Waits(verdict.reason or "requests", known, len(self._queue))
                seconds = None if waiter.until == math.inf else max(waiter.until - now, 0.0)
        for each in woken:
            if each is not waiter:
                each.wake()
        return seconds, waits

    def _let_go(self, now: float) -> tuple[list[_Waiter], Verdict]:
        """Gives tickets to those in front that may go. Returns whom to wake (also the first one left, where it must look
        sooner than it knows), and what that one waits for."""
        woken: list[_Waiter] = []
        verdict = Verdict(now)
        while self._queue:
            first = next(iter(self._queue.values()))
            if first.last is None:
                # Whatever is known may be wrong: within each horizon somebody asks.
                first.last = now + self._pace.horizon
            verdict = self._pace.verdict(first.need, now)
            until = min(verdict.at, first.last)
            if until > now:
                if until < first.until:
                    woken.append(first)
                first.until = until
                break
            if self._queue.pop(id(first), None) is None:
                continue
            first.ticket = self._pace.take(first.need, now, len(self._queue))
            woken.append(first)
        return woken, verdict

    def leave(self, waiter: _Waiter) -> None:
        """A request that waits no more: out of the queue, or what was reserved for it given back."""
        with self._lock:
            self._queue.pop(id(waiter), None)
            if waiter.ticket is not None:
                self._pace.give_back(waiter.ticket)
            woken = self._let_go(self._clock())[0]
        for each in woken:
            each.wake()

    def _changed(self, change: Callable[[float], None]) -> None:
        with self._lock:
            now = self._clock()
            change(now)
            woken = self._let_go(now)[0] if self._queue else ()
        for each in woken:
            each.wake()

    def heard(self, ticket: Ticket, headers: Mapping[str, str]) -> None:
        """See `Pace.heard`."""
        told = readings(headers, wall=self._wall())
        self._changed(lambda now: self._pace.heard(ticket, told, now))

    def answered(self, ticket: Ticket, output: int) -> None:
        """See `Pace.answered`; this ends it."""
        with self._lock:
            self._pace.answered(ticket, output)
            self._pace.end(ticket)
            woken = self._let_go(self._clock())[0] if self._queue else ()
        for each in woken:
            each.wake()

    def refused(self, ticket: Ticket, why: Refusal, hold: float | None) -> None:
        """See `Pace.refused`. Nobody is let go for it: `end` follows."""
        with self._lock:
            self._pace.refused(ticket, why, hold, self._clock())

    def end(self, ticket: Ticket) -> None:
        """See `Pace.end`."""
        self._changed(lambda now: self._pace.end(ticket))

    def view(self) -> PaceView:
        """How it stands."""
        with self._lock:
            now, pace = self._clock(), self._pace
            first = next(iter(self._queue.values()), None)
            reason = None if first is None else pace.verdict(first.need, now).reason
            limits = tuple(
                LimitView(KINDS[kind], left, limit, None if at is None else max(at - now, 0.0))
                for kind, left, limit, at in pace.known(now)
            )
            return PaceView(
                self.account.model, self.account.base_url, pace.in_flight, len(self._queue), pace.most,
                max(pace.hold_until - now, 0.0), reason, limits,
            )  # fmt: skip

    def forget(self) -> bool:
        """Whether nothing here matters any more; then it is not used again."""
        with self._lock:
            self.gone = self.gone or (not self._queue and self._pace.settled(self._clock()))
            return self.gone


class Paces:
    """The paces of all accounts that are asked in this process (or, with `use_paces`, in a part of it).

    `horizon` is the longest that what headers say may hold a request back, in seconds. `clock` counts seconds, `wall` is
    the time since the epoch, `chance` gives numbers in [0, 1); all three for tests.
    """

    def __init__(
        self,
        *,
        horizon: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._shared: dict[Account, Shared] = {}
        self._lock = threading.Lock()
        self._full = KEPT
        self._horizon = horizon
        self._clock = clock
        self._wall = wall
        self._chance = chance

    async def turn(
        self, account: Account | None, tokens: int = 0, output: int = 0, tell: Callable[[Waits], None] | None = None
    ) -> Turn:
        """The turn of a request with so many input tokens and at most so many output tokens: at once where nothing known
        speaks against it, else after those that came before.

        `tell` is called once where that takes more than a second. Without an account it is always at once. Cancelled,
        nothing stays reserved and its place is free.
        """
        if account is None:
            return Turn()
        while True:
            shared = self._shared.get(account) or self._made(account)
            entered = shared.enter(tokens, output)
            if isinstance(entered, Ticket):
                return Turn(shared, entered)
            if entered is not None:
                return await self._wait(shared, entered, tell)
            with self._lock:
                if self._shared.get(account) is shared:
                    del self._shared[account]

    async def _wait(self, shared: Shared, waiter: _Waiter, tell: Callable[[Waits], None] | None) -> Turn:
        began, answers = self._clock(), shared.answers
        try:
            while True:
                seconds, waits = shared.look(waiter)
                if waits is None:
                    break
                if tell is not None:
                    left = began + TOLD_AFTER - self._clock()
                    if left <= 0 or waits.seconds > TOLD_AFTER:
                        tell(waits)
                        tell = None
                    else:
                        seconds = left if seconds is None else min(seconds, left)
                await waiter.woken(seconds)
        except BaseException:
            shared.leave(waiter)
            raise
        turn = Turn(shared, waiter.ticket)
        turn.waited, turn.moved = self._clock() - began, shared.answers > answers
        return turn

    def _made(self, account: Account) -> Shared:
        with self._lock:
            if len(self._shared) >= self._full:
                self._shared = {each: shared for each, shared in self._shared.items() if not shared.forget()}
                self._full = max(KEPT, 2 * len(self._shared))
            known = self._shared.get(account)
            if known is None:
                pace = Pace(self._horizon) if self._chance is None else Pace(self._horizon, self._chance)
                known = self._shared[account] = Shared(account, pace, self._clock, self._wall)
            return known

    def view(self) -> tuple[PaceView, ...]:
        """How each account stands: what is in flight, who waits, which limits are known. For a display; from any thread."""
        with self._lock:
            known = list(self._shared.values())
        return tuple(shared.view() for shared in known)

    def forget(self) -> None:
        """Forgets what is known of all accounts. Requests that wait or are in flight keep to what they knew."""
        with self._lock:
            self._shared = {}


_process = Paces()
_used: ContextVar[Paces | None] = ContextVar("paces", default=None)


def paces() -> Paces:
    """The paces that requests made here keep to: those of the process, or of the `use_paces` around."""
    return _used.get() or _process


@contextmanager
def use_paces(other: Paces) -> Generator[Paces]:
    """Inside, requests keep to these paces, and not to those of the process; so do tasks that begin inside."""
    token = _used.set(other)
    try:
        yield other
    finally:
        _used.reset(token)
