"""The process of one command: under a supervisor where the system has subreapers (Linux), else a child of the runtime."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import Process

from worker.builtin.process_table import KILL_WAIT, Target, end

SUPERVISED = sys.platform == "linux"
"""Whether commands get a supervisor. A test may turn it off."""

_MOMENT = 0.05
_AGAIN = 3


class Child:
    """A running command. `code` is its exit code, negative for a signal, None while it runs; `target` is what to end;
    `error` is why it could not be started.

    With a supervisor, `report` is the pipe on which it tells how the command began and ended.
    """

    def __init__(self, process: Process, mark: Mapping[str, str], report: int | None) -> None:
        self._process = process
        self._report = report
        self._lines = b""
        self._exit: int | None = None
        self.error: OSError | None = None
        self.target = Target(process.pid, mark) if report is None else Target(None, mark, process.pid)

    @property
    def code(self) -> int | None:
        """How the command ended; where its supervisor was killed, how that ended."""
        return self._process.returncode if self._exit is None else self._exit

    async def wait(self) -> None:
        """Waits for the command itself, not for what it leaves."""
        if self._report is None:
            await self._process.wait()
            return
        while self._exit is None and await self._more():
            pass

    async def _more(self) -> bool:
        """Takes what the supervisor says next; False at its end."""
        assert self._report is not None
        await anyio.wait_readable(self._report)
        return self._take()

    def _take(self) -> bool:
        assert self._report is not None
        try:
            data = os.read(self._report, 4_096)
        except BlockingIOError:
            return True
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            word, number = line.split()
            if word == b"pid":
                self.target = self.target._replace(pgid=int(number))
            elif word == b"exit":
                self._exit = int(number)
            else:
                self.error = OSError(int(number), os.strerror(int(number)))
        return bool(data)

    async def left_nothing(self) -> bool:
        """Whether it is certain that no process of the command is left: its supervisor ends by itself only then."""
        if self._report is None:
            return False
        with anyio.move_on_after(_MOMENT):
            await self._process.wait()
        return self._process.returncode == 0

    async def gone(self, survivors: list[int]) -> list[int]:
        """Reaps the process after all others were ended; gives those that still run. Takes some seconds at most."""
        if self._report is not None and not survivors:
            # A supervisor that stays has children yet: such as were started between a look and a signal.
            for _ in range(_AGAIN):
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGCONT)
                with anyio.move_on_after(KILL_WAIT / 10):
                    await self._process.wait()
                if self._process.returncode is not None:
                    break
                survivors = await end(self.target, grace=0)
        if self._report is not None:
            with contextlib.suppress(ProcessLookupError):
                if self._process.returncode is None:
                    self._process.kill()
            while self._exit is None and _readable(self._report) and self._take():
                pass
        with anyio.move_on_after(KILL_WAIT):
            await self._process.wait()
            await self._process.aclose()
        return survivors

    def close(self) -> None:
        """Closes the supervisor's pipe."""
        if self._report is not None:
            os.close(self._report)


def _readable(fd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


async def start_child(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    mark: Mapping[str, str],
    write_end: int,
    *,
    read_from: int | None = None,
    errors_to: int | None = None,
) -> Child:
    """Starts a command in a session of its own, its output going to `write_end`, which is closed here.

    It reads from the descriptor `read_from` (None: at end of file); what it writes to standard error goes to `errors_to`,
    which is closed here too (None: to its output).

    Not cancellable, so that no child runs that nobody knows. Raises `OSError` where it can't be started.
    """
    report, told = os.pipe() if SUPERVISED else (None, None)
    started: list[Process] = []
    try:
        program = list(argv)
        if told is not None:
            supervisor = str(Path(__file__).with_name("supervise_call.py"))
            program = [sys.executable, "-I", "-S", supervisor, str(told), *argv]
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                program,
                stdin=subprocess.DEVNULL if read_from is None else read_from,
                stdout=write_end,
                stderr=subprocess.STDOUT if errors_to is None else errors_to,
                cwd=cwd,
                env=environment,
                start_new_session=True,
                pass_fds=() if told is None else (told,),
            )
            started.append(process)
    except BaseException:
        if report is not None:
            os.close(report)
        raise
    finally:
        os.close(write_end)
        if errors_to is not None:
            os.close(errors_to)
        if told is not None:
            os.close(told)
    if report is not None:
        os.set_blocking(report, False)
    return Child(started[0], mark, report)
