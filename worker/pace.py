"""What is known of one account's limits, and when its next request may go. Pure: every method is told the time.

nothing known                       every request goes at once
a limit with what remains of it     what is in flight and not yet counted by the provider is taken off; a request that
                                    no longer fits waits until the limit is whole again
a refusal                           holds all until it ends, then lets them go one after the other, spread by chance
a refusal that names no limit       halves how many may be in flight; a row of answers lets one more in
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from worker.rates import KINDS, Kind, Reading

Reason: TypeAlias = Literal[
    "requests", "tokens", "input_tokens", "output_tokens", "rate_limited", "overloaded", "in_flight"
]
"""What a request waits for: a limit to be whole again, the end of a refusal, the end of one in flight."""

Refusal: TypeAlias = Literal["rate_limited", "overloaded"]

SPREAD_SHARE = 0.1
"""Of a hold's seconds, how long after it the waiting requests are spread."""

SPREAD_MOST = 5.0
"""Seconds over which they are spread at most."""

USUAL_OUTPUT = 1_000
"""Output tokens that a request is taken to need before any was reported."""

_OUTPUT = KINDS.index("output_tokens")


class Verdict(NamedTuple):
    """When a request may go: `at` is a time, at most now where it may go at once, infinite where only an answer to
    another one can tell."""

    at: float
    reason: Reason | None = None


@dataclass(slots=True)
class Ticket:
    """One request on its way: what is reserved for it of each kind, and what had been used when it left."""

    number: int
    need: tuple[int, ...]
    used: tuple[int, ...]
    counted: bool = False
    explained: bool = False
    """Whether the answer names a limit of which too little remained."""


@dataclass(slots=True)
class Meter:
    """One limit. `left` remained of it when the provider last counted, less what was used since then and not yet read.

    `whole_at` is when it is whole again, None where that time has passed or was never told: then `left` is a guess that
    holds until the next answer. `issued` is the number of the last ticket when it was told.
    """

    left: int
    limit: int | None
    whole_at: float | None
    issued: int = 0


@dataclass(slots=True)
class Pace:
    """The state of one account. `horizon` is the longest that anything learned from headers may hold a request back, in
    seconds; `chance` gives numbers in [0, 1)."""

    horizon: float = 300.0
    chance: Callable[[], float] = random.random
    in_flight: int = 0
    most: int | None = None
    """How many may be in flight, None where nothing limits them."""
    answers: int = 0
    """How many requests were answered."""
    hold_until: float = -math.inf
    hold_reason: Refusal = "rate_limited"
    meters: dict[int, Meter] = field(default_factory=dict[int, Meter])
    _held: list[int] = field(default_factory=lambda: [0] * len(KINDS))
    _used: list[int] = field(default_factory=lambda: [0] * len(KINDS))
    _number: int = 0
    _cut: int = 0
    _row: int = 0
    _next: float = -math.inf
    _spread_to: float = -math.inf
    _crowd: int = 1
    _output: float = USUAL_OUTPUT

    def need(self, tokens: int, most_output: int) -> tuple[int, ...]:
        """What a request of this many input tokens is expected to use, in the order of `KINDS`."""
        output = int(self._output) if most_output <= 0 else min(int(self._output), most_output)
        return 1, tokens + output, tokens, output

    def verdict(self, need: tuple[int, ...], now: float) -> Verdict:
        """When a request with this need may go, and what it waits for."""
        if self.most is not None and self.in_flight >= self.most:
            return Verdict(math.inf, "in_flight")
        at, reason = -math.inf, None
        if now < self.hold_until or now < self._next:
            at, reason = max(self.hold_until, self._next), self.hold_reason
        for kind in tuple(self.meters):
            until = self._until(kind, need[kind], now)
            if until > max(at, now):
                at, reason = until, KINDS[kind]
        return Verdict(at, reason)

    def _until(self, kind: int, need: int, now: float) -> float:
        """When this limit lets so much through."""
        self._renew(kind, now)
        meter = self.meters.get(kind)
        if meter is None:
            return now
        if meter.left - self._held[kind] >= (need if meter.limit is None else min(need, meter.limit)):
            return now
        if meter.whole_at is not None:
            return meter.whole_at
        # Nothing is known of the time: the first answer tells. Where none is to come, one request has to ask.
        return math.inf if self.in_flight else now

    def _renew(self, kind: int, now: float) -> None:
        """A limit whose time has come is whole again; one that is not known is forgotten."""
        meter = self.meters[kind]
        if meter.whole_at is None or now < meter.whole_at:
            return
        if meter.limit is None:
            del self.meters[kind]
        else:
            meter.left, meter.whole_at = meter.limit, None

    def take(self, need: tuple[int, ...], now: float, waiting: int = 0) -> Ticket:
        """Lets a request go and reserves what it needs. `waiting` is how many wait behind it."""
        self._number += 1
        self.in_flight += 1
        for kind, amount in enumerate(need):
            self._held[kind] += amount
        if now < self._spread_to and max(waiting, self._crowd) > 1:
            gap = (self._spread_to - now) / max(waiting, self._crowd)
            self._crowd = max(self._crowd - 1, 1)
            self._next = min(now + 2 * self.chance() * gap, self._spread_to)
        return Ticket(self._number, need, tuple(self._used))

    def heard(self, ticket: Ticket, told: Iterable[Reading], now: float) -> None:
        """Takes what the headers of a request's answer say; the provider has counted its input now."""
        before = self._used[:]
        self._count(ticket)
        seen = dict[int, Reading]()
        for reading in told:
            if reading.reset is None or reading.reset <= self.horizon:
                seen[_INDEX[reading.kind]] = reading
        for kind in tuple(self.meters):
            # Figures whose time has passed, and which no answer confirms any more, are forgotten.
            if kind not in seen and self.meters[kind].whole_at is None:
                del self.meters[kind]
        for kind, reading in seen.items():
            ticket.explained = ticket.explained or reading.remaining < ticket.need[kind]
            self._read(kind, reading, ticket, before[kind] - ticket.used[kind], now)

    def _read(self, kind: int, reading: Reading, ticket: Ticket, since: int, now: float) -> None:
        """`since` is what others have used while this request was on its way: the figure may not hold it yet."""
        meter = self.meters.get(kind)
        least = reading.remaining - since
        left = least if meter is None else min(max(meter.left, least), reading.remaining)
        limit = reading.limit or (None if meter is None else meter.limit)
        whole_at = None if reading.reset is None else now + reading.reset
        if meter is not None and meter.whole_at is not None and ticket.number <= meter.issued:
            # Both were on their way together: which of the two was told later is not known.
            whole_at = meter.whole_at if whole_at is None else max(whole_at, meter.whole_at)
        self.meters[kind] = Meter(left, limit, whole_at, self._number)

    def refused(self, ticket: Ticket, why: Refusal, hold: float | None, now: float) -> None:
        """Takes a refusal: all wait for `hold` seconds (None: they do not wait). Where no limit explains it, fewer may be in
        flight from now on: at most half, once for all that were on their way together.
        """
        self._row = 0
        if (why == "overloaded" or not ticket.explained) and ticket.number > self._cut:
            self._cut = self._number
            held = self.in_flight if self.most is None else min(self.in_flight, self.most)
            self.most = max(held // 2, 1)
        if hold is None or now + hold < self.hold_until:
            return
        self.hold_until, self.hold_reason = now + hold, why
        self._spread_to = self.hold_until + min(hold * SPREAD_SHARE, SPREAD_MOST)
        self._crowd = max(self.in_flight, 1)

    def answered(self, ticket: Ticket, output: int) -> None:
        """A request was answered with so many output tokens; `end` follows."""
        self.answers += 1
        self._row += 1
        if self.most is not None and self._row >= self.most:
            self.most, self._row = self.most + 1, 0
        output = max(output, 0)
        self._output += (output - self._output) / 8
        self._spend(_OUTPUT, output)

    def end(self, ticket: Ticket) -> None:
        """A request is no longer on its way, however it ended. Called once."""
        self._count(ticket)
        self._held[_OUTPUT] -= ticket.need[_OUTPUT]
        self.in_flight -= 1

    def give_back(self, ticket: Ticket) -> None:
        """A request never left."""
        for kind, amount in enumerate(ticket.need):
            self._held[kind] -= amount
        self.in_flight -= 1

    def _count(self, ticket: Ticket) -> None:
        """What was reserved of the input is used."""
        if ticket.counted:
            return
        ticket.counted = True
        for kind, amount in enumerate(ticket.need):
            if kind != _OUTPUT:
                self._held[kind] -= amount
                self._spend(kind, amount)

    def _spend(self, kind: int, amount: int) -> None:
        self._used[kind] += amount
        meter = self.meters.get(kind)
        if meter is not None:
            meter.left -= amount

    def known(self, now: float) -> list[tuple[int, int, int | None, float | None]]:
        """Each limit: kind, what remains less what is on its way, the whole, and when it is whole again."""
        found: list[tuple[int, int, int | None, float | None]] = []
        for kind in sorted(self.meters):
            self._renew(kind, now)
            if (meter := self.meters.get(kind)) is not None:
                found.append((kind, max(meter.left - self._held[kind], 0), meter.limit, meter.whole_at))
        return found

    def settled(self, now: float) -> bool:
        """Whether nothing is on its way and nothing known holds anybody back: it may be forgotten."""
        known = any(meter.whole_at is not None and meter.whole_at > now for meter in self.meters.values())
        return not self.in_flight and self.most is None and not known and self._spread_to <= now


_INDEX: dict[Kind, int] = {kind: index for index, kind in enumerate(KINDS)}
