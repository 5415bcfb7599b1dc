"""One command in a session of its own: read with bounded memory, gone when the call returns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from worker.builtin.child import Child, start_child
from worker.builtin.output import OutputCollector
from worker.builtin.process_table import end

_PIECE = 65_536
_LEFT_OPEN = 0.2
_LEFT_GRACE = 0.5


class Ended(NamedTuple):
    """How a command ended. `code` is its exit code, negative for a signal, None where it still runs after all.

    `left` counts processes that it left behind and that were ended; `survivors` are those that could not be ended.
    """

    code: int | None
    timed_out: bool
    left: int
    survivors: list[int]


async def run_command(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    mark: Mapping[str, str],
    collector: OutputCollector,
    timeout: float | None,
    grace: float = 2.0,
    read_from: int | None = None,
    errors: OutputCollector | None = None,
) -> Ended:
    """Runs `argv` with its input at end of file, and gives its output, both streams in order, to `collector`.

    `read_from` is the descriptor of a file that it reads instead; with `errors`, what it writes to standard error goes there.

    Returns when the command has ended, whoever still holds the pipe (case B084); processes that it left are ended then:
    what is in its group, carries `mark` in its environment or, on Linux, descends from it in any way. After `timeout` seconds the whole group is
    ended: TERM, `grace` seconds, KILL. Cancelled, it does the same before the cancellation goes on (cases B085 and
    B086). Raises `OSError` where `argv` cannot be started.
    """
    with ExitStack() as stack:
        read_end, write_end = _pipe(stack)
        streams, errors_to = {read_end: collector}, None
        if errors is not None:
            errors_end, errors_to = _pipe(stack)
            streams[errors_end] = errors
        child = await start_child(
            argv, cwd, {**environment, **mark}, mark, write_end, read_from=read_from, errors_to=errors_to
        )
        stack.callback(child.close)
        return await _follow(child, streams, timeout, grace)


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """A pipe whose end to read from does not block and is closed with the stack."""
    read_end, write_end = os.pipe()
    stack.callback(os.close, read_end)
    os.set_blocking(read_end, False)
    return read_end, write_end


async def _follow(child: Child, streams: Mapping[int, OutputCollector], timeout: float | None, grace: float) -> Ended:
    at_end = anyio.Event()
    timed_out, settled, left, survivors = False, False, 0, list[int]()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain_all, streams, at_end)
            with anyio.move_on_after(timeout) as waiting:
                await child.wait()
            timed_out = waiting.cancelled_caught
            if not timed_out:
                # A last writer that is just ending gets a moment to end by itself.
                with anyio.move_on_after(_LEFT_OPEN):
                    await at_end.wait()
                settled = await child.left_nothing()
            if not settled:
                if not timed_out:
                    left = len(await anyio.to_thread.run_sync(child.target.living))
                survivors = await end(child.target, grace=grace if timed_out else _LEFT_GRACE)
                settled = True
            # The writers are gone, so the end of the pipe follows; it does not where one survives.
            with anyio.move_on_after(1.0 if not survivors else 0.1):
                await at_end.wait()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if not settled:
                survivors = await end(child.target, grace=grace)
            survivors = await child.gone(survivors)
    if child.error is not None:
        raise child.error
    return Ended(child.code, timed_out, left, survivors)


async def _drain_all(streams: Mapping[int, OutputCollector], at_end: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        for read_end, collector in streams.items():
            tasks.start_soon(_drain, read_end, collector)
    at_end.set()


async def _drain(read_end: int, collector: OutputCollector) -> None:
    """Reads until all writers are gone, also past every cap: a full pipe would stop the command."""
    while True:
        await anyio.wait_readable(read_end)
        with contextlib.suppress(BlockingIOError):
            data = os.read(read_end, _PIECE)
            if not data:
                return
            if collector.spooling:
                await anyio.to_thread.run_sync(collector.feed, data)
            else:
                collector.feed(data)
