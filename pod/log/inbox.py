"""The inbox: how other processes reach the writer of a pod.

A command is one file, durable before its sender is told so.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from interceptors.approvals import ApprovalScope
from pod import codes
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.files import json_of, read_file
from pod.log.folder import PodFolder
from pod.log.lines import now
from pod.log.redacting import posted
from pod.log.segment import Damage, scan
from worker.ids import uuid7
from worker.items import UserItem
from worker.records import Input, Record, Warned
from worker.text import clean

CommandKind: TypeAlias = Literal["send", "stop", "approve", "deny", "compact", "interrupt"]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


_TEXTS = frozenset({"text", "reason", "focus", "id", "by", "message"})
"""Arguments that are texts, where a command has them."""


class Command(BaseModel):
    """One command. `id` is the idempotency key: the same id is taken once. `args` depend on the kind; one that is known and has
    no value that it can have makes the whole no command, so that no writer trips over it later.
    """

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=uuid7)
    kind: CommandKind
    at: str = Field(default_factory=now)
    args: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _fits(self) -> Command:
        for name, value in self.args.items():
            if name in _TEXTS and not isinstance(value, str | None):
                raise ValueError(f"{name!r} of a command is a text")
            if name == "scope" and value not in (None, *get_args(ApprovalScope)):
                raise ValueError(f"the scope of an answer is one of {get_args(ApprovalScope)}")
        return self


def message_of(command: Command) -> tuple[Record, ...]:
    """What a `send` is on record: the user's message; a blank one, which no provider takes, is left out with a warning."""
    text = clean(str(command.args.get("text", "")))
    if text.strip():
        return (Input(item=UserItem(text=text), inbox=command.id),)
    message = f"a message that was sent (command {command.id}) is empty, and was left out"
    taken = e.Commanded(id=command.id, command=command.kind, args=command.args)
    return taken, Warned(code=codes.EMPTY_MESSAGE, message=message, figures={"command": command.id})


SETTLED = 0.1
"""Seconds after which a folder's time of change tells it from an earlier state: file systems' clocks tick in steps."""


class Watch:
    """Tells cheaply (one `stat`) whether the inbox may hold something new since it was last looked into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: int | None = None

    def forget(self) -> None:
        """Something was left in the folder: look again next time."""
        self._seen = None

    def changed(self) -> bool:
        """Whether to look. Where it says yes, the caller must then list the folder."""
        try:
            stamp = self._folder.stat().st_mtime_ns
        except OSError:
            return False
        if stamp == self._seen:
            return False
        self._seen = stamp if time.time() - stamp / 1e9 > SETTLED else None
        return True


def post(folder: PodFolder, command: Command) -> str:
    """Leaves a command, without secrets, and returns its id once it is durable.

    Raises `UsageProblem` for an id that can't be a file's name, `PodNotFound`, `OSError`.
    """
    if _ID.fullmatch(command.id) is None:
        raise UsageProblem(
            f"{command.id!r} can't be an idempotency key: letters, digits, '.', '_' and '-', at most 128"
        )
    folder.pointer()
    command = command.model_copy(update={"args": posted(folder, command.args)})
    folder.files.make_folder(folder.inbox)
    folder.files.put(folder.inbox / f"{command.id}.json", command.model_dump_json().encode())
    return command.id


def post_message(folder: PodFolder, command: Command) -> bool:
    """`post` for a message whose id the sender chose; False where the same message was stored under it before.

    Looked for in the inbox and in all logs, so that an id counts for as long as the pod lives. Raises `UsageProblem`
    where the id was used for something else, and what `post` does.
    """
    folder.pointer()
    command = command.model_copy(update={"args": posted(folder, command.args)})
    before = used(folder, command.id)
    if before is None:
        post(folder, command)
        return True
    if before != clean(str(command.args.get("text", ""))):
        raise UsageProblem(
            f"the id {command.id!r} was used for something else in pod {folder.name!r}: nothing was stored; take another id"
        )
    return False


def used(folder: PodFolder, label: str) -> str | None:
    """The text of the message that has this id; another command's kind in its place; None where the id is free.

    What the inbox held is on record before it leaves there, so it is looked into first.
    """
    for _, command in waiting(folder):
        if command is not None and command.id == label:
            return _text_of(command.kind, command.args)
    mark = json.dumps(label).encode()
    for path in folder.logs():
        for line in scan(path):
            if isinstance(line, Damage) or line.kind not in {"input", "commanded"} or mark not in line.body:
                continue
            match e.record_of(line, path):
                case Input(inbox=inbox, item=item) if inbox == label:
                    return item.text
                case e.Commanded(id=found, command=kind, args=args) if found == label:
                    return _text_of(kind, args)
                case _:
                    pass
    return None


def _text_of(kind: str, args: dict[str, Any]) -> str:
    return clean(str(args.get("text", ""))) if kind == "send" else f"\0{kind}"


def waiting(folder: PodFolder) -> Iterator[tuple[Path, Command | None]]:
    """The commands in the order of their arrival, each with its file; None for a file that is no command.

    A file that can't be read just now is left out, and stays for the next look: what was acknowledged is never lost.
    """
    try:
        paths = [p for p in folder.inbox.iterdir() if p.suffix == ".json" and not p.name.startswith(".")]
    except OSError:
        return
    found: list[tuple[str, Path, Command | None]] = []
    for path in paths:
        try:
            command = Command.model_validate(json_of(read_file(path)))
        except OSError:
            continue
        except ValueError:
            found.append(("", path, None))
            continue
        found.append((command.at + command.id, path, command))
    found.sort(key=lambda entry: entry[0])
    for _, path, command in found:
        yield path, command


def message_waits(folder: PodFolder, known: Container[str]) -> bool:
    """Whether a message for the model lies in the inbox that is not on record yet; `known` are ids of commands that are."""
    return any(
        command is not None
        and command.kind == "send"
        and command.id not in known
        and bool(clean(str(command.args.get("text", ""))).strip())
        for _, command in waiting(folder)
    )


def set_aside(folder: PodFolder, path: Path) -> tuple[Record, ...]:
    """Puts a file that is no command aside, beside the others, and says so: it may be a newer version's."""
    kept = path.with_name(f"{path.name}.refused")
    folder.files.rename(path, kept)
    message = f"{path.name} in the inbox is no command that this version reads; it is kept as {kept.name}"
    return (Warned(code=codes.INBOX_REFUSED, message=message, figures={"file": kept.name}),)


def left_over(folder: PodFolder) -> bool:
    """Whether commands lie in the inbox still (unreadable just now, or just arrived)."""
    try:
        return any(path.suffix == ".json" and not path.name.startswith(".") for path in folder.inbox.iterdir())
    except OSError:
        return False
