"""A service that works on signed webhooks: each delivery starts a pod, or answers one, exactly once.

    WEBHOOK_SECRET=... python examples/webhook_worker.py

A sender repeats a delivery until it gets its 2xx, and a process may die at any moment. So a delivery is first put into a file of
its id, durable, and only then accepted; the file is taken away when the work is done. At its start the worker goes on with the
files that lie there. The pod takes its message by the same id (`key=`), so a repeated start goes on with the run, or gives its
result once more.

Two kinds of deliveries: `ticket.created` starts a pod for the ticket, which must ask before it refunds anything;
`refund.decided` is a human's answer to that question, from wherever humans click. The model is scripted, so it needs no key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, TypeAlias

import anyio
import uvicorn
from anyio.abc import TaskGroup
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pod import Manifest, Pod, PodHost, RestartPolicy, RunResult
from worker import AssistantItem, tool
from worker.items import make_call
from worker.models.base import Model, Reply
from worker.models.base import Request as ModelRequest
from worker.testing import FunctionModel, make_reply

logger = logging.getLogger("webhook_worker")

FRESH = 300
"""Seconds for which a signature is good: an old delivery can't be played again by somebody who saw it."""

LARGEST = 256 * 1024
"""Bytes of a delivery at most."""

DELIVERY = re.compile(r"[A-Za-z0-9-]{8,64}")
TICKET = r"^[a-z0-9-]{1,40}$"
MANIFEST = Manifest.model_validate(
    {"worker": {"system_prompt": "You answer tickets."}, "permissions": {"profile": "safe", "when_headless": "pause"}}
)


class TicketCreated(BaseModel):
    """Somebody wrote."""

    kind: Literal["ticket.created"]
    ticket: str = Field(pattern=TICKET)
    text: str = Field(min_length=1)


class RefundDecided(BaseModel):
    """A human answered what the pod asked."""

    kind: Literal["refund.decided"]
    ticket: str = Field(pattern=TICKET)
    approved: bool
    by: str


Event: TypeAlias = TicketCreated | RefundDecided
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def signature(secret: bytes, delivery: str, at: str, body: bytes) -> str:
    """What a sender puts into `X-Signature`. The id and the time are signed too: else one delivery could be played as another."""
    return "sha256=" + hmac.new(secret, f"{delivery}.{at}.".encode() + body, hashlib.sha256).hexdigest()


class Deliveries:
    """What was accepted: one file each, by its id, in `open` until it is done, in `done` from then on. Blocks."""

    def __init__(self, folder: Path) -> None:
        self._open, self._done = folder / "open", folder / "done"
        for each in (self._open, self._done):
            each.mkdir(parents=True, exist_ok=True)

    def take(self, delivery: str, body: bytes) -> bool:
        """Keeps a delivery, durable when it returns; False where it was taken before."""
        if (self._done / delivery).exists():
            return False
        staged = self._open / f".{delivery}.{os.getpid()}.{time.monotonic_ns()}"
        with staged.open("xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(staged, self._open / delivery)  # whole or not at all, and once
        except FileExistsError:
            return False
        finally:
            staged.unlink()
            _sync(self._open)
        if (self._done / delivery).exists():  # it got done since we looked
            (self._open / delivery).unlink()
            return False
        return True

    def finish(self, delivery: str) -> None:
        """It is done; a repetition of it is known from then on."""
        (self._open / delivery).replace(self._done / delivery)
        _sync(self._done)

    def left(self) -> list[tuple[str, bytes]]:
        """Those that are not done: at the start, what the last process did not get to."""
        found: list[tuple[str, bytes]] = []
        for path in sorted(self._open.iterdir()):
            with suppress(FileNotFoundError):  # it got done since we looked
                if path.name[0] != ".":
                    found.append((path.name, path.read_bytes()))
        return found


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class WebhookWorker:
    """Takes deliveries and has pods work on them. `app` is its ASGI app; `refund` is what pays money back."""

    def __init__(
        self,
        folder: Path,
        secret: bytes,
        *,
        refund: Callable[[str, int], None],
        model: Model | None = None,
        at_once: int = 20,
    ) -> None:
        self._home, self._secret, self._model = folder / "pods", secret, model
        self.deliveries = Deliveries(folder / "deliveries")
        self._host = PodHost(concurrency=at_once, restart=RestartPolicy("on_failure", at_most=5, within=600, rest=0.5))
        self._group: TaskGroup | None = None
        self.app = Starlette(routes=[Route("/hooks", self._receive, methods=["POST"])], lifespan=self._life)

        @tool(effect="network")  # what touches the network is asked about
        def pay_back(ticket: str, cents: int) -> str:
            """Pays money back.

            Args:
                ticket: The ticket's id.
                cents: How much.
            """
            refund(ticket, cents)
            return f"paid back {cents} cents"

        self._tools = [pay_back]

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncGenerator[None]:
        left = await anyio.to_thread.run_sync(self.deliveries.left)
        async with self._host, anyio.create_task_group() as self._group:
            for delivery, body in left:
                self._group.start_soon(self._work, delivery, EVENT.validate_json(body))
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._host.drain(5)  # what is not over is gone on with at the next start

    async def _receive(self, request: Request) -> Response:
        at, delivery = request.headers.get("x-timestamp", ""), request.headers.get("x-delivery", "")
        body = b""
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > LARGEST:
                    return _refused(413, "a delivery has at most 256 KiB")
        given = request.headers.get("x-signature", "")
        if not hmac.compare_digest(given.encode(), signature(self._secret, delivery, at, body).encode()):
            return _refused(401, "the signature is wrong")
        if not at.isdecimal() or abs(time.time() - int(at)) > FRESH:
            return _refused(401, "the timestamp is too old")
        if not DELIVERY.fullmatch(delivery):
            return _refused(400, "X-Delivery is 8 to 64 letters, digits and hyphens")
        try:
            event = EVENT.validate_json(body)
        except ValidationError as error:
            return _refused(422, error.errors()[0]["msg"])
        new = await anyio.to_thread.run_sync(self.deliveries.take, delivery, body)
        if new:
            assert self._group is not None  # the lifespan has begun, or no request would come in
            self._group.start_soon(self._work, delivery, event)
        return JSONResponse({"delivery": delivery, "new": new}, 202)

    async def _work(self, delivery: str, event: Event) -> None:
        """A delivery from its start to its end. What another try may mend stays where it lies, for the next start."""

        def opens() -> Pod:
            name, home, model, tools = f"tickets/{event.ticket}", self._home, self._model, self._tools
            if isinstance(event, TicketCreated):
                return Pod.open(MANIFEST, name=name, home=home, cwd=home.parent, model=model, tools=tools)
            return Pod.reopen(name, home=home, model=model, tools=tools)

        async def drive(pod: Pod) -> RunResult:
            if isinstance(event, TicketCreated):
                return await pod.run(event.text, key=delivery)
            return await decide(pod, event)

        result = await self._host.take(f"{event.kind}/{delivery}", opens, drive).wait()
        if result.status in {"finished", "paused"}:
            await anyio.to_thread.run_sync(self.deliveries.finish, delivery)
        else:
            logger.warning("delivery %s is not done: %s (%s)", delivery, result.status, result.error)


async def decide(pod: Pod, event: RefundDecided) -> RunResult:
    """Answers what a pod asks and lets it go on. Done twice it is the same as done once. Raises `UsageProblem` where it asked nothing."""
    for asked in pod.approvals:
        if event.approved:
            await pod.approve(asked.id, scope="once", by=event.by)
        else:
            await pod.deny(asked.id, message=f"{event.by} decided against it", by=event.by)
    done = pod.last_result
    return await pod.resume() if done is None else done


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)


def clerk(request: ModelRequest) -> Reply:
    """Plays the model, without a key: wants to pay back what somebody asks for, and says what came of it."""
    last = request.items[-1]
    if last.type == "tool_result":
        return make_reply(AssistantItem(text=f"Dear customer: {last.text()}"))
    asked = next(item.text for item in request.items if item.type == "user")
    if (found := re.search(r"ticket (\S+): pay back (\d+)", asked)) is None:
        return make_reply(AssistantItem(text="Dear customer: thank you."))
    return make_reply(make_call("", "pay_back", json.dumps({"ticket": found[1], "cents": int(found[2])})))


def main() -> None:
    def refund(ticket: str, cents: int) -> None:
        print(f"{cents} cents go back for {ticket}")

    secret, model = os.environ.get("WEBHOOK_SECRET", "").encode(), FunctionModel("offline:clerk", clerk)
    if not secret:
        raise SystemExit("WEBHOOK_SECRET is not set: it holds the secret that the senders of deliveries sign with")
    with TemporaryDirectory() as folder:  # yours stays: what was accepted must outlive the process
        uvicorn.run(WebhookWorker(Path(folder), secret, refund=refund, model=model).app)


if __name__ == "__main__":
    main()
