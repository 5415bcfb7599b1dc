"""One server's life: started within its time, called, lost, started again; never longer than the task group it lives in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from worker.builtin.process_table import call_environment
from worker.builtin.sandbox import Sandbox
from worker.builtin.shell_environment import shell_environment
from worker.errors import told
from worker.ids import uuid7
from worker.items import ToolOutput
from worker.mcp.define import LABEL, Server, ServerFault
from worker.mcp.definitions import Listing
from worker.mcp.naming import tool_name
from worker.mcp.words import Screen
from worker.tools import ToolFault

if TYPE_CHECKING:
    from mcp.client import Transport

    from worker.mcp.session import Session

State: TypeAlias = Literal["starting", "up", "failed", "down"]
"""`failed`: it did not start. `down`: it did, and was lost; a call starts it again."""

STARTS = 3
"""Starts in a row that fail before a server is left alone until the pod is opened again."""

_LAST_WORDS = 1.0

MOST_SAID = 2_000
"""Characters of why a server failed."""

MOST_CHANGES = 100
"""Lists that are asked for because a server says that its own has changed; behind them, it is asked when it is started again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where servers run: the working folder, the sandbox of its processes, and the pod that they belong to."""

    cwd: Path
    owner: str = ""
    sandbox: Sandbox | None = None
    version: str = ""


class _Way(Protocol):
    """How a server is reached: a program or an address."""

    def why(self) -> str:
        """What it tells of how it failed; nothing where it does not."""
        ...


@dataclass
class Connection:
    """A server. `listed` is what it lists now, or listed last; `why` says why it is not up. What it says passes `screen`."""

    server: Server
    place: Place
    tasks: TaskGroup
    screen: Screen = field(default_factory=Screen)
    state: State = "starting"
    why: str = ""
    listed: Listing = field(default_factory=Listing)
    _failures: int = 0
    _session: Session | None = None
    _way: _Way | None = None
    _fault: str = ""
    _lost: bool = False
    _stale: bool = False
    _wake: anyio.Event = field(default_factory=anyio.Event)
    _starting: anyio.Lock = field(default_factory=anyio.Lock)
    _ready: anyio.Event | None = None
    _gone: anyio.Event | None = None

    async def start(self) -> None:
        """Starts the server, for at most its time; `state` and `why` say what came of it. Cancelled, it is ended with the task
        group."""
        async with self._starting:
            if self._session is not None:
                return
            # A start that its call did not wait for is still under way: it is joined.
            if self._ready is None or self._ready.is_set():
                if self._gone is not None:
                    await self._gone.wait()
                self._ready, self._gone = anyio.Event(), anyio.Event()
                self._lost = self._stale = False
                self._wake = anyio.Event()
                self.tasks.start_soon(self._live, self._ready, self._gone)
            await self._ready.wait()

    async def call(self, tool: str, arguments: dict[str, Any], label: str) -> ToolOutput:
        """One call. A server that was lost is started again first. Raises `ToolFault`."""
        from worker.mcp.session import Lost

        if self._session is None and self._failures < STARTS:
            await self.start()
        name, session = self.server.name, self._session
        if session is None:
            alone = f"; after {STARTS} starts in vain it is left alone until the pod is opened again"
            again = alone if self._failures >= STARTS else ""
            raise ToolFault(f"{label} was not run: the server {name!r} is not running: {self.why}{again}")
        try:
            return await session.call(tool, arguments, label)
        except Lost as error:
            why = await self._drop(session, str(error))
            raise ToolFault(
                f"{label}: the server {name!r} was lost while it ran, so its outcome is unknown: {why}. "
                "Look at what it did before doing it again; the next call starts the server anew"
            ) from error

    async def _drop(self, session: Session, reason: str) -> str:
        """Takes the server for lost, and says why: its process gets a moment to tell how it ended. Another call may have started it
        again meanwhile; that one stays."""
        if self._session is session:
            self._session = None
            self._heard(lost=True)
            if self._gone is not None:
                with anyio.move_on_after(_LAST_WORDS):
                    await self._gone.wait()
            if self.state == "up":
                self._mark("down", self._fault or reason)
        return self.why or reason

    def _heard(self, *, lost: bool = False, stale: bool = False) -> None:
        self._lost, self._stale = self._lost or lost, self._stale or stale
        self._wake.set()

    def _changed(self) -> None:
        self._heard(stale=True)

    def _flooded(self) -> None:
        from worker.mcp.asking import FLOOD

        self._fault = FLOOD
        self._heard(lost=True)

    def _mark(self, state: State, reason: str) -> None:
        said = self._way.why() if self._way is not None else ""
        self._session = None
        # A process's own end, or a status, says more than that there was one.
        plain = reason.lower().startswith(("connection closed", "mcperror: server returned an error"))
        self.why = "; ".join(
            self.screen.text(part, MOST_SAID) for part in ("" if plain and said else reason, said) if part
        )
        self.state = state

    async def _live(self, ready: anyio.Event, gone: anyio.Event) -> None:
        reason = "connection closed"
        self._fault = ""
        try:
            async with self._conversation() as begin:
                try:
                    with anyio.fail_after(self.server.start_timeout):
                        self._session = session = await begin()
                        self.listed = await self._listing(session)
                except TimeoutError:
                    self._mark("failed", f"it did not answer within {self.server.start_timeout:g} s")
                    self._failures += 1
                    ready.set()
                    raise ServerFault("") from None
                self._failures, self.state, self.why = 0, "up", ""
                ready.set()
                await self._serve(session)
                reason = self._fault or reason
        except (Exception, BaseExceptionGroup) as error:
            if _only_cancelled(error):
                raise
            reason = self._fault or _said(error)
        finally:
            self._session = None
            if not ready.is_set():
                self._failures += 1
                self._mark("failed", reason)
            elif self.state == "up":
                self._mark("down", reason)
            ready.set()
            gone.set()

    async def _serve(self, session: Session) -> None:
        """Until the connection ends; a list of tools that changed is read again meanwhile. One that can't be read changes nothing."""
        changes = 0
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            if self._lost:
                return
            if self._stale and changes < MOST_CHANGES:
                self._stale, changes = False, changes + 1
                with anyio.move_on_after(self.server.start_timeout), contextlib.suppress(ServerFault):
                    self.listed = await self._listing(session)

    async def _listing(self, session: Session) -> Listing:
        return await session.listing(partial(tool_name, self.server.name))

    @asynccontextmanager
    async def _conversation(self) -> AsyncGenerator[Any]:
        from worker.mcp.session import conversation

        async with (
            self._streams() as streams,
            conversation(streams, self._changed, self._flooded, self.place.version, self.screen) as begin,
        ):
            yield begin

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[Transport]:
        server, place = self.server, self.place
        self._way = None
        if server.url is not None:
            from worker.mcp.http import Address

            way = self._way = Address(server.url, _headers(server.headers))
            async with way.streams() as streams:
                yield streams
            return
        from worker.mcp.stdio import Program

        argv, environment = list(server.command or ()), shell_environment(server.env)
        if place.sandbox is not None:
            argv = await anyio.to_thread.run_sync(place.sandbox.child, argv, place.cwd)
            environment = place.sandbox.environment(environment)
        mark = {**call_environment(LABEL, place.owner), "POD_COMMAND_ID": uuid7()}
        program = self._way = Program(
            argv, cwd=place.cwd, environment=environment, mark=mark, ended=lambda: self._heard(lost=True)
        )
        try:
            async with program.streams() as streams:
                yield streams
        except OSError as error:
            raise ServerFault(f"{(server.command or ('',))[0]} can't be started: {error.strerror or error}") from error


def _headers(named: Mapping[str, str]) -> dict[str, str]:
    missing = [variable for variable in named.values() if not os.environ.get(variable)]
    if missing:
        raise ServerFault(f"the environment variable {', '.join(missing)} is not set (headers_env)")
    return {header: os.environ[variable] for header, variable in named.items()}


def _said(error: BaseException) -> str:
    """The first error in a group, in words."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if inside:
        return _said(inside[0])
    text = told(error)
    return (
        text
        if isinstance(error, ServerFault) or text.lower().startswith("connection closed")
        else f"{type(error).__name__}: {text}"
    )


def _only_cancelled(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception)
