"""Asks a human on this terminal about calls that wait, while answers from elsewhere are heard as well."""

from __future__ import annotations

import os
import sys
import termios
from contextlib import suppress
from typing import Any

import anyio

from pod.cli.failing import note
from pod.cli.signals import Stopping
from pod.cli.text import clean, one_line
from pod.pod import Pod

LISTEN = 1.0
"""Seconds between two looks into the inbox, while the prompt waits."""


async def ask(pod: Pod, stopping: Stopping) -> bool:
    """Puts each open question. True once all are answered (here or by `pod approve`), False where nobody answers.

    Cancelled, what was answered is on record.
    """
    ended = anyio.Event()

    async def end() -> None:
        ended.set()

    stopping.end = end
    try:
        while pod.approvals:
            asked = pod.approvals[0]
            _show(asked)
            word = await _answer(pod, asked, ended)
            if word is None:
                return False
            if word == "elsewhere":
                note("  (answered elsewhere)")
            elif word in {"y", "yes"}:
                await pod.approve(asked.id, scope=asked.scope, by="terminal")
            elif word in {"a", "always"}:
                await pod.approve(asked.id, scope="run", by="terminal")
            else:
                await pod.deny(asked.id, by="terminal")
        return True
    finally:
        stopping.end = None


def _show(asked: Any) -> None:
    note("")
    note(f"{one_line(asked.tool, 40)} wants to run:")
    for line in clean(asked.summary).splitlines():
        note(f"  {line}")
    if asked.reason:
        note(f"  ({one_line(asked.reason, 200)})")
    lines = clean(asked.diff or "").splitlines()
    for line in lines[:200]:
        note(f"  {line}")
    if len(lines) > 200:
        note(f"  ... {len(lines) - 200} more lines")


async def _answer(pod: Pod, asked: Any, ended: anyio.Event) -> str | None:
    """One word of the human, or `elsewhere`; None at the end of input or at a signal."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # keys pressed before the question are no answer to it
    words = "Allow it? [y]es, [n]o, [a]lways in this run: "
    if asked.scope == "run":
        words = "Allow it? [y]es, and all like it in this run, [n]o: "
    while True:
        print(words, end="", file=sys.stderr, flush=True)
        line = await _line(pod, asked.id, ended)
        if line is None or line == "elsewhere":
            if line is None:
                note("")
            return line
        word = line.strip().lower()
        if word in {"y", "yes", "n", "no", "a", "always"}:
            return word


async def _line(pod: Pod, approval: str, ended: anyio.Event) -> str | None:
    """A line from the terminal, waited for in small steps."""
    typed = b""
    fd = sys.stdin.fileno()
    while not ended.is_set():
        with anyio.move_on_after(LISTEN):
            async with anyio.create_task_group() as group:

                async def leave() -> None:
                    await ended.wait()
                    group.cancel_scope.cancel()  # the group of this turn of the loop

                group.start_soon(leave)
                await anyio.wait_readable(fd)
                data = os.read(fd, 4096)
                if not data:
                    return None
                typed += data
                group.cancel_scope.cancel()
        if b"\n" in typed:
            return typed.partition(b"\n")[0].decode(errors="replace")
        await pod.running.drain()
        if approval not in {asked.id for asked in pod.approvals}:
            return "elsewhere"
    return None
