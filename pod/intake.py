"""What reaches a pod from outside: messages, answers and orders, put on record before anything comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from interceptors.approvals import ApprovalAnswered
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log import inbox
from pod.session import Session
from pod.supervision import Orders
from worker.items import UserItem
from worker.records import Input
from worker.text import clean


def message_of(text: object) -> UserItem:
    """A user's message as it is stored. Raises `UsageProblem` where it is none, or blank."""
    return UserItem(text=said(text))


def said(text: object) -> str:
    """A user's message as it is stored. Raises `UsageProblem` where it is no text, or blank: no provider takes such a message."""
    if not isinstance(text, str):
        raise UsageProblem(
            f"a message is text, not {type(text).__name__} ({repr(text)[:60]}); resume() goes on without a new message"
        )
    text = clean(text)
    if not text.strip():
        raise UsageProblem("the message is empty: say what is to be done; resume() goes on without a new message")
    return text


@dataclass
class Intake:
    """The way in. `orders` are what the next request boundary follows."""

    session: Session
    orders: Orders
    _watch: inbox.Watch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = inbox.Watch(self.session.folder.inbox)

    async def accept(self, text: str) -> str:
        """Stores a user message on arrival; durable when it returns. Returns its id. Raises `UsageProblem` for blank text."""
        item = message_of(text)
        self.session.put(Input(item=item))
        await self.session.sync()
        return item.id

    async def known(self, key: str, text: str) -> bool:
        """Whether the message with this key was taken before. Raises `UsageProblem` where another one was."""
        if not self.session.state.last_run and not self.session.state.inbox:
            return False
        used = await anyio.to_thread.run_sync(inbox.used, self.session.folder, key)
        if used is not None and used != self.session.gate.own(said(text)):
            raise UsageProblem(
                f"the key {key!r} was used for something else in pod {self.session.folder.name!r}: nothing was stored; take another key"
            )
        return used is not None

    async def drain(self) -> None:
        """Takes what lies in the inbox: recorded first, durable, then unlinked. A known id is only unlinked."""
        session = self.session
        if not self._watch.changed():
            return
        found = await anyio.to_thread.run_sync(lambda: list(inbox.waiting(session.folder)))
        taken: list[Path] = []
        for path, command in found:
            if command is None:
                for record in inbox.set_aside(session.folder, path):
                    session.put(record)
                continue
            if command.id not in session.state.inbox:
                self._take(command)
            taken.append(path)
        if found:
            await session.sync()
        for path in taken:
            session.folder.files.unlink(path)
        if await anyio.to_thread.run_sync(inbox.left_over, session.folder):
            self._watch.forget()

    def _take(self, command: inbox.Command) -> None:
        args = command.args
        if command.kind == "send":
            for record in inbox.message_of(command):
                self.session.put(record)
            return
        self.session.put(e.Commanded(id=command.id, command=command.kind, args=args))
        match command.kind:
            case "stop" | "interrupt":
                self.orders.stop = str(args.get("reason") or command.kind)
            case "compact":
                self.orders.compact, self.orders.focus = True, args.get("focus")
            case "approve" | "deny":
                self.answer(str(args.get("id", "")), command.kind == "approve", args)

    def answer(self, approval: str, approved: bool, args: Mapping[str, Any]) -> bool:
        """Puts a human's answer on record; False where nothing of this id is asked."""
        if approval not in self.session.state.approvals:
            return False
        scope: Any = args.get("scope")
        self.session.put(
            ApprovalAnswered(
                id=approval,
                approved=approved,
                by=str(args.get("by") or ""),
                scope=scope,
                message=str(args.get("message") or ""),
            )
        )
        return True
