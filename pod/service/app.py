"""The service as an ASGI app, by itself or mounted in somebody else's."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

import anyio
import anyio.to_thread
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pod.errors import PodError, UsageProblem
from pod.host import PodHost, RestartPolicy
from pod.log.folder import check_name, default_home, local_home
from pod.service import openapi, page, schemas
from pod.service.access import Holder, Hosts, Tokens
from pod.service.api import Answered, Api, Asked
from pod.service.care import Care
from pod.service.door import Door
from pod.service.metrics import Metrics
from pod.service.once import Given, Once
from pod.service.operations import EVENTS, EXPORT, OPERATIONS, Operation
from pod.service.paths import named, told_apart
from pod.service.refusals import EXPECTED, failed, http_error, problem, refused
from pod.service.shelf import Shelf
from pod.service.sse import EventStream
from pod.service.telling import Telling
from pod.service.webhooks import Webhook
from pod.transfer import export_pod
from worker import tracing

READERS, READERS_EACH = 2_000, 500
"""Streams of events at once at most: of all, and of one token where there are several."""

EXPORT_IN_MEMORY = 8 * 1024 * 1024
"""Bytes of an export that are held in memory; more go through a file."""

SWEEP = 3_600.0
"""Seconds between two looks for keys that are too old."""

DRAIN = 3.0
"""Seconds that runs get to come to a request boundary when the service ends; then they end at once. All can be gone on with."""

SETTLE = 1.0
"""Seconds that webhooks under way get to be accepted when the service ends; the others are sent when it is back."""

NOT_BEGUN = "the service was not begun: an app that mounts it enters its `running()` in its own lifespan (docs/service.md, In a service of your own)"
"""What is said where nobody runs the life of the service."""


def create_app(
    host: PodHost | None = None,
    *,
    tokens: Tokens,
    manifests: str | Path | None = None,
    shipped: Sequence[str] = (),
    home: str | Path | None = None,
    cwd: str | Path | None = None,
    own_folders: bool = False,
    hosts: Sequence[str] = (),
    state: str | Path | None = None,
    restart: RestartPolicy | None = None,
    adopt: bool = True,
    webhooks: Sequence[Webhook] = (),
    **options: Any,
) -> Service:
    """The service over the pods of a home. Mount it, or run it with any ASGI server; its lifespan must be run (`service.running()`
    where a parent app does not run that of what it mounts).

    `host` runs the pods; without one the service has its own, which ends with it. Pods are made from the `manifests` of one folder
    and from `shipped` ones alone, in the folder `cwd`, or with `own_folders` in one of their own below it. `tokens` says who may
    what; `Tokens()` lets in whoever reaches it. `hosts` are the names, beside this machine's own, under which it is asked. `state`
    is where the service remembers what is its own. With `adopt` it goes on with the pods that it had in its care when it ended.
    `webhooks` are told of ends of runs and of questions.
    `options` are given to each `Pod.open` (tools, interceptors, a model). Raises `UsageProblem`.
    """
    root = default_home() if home is None else Path(home)
    label = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    care = Care(
        host or PodHost(concurrency=200), Path(state) if state is not None else local_home() / "service" / label, root,
        Shelf(None if manifests is None else Path(manifests), tuple(shipped)), Path(cwd or Path.cwd()).absolute(),
        own_folders, options, restart or RestartPolicy("on_failure"),
    )  # fmt: skip
    return Service(care, tokens, Hosts.of(hosts), adopt=adopt, owns_host=host is None, webhooks=webhooks)


class Service:
    """An ASGI app. `running` is its life: within it pods run."""

    def __init__(
        self,
        care: Care,
        tokens: Tokens,
        hosts: Hosts,
        *,
        adopt: bool,
        owns_host: bool,
        webhooks: Sequence[Webhook] = (),
    ) -> None:
        self.care = care
        self.host = care.host
        self._owns_host = owns_host
        self._adopt = adopt
        self._once = Once(care.state / "keys")
        self._closing: anyio.Event | None = None
        self._readers = Counter[str]()
        self._readers_each = READERS_EACH if len(tokens.known) > 1 else READERS
        care.telling = Telling.of(webhooks, care.state / "webhooks", care.home, shared=care.shared, told=self._told)
        self._metrics = Metrics(
            running=lambda: self.care.hosted,
            readers=self._readers.total,
            waiting={each.webhook.name: partial(getattr, each, "waiting") for each in care.telling.receivers},
        )
        self.care.told = self._metrics.ended
        telemetry = care.options.get("telemetry")
        self._telemetry = None if telemetry is None else tracing.Guarded(telemetry)
        self.api = Api(self.care)
        self._document = openapi.document(OPERATIONS)
        self._door = Door(told_apart(self._starlette()), tokens, hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI app."""
        await self._door(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The life of the service. At its end nothing new begins, readers are let go, and runs end at a request boundary, or after a
        few seconds at once; all can be gone on with."""
        self._closing = anyio.Event()
        async with AsyncExitStack() as stack:
            if self._owns_host:
                await stack.enter_async_context(self.host)
            group = await stack.enter_async_context(anyio.create_task_group())
            self.care.begin(group)
            group.start_soon(self._sweeping)
            group.start_soon(self.care.telling.run)
            try:
                if self._adopt:
                    await self.care.adopt()
                yield
            finally:
                self.end()
                with anyio.CancelScope(shield=True):
                    await self.care.halt(DRAIN)
                    await self.care.telling.settle(SETTLE)
                group.cancel_scope.cancel()

    async def _sweeping(self) -> None:
        while True:
            await anyio.to_thread.run_sync(self._once.sweep)
            await anyio.sleep(SWEEP)

    def _told(self, receiver: str, outcome: str) -> None:
        self._metrics.webhook(receiver, outcome)

    def end(self) -> None:
        """The service is about to end: readers are let go, and nothing more is begun."""
        if self._closing is not None:
            self._closing.set()

    # -- routes -----------------------------------------------------------------------------------------------

    def _starlette(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncGenerator[None]:
            async with self.running():
                yield

        routes = [
            Route(_route(operation.path), self._endpoint(operation), methods=[operation.method])
            for operation in OPERATIONS
        ]
        more = [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/metrics", self._metrics_text, methods=["GET"]),
        ]
        handlers: Any = {HTTPException: http_error, Exception: failed}
        return Starlette(routes=[*routes, *more, *page.routes()], lifespan=lifespan, exception_handlers=handlers)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        status = "not_begun" if self._closing is None else "ending" if self._closing.is_set() else "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            holder: Holder = request.scope["holder"]
            request.scope["path_params"] = named(request.path_params)
            if not holder.may(operation.role):
                return problem(
                    403, "not_allowed", f"this token has the role {holder.role!r}; {operation.role!r} is needed"
                )
            if self._closing is None:
                return problem(503, "not_begun", NOT_BEGUN)
            if self._closing.is_set():
                return problem(503, "ending", "the service comes to its end")
            try:
                with tracing.using(self._telemetry), tracing.incoming(_trace(request)):
                    return await self._answer(operation, request, holder)
            except EXPECTED as error:
                return refused(request, error)

        return endpoint

    async def _answer(self, operation: Operation, request: Request, holder: Holder) -> Response:
        args = dict(request.path_params)
        query = None if operation.query is None else operation.query.model_validate(dict(request.query_params))
        if operation.name == EXPORT:
            return await self._export(check_name(args["name"]))
        if (
            operation.name == EVENTS
            and request.method == "GET"
            and "text/event-stream" in request.headers.get("accept", "")
        ):
            assert isinstance(query, schemas.Following)
            return await self._stream(check_name(args["name"]), _last_id(request, query.after), holder.name)
        assert operation.handler is not None
        if not operation.writes:
            answered = await operation.handler(self.api, Asked(holder, args, query))
            return JSONResponse(answered.body.model_dump(mode="json"), answered.status)
        return await self._written(operation, request, args, query, holder)

    async def _written(
        self, operation: Operation, request: Request, args: dict[str, str], query: Any, holder: Holder
    ) -> Response:
        raw = await request.body()
        body = _body(operation, raw)
        key = request.headers.get("idempotency-key")
        assert operation.handler is not None
        if key is None:
            answered = await operation.handler(self.api, Asked(holder, args, query, body))
            return JSONResponse(answered.body.model_dump(mode="json"), answered.status)
        label = self._once.begin(holder.name, key)
        asked = b"\0".join([operation.name.encode(), json.dumps(args).encode(), body.model_dump_json().encode()])
        try:
            given = await anyio.to_thread.run_sync(self._once.look, label, asked, operation.again)
            if given is None:
                given = await self._done_once(operation, Asked(holder, args, query, body, label), label, asked)
            return JSONResponse(given.body, given.status)
        finally:
            self._once.forget(label)

    async def _done_once(self, operation: Operation, asked: Asked, label: str, raw: bytes) -> Given:
        assert operation.handler is not None
        try:
            answered: Answered = await operation.handler(self.api, asked)
        except PodError:
            await anyio.to_thread.run_sync(self._once.drop, label)
            raise
        given = Given(answered.status, answered.body.model_dump(mode="json"))
        await anyio.to_thread.run_sync(self._once.answered, label, raw, given)
        return given

    async def _stream(self, name: str, after: int, holder: str) -> Response:
        folder = await anyio.to_thread.run_sync(self.care.followed, name, after)
        mine, whole = self._readers[holder] >= self._readers_each, self._readers.total() >= READERS
        if mine or whole:
            many = READERS if whole else self._readers_each
            return problem(
                429,
                "too_many_readers",
                f"{many:,} readers are here already{'' if whole else ' with this token'}: come back in a moment",
                {"retry-after": "5"},
            )
        assert self._closing is not None
        self._readers[holder] += 1
        reader = self.care.reader(folder, after)

        def left() -> None:
            self._readers[holder] -= 1
            self.care.left(name)

        stream: Any = EventStream(reader, self._closing, left)
        return stream

    async def _export(self, name: str) -> Response:
        await anyio.to_thread.run_sync(self.care.folder, name)
        file = cast(BinaryIO, SpooledTemporaryFile(EXPORT_IN_MEMORY))  # noqa: SIM115
        try:
            await anyio.to_thread.run_sync(export_pod, self.care.home, name, file)
        except BaseException:
            file.close()
            raise
        file.seek(0)

        async def pieces() -> AsyncGenerator[bytes]:
            with file:
                while piece := await anyio.to_thread.run_sync(file.read, 256 * 1024):
                    yield piece

        return StreamingResponse(
            pieces(), media_type="application/x-tar",
            headers={"content-disposition": f'attachment; filename="{name.replace("/", "-")}.pod.tar"'},
        )  # fmt: skip


def _trace(request: Request) -> dict[str, str]:
    """What a request says of the work that it is a part of."""
    return {name: value for name in tracing.HEADERS if (value := request.headers.get(name)) is not None}


def _route(path: str) -> str:
    return path.replace("{name}", "{name:path}")


def _body(operation: Operation, raw: bytes) -> BaseModel:
    model = operation.body or schemas.Nothing
    return model.model_validate_json(raw or b"{}")


def _last_id(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise UsageProblem("Last-Event-ID: the number of an event")
    return int(given)
