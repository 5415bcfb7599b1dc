"""A server as a program: messages over its standard input and output, under the supervisor that every command gets."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage, jsonrpc_message_adapter

from worker.builtin.child import Child, start_child
from worker.builtin.process_table import end
from worker.mcp.lines import Lines, Tail, TooLong
from worker.text import clean_deep

GRACE = 2.0
"""Seconds that a server has to end by itself once its input is closed, and again after TERM."""

_PIECE = 65_536
_LAST_WORDS = 0.2


class Program:
    """A server's process: the streams of its messages, the end of its standard error, how it ended.

    `ended` is called once, when no message will come any more.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        mark: Mapping[str, str],
        ended: Callable[[], None],
    ) -> None:
        self._argv = list(argv)
        self._cwd = cwd
        self._environment = {**environment, **mark}
        self._mark = mark
        self._ended = ended
        self._tail = Tail()
        self._child: Child | None = None
        self._trouble = ""
        self._unread = 0

    def why(self) -> str:
        """How it ended, as far as that is known, and the end of what it wrote to standard error."""
        child, found = self._child, self._trouble
        if not found and child is not None and child.error is not None:
            found = f"{self._argv[0]} can't be started: {child.error.strerror or child.error}"
        if not found and child is not None and child.code is not None:
            found = f"it was ended by signal {-child.code}" if child.code < 0 else f"it exited with code {child.code}"
        if self._unread:
            unread = f"{self._unread:,} of its lines look like messages, and are none"
            found = f"{found}; {unread}" if found else unread
        said = self._tail.text()
        return "; ".join(part for part in (found, f"standard error ends with: {said}" if said else "") if part)

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Transport]:
        """What a session reads and writes. Left or cancelled, all processes of the server are gone: asked to end by the end of
        their input, then by signals. Raises `OSError` where it can't be started."""
        with ExitStack() as stack:
            their_input, to_child = os.pipe()
            fds = _Descriptors(stack, their_input, to_child)
            from_child, their_output = os.pipe()
            fds.own(from_child)
            errors, their_errors = os.pipe()
            fds.own(errors)
            for fd in (to_child, from_child, errors):
                os.set_blocking(fd, False)
            os.set_inheritable(their_input, False)
            child = await start_child(
                self._argv, self._cwd, self._environment, self._mark, their_output,
                read_from=their_input, errors_to=their_errors,
            )  # fmt: skip
            self._child = child
            stack.callback(child.close)
            fds.close(their_input)
            async with _Traffic(self, child, fds, to_child, from_child, errors).running() as streams:
                yield streams


class _Descriptors:
    """Descriptors that are closed once, at the latest with the stack."""

    def __init__(self, stack: ExitStack, *fds: int) -> None:
        self._open = set(fds)
        stack.callback(self._close_all)

    def own(self, fd: int) -> None:
        self._open.add(fd)

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)

    def _close_all(self) -> None:
        for fd in sorted(self._open):
            self.close(fd)


class _Traffic:
    """What goes to a process and comes from it, as tasks of one group."""

    def __init__(
        self, program: Program, child: Child, fds: _Descriptors, to_child: int, from_child: int, errors: int
    ) -> None:
        self._program, self._child, self._fds = program, child, fds
        self._to_child, self._from_child, self._errors = to_child, from_child, errors
        self._read_all = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Transport]:
        given, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, taken = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            with given, read, write, taken:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, given)
                    tasks.start_soon(self._write, taken, given)
                    tasks.start_soon(self._drain)
                    tasks.start_soon(self._watch, given)
                    try:
                        yield read, write  # type: ignore[misc]  # a pair of streams is what a session takes
                    finally:
                        tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        """Closes the server's input, waits, ends what is left. What it still says is taken: a full pipe would keep it."""
        self._fds.close(self._to_child)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._waste)
            tasks.start_soon(self._drain)
            with anyio.move_on_after(GRACE) as waiting:
                await self._child.wait()
            survivors: list[int] = []
            if waiting.cancelled_caught or not await self._child.left_nothing():
                survivors = await end(self._child.target, grace=GRACE)
            await self._child.gone(survivors)
            tasks.cancel_scope.cancel()

    async def _waste(self) -> None:
        while await _next(self._from_child):
            pass

    async def _read(self, given: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        lines = Lines()
        try:
            while data := await _next(self._from_child):
                for line in lines.feed(data):
                    if (message := await _message(line)) is not None:
                        await given.send(message)
                    elif line.lstrip().startswith(b"{"):
                        self._program._unread += 1  # pyright: ignore[reportPrivateUsage]
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the session has ended
        except TooLong as error:
            self._program._trouble = str(error)  # pyright: ignore[reportPrivateUsage]
        self._read_all.set()
        self._over(given)

    def _over(self, given: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        given.close()
        self._program._ended()  # pyright: ignore[reportPrivateUsage]

    async def _write(
        self,
        taken: MemoryObjectReceiveStream[SessionMessage],
        given: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        try:
            async for message in taken:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _send(self._to_child, text.encode() + b"\n")
        except OSError:
            # The session must not wait for an answer to what never arrived.
            self._over(given)

    async def _drain(self) -> None:
        while data := await _next(self._errors):
            self._program._tail.feed(data)  # pyright: ignore[reportPrivateUsage]

    async def _watch(self, given: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        await self._child.wait()
        # What it left may hold its pipes: its own end is the end.
        with anyio.move_on_after(_LAST_WORDS):
            await self._read_all.wait()
        self._over(given)


async def _message(line: bytes) -> SessionMessage | None:
    """The message in a line; None for what is none: servers print there what belongs to standard error."""
    if not line.strip():
        return None
    with contextlib.suppress(ValueError, RecursionError):
        found = await anyio.to_thread.run_sync(_parsed, line) if len(line) > _PIECE else _parsed(line)
        return SessionMessage(found)
    return None


def _parsed(line: bytes) -> JSONRPCMessage:
    """The message; halves of characters in its escapes are replaced (case B145): dropped, it would be waited for."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if b"\\u" not in line:
            raise
        return jsonrpc_message_adapter.validate_python(clean_deep(json.loads(line)), by_name=False)


async def _next(fd: int) -> bytes:
    """The next bytes; nothing at the end."""
    while True:
        await anyio.wait_readable(fd)
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, _PIECE)


async def _send(fd: int, data: bytes) -> None:
    """Writes all of it, however slowly it is read. Raises `OSError` where nobody reads any more."""
    view = memoryview(data)
    while view:
        await anyio.wait_writable(fd)
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(fd, view) :]
