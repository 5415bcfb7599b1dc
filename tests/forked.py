"""Python processes without the seconds that their imports take: forks of one that has everything loaded.

    with Forked(["-m", "pod", "ls"], cwd=work, env={...}, stdout=PIPE) as process:
        out, err = process.communicate(timeout=30)

Each is a process of its own: its number, arguments, folder, variables, descriptors, signals and exit code are its own, and its modules
are fresh from their import. Two things are shared: the interpreter's start, and what was imported before. So a test of these takes
`subprocess` as before, and one whose variables steer the interpreter's start (`PYTHON*`, `LANG`, `LC_*`) gets an interpreter of its
own from `started`. Neither does `/proc` tell its variables and arguments: what is about these asks for a `fresh` one.

The loaded process starts with the first that is asked for, and ends with the process that asked.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn, Self

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("worker", "interceptors", "compact_worker", "pod")
LAZY = (
    "openai.resources.responses",
    "openai.resources.chat",
    "anthropic.resources.messages",
    "anthropic.resources.beta.messages",
    "httpcore2",
    "h11",
    "truststore",
    "encodings.idna",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
)
"""What the floors and their libraries import at the first use alone."""

HONOURED = ("PYTHONPATH", "PYTHONIOENCODING")
"""What is done for a fork as for an interpreter."""

_LENGTH = struct.Struct("!Q")
_lock = threading.Lock()
_loaded: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []


def started(
    arguments: Sequence[object], *, env: Mapping[str, str], fresh: bool = False, **more: Any
) -> Forked | subprocess.Popen[bytes]:
    """A fork, or an interpreter of its own where that is asked for or the variables steer an interpreter's start."""
    arguments = [str(argument) for argument in arguments]
    if fresh or _steering(env) - _steering(os.environ):
        return subprocess.Popen([sys.executable, *arguments], env=dict(env), **more)
    return Forked(arguments, env=env, **more)


def run(
    arguments: Sequence[object], *, given: bytes | None = None, timeout: float = 60, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """What `subprocess.run` gives with both outputs captured."""
    more = {"stdout": PIPE, "stderr": PIPE, "stdin": DEVNULL if given is None else PIPE, **more}
    with started(arguments, **more) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(arguments), process.returncode, out, err)


def _steering(env: Mapping[str, str]) -> set[tuple[str, str]]:
    return {
        (key, value) for key, value in env.items()
        if (key.startswith(("PYTHON", "LC_")) and key not in HONOURED) or key == "LANG"
    }  # fmt: skip


class Forked:
    """A forked process, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | str, stdin: Any = None, stdout: Any = None, stderr: Any = None,
        start_new_session: bool = False,
    ) -> None:  # fmt: skip
        self.args = list(arguments)
        self.returncode: int | None = None
        self._status, answer = socket.socketpair()
        with contextlib.ExitStack() as given:
            given.callback(answer.close)
            self.stdin, first = _end(stdin, 0, given)
            self.stdout, second = _end(stdout, 1, given)
            self.stderr, third = (None, second) if stderr is STDOUT else _end(stderr, 2, given)
            request = json.dumps([self.args, str(cwd), dict(env), start_new_session]).encode()
            with _lock:
                channel = _channel()
                socket.send_fds(channel, [_LENGTH.pack(len(request))], [first, second, third, answer.fileno()])
                channel.sendall(request)
        self._told = b""
        self._read(until=1)
        self.pid = int(self._told.split()[0])

    def _read(self, until: int, timeout: float | None = None) -> bool:
        """Reads until so many lines are there, or the time is over."""
        ends = None if timeout is None else time.monotonic() + timeout
        while self._told.count(b"\n") < until:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                return False
            data = self._status.recv(100)
            assert data, "the loaded process is gone"
            self._told += data
        return True

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not self._read(2, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._told.split()[1])
            self._status.close()
        return self.returncode

    def communicate(self, given: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Writes what is given, reads both outputs to their end, waits. Raises `subprocess.TimeoutExpired`."""
        ends = None if timeout is None else time.monotonic() + timeout
        kept: dict[Any, list[bytes]] = {self.stdout: [], self.stderr: []}
        readers = [
            threading.Thread(target=_drain, args=(stream, kept[stream]), daemon=True) for stream in kept if stream
        ]
        for reader in readers:
            reader.start()
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(given or b"")
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        for reader in readers:
            reader.join(None if ends is None else max(0.0, ends - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if ends is None else max(0.0, ends - time.monotonic()))
        return b"".join(kept[self.stdout]), b"".join(kept[self.stderr])

    def send_signal(self, number: int) -> None:
        """Sends a signal, where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def _end(what: Any, number: int, given: contextlib.ExitStack) -> tuple[IO[bytes] | None, int]:
    """The test's end of a stream, where it has one, and the process's."""
    if what is PIPE:
        ends = os.pipe()
        own, its = ends if number else ends[::-1]
        given.callback(os.close, its)
        return open(own, "rb" if number else "wb", buffering=-1 if number else 0), its
    if what is DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, null)
        return None, null
    return None, number if what is None else what if isinstance(what, int) else what.fileno()


def _drain(stream: IO[bytes], into: list[bytes]) -> None:
    with contextlib.suppress(ValueError, OSError):
        into.append(stream.read())
        stream.close()


def _channel() -> socket.socket:
    """The channel to the loaded process, which is started at the first use."""
    if not _loaded:
        ours, its = socket.socketpair()
        with its:
            environment = {
                key: value for key, value in os.environ.items() if key in {"PATH", "HOME"} or _steering({key: value})
            }
            process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())], cwd="/", env=environment, pass_fds=[its.fileno()]
            )
        _loaded.append((ours, process))
        atexit.register(_unload)
    return _loaded[0][0]


def _unload() -> None:
    channel, process = _loaded.pop()
    channel.close()
    process.wait(20)


# -- in the loaded process -----------------------------------------------------------------------------------------


def load() -> None:
    """Imports all that a process of a test may need."""
    for floor in FLOORS:
        for found in pkgutil.walk_packages(importlib.import_module(floor).__path__, f"{floor}."):
            if not found.name.endswith("__main__") and not found.name.startswith("pod.shipped"):
                importlib.import_module(found.name)
    for name in LAZY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def serve(channel: socket.socket) -> tuple[list[str], str, dict[str, str], bool] | None:
    """Forks for each request. In a child it gives the request, whose descriptors are in place; at the end of all None."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 4)
        _reap()
        if not head:
            return None
        request = b""
        while len(request) < _LENGTH.unpack(head)[0]:
            request += channel.recv(65_536)
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        channel.close()
        *streams, answer = descriptors
        pid = os.fork()
        if pid:
            for descriptor in streams:
                os.close(descriptor)
            _keep(pid, answer)
        os.close(answer)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in streams:
            os.close(descriptor)
        return json.loads(request)


def _reap() -> None:
    """Takes note of the keepers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(pid: int, answer: int) -> None:
    """Tells the number of a process and then how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the process
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answer, f"{code}\n".encode())
    os._exit(0)


def become(arguments: list[str], cwd: str, env: dict[str, str], session: bool) -> None:
    """What an interpreter does that is started with these arguments (`-m NAME`, `-c TEXT` or a file first)."""
    if session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    _open_streams()
    added = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    how, *rest = arguments
    first = {"-m": cwd, "-c": ""}.get(how, str(Path(how).parent))
    sys.path[:] = [first, *added, *sys.path[1:]]
    if how == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = arguments
        runpy.run_path(how, run_name="__main__")


def _open_streams() -> None:
    """Standard streams as an interpreter opens them."""
    encoding, _, handler = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        mode = "w" if number else "r"
        errors = "backslashreplace" if number == 2 else handler or ("strict" if encoding else old.errors)
        made = TextIOWrapper(
            open(number, f"{mode}b", closefd=False),  # noqa: SIM115
            encoding or old.encoding, errors, "\n" if number else None, number == 2 or os.isatty(number),
        )  # fmt: skip
        made.mode = mode
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def main(number: int) -> None:
    """Serves on a channel; in a child it runs what was asked for, and ends as an interpreter does."""
    sys.path[0] = str(ROOT)
    load()
    channel = socket.socket(fileno=number)
    request = serve(channel)
    if request is None:
        return
    try:
        become(*request)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        leave(ended.code or 0)
    leave(0)


def leave(code: int) -> NoReturn:
    """Ends as an interpreter does, but for taking all its objects down: in a fork each of them would first be copied.

    What can't be written is for the interpreter to tell.
    """
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, AttributeError):
        raise SystemExit(code) from None
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]))
