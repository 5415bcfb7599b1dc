"""Many pods in one process: how many run at once, what follows a failure, and an orderly end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, Unpack, get_args

import anyio
from anyio.abc import TaskGroup

from pod.errors import UsageProblem
from pod.manifest import Loaded, Manifest
from pod.options import HomeOptions
from pod.pod import Pod
from pod.result import EXIT, OutputT, RunResult, V, failed_result, last_result, result_without_run
from worker.cancelling import really_cancelled
from worker.errors import alone, holds, told
from worker.ids import uuid7

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Restart: TypeAlias = Literal["never", "on_failure", "always"]
"""When a hosted pod is started again: never, after a failure, or after any end that leaves something to do."""

Phase: TypeAlias = Literal["waiting", "running", "resting", "ended"]
"""Where a hosted pod is: waits for a place, runs, rests before its next start, is over."""

DRAINED = "drained"
"""Why a run ended that the host asked to come to a halt."""

NOT_AGAIN = frozenset(
    {"auth", "quota", "refused", "model_not_found", "unknown_price", "bad_request", "over_budget", "compact_thrash", "overflow"}
)  # fmt: skip
"""Kinds of failures that another start meets again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a hosted pod is started again, at most `at_most` times in `within` seconds.

    It rests before that, `rest` seconds the first time, twice as long each further time, `rest_most` at most (a fifth at random).
    """

    when: Restart = "never"
    at_most: int = 5
    within: float = 600.0
    rest: float = 1.0
    rest_most: float = 60.0

    def __post_init__(self) -> None:
        if self.when not in get_args(Restart):
            raise UsageProblem(f"a pod is restarted {', '.join(get_args(Restart))}, not {self.when!r}")

    def again(self, result: RunResult, queued: bool) -> bool:
        """Whether an end calls for another start; `queued` says whether messages wait that no request has seen."""
        if self.when == "never" or result.error_kind in NOT_AGAIN or result.exit_code == UsageProblem.exit_code:
            return False
        if result.status == "failed":
            return True
        return self.when == "always" and (result.status in {"limit", "yielded"} or queued)

    def pause(self, starts: int, chance: float) -> float:
        """Seconds to rest before start number `starts` + 1; `chance` is a random number from 0 to 1."""
        return min(self.rest * 2.0 ** min(starts - 1, 30), self.rest_most) * (0.8 + 0.4 * chance)


@dataclass(eq=False)
class Hosted(Generic[OutputT]):
    """A pod in the care of a host. `starts` counts how often it was opened, `error` is what the last start raised."""

    name: str
    phase: Phase = "waiting"
    starts: int = 0
    pod: Pod[OutputT] | None = None
    error: BaseException | None = None
    ended: RunResult[OutputT] | None = None
    opens: Callable[[], Pod[OutputT]] = field(repr=False, kw_only=True)
    drive: Callable[[Pod[OutputT]], Awaitable[RunResult[OutputT]]] = field(repr=False, kw_only=True)
    restart: RestartPolicy = field(repr=False, kw_only=True)
    restarted: deque[float] = field(default_factory=deque[float], repr=False)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope, repr=False)
    over: anyio.Event = field(default_factory=anyio.Event, repr=False)
    context: Context = field(default_factory=copy_context, repr=False)
    """That of whoever asked for it: what begins with it belongs there, not to the pod whose place it takes."""

    async def wait(self) -> RunResult[OutputT]:
        """The result of its last run, also where it failed or raised; its status is `cancelled` where it never began."""
        await self.over.wait()
        return self.result

    @property
    def result(self) -> RunResult[OutputT]:
        """The result of a pod that is over. Raises `UsageProblem` before."""
        if self.ended is None:
            raise UsageProblem(f"pod {self.name!r} is not over yet: await its wait()")
        return self.ended

    def interrupt(self) -> None:
        """Ends it now, resumable; one that waits for its place does not begin."""
        self.scope.cancel()

    def halt(self) -> None:
        """Asks for the end of its run before the next request, resumable; one that rests or is being opened ends now."""
        try:
            running = None if self.pod is None or self.phase != "running" else self.pod.running
        except UsageProblem:
            running = None
        if running is None or not running.busy:
            self.interrupt()
            return
        running.orders.stop = running.stopped_by = DRAINED


class PodHost:
    """Runs many pods in one process, at most `concurrency` at once. Use it as an async context manager.

    The block ends when all its pods are over. What happens to one pod touches no other: whatever it raises ends as its result.
    Cancelled, all end now, resumable.
    """

    def __init__(self, *, concurrency: int = 10, restart: RestartPolicy | None = None) -> None:
        if concurrency < 1:
            raise UsageProblem(f"a host runs at least one pod at once, not {concurrency}")
        self.concurrency = concurrency
        self.restart = restart or RestartPolicy()
        self._waiting: deque[Hosted] = deque()
        self._running: dict[int, Hosted] = {}
        self._group: TaskGroup | None = None
        self._draining = False
        self._interrupted: KeyboardInterrupt | None = None

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise UsageProblem("this host was entered before: make another one")
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        if error is not None:
            self._group.cancel_scope.cancel()
        try:
            ended = await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if error is None or group.exceptions != (error,):
                raise
            return False
        finally:
            for hosted in self._waiting:
                _over(hosted, _not_begun(hosted.name))
        if self._interrupted is not None:
            raise self._interrupted
        return ended

    # -- starting ---------------------------------------------------------------------------------------------

    def start(
        self,
        manifest: str | PathLike[str] | Manifest | Loaded,
        task: str | None,
        *,
        name: str,
        key: str | None = None,
        restart: RestartPolicy | None = None,
        output_type: TypeForm[V] = Any,
        **options: Unpack[HomeOptions],
    ) -> Hosted[V]:
        """Takes a pod into its care; it begins when there is a place. `task` of None goes on without new input.

        `options` are those of `Pod.open`. The message is taken once, by its `key` (a new one, where None is given): after a crash of the
        pod, and with the same key after one of the process, its run goes on. What `Pod.open` raises is in the result, not raised here.
        """
        key = key or uuid7()

        async def drive(pod: Pod[V]) -> RunResult[V]:
            return await (pod.resume() if task is None else pod.run(task, key=key))

        def opens() -> Pod[V]:
            return Pod.open(manifest, name=name, output_type=output_type, **options)

        return self.take(name, opens, drive, restart=restart)

    def take(
        self,
        name: str,
        opens: Callable[[], Pod[V]],
        drive: Callable[[Pod[V]], Awaitable[RunResult[V]]],
        *,
        restart: RestartPolicy | None = None,
    ) -> Hosted[V]:
        """`start` for a pod that `opens` makes and `drive` drives, once it is entered. Each start calls both again."""
        if self._group is None:
            raise UsageProblem("this host is not entered: use it inside of `async with PodHost() as host`")
        if self._draining:
            raise UsageProblem("this host comes to a halt: it takes no more pods")
        hosted = Hosted(name, opens=opens, drive=drive, restart=restart or self.restart)
        self._waiting.append(hosted)
        self._fill()
        return hosted

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """The pods that are not over: those that run or rest, then those that wait."""
        return (*self._running.values(), *self._waiting)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.concurrency and not self._draining:
            hosted = self._waiting.popleft()
            self._running[id(hosted)] = hosted
            assert self._group is not None
            hosted.context.run(self._group.start_soon, self._care, hosted)

    # -- one pod ----------------------------------------------------------------------------------------------

    async def _care(self, hosted: Hosted) -> None:
        """A pod from its first start to its end. Nothing but the host's own cancellation leaves it."""
        result = _not_begun(hosted.name)
        try:
            with hosted.scope:
                while True:
                    result = await self._once(hosted)
                    if not await self._again(hosted, result):
                        break
        finally:
            _over(hosted, result if hosted.ended is None else hosted.ended)
            self._running.pop(id(hosted), None)
            self._fill()

    async def _once(self, hosted: Hosted) -> RunResult:
        """One start: opened, driven to the end of its run, closed. Raises nothing but cancellation."""
        hosted.phase, hosted.error = "running", None
        hosted.starts += 1
        cancelled = anyio.get_cancelled_exc_class()
        try:
            hosted.pod = hosted.opens()
            async with hosted.pod as pod:
                try:
                    return await hosted.drive(pod)
                except cancelled:
                    if really_cancelled():
                        # Its end is on record: whoever asks for the result gets that.
                        hosted.ended = last_result(pod.state, hosted.name)
                    raise
        except BaseException as error:
            if holds(error, cancelled) and really_cancelled():
                raise
            # A cancellation that nobody asked for (a model or a handler waited for a task that was cancelled) is a failure like another.
            hosted.error = error = alone(error)
            if isinstance(error, KeyboardInterrupt):
                self._interrupted = error
            return _failed(hosted, error)

    async def _again(self, hosted: Hosted, result: RunResult) -> bool:
        """Whether it is started once more, after a rest."""
        policy, now = hosted.restart, anyio.current_time()
        if self._draining or not policy.again(result, bool(result.queued)):
            return False
        times = hosted.restarted
        while times and times[0] < now - policy.within:
            times.popleft()
        if len(times) >= policy.at_most:
            return False
        times.append(now)
        hosted.phase = "resting"
        await anyio.sleep(policy.pause(len(times), random.random()))
        return not self._draining

    # -- the end ----------------------------------------------------------------------------------------------

    def halt(self) -> None:
        """Begins nothing more, and has each run end before its next request, resumable. Does not wait for that: `drain` does."""
        self._draining = True
        for hosted in self._waiting:
            _over(hosted, _not_begun(hosted.name))
        self._waiting.clear()
        for hosted in tuple(self._running.values()):
            hosted.halt()

    async def drain(self, within: float = 30.0) -> None:
        """Comes to a halt: nothing new begins, each run ends before its next request, resumable; after `within` seconds those that still
        have not are ended now. Returns when all are over.
        """
        self.halt()
        with anyio.move_on_after(within):
            await self._all_over()
        for hosted in tuple(self._running.values()):
            hosted.interrupt()
        await self._all_over()

    async def _all_over(self) -> None:
        for hosted in tuple(self._running.values()):
            await hosted.over.wait()


def _over(hosted: Hosted, result: RunResult) -> None:
    hosted.phase, hosted.pod, hosted.ended = "ended", None, result
    hosted.over.set()


def _not_begun(name: str) -> RunResult:
    return result_without_run(name, "cancelled", "it did not begin")


def _failed(hosted: Hosted, error: BaseException) -> RunResult:
    """What a start that raised ends as."""
    code = getattr(error, "exit_code", EXIT["failed"])
    code = code if isinstance(code, int) else EXIT["failed"]
    if hosted.pod is not None and hosted.pod.opened:
        return failed_result(error, hosted.pod.state, hosted.name, code)
    kind = type(error).__name__
    return result_without_run(hosted.name, "failed", kind, error=told(error) or kind, exit_code=code)
