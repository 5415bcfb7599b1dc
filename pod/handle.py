"""A handle on a run under way: its events, steering, interruption, its result."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, get_args

import anyio
from anyio.abc import TaskGroup

from pod.bus import PASSING, Subscription
from pod.errors import UsageProblem
from pod.events import Event, Init, Result
from pod.result import OutputT, RunResult, failed_result
from pod.running import Running

Interrupt: TypeAlias = Literal["now", "after_tools", "after_segment"]
"""When an interrupted run ends: at once, after the calls under way, or when its next segment begins."""


class RunHandle(Generic[OutputT]):
    """A run under way. Iterate it for its events, steer it, interrupt it, wait for its result.

    The first event is `init`, the last one `result`, also where the run raises: then its status is `failed`.
    Leaving the `async with` block early interrupts the run now; it is then resumable. Leaving the pod does the same.
    Before the block is entered, everything raises `UsageProblem`.
    """

    def __init__(
        self,
        running: Running,
        group: TaskGroup,
        text: str | None,
        events: Callable[[int], AsyncIterator[Event]],
        init: Callable[[], Init],
    ) -> None:
        self._running = running
        self._group = group
        self._text = text
        self._events = events
        self._init = init
        self._begun = self._ended = False
        self._subscription: Subscription | None = None
        self._done = anyio.Event()
        self._result: RunResult[OutputT] | None = None
        self._error: BaseException | None = None
        self._scope = anyio.CancelScope()
        self._missed: deque[Event] = deque()
        self._last = 0

    def __repr__(self) -> str:
        stands = "not begun" if self._subscription is None else "ended" if self._done.is_set() else "under way"
        return f"<run of {self._running.session.folder.name!r}: {stands}>"

    async def __aenter__(self) -> Self:
        if self._subscription is not None:
            raise UsageProblem("this run has begun already: pod.start() gives a handle on another one")
        self._running.check_open()
        self._subscription = self._running.bus.subscribe()
        self._last = self._running.session.state.last_seq
        self._first = self._init()
        self._group.start_soon(self._work)
        return self

    async def _work(self) -> None:
        try:
            with self._scope:
                self._result = await self._running.drive(self._text, self._scope)
        except Exception as error:
            self._error = error
        finally:
            if self._subscription is not None:
                self._subscription.close()
            self._done.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done.is_set():
            self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._done.wait()
        if self._subscription is not None:
            self._running.bus.leave(self._subscription)

    def __aiter__(self) -> AsyncIterator[Event]:
        """The run's events, in order; a reader that lags is filled up from the log. Ends with the run's `result`."""
        return self

    async def __anext__(self) -> Event:
        subscription = self._entered()
        if not self._begun:
            self._begun = True
            return self._first
        while True:
            event = self._missed.popleft() if self._missed else await subscription.next()
            if event is not None:
                if event.seq <= self._last and event.type not in PASSING:
                    continue  # it was read from the log already
                self._last = max(self._last, event.seq)
                return event
            if subscription.lagging_from is None:
                return self._end()
            subscription.lagging_from = None
            self._missed.extend([missed async for missed in self._events(self._last)])

    def _end(self) -> Result:
        state = self._running.session.state
        result: RunResult[Any] | None = self._result
        if result is None and self._error is not None:
            result = failed_result(self._error, state, self._running.session.folder.name)
        if self._ended or result is None:
            raise StopAsyncIteration
        self._ended = True
        return Result(seq=state.last_seq, result=result.model_dump(mode="json"))

    async def wait(self) -> RunResult[OutputT]:
        """The result. Cancelled, the run goes on (until the block is left)."""
        self._entered()
        await self._done.wait()
        return self.result

    @property
    def result(self) -> RunResult[OutputT]:
        """The result of a run that has ended. Raises what the run raised, or `UsageProblem` while it is under way."""
        self._entered()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise UsageProblem("the run is still under way: await run.wait()")
        return self._result

    def _entered(self) -> Subscription:
        if self._subscription is None:
            raise UsageProblem("the run has not begun: use it inside of `async with pod.start(...) as run`")
        return self._subscription

    async def steer(self, text: str) -> str:
        """Sends a message into the run; it joins at the next request. Durable when it returns. Returns its id."""
        self._entered()
        self._running.check_open()
        return await self._running.intake.accept(text)

    async def interrupt(self, mode: Interrupt = "now") -> RunResult[OutputT]:
        """Ends the run, resumable, and returns its result: now, after the calls under way, or at the next segment.

        Raises `UsageProblem` for another `mode`; the run goes on then.
        """
        self._entered()
        if mode not in get_args(Interrupt):
            known = ", ".join(map(repr, get_args(Interrupt)))
            raise UsageProblem(f"a run can't be interrupted in the way {mode!r}: there are {known}")
        if mode == "now":
            self._scope.cancel()
        elif mode == "after_tools":
            self._running.orders.stop = "interrupt"
        else:
            self._running.orders.after_segment = True
        return await self.wait()
