"""The supervisor of one foreground command: a small process that everything which the command starts stays below.

`python -I -S supervise_call.py FD COMMAND...` makes itself the subreaper of its children (Linux), runs the command in a
session of its own, and writes to the descriptor FD: `pid N`, then `exit CODE` (negative for a signal) when the command
ends, or `error ERRNO` where it cannot be started. Orphans, whatever session or environment they gave themselves, become
its children; it ends when there are none left. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Makes this process the parent of all orphans below it; False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def _stay(_number: int, _frame: FrameType | None) -> None:
    """A signal that is meant for the command must not take away the process that keeps it findable."""


def given_environment() -> dict[bytes, bytes]:
    """The environment as it was given: the interpreter may have added a locale of its own."""
    try:
        # Without pathlib, which takes longer to import than all the rest.
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {key: value for key, _, value in (entry.partition(b"=") for entry in entries if entry)}


def main() -> None:
    report, *command = sys.argv[1:]
    fd = int(report)
    os.set_inheritable(fd, False)
    adopt_orphans()
    # Handlers, unlike "ignore", are not inherited by the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stay)
    environment = given_environment()
    # Closed by a successful start of the program.
    trouble, failed = os.pipe()
    child = os.fork()
    if child == 0:
        _become(failed, command, environment)
    os.close(failed)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    error = os.read(trouble, 64).decode()
    _say(fd, f"error {error}" if error else f"pid {child}")
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            os._exit(0)
        if pid == child:
            _say(fd, f"exit {os.waitstatus_to_exitcode(status)}")


def _become(failed: int, command: list[str], environment: dict[bytes, bytes]) -> None:
    """The command in the place of this process."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(command[0], command, environment)
    except OSError as e:
        os.write(failed, str(e.errno).encode())
    finally:
        os._exit(127)


def _say(fd: int, line: str) -> None:
    # Nobody listens any more where the runtime was killed.
    with contextlib.suppress(OSError):
        os.write(fd, f"{line}\n".encode())


if __name__ == "__main__":
    main()
