"""Looking at and ending processes of the operating system: by group, by environment, and by the process they descend from.

A zombie counts as gone: it runs nothing, and in a container whose first process never reaps it would stay for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

_PROC = Path("/proc")
KILL_WAIT = 5.0
"""Seconds to wait for a killed process to be gone: only one inside the kernel (a dead network disk) takes longer."""


class Found(NamedTuple):
    """A process: `started` is in clock ticks since the machine started, 0 where the system does not tell."""

    pid: int
    pgid: int
    state: str
    started: int


def look_at(pid: int) -> Found | None:
    """The process with this id, or None where it is gone (or a zombie)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        if _PROC.joinpath("self").exists() or not _exists(pid):
            return None
        with contextlib.suppress(ProcessLookupError):
            return Found(pid, os.getpgid(pid), "?", 0)
        return None
    # The name stands in parentheses and may itself hold parentheses and spaces.
    fields = text.rpartition(")")[2].split()
    found = Found(pid, int(fields[2]), fields[0], int(fields[19]))
    return None if found.state in "ZX" else found


def descendants(*pids: int) -> list[int]:
    """The living processes below these. Empty where the system has no /proc. Blocks for some milliseconds."""
    children: dict[int, list[int]] = {}
    for each in _all_pids():
        try:
            text = (_PROC / str(each) / "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(each)
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _all_pids() -> list[int]:
    try:
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def in_group(pgid: int) -> list[int]:
    """The living processes of a group."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    pids = _all_pids()
    if not pids:
        return [pgid]
    found = (look_at(pid) for pid in pids)
    return [f.pid for f in found if f is not None and f.pgid == pgid]


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment that a process was started with, or None where it may not be read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def with_environment(wanted: Mapping[str, str]) -> list[int]:
    """The living processes (never this one) whose environment holds all of `wanted`. Empty where the system has no
    /proc.
    """
    needles = [f"{key}={value}".encode() for key, value in wanted.items()]
    found: list[int] = []
    for pid in _all_pids():
        if pid == os.getpid():
            continue
        try:
            entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(needle in entries for needle in needles) and look_at(pid) is not None:
            found.append(pid)
    return found


class Target(NamedTuple):
    """What to end: a group, whatever carries these variables (it may have left the group), and whatever descends from
    `root` (it may have thrown the variables away). Each may be absent. `root` itself is ended where it leads the group.
    """

    pgid: int | None = None
    environment: Mapping[str, str] | None = None
    root: int | None = None

    def living(self) -> list[int]:
        """The processes of the target that still run. Blocks for some milliseconds."""
        found = set(in_group(self.pgid)) if self.pgid is not None else set[int]()
        if self.environment:
            found.update(with_environment(self.environment))
        if self.root is not None:
            found.update(descendants(self.root))
            if self.root != self.pgid:
                found.discard(self.root)
        return sorted(found)

    def signal(self, number: signal.Signals, pids: list[int]) -> None:
        """Sends a signal to the group and to each of `pids`.

        What only holds a sandbox is spared, but for KILL: all in it is killed with it, and gets no time to end by itself.
        """
        wardens = [] if number == signal.SIGKILL else [pid for pid in pids if _holds_a_sandbox(pid)]
        if self.pgid is not None and not wardens:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pgid, number)
        for pid in pids if not wardens else sorted({*pids} - {*wardens}):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _holds_a_sandbox(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip() == "bwrap"
    except OSError:
        return False


async def end(target: Target, *, grace: float) -> list[int]:
    """Ends all processes of a target: TERM, after `grace` seconds KILL; returns when they are gone.

    Returns the ids of those that still run after the KILL and five more seconds (case B087). Not cancellable: it is
    what a cancelled call waits for, and takes at most `grace` plus five seconds.
    """
    left: list[int] = []
    with anyio.CancelScope(shield=True):
        left = await anyio.to_thread.run_sync(target.living)
        if left:
            target.signal(signal.SIGTERM, left)
            # A stopped process gets the signal only when it goes on.
            target.signal(signal.SIGCONT, left)
            left = await _wait_gone(target, grace)
        deadline = time.monotonic() + KILL_WAIT
        while left and time.monotonic() < deadline:
            # Again and again: what a process started between the look and the signal carries the same mark.
            target.signal(signal.SIGKILL, left)
            left = await _wait_gone(target, 0.2)
    return left


async def _wait_gone(target: Target, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    pause = 0.005
    while True:
        left = await anyio.to_thread.run_sync(target.living)
        if not left or time.monotonic() >= deadline:
            return left
        await anyio.sleep(pause)
        pause = min(pause * 2, 0.1)


def call_environment(call_id: str, owner: str) -> dict[str, str]:
    """The variables by which a child is known as part of a call, also after its runtime was killed."""
    return {"POD_CALL_ID": call_id, "POD_OWNER": owner} if owner else {"POD_CALL_ID": call_id}


def survivors(call_id: str, owner: str) -> list[int]:
    """The living processes that a call of this owner started, and all below them. Call ids alone are not unique between
    pods.
    """
    marked = with_environment(call_environment(call_id, owner))
    return sorted({*marked, *descendants(*marked)})
