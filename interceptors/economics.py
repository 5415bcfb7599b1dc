"""What a prune costs and brings in money: the break-even of the prefix cache (facts, providers 6.2).

A change in the view loses the cache from there on: the tail behind it is written anew once, and what was taken out is
no longer read in each later request. Whether that pays depends on how many requests are still to come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from worker.models.base import Price

LEAST_REPLIES = 3
"""Replies of a segment from which its growth is known."""

GOES_ON = 0.25
"""Of what a run has done beyond what is usual, this share is expected to follow."""

AT_MOST = 20
"""Requests that are expected at most of a run that goes beyond what is usual (facts, providers, recommendation 22)."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of the session that ended, and their requests; `done` are those of the run under way."""

    ended: int = 0
    requests: int = 0
    done: int = 0

    @property
    def ahead(self) -> float:
        """Requests of this run that are expected, with the next one: up to the mean of the ended runs; beyond it, a
        quarter of what went beyond, at most 20.
        """
        mean = self.requests / self.ended if self.ended else 0.0
        return 1 + (mean - self.done if self.done < mean else min(GOES_ON * (self.done - mean), AT_MOST))


@dataclass(frozen=True, slots=True)
class Growth:
    """How the context of a segment grows: its first and newest request in tokens, its replies, what prunes took out."""

    first: int = 0
    newest: int = 0
    replies: int = 0
    pruned: int = 0

    def replied(self, tokens: int) -> Growth:
        """With one more reply, to a request of these tokens."""
        first = self.first if self.replies else tokens
        return replace(self, first=first, newest=tokens, replies=self.replies + 1)

    def saved(self, tokens: int) -> Growth:
        """With one more prune."""
        return replace(self, pruned=self.pruned + tokens)

    @property
    def step(self) -> float | None:
        """Tokens by which a request is larger than the one before it; None where too little was seen."""
        if self.replies < LEAST_REPLIES:
            return None
        return max((self.newest - self.first + self.pruned) / (self.replies - 1), 1.0)


def before_trigger(growth: Growth, occupancy: int, trigger: int, price: Price) -> float:
    """Requests until the trigger for which a pruned token counts as saved; below 0 where the prune only costs.

    A prune also puts the compaction off, and with it the small context that follows. That takes back half of the
    requests of a whole window; what a compaction costs (the old context read, the new one written) gives some of them
    again. 0 where the growth is not known: then nothing that is in the cache is worth pruning.
    """
    step, room = growth.step, trigger - growth.first
    if step is None or room <= 0:
        return 0.0
    left = (trigger - occupancy) / step
    if not price.cache_read:
        return left
    compaction = (trigger + growth.first * price.cache_write / price.cache_read) / room
    return left - room / (2 * step) + compaction


@dataclass(frozen=True, slots=True)
class Economy:
    """What decides whether a prune pays: US dollars per million tokens, `requests` expected from the next one on, and
    whether the cache is lost anyway (`cold`).

    `whole` says that the provider finds a changed prefix at its fixed head only: then the tail is the whole view.
    `step` is how many tokens each request adds (0 where it is not known, or waiting is no choice).
    """

    read: float
    write: float
    requests: float
    cold: bool = False
    whole: bool = False
    step: float = 0.0

    @property
    def _each(self) -> float:
        """What a token that is gone saves: it is not written in the next request and not read in the later ones."""
        return self.write + (self.requests - 1) * self.read

    @property
    def _lost(self) -> float:
        """What each token of the tail costs: it is written where it would have been read."""
        return 0.0 if self.cold else max(self.write - self.read, 0.0)

    def break_even(self, tail: int) -> float:
        """Tokens that a prune must save, more than this, where it changes the view `tail` tokens before its end."""
        lost = tail * self._lost
        if self._each > 0:
            return lost / self._each
        return 0.0 if self._each == 0 and lost == 0 else math.inf

    def ripe(self, saved: int, kept: int) -> bool:
        """Whether enough has come together, where each prune writes `kept` tokens anew, however much it takes out.

        The more often, the more of that; the later, the longer the old output is read. The sum is least where both are
        equal (the rule of the economic lot).
        """
        return saved * saved * self.read >= 2 * self.step * kept * self._lost

    def gain(self, saved: int, tail: int) -> float:
        """What it brings through all expected requests, in US dollars; below 0 where it costs."""
        return (saved * self._each - tail * self._lost) / 1_000_000

    def hopeless(self, saved: int, kept: int) -> bool:
        """Whether no prune of at most `saved` tokens can pay, as the tail holds what it takes out and `kept` more."""
        return self.gain(saved, saved + kept) < 0 or not self.ripe(saved, kept)

    def next_request(self, saved: int, tail: int) -> float:
        """What the next request costs more for it, in US dollars; below 0 where it costs less."""
        return (tail * self._lost - saved * self.write) / 1_000_000


def tails(tokens: Sequence[int]) -> list[int]:
    """Tokens from each place of the view to its end."""
    sums = list(accumulate(reversed(tokens)))
    sums.reverse()
    return sums


def best_start(
    places: Sequence[int], gains: Sequence[int], behind: Sequence[int], kept: int, economy: Economy, exceed: int
) -> int:
    """From which of `places` (in order of the view) on a prune brings the most, as an index; -1 where none pays yet.

    `gains` are the tokens that each saves, `behind` what stands from each place of the view on, `kept` the protected
    tail. It must save more than `exceed` tokens.
    """
    best, most, saved = -1, 0.0, 0
    free = economy.break_even(1) == 0
    for n in range(len(places) - 1, -1, -1):
        saved += gains[n]
        if saved <= exceed:
            continue
        tail = behind[0 if economy.whole else places[n]]
        gain = economy.gain(saved, tail) if economy.ripe(saved, tail - saved if economy.whole else kept) else -1.0
        if gain > most or (free and gain >= most):
            best, most = n, gain
    return best
