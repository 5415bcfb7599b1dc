"""Runs the service by itself, on hypercorn: the same on asyncio and on trio."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import sniffio

from pod.engine.serving import never_cut_off
from pod.errors import UsageProblem
from pod.service.app import Service
from pod.service.connections import Bounded, Connections, counted
from pod.service.sse import STALLED

BACKLOG = 1_024
"""Connections that may wait to be taken up."""

HEAD = 32 * 1024
"""Bytes of a request's line and headers at most."""

IDLE = 60.0
"""Seconds after which a connection without a request is closed; a request's head must come within them."""

LEAVE = 2.0
"""Seconds that connections get to end when the service does; then they are cut off."""


def listening(host: str, port: int, uds: Path | None, *, stalled: float = STALLED) -> socket.socket:
    """A socket that listens; port 0 takes a free one. One of the file system is for this user alone.

    A connection whose other end takes nothing for `stalled` seconds is dropped (by the system: the server below waits for it
    whatever happens). Raises `UsageProblem` where it is taken or can't be had.
    """
    family = socket.AF_UNIX if uds is not None else socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if uds is not None:
            _bind_local(made, uds)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled * 1_000))
            made.bind((host, port))
            made.listen(BACKLOG)
        made.setblocking(False)
    except UsageProblem:
        made.close()
        raise
    except OSError as error:
        made.close()
        where = str(uds) if uds is not None else f"{host}:{port}"
        taken = "; --port takes another, 0 any that is free" if error.errno == errno.EADDRINUSE and uds is None else ""
        raise UsageProblem(f"can't listen on {where}: {error.strerror or error}{taken}") from None
    return made


def _bind_local(made: socket.socket, path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageProblem(f"--uds {path}: something else stands there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
            try:
                asks.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()  # its server is gone
            else:
                raise UsageProblem(f"--uds {path}: a server listens there")
    # Named only once nobody else may connect, and it answers who asks whether a server is there.
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    made.bind(str(staged))
    staged.chmod(0o600)
    made.listen(BACKLOG)
    staged.rename(path)


async def serve(
    service: Service, listener: socket.socket, ended: anyio.Event, *, connections: Connections | None = None
) -> None:
    """Answers on a socket until `ended` is set; then readers are let go, runs come to a halt, and it returns. Cancelled, it comes to
    its end in the same way. `connections` says how many there may be at once.
    """
    config = Bounded(connections or Connections())
    config.bind = [f"fd://{os.dup(listener.fileno())}"]  # it closes what it is given
    config.backlog = BACKLOG
    config.h11_max_incomplete_size = HEAD
    config.keep_alive_timeout = IDLE
    config.graceful_timeout = LEAVE
    config.shutdown_timeout = 60.0
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False

    async def until_ended() -> None:
        await ended.wait()
        service.end()

    async def whole() -> None:
        await _server()(service, config, shutdown_trigger=until_ended, mode="asgi")

    async def end() -> None:
        ended.set()

    counted(sniffio.current_async_library())
    async with anyio.create_task_group() as group:
        group.start_soon(_cut_off, listener.getsockname(), ended)
        with _dropped_connections_untold():
            await never_cut_off(whole, end)
        group.cancel_scope.cancel()


@contextmanager
def _dropped_connections_untold() -> Generator[None]:
    """On asyncio, the error of a connection that was dropped while it was closed is told to the loop, and to nobody else's use."""
    if sniffio.current_async_library() != "asyncio":
        yield
        return
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), OSError):
            (before or type(loop).default_exception_handler)(loop, context)

    loop.set_exception_handler(told)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


async def _cut_off(name: object, ended: anyio.Event) -> None:
    """Some time after the end, shuts all connections that were made to a socket of this name."""
    await ended.wait()
    while True:
        await anyio.sleep(LEAVE)
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    _shut(fd, name)


def _shut(fd: int, name: object) -> None:
    with socket.socket(fileno=os.dup(fd)) as found:
        if found.getsockname() == name:
            found.getpeername()  # one that listens has none
            found.shutdown(socket.SHUT_RDWR)


def _server() -> Any:
    return import_module(f"hypercorn.{sniffio.current_async_library()}").serve
