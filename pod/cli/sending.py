"""Commands to a pod from outside: send, stop, interrupt. Answers are in `pod.cli.answering`.

With a living writer they are left in its inbox; without one they are done here. Either way they are durable when
the command ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pod.cli.failing import note
from pod.cli.output import show, show_json
from pod.cli.text import one_line, told, ways_out
from pod.errors import PodBusy, PodError
from pod.log.folder import PodFolder, check_name, default_home
from pod.log.inbox import Command, CommandKind, post, post_message

if TYPE_CHECKING:
    from collections.abc import Generator

    from pod.session import Session

STEP = 0.1
"""Seconds between two looks at whether a writer has ended."""


class NotStopped(PodError):
    """The writer did not end within the time that was given."""

    exit_code = 75


def folder_of(name: str) -> PodFolder:
    """The folder of a pod that exists. Raises `PodNotFound`, `UsageProblem`."""
    folder = PodFolder(default_home(), check_name(name))
    folder.pointer()
    return folder


def send(args: argparse.Namespace) -> int:
    """Leaves a message; prints its id."""
    from pod.cli.given import task_of
    from pod.peek import glance
    from pod.questions import open_questions
    from pod.result import waits_for

    text = task_of(args.text, "the message")
    assert text is not None
    folder = folder_of(args.name)
    command = Command(kind="send", args={"text": text}, **({"id": args.id} if args.id else {}))
    if not folder.is_busy():
        open_questions(folder)  # a log that no writer could open is told before anything is stored
    new = post_message(folder, command)
    if not folder.is_busy():
        _drained_here(folder)
    look = glance(folder)
    asked = list(open_questions(folder).values()) if look.status == "waiting" else []
    if args.json:
        waits = waits_for(asked, folder.name) if asked else None
        show_json({"pod": folder.name, "id": command.id, "stored": new, "status": look.status, "waits_for": waits})
        return 0
    show(command.id)
    if not new:
        note(f"pod {args.name}: the message was stored under this id before; nothing was stored now")
        return 0
    when = "it joins at the next request" if look.busy else f"`pod resume {args.name}` goes on with it"
    if asked:
        when = "the pod waits for an answer first, and the message joins after it:"
    note(f"pod {args.name}: the message is stored; {when}")
    for each in asked:
        note(f"  {one_line(told(each.tool, each.summary), 200)}")
        for line in ways_out(args.name, each.id, [other.id for other in asked]):
            note(f"    {line}")
    return 0


def _drained_here(folder: PodFolder) -> None:
    """Without a writer the sender takes its command into the log itself; who becomes the writer meanwhile does it
    instead.
    """
    from pod.questions import take_inbox

    try:
        with opened(folder) as session:
            take_inbox(session)
    except PodBusy:
        return


@contextmanager
def opened(folder: PodFolder) -> Generator[Session]:
    """The session, open for writing. Raises what `Session.open` does."""
    from pod.session import Session

    session = Session.open(folder.home, folder.name)
    try:
        yield session
    finally:
        session.close()


# -- ending a run ---------------------------------------------------------------------------------------------


def stop(args: argparse.Namespace) -> int:
    """Ends the run of a pod and waits for that."""
    folder = folder_of(args.name)
    if not folder.is_busy():
        note(f"pod {args.name}: no process is running it")
        return 0
    command = Command(kind="stop", args={"reason": "pod stop"})
    post(folder, command)
    owner = folder.owner()
    ends = owner.get("stops_at") == "SIGINT" and holds(folder.path / "lock", owner)
    if ends:
        try:
            os.kill(int(owner["pid"]), signal.SIGINT)
        except ProcessLookupError:
            pass  # it has just ended by itself
    return anyio.run(_until_ended, folder, command, args.timeout, owner if ends else None)


async def _until_ended(folder: PodFolder, command: Command, timeout: float, ending: dict[str, Any] | None) -> int:
    """Waits for the run to end, and for the process `ending`, which ends with it and has the lock a moment longer."""
    from pod.peek import glance

    left = folder.inbox / f"{command.id}.json"
    with anyio.move_on_after(timeout):
        # Another process ends: there is no event to wait for.
        while folder.is_busy() and (  # noqa: ASYNC110
            glance(folder).status in {"running", "compacting"} or folder.owner() == ending
        ):
            await anyio.sleep(STEP)
        if not folder.is_busy():
            folder.files.unlink(left)  # the run is over: the command must not meet the next one
        note(f"pod {folder.name}: stopped; `pod resume {folder.name}` goes on")
        return 0
    raise NotStopped(
        f"pod {folder.name!r} has not ended within {timeout:g} s; the order is in its inbox, for the next request"
    )


def holds(lock: Path, owner: dict[str, Any]) -> bool:
    """Whether the process that the lock names runs on this host and has the lock's file open now."""
    if owner.get("host") != socket.gethostname():
        return False
    try:
        wanted = lock.stat()
        for entry in Path(f"/proc/{int(owner['pid'])}/fd").iterdir():
            try:
                found = entry.stat()
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return False


def interrupt(args: argparse.Namespace) -> int:
    """Ends the run at its next request."""
    folder = folder_of(args.name)
    if not folder.is_busy():
        note(f"pod {args.name}: no process is running it")
        return 0
    post(folder, Command(kind="interrupt", args={"reason": "pod interrupt"}))
    note(f"pod {args.name}: the run ends at its next request")
    return 0


def order(folder: PodFolder, kind: CommandKind, values: dict[str, Any], otherwise: Callable[[], int]) -> int:
    """Leaves a command with a living writer, or does it here where there is none."""
    if folder.is_busy():
        post(folder, Command(kind=kind, args=values))
        note(f"pod {folder.name}: left in the inbox; it is followed at the next request")
        return 0
    return otherwise()
