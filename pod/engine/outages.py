"""What is asked of the engine's database while that is away: it is asked for again until it is there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.exc import DBAPIError, TimeoutError

from pod.errors import PodError

PATIENCE = 600.0
"""Seconds for which something is asked for again."""

PATIENCE_OF_RUNS = 30 * 86400.0
"""The same for what must not fail: that an activation goes on in another one."""


@dataclass
class Patience:
    """How long is waited before something is asked for again; `seconds` bounds all of it."""

    seconds: float = PATIENCE
    _pause: float = 0.1
    _began: float = field(default_factory=time.monotonic)

    def pause(self, error: Exception) -> float:
        """Seconds to wait now. Raises `PodError` where the patience is at its end, and where the database refuses; any other error is raised."""
        if not is_away(error):
            raise refused(error) if isinstance(error, DBAPIError) else error
        if time.monotonic() - self._began >= self.seconds:
            raise PodError(f"the engine's database does not answer ({str(error).splitlines()[0]})") from None
        pause, self._pause = self._pause * random.uniform(0.5, 1.0), min(self._pause * 2, 5.0)
        return pause


def refused(error: DBAPIError) -> PodError:
    """What a database says that answers, and does not do what is asked of it."""
    said = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
    return PodError(f"the engine's database refuses what is asked of it: {said}")


def patiently(step: Callable[[], object], seconds: float = PATIENCE_OF_RUNS) -> None:
    """Does a step, and does it again while the database is away: it must count once however often it is done. Blocks."""
    patience = Patience(seconds)
    while True:
        try:
            step()
            return
        except Exception as error:
            time.sleep(patience.pause(error))


def is_away(error: BaseException) -> bool:
    """Whether an error says that the server went away, or that all connections wait for it. Never for a file."""
    if isinstance(error, TimeoutError):
        return True
    if not isinstance(error, DBAPIError) or not type(error.orig).__module__.startswith("psycopg"):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state is None:
        return error.connection_invalidated or type(error.orig).__name__ in _LOST
    return state.startswith(_STATES)


_LOST = frozenset({"OperationalError", "InterfaceError", "ConnectionTimeout"})
_STATES = ("08", "53", "57P", "25P03")
"""SQLSTATEs: no connection, no room, a server that starts or stops, a session that stood still."""
