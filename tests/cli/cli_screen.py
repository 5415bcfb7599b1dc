"""A process on a pseudo-terminal, as a human has it before them."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cli.cli_rig import Rig
from forked import started


class Terminal:
    """A process on a pseudo-terminal. `read_until` waits for a text, `type` types."""

    def __init__(self, rig: Rig, command: Sequence[str], columns: int) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        env = rig.env(TERM="xterm-256color", PYTHONIOENCODING="utf-8")
        self.process = started(
            command,
            cwd=rig.work,
            env=env,
            fresh=rig.fresh,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65_536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def read_until(self, text: str) -> None:
        ends = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < ends and self._more(1), f"never saw {text!r} in:\n{self.seen}"

    def end(self) -> int:
        while self._more(20):
            pass
        return self.process.wait(20)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@contextmanager
def terminal(rig: Rig, *arguments: object, columns: int = 80) -> Iterator[Terminal]:
    made = Terminal(rig, ["-m", "pod", *map(str, arguments)], columns)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        os.close(made.master)
