"""One retry policy, ours: the SDKs' own retries are off."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.errors import ModelError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded in tries and in total seconds. Full jitter from `base`, doubling up to `cap`; `retry-after` wins up to
    `longest_wait`.

    `chance` gives numbers in [0, 1), for tests.
    """

    max_attempts: int = 6
    max_seconds: float = 300.0
    base: float = 0.5
    cap: float = 30.0
    longest_wait: float = 120.0
    chance: Callable[[], float] = field(default=random.random)

    def wait(self, error: ModelError, attempt: int, waited: float) -> float | None:
        """Seconds to wait before try number `attempt + 1`, or None when it is over.

        `attempt` counts from 1, `waited` is the time since the first try. A provider that asks for more patience than
        `longest_wait` is not waited for: the run ends resumable instead.
        """
        if not error.retryable or attempt >= self.max_attempts:
            return None
        pause = self.pause(error, attempt)
        return None if pause is None or waited + pause > self.max_seconds else pause

    def pause(self, error: ModelError, attempt: int) -> float | None:
        """Seconds for which the provider is left alone after this try, None where it asks for too many."""
        if error.retry_after is None:
            return self.chance() * min(self.cap, self.base * 2 ** min(attempt - 1, 32))
        return None if error.retry_after > self.longest_wait else max(error.retry_after, 0.0)

    def gave_up(self, attempt: int, waited: float) -> str:
        """What was tried, with the bounds, for the error that ends it."""
        tries = f"{attempt} of at most {self.max_attempts} tries"
        return f"given up after {tries}, {waited:.0f} of at most {self.max_seconds:g} s"
