"""Drives one run from its start to its end on record: events out, questions asked, signals heard, the result told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from pod.cli.asking import ask
from pod.cli.failing import complain, expected, note
from pod.cli.output import Output, OutputFailed
from pod.cli.progress import Progress, progress_of
from pod.cli.pulse import Pulse
from pod.cli.signals import Stopping, handled
from pod.cli.text import ways_out
from pod.errors import PodBusy
from pod.events import Event, Init, Result
from pod.log.folder import PodFolder
from pod.manifest import Loaded, Manifest
from pod.pod import Pod, RunHandle
from pod.result import EXIT, RunResult, failed_result
from pod.stored import record_change
from pod.unfinished import check_stored
from worker.errors import alone
from worker.text import visible_json

WAIT_STEP = 0.5
"""Seconds between two tries to become the writer of a busy pod."""

LATE = 0.5
"""Seconds after the limit on wall time at which what still runs is ended."""


@dataclass
class Drive:
    """One run. `task` of None goes on without new input."""

    manifest: Manifest | Loaded
    name: str | None
    home: Path
    cwd: Path
    task: str | None
    exists: bool = False
    wait: bool = False
    ephemeral: bool = False
    changed: tuple[str, ...] = ()
    timeout: float | None = None


async def drive(job: Drive, output: Output) -> int:
    """Runs to the end. Returns the exit code. Raises what the pod raises before its run began."""
    stopping = Stopping()
    progress = progress_of(output, _told(job.manifest))
    stopping.before_exit = progress.close
    code = 130
    async with handled(stopping):
        try:
            code = await _opened(job, output, progress, stopping)
        finally:
            progress.close()
    return stopping.exit_code if stopping.name is not None and code == 130 else code


async def _opened(job: Drive, output: Output, progress: Progress, stopping: Stopping) -> int:
    async with AsyncExitStack() as stack:
        while True:
            if job.exists and job.name is not None and job.task is None:
                await anyio.to_thread.run_sync(check_stored, PodFolder(job.home, job.name))
            pod = Pod.open(job.manifest, name=job.name, cwd=job.cwd, home=job.home, headless=not output.ask)
            try:
                await stack.enter_async_context(pod)
            except PodBusy as busy:
                if not job.wait:
                    raise
                progress.waiting(str(busy.owner.get("pid", "?")))
                await anyio.sleep(WAIT_STEP)
                continue
            break
        return await _Driving(pod, job, output, progress, stopping).run()


def _told(manifest: object) -> tuple[str, ...]:
    """The warnings that the command has told before the run puts them on record."""
    return tuple(str(warning) for warning in manifest.warnings) if isinstance(manifest, Loaded) else ()


class _Driving:
    """An open pod and everything around its run."""

    def __init__(self, pod: Pod, job: Drive, output: Output, progress: Progress, stopping: Stopping) -> None:
        self.pod, self.job, self.output, self.progress, self.stopping = pod, job, output, progress, stopping
        self.pulse = Pulse()
        self.init: Init | None = None
        self.late = False

    async def run(self) -> int:
        session = self.pod.running.session
        if self.job.task is None:
            await self.pod.running.check_unfinished()
        _take_signals(session.folder.path / "lock", session.folder.owner())
        if self.job.changed:
            record_change(session, self.pod.manifest, self.job.changed)
            await session.sync()
        self.init = self.pod.init_event()
        self.progress.begin(self.init, fresh=not self.job.exists)
        try:
            result = await self._to_the_end()
        except BrokenPipeError:
            raise
        except Exception as error:
            await self._tell(self._failed(alone(error)), raised=True)
            raise
        return await self._tell(result)

    async def _to_the_end(self) -> RunResult:
        """Stretch after stretch while a human answers on this terminal."""
        text = self.job.task
        if self.output.ask and text is None and self.pod.approvals and not await self._ask():
            return await self._stretch(None)
        while True:
            result = await self._stretch(text)
            if result.status != "paused" or not self.output.ask or self.stopping.name is not None:
                return result
            if not await self._ask():
                return result
            text = None

    async def _stretch(self, text: str | None) -> RunResult:
        async with anyio.create_task_group() as group, self.pod.start(text) as run:

            async def end() -> None:
                self.pod.running.stopped_by = self.stopping.name or ""
                await run.interrupt("now")

            self.stopping.end = end
            await self._emit_init()
            group.start_soon(self.pulse.beat, self._show)
            if self.job.timeout is not None:
                group.start_soon(self._end_late, run, self.job.timeout)
            async for event in run:
                # One stream may tell of several stretches: its first and last event are told around them.
                if event.type not in {"init", "result"}:
                    await self._event(event)
            group.cancel_scope.cancel()
        self.stopping.end = None
        return self._limited(run.result)

    async def _end_late(self, run: RunHandle, timeout: float) -> None:
        """The limit on wall time is looked at between requests; one that hangs is ended here."""
        state = self.pod.state
        spent = state.driven.seconds(time.time()) if state.run is not None else 0.0
        await anyio.sleep(max(timeout - spent, 0) + LATE)
        self.late = True
        self.pod.running.sender_waits = False  # a limit takes no message back: the run goes on with it
        self.pod.running.stopped_by = f"--timeout {timeout:g}"
        await run.interrupt("now")

    def _limited(self, result: RunResult) -> RunResult:
        if not self.late or result.status != "cancelled":
            return result
        message = f"the run took longer than {self.job.timeout:g} s, and a request or a tool was still under way"
        return result.model_copy(
            update={"status": "limit", "error": message, "error_kind": "max_wall_seconds", "exit_code": EXIT["limit"]}
        )

    async def _ask(self) -> bool:
        """Asks about all that is open. False where nobody answers (end of input, a signal)."""
        self.progress.pause()
        try:
            return await ask(self.pod, self.stopping)
        finally:
            self.progress.go_on()

    # -- events -----------------------------------------------------------------------------------------------

    async def _event(self, event: Event) -> None:
        self.pulse.follow(event)
        await self._show(event)

    async def _show(self, event: Event) -> None:
        self.progress.event(event)
        await self._emit(event)

    async def _emit_init(self) -> None:
        """The stream's first event, once; behind the start of the run, which is on record where it can't be written."""
        init, self.init = self.init, None
        if init is not None:
            await self._emit(init)

    async def _emit(self, event: Event) -> None:
        if self.output.format != "stream-json":
            return
        try:
            await anyio.to_thread.run_sync(self.output.json, event.model_dump_json(), abandon_on_cancel=True)
        except (OutputFailed, BrokenPipeError):
            self.pod.running.sender_waits = False  # the message is not given back: `pod resume` goes on with it
            raise

    # -- the end ----------------------------------------------------------------------------------------------

    async def _tell(self, result: RunResult, *, raised: bool = False) -> int:
        if self.job.ephemeral:
            result = result.model_copy(update={"resumable": False})
        await self._emit_init()
        self.progress.close()
        form = self.output.format
        seq = self.pod.state.last_seq
        write: Callable[[str], None] = self.output.json
        if form == "stream-json":
            last = Result(seq=seq, result=result.model_dump(mode="json"))
            await anyio.to_thread.run_sync(write, last.model_dump_json(), abandon_on_cancel=True)
        elif form == "json":
            await anyio.to_thread.run_sync(write, result.model_dump_json(), abandon_on_cancel=True)
        elif result.text is not None:
            await anyio.to_thread.run_sync(self.output.text, _shown(result), abandon_on_cancel=True)
        _conclude(result, self.pod, quiet=self.output.quiet, ephemeral=self.job.ephemeral, raised=raised)
        return result.exit_code

    def _failed(self, error: BaseException) -> RunResult:
        """The result of a run that an error ended: what a reader of the stream still needs to know."""
        return failed_result(error, self.pod.state, self.pod.name, expected(error) or 1)


def _shown(result: RunResult) -> str:
    """What standard output gets as text: the answer, or the JSON value that it is to a schema."""
    if result.output is None:
        return result.text or ""
    return visible_json(json.dumps(result.output, ensure_ascii=False, indent=2))


def _conclude(result: RunResult, pod: Pod, *, ephemeral: bool, quiet: bool, raised: bool) -> None:
    """The last lines on standard error: how it ended, what it took, and how it goes on."""
    from pod.cli.progress import summary

    again = "" if ephemeral or not result.resumable else f" {_goes_on(result)}"
    match result.status:
        case "finished":
            if not quiet:
                note(f"pod {result.pod}: finished: {summary(result)}")
            return
        case "paused":
            note(f"pod {result.pod}: waiting for a human: {summary(result)}")
            for asked in pod.approvals:
                _show_open(result.pod, asked, [each.id for each in pod.approvals])
            if len(pod.approvals) > 1:
                note("  all of them:")
                _show_ways(result.pod, "--all")
            if result.queued:
                many = len(result.queued)
                what = "the message is stored, and joins" if many == 1 else f"{many} messages are stored, and join"
                note(f"  {what} once {'it is' if len(pod.approvals) == 1 else 'all of it is'} answered")
        case "limit":
            note(f"pod {result.pod}: a limit ended the run: {result.error}; {summary(result)}.{again}")
        case "cancelled":
            given = " The message was given back: nothing had come of it." if result.withdrawn else ""
            note(f"pod {result.pod}: stopped ({result.why_runtime_stopped}): {summary(result)}.{given or again}")
        case "yielded":
            note(f"pod {result.pod}: {result.why_runtime_stopped}: {summary(result)}.{again}")
        case "failed":
            if not raised:
                complain(f"the run failed ({result.error_kind}): {result.error}")
                note(f"pod {result.pod}: failed: {summary(result)}.{again}")


def _goes_on(result: RunResult) -> str:
    """How a run that ended early is gone on with: one that had no room ends the same way again until there is some."""
    resume = f"`pod resume {result.pod}` goes on"
    if result.details.get("compactable"):
        return f"`pod compact {result.pod}` makes room, then {resume}."
    return f"Once there is room, {resume}." if result.error_kind in NO_ROOM else f"{resume}."


NO_ROOM = frozenset({"over_budget", "compact_thrash", "overflow", "context"})
"""Kinds of ends for which the context was too large."""


def _show_open(name: str, asked: Any, open_ids: list[str]) -> None:
    from pod.cli.text import one_line, shown_lines, told

    note(f"  {one_line(told(asked.tool, asked.summary), 300)}")
    for line in shown_lines(asked, 40):
        note(f"    {line}")
    _show_ways(name, asked.id, open_ids)


def _show_ways(name: str, which: str, open_ids: list[str] | None = None) -> None:
    for line in ways_out(name, which, open_ids or ()):
        note(f"    {line}")


def _take_signals(lock: Path, owner: dict[str, Any]) -> None:
    """Notes in the lock that its holder ends its run at SIGINT, so that `pod stop` may send it one."""
    import os

    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        data = json.dumps({**owner, "stops_at": "SIGINT"}).encode()
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
