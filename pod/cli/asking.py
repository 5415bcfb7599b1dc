"""Asks a human on this terminal about calls that wait, while answers from elsewhere are heard as well."""

from __future__ import annotations

import os
import sys
import termios
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import anyio

from interceptors.approvals import ApprovalScope, reach_of, settled_by
from pod.cli.failing import note
from pod.cli.signals import Stopping
from pod.cli.text import SHOWN, one_line, shown_lines
from pod.pod import Pod
from worker.text import visible


class Choice(NamedTuple):
    """What a human says to a question: this call, all like it in this run, or no. `reason` is what the model is told of a no."""

    word: Literal["once", "run", "no"]
    reason: str = ""


LIKE_IT: dict[ApprovalScope, str] = {"run": "all writes of this run", "once": "all calls like it in this run"}
"""What `a` allows, by the question's scope."""

_WORDS: dict[str, Literal["once", "run", "no"]] = {
    "y": "once",
    "yes": "once",
    "a": "run",
    "all": "run",
    "always": "run",
    "n": "no",
    "no": "no",
}

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
            show_question(asked)
            choice = await _answer(pod, asked, ended)
            if choice is None:
                return False
            if choice == "elsewhere":
                note("  (answered elsewhere)")
            elif choice.word == "no":
                await pod.deny(asked.id, by="terminal", message=choice.reason)
            else:
                settled = settled_by(asked, pod.approvals) if choice.word == "run" else []
                await pod.approve(asked.id, scope=choice.word, by="terminal")
                tell_allowed(asked, choice.word)
                await _settle(pod, settled)
        return True
    finally:
        stopping.end = None


async def _settle(pod: Pod, settled: list[Any]) -> None:
    """Questions that the answer to another one settles are not asked again."""
    for other in settled:
        if other.id in {asked.id for asked in pod.approvals}:
            await pod.approve(other.id, scope="once", by="terminal")
    tell_settled(len(settled))


def prompt_of(asked: Any) -> str:
    """The question itself, with what each answer allows."""
    return f"Allow it? [y]es, this call; [a]: {LIKE_IT[asked.scope]}; [n]o, or n and why; [?]: "


def tell_allowed(asked: Any, choice: ApprovalScope) -> None:
    """Says what a yes has allowed."""
    note(f"  approved: {reach_of(asked.scope, choice)}")


def tell_settled(number: int) -> None:
    """Says how many questions were answered with another one."""
    if number:
        note(f"  (and {number} more like it)")


def show_question(asked: Any) -> None:
    """What waits, with its diff, on standard error."""
    note("")
    note(f"{one_line(asked.tool, 40)} wants to run:")
    for line in visible(asked.summary).splitlines():
        note(f"  {line}")
    if asked.reason:
        note(f"  ({one_line(asked.reason, 200)})")
    for line in shown_lines(asked, SHOWN):
        note(f"  {line}")


def choice_of(line: str, asked: Any) -> Choice | None:
    """What a line that was typed says. None where it says nothing; `?` is explained.

    Behind a no stands its reason: `n use the copy`. Behind anything else more words are no answer.
    """
    first, _, rest = line.strip().partition(" ")
    word, reason = first.lower().rstrip(",:"), valid_reason(rest)
    if word in {"?", "h", "help"}:
        reach = (
            "writes in scope are free"
            if asked.scope == "run"
            else f"{one_line(asked.tool, 40)} with these arguments is free"
        )
        note("  y  this call runs; the next one asks again")
        note(f"  a  this call runs, and for the rest of this run {reach}")
        note("  n  this call does not run, and the model is told so; with a reason behind it: n use the copy")
        note("  Ctrl-D leaves the question open: the run pauses, and `pod approve NAME --resume` goes on")
    said = _WORDS.get(word)
    return None if said is None or (reason and said != "no") else Choice(said, reason)


def valid_reason(text: str) -> str:
    """A reason that was typed, without what steers a terminal or is no text."""
    return "".join(c for c in text.strip() if c.isprintable())


async def _answer(pod: Pod, asked: Any, ended: anyio.Event) -> Choice | Literal["elsewhere"] | None:
    """The choice of the human, or `elsewhere`; None at the end of input or at a signal."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # keys pressed before the question are no answer to it
    while True:
        print(prompt_of(asked), end="", file=sys.stderr, flush=True)
        line = await _line(pod, asked.id, ended)
        if line is None:
            note("")
            return None
        if asked.id not in {open_.id for open_ in pod.approvals}:
            return "elsewhere"
        if (choice := choice_of(line, asked)) is not None:
            return choice


async def _line(pod: Pod, approval: str, ended: anyio.Event) -> str | None:
    """A line from the terminal, waited for in small steps; empty where the question was answered elsewhere."""
    typed, over = b"", False
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
                over = not data  # Ctrl-D: a return from here would wait for the group, and be lost
                typed += data
                group.cancel_scope.cancel()
        if over:
            return None
        if b"\n" in typed:
            return typed.partition(b"\n")[0].decode(errors="replace")
        await pod.running.intake.drain()
        if approval not in {asked.id for asked in pod.approvals}:
            return ""
    return None
