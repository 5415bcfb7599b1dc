"""A node in a process of its own, started by another one or by a command, and ended with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import Process


@dataclass
class ChildNode:
    """At most one process at a time. `exit_code` is that of the last one, None where none has ended."""

    _process: Process | None = None

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """What the last one ended with."""
        return None if self._process is None else self._process.returncode

    async def start(self, words: Sequence[str]) -> None:
        """Starts `pod node` with these words, in a group of its own: the terminal's signals are its starter's to pass on."""
        command = [sys.executable, "-m", "pod", "node", *words]
        self._process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None, start_new_session=True)

    async def end(self) -> None:
        """Has it come to a halt, and waits for that."""
        if self._process is not None:
            if self.runs:
                self._process.terminate()
            await self._process.wait()
