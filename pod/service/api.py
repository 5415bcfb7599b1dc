"""What the service does for each operation. Which there are, and what they take and give, is in `pod.service.operations`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel

from interceptors.approvals import ApprovalAsked
from pod import views
from pod.errors import PodError, UsageProblem
from pod.log import entries as e
from pod.log import inbox
from pod.log.folder import PodFolder, check_name, pod_names
from pod.log.items import items_of
from pod.operations import clear, fork, rewind
from pod.outlook import outlook
from pod.page import MARKS
from pod.page.telling import ENTRY_MOST, entry_text
from pod.reading import SessionReader
from pod.result import last_result
from pod.service import schemas as s
from pod.service.access import Holder
from pod.service.care import OVER, Care
from pod.service.feed import POLL
from pod.service.readings import Readings
from pod.service.rows import Rows
from pod.service.timelines import Timelines
from pod.timeline import CATEGORIES
from pod.tools.session_history import session_history
from pod.unfinished import check_stored
from worker.ids import uuid7
from worker.items import ToolResultItem
from worker.masking import Masker, secrets_in
from worker.text import visible
from worker.tools import ToolContext, ToolFault

ENTRY_WHOLE = 1_000_000
"""Characters of an entry that is asked for whole."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as an operation sees it: who asks, path arguments, query, body, and the id of what it does (its Idempotency-Key, or a
    new one)."""

    holder: Holder

    args: dict[str, str] = field(default_factory=dict[str, str])
    query: Any = None
    body: Any = None
    id: str = field(default_factory=uuid7)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: its status and what it says."""

    status: int
    body: BaseModel


class Missing(UsageProblem):
    """What a request names is not there."""


@dataclass(frozen=True)
class Api:
    """The operations of a service."""

    care: Care
    readings: Readings = field(default_factory=Readings)
    _lists: Rows = field(default_factory=Rows)
    _timelines: Timelines = field(default_factory=Timelines)

    # -- reading ----------------------------------------------------------------------------------------------

    async def caller(self, asked: Asked) -> Answered:
        """GET /v1/caller."""
        return Answered(200, s.Caller(name=asked.holder.name, role=asked.holder.role))

    async def manifests(self, asked: Asked) -> Answered:
        """GET /v1/manifests."""
        shelf = self.care.shelf
        offered, said = await anyio.to_thread.run_sync(lambda: (shelf.names(), shelf.descriptions()))
        return Answered(200, s.Manifests(manifests=offered, descriptions=said))

    async def pods(self, asked: Asked) -> Answered:
        """GET /v1/pods."""
        rows, more = await anyio.to_thread.run_sync(self._rows, asked.query.after, asked.query.limit)
        return Answered(200, s.Pods(pods=rows, next=rows[-1].name if more and rows else None))

    def _rows(self, after: str, limit: int) -> tuple[list[s.PodRow], bool]:
        names = list(islice((name for name in pod_names(self.care.home) if name > after), limit + 1))
        rows: list[s.PodRow] = []
        for name in names[:limit]:
            try:
                folder = PodFolder(self.care.home, name)
                look = self.readings.glance(folder)
                rows.append(self._lists.row(folder, look, self.care.status(look)))
            except PodError:
                continue  # removed meanwhile
        return rows, len(names) > limit

    async def show(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}."""
        return Answered(200, await anyio.to_thread.run_sync(self._facts, await self._folder(asked)))

    def _facts(self, folder: PodFolder) -> s.Facts:
        look = self.readings.glance(folder)
        full = self._lists.fullness(folder, look)
        return s.Facts.model_validate(self.readings.facts(folder) | full | {"status": self.care.status(look)})

    async def events(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/events, as one page."""
        folder = await anyio.to_thread.run_sync(self.care.followed, asked.args["name"], asked.query.after)
        try:
            with self.care.reader(folder, asked.query.after) as reader:
                found = await reader.page(asked.query.limit, asked.query.wait)
        finally:
            self.care.left(folder.name)
        return Answered(200, s.EventPage(events=[e.model_dump(mode="json") for e in found], last=reader.after))

    async def timeline(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/timeline."""
        folder, query = await self._folder(asked), asked.query
        found = await anyio.to_thread.run_sync(self._timelines.since, folder, query.after, query.limit)
        return Answered(200, s.Steps(**found._asdict(), categories=list(CATEGORIES), marks=MARKS))

    async def entry(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/entries/{seq}."""
        folder, told = await self._folder(asked), asked.args["seq"]
        if not (told.isascii() and told.isdigit() and len(told) <= 15):
            raise UsageProblem("an entry is named by its number")
        return Answered(200, await anyio.to_thread.run_sync(_entry, folder, int(told), asked.query.whole))

    async def approvals(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/approvals."""
        folder = await self._folder(asked)
        return Answered(200, await self._awaited(folder, asked.query.wait, partial(self._asked, folder)))

    def _asked(self, folder: PodFolder) -> _Seen:
        """What waits for a human. Blocks."""
        with self.readings.state(folder) as state:
            found = [each.model_dump(mode="json") for each in state.approvals.values()]
            over = self.care.status(self.readings.glance(folder)) in OVER
            return _Seen(s.Questions(approvals=found), bool(found) or over, state.last_seq)

    async def _awaited(self, folder: PodFolder, wait: float, look: Callable[[], _Seen]) -> BaseModel:
        """What a look says once there is something to say, or after so many seconds as it is then."""
        seen = await anyio.to_thread.run_sync(look)
        if seen.there or not wait:
            return seen.said
        try:
            with self.care.reader(folder, seen.seq) as reader, anyio.move_on_after(wait):
                while not seen.there:
                    await reader.next(POLL)
                    seen = await anyio.to_thread.run_sync(look)
        finally:
            self.care.left(folder.name)
        return seen.said

    def _questions(self, folder: PodFolder) -> dict[str, ApprovalAsked]:
        with self.readings.state(folder) as state:
            return dict(state.approvals)

    async def context(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/context."""
        folder = await self._folder(asked)
        return Answered(200, s.Context.model_validate(await anyio.to_thread.run_sync(self.readings.context, folder)))

    async def result(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/result."""
        folder = await self._folder(asked)
        return Answered(200, await self._awaited(folder, asked.query.wait, partial(self._outcome, folder)))

    def _outcome(self, folder: PodFolder) -> _Seen:
        """How a pod stands, and the result of its last run where that is over. Blocks."""
        with self.readings.state(folder) as state:
            status = self.care.status(self.readings.glance(folder))
            over = status in OVER | {"waiting"} and state.last_run is not None
            result = last_result(state, folder.name).model_dump(mode="json") if over else None
            return _Seen(s.Outcome(status=status, result=result), over, state.last_seq)

    async def history(self, asked: Asked) -> Answered:
        """GET /v1/pods/{name}/history."""
        folder = await self._folder(asked)
        arguments = asked.query.model_dump(exclude_none=True)
        context = ToolContext("service", session_history.name, Path(), services={SessionReader: SessionReader(folder)})
        try:
            output = await session_history.call(arguments, context)
        except ToolFault as fault:
            return Answered(200, s.Found(text=str(fault), status="error"))
        return Answered(
            200, s.Found(text=output.content or output.summary, status="error" if output.is_error else "ok")
        )

    # -- writing ----------------------------------------------------------------------------------------------

    async def make(self, asked: Asked) -> Answered:
        """POST /v1/pods."""
        body: s.NewPod = asked.body
        name = body.name or f"{body.manifest[:60].removesuffix('.toml')}-{asked.id[-12:].lower()}"
        new = await self.care.make(body.manifest, check_name(name), key=asked.id, task=body.task)
        self.care.wake(name)
        return Answered(201 if new else 200, s.Made(pod=name, new=new))

    async def message(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/messages."""
        folder = await self._folder(asked)
        stored = await anyio.to_thread.run_sync(self.care.say, folder, asked.body.text, asked.id)
        self.care.wake(folder.name)
        return Answered(202, s.Stored(id=asked.id, stored=stored))

    async def answer(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/approvals/{id}."""
        folder, body = await self._folder(asked), asked.body
        label = asked.args["id"]
        if label not in await anyio.to_thread.run_sync(self._questions, folder):
            # Under this very id it may have been answered: the service ended before it could say so.
            if await anyio.to_thread.run_sync(inbox.used, folder, asked.id) is not None:
                return Answered(202, s.Taken(id=asked.id, running=await anyio.to_thread.run_sync(folder.is_busy)))
            raise Missing(f"no question {label[:100]!r} is open in pod {folder.name!r}")
        args = {"id": label, "by": asked.holder.name, "scope": body.scope, "message": body.message}
        kind = "approve" if body.approve else "deny"
        return await self._ordered(folder, inbox.Command(id=asked.id, kind=kind, args=args))

    async def compact(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/compact."""
        folder, body = await self._folder(asked), asked.body
        if body.dry_run:
            return Answered(
                200,
                s.Context.model_validate(await anyio.to_thread.run_sync(lambda: views.compaction_of(outlook(folder)))),
            )
        if await anyio.to_thread.run_sync(folder.is_busy) or not self.care.compact(folder.name, body.focus):
            return await self._ordered(folder, inbox.Command(id=asked.id, kind="compact", args={"focus": body.focus}))
        return Answered(202, s.Taken(id=asked.id, running=False))

    async def stop(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/stop."""
        folder = await self._folder(asked)
        if self.care.held_back(folder.name) or not await anyio.to_thread.run_sync(folder.is_busy):
            return Answered(202, s.Taken(id=asked.id, running=False))
        args = {"reason": asked.body.reason or "stopped through the service"}
        return await self._ordered(folder, inbox.Command(id=asked.id, kind="stop", args=args))

    async def resume(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/resume."""
        folder = await self._folder(asked)
        running = await anyio.to_thread.run_sync(folder.is_busy)
        if not running:
            await anyio.to_thread.run_sync(check_stored, folder)
            self.care.wake(folder.name, at_all_events=True)
        return Answered(202, s.Taken(id=asked.id, running=running))

    async def fork(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/fork."""
        folder, body = await self._folder(asked), asked.body
        changed = await anyio.to_thread.run_sync(partial(fork, self.care.home, folder.name, body.name, body.at))
        return Answered(201, s.Forked(pod=body.name, point=changed.point))

    async def rewind(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/rewind."""
        name = (await self._folder(asked)).name
        done = await self.care.alone(name, partial(rewind, self.care.home, name, asked.body.to))
        return Answered(
            200,
            s.Rewound(
                pod=name, point=done.point, asked=done.asked, items=done.items, left_behind=list(done.left_behind), unfinished=done.unfinished
            ),
        )  # fmt: skip

    async def clear(self, asked: Asked) -> Answered:
        """POST /v1/pods/{name}/clear."""
        name = (await self._folder(asked)).name
        done = await self.care.alone(name, partial(clear, self.care.home, name))
        self.care.wake(name)  # what lies in its inbox comes after
        notes = None if done.notes is None else str(done.notes)
        return Answered(200, s.Cleared(pod=name, point=done.point, left_behind=list(done.left_behind), notes=notes))

    async def remove(self, asked: Asked) -> Answered:
        """DELETE /v1/pods/{name}."""
        name = asked.args["name"]
        held = await self.care.remove(name)
        return Answered(200, s.Removed(pod=name, segments=held.segments, files=held.files, bytes=held.size))

    async def _ordered(self, folder: PodFolder, command: inbox.Command) -> Answered:
        await anyio.to_thread.run_sync(inbox.post, folder, command)
        running = await anyio.to_thread.run_sync(folder.is_busy)
        self.care.wake(folder.name)
        return Answered(202, s.Taken(id=command.id, running=running))

    async def _folder(self, asked: Asked) -> PodFolder:
        return await anyio.to_thread.run_sync(self.care.folder, asked.args["name"])


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look says, whether that is what may be waited for, and the number of the newest entry."""

    said: BaseModel
    there: bool
    seq: int


def _entry(folder: PodFolder, seq: int, whole: bool) -> s.EntryText:
    """An entry, at most so much of it as is shown. Blocks. Raises `Missing`, `LogDamaged`."""
    line = next(iter(SessionReader(folder).lines(seq - 1, origins=True)), None) if seq else None
    if line is None or line.seq != seq:
        raise Missing(f"pod {folder.name!r} has no entry {seq}")
    record = e.record_of(line)
    if record is None:
        raise Missing(f"entry {seq} of pod {folder.name!r} is of a kind that this version does not know: {line.kind}")
    most = ENTRY_WHOLE if whole else ENTRY_MOST
    masker = Masker(secrets_in(os.environ))
    text = entry_text(line.kind, record, masker, most)
    given = "\n".join(item.text() for item in items_of(record) if isinstance(item, ToolResultItem))
    content = visible(masker.mask(given)[0][:most])
    return s.EntryText(seq=seq, at=line.at, kind=line.kind, text=text, content=content, cut=len(text) >= most)
