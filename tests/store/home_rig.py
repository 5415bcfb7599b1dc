"""Homes in PostgreSQL for tests: copies of one process that act as several machines do, stores that end their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pod.log.files import share
from pod.store.postgres import PostgresStore
from pod.store.shared import SharedFiles

CALLS = (
    "create", "acquire", "beat", "release", "append", "rewrite", "set_state", "remove", "put", "drop", "post", "take",
)  # fmt: skip
"""Steps that change a store."""


@contextmanager
def copy_of(store: Any, home: Path) -> Generator[Path]:
    """A copy of its own of a shared home, as another process or machine has one."""
    files = SharedFiles(store, home, fresh=0)
    (home / "pods").mkdir(parents=True)
    share(home, files, "the shared home")
    try:
        yield home
    finally:
        files.stop()


@contextmanager
def machine(url: str, home: Path) -> Generator[Path]:
    with copy_of(PostgresStore(url), home) as made:
        yield made


class EndingStore:
    """A store in whose `at`-th changing step (from 1) the process is killed: before it, or when the answer is there."""

    def __init__(self, store: Any, at: int, when: str) -> None:
        self._store, self._at, self._when = store, at, when
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in CALLS:
            return call

        def counted(*args: Any, **named: Any) -> Any:
            self.count += 1
            mine = self.count == self._at
            if mine and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            found = call(*args, **named)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted
