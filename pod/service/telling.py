"""Sends webhooks: each receiver by itself, with retries, until it accepts or too long has passed.

Nothing waits for a receiver: no run, no reader, no other receiver. What is to be told stands in the outbox, so an end of the process
loses none of it.
"""

from __future__ import annotations

import heapq
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2

from pod.errors import PodError, UsageProblem
from pod.service.outbox import Due, Outbox, labels
from pod.service.webhooks import Webhook, signed
from worker.errors import alone
from worker.models.classify import retry_after
from worker.models.transport import is_loopback
from worker.tls import tls

logger = logging.getLogger("pod.service")

AT_ONCE = 8
"""Requests to one receiver that are under way at once."""

CONNECT, READ, WHOLE = 5.0, 10.0, 20.0
"""Seconds for a connection, for a silence, and for one attempt as a whole."""

ANSWER = 4_096
"""Bytes of an answer that are read, so that its connection can be used again. What it says decides nothing."""

GONE = 410
"""The status of a receiver that wants to be told nothing more."""

BUSY = frozenset({429, 503})
"""Statuses whose `Retry-After` holds for all that a receiver is sent."""


@dataclass(frozen=True, slots=True)
class Retries:
    """When an attempt follows one that failed: after `first` seconds, then twice as long each time, `most` at most (a fifth of it at
    random), or when the receiver asks to be asked, `asked` at most. `whole` seconds after the first attempt an event is given up.
    """

    first: float = 5.0
    most: float = 3_600.0
    asked: float = 3_600.0
    whole: float = 86_400.0

    def pause(self, tries: int, chance: float) -> float:
        """Seconds after failure number `tries`; `chance` is a random number from 0 to 1."""
        return min(self.first * 2.0 ** min(tries - 1, 30), self.most) * (0.8 + 0.4 * chance)


RETRIES = Retries()

SWEEP, SWEEP_SHARED = 30.0, 300.0
"""Seconds between two looks at the logs of all watched pods, for what other processes wrote: of a home that is a folder, or shared."""


AGAIN = 30.0
"""Seconds until a receiver is begun again that failed as a whole."""


@dataclass(eq=False)
class Receiver:
    """One receiver. `told` is called with what came of each attempt: `accepted`, `failed` or `given_up`."""

    webhook: Webhook
    outbox: Outbox
    sweep: float
    told: Callable[[str], object]
    retries: Retries
    off: bool = False
    _names: set[str] = field(default_factory=set[str], init=False)
    _due: list[tuple[float, int, Due]] = field(default_factory=list[tuple[float, int, Due]], init=False)
    _order: count[int] = field(default_factory=count, init=False)
    _sending: int = field(default=0, init=False)
    _held: float = field(default=0.0, init=False)
    _ending: bool = field(default=False, init=False)
    _wake: anyio.Event = field(default_factory=anyio.Event, init=False)
    _idle: anyio.Event = field(default_factory=anyio.Event, init=False)
    _one: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1), init=False)

    @property
    def waiting(self) -> int:
        """Events that are still to be accepted."""
        return len(self._due) + self._sending

    async def watch(self, name: str) -> None:
        """From now on what happens to a pod is told."""
        try:
            await self._thread(self.outbox.watch, name)
        except (PodError, OSError) as error:
            logger.warning("webhook %s: what happens to a pod is not told: %s", self.webhook.name, error)

    def news(self, name: str) -> None:
        """There may be something new in the log of a pod."""
        self._names.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Tells what there is to tell. Cancelled, it ends; what was not accepted is told when it runs again."""
        self._due.clear()
        self._queue(await self._thread(self.outbox.begin))
        async with _Client(self.webhook.url) as client, anyio.create_task_group() as group:
            next_sweep = 0.0
            while True:
                self._wake = anyio.Event()
                if anyio.current_time() >= next_sweep:
                    self._names.update(await self._thread(self.outbox.changed))
                    next_sweep = anyio.current_time() + self.sweep
                await self._take()
                while (due := self._next()) is not None:
                    self._sending += 1
                    group.start_soon(self._attempt, client, due)
                with anyio.move_on_after(min(self._pause(), next_sweep - anyio.current_time())):
                    await self._wake.wait()

    async def settle(self) -> None:
        """Begins no further attempt, and waits for the end of those under way."""
        self._ending = True
        if self._sending:
            await self._idle.wait()

    async def _take(self) -> None:
        while self._names and not self._ending:
            try:
                self._queue(await self._thread(self.outbox.take, self._names.pop()))
            except OSError as error:
                logger.warning("webhook %s: what is new could not be put on record: %s", self.webhook.name, error)

    def _queue(self, dues: Sequence[Due]) -> None:
        for due in dues:
            heapq.heappush(self._due, (due.next, next(self._order), due))

    def _next(self) -> Due | None:
        """The next event whose time has come, where it may be sent now."""
        if self._ending or self.off or self._sending >= AT_ONCE or not self._due or self._pause() > 0:
            return None
        return heapq.heappop(self._due)[2]

    def _pause(self) -> float:
        """Seconds until an event may be sent. None rests longer than the longest pause: where it seems to, the clock was set back."""
        if not self._due or self._ending or self.off or self._sending >= AT_ONCE:
            return self.sweep
        left = max(self._due[0][0], self._held) - time.time()
        return left if left <= 1.2 * max(self.retries.most, self.retries.asked) else 0.0

    async def _attempt(self, client: httpx2.AsyncClient, due: Due) -> None:
        try:
            answer = await self._send(client, due)
            await self._judge(due, answer)
        except OSError as error:
            logger.warning(
                "webhook %s: what became of %s could not be put on record: %s", self.webhook.name, due.id, error
            )
        finally:
            self._sending -= 1
            self._wake.set()
            if self._ending and not self._sending:
                self._idle.set()

    async def _send(self, client: httpx2.AsyncClient, due: Due) -> _Answer:
        """One attempt. What goes wrong on the way is named without the address: that may hold a secret."""
        body = await self._thread(self.outbox.body, due)
        headers = signed(self.webhook, due.id, int(time.time()), body)
        try:
            with anyio.fail_after(WHOLE):
                async with client.stream("POST", self.webhook.url, content=body, headers=headers) as response:
                    asked = min(retry_after(response.headers) or 0.0, self.retries.asked)
                    answer = _Answer(response.status_code, asked)
                    with suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
                        await _passed_over(response)
                    return answer
        except TimeoutError:
            return _Answer(0, why=f"no answer within {WHOLE:g} s")
        except Exception as error:  # whatever it is, it is this receiver's alone
            return _Answer(0, why=type(error).__name__)

    async def _judge(self, due: Due, answer: _Answer) -> None:
        name = self.webhook.name
        if 200 <= answer.status < 300:
            self.told("accepted")
            await self._over(due)
            return
        self.told("failed")
        now = time.time()
        due.tries += 1
        wait = max(self.retries.pause(due.tries, random.random()), answer.retry_after)
        due.next = now + wait
        why = answer.why or f"HTTP {answer.status}"
        if answer.status == GONE:
            self.off = True
            logger.warning(
                "webhook %s: it wants to be told nothing more (HTTP 410): nothing is sent there until the service starts anew",
                name,
            )
        elif due.next - due.since >= self.retries.whole:
            logger.error(
                "webhook %s: %s (%s of pod %s) is given up after %s: %s",
                name, due.id, due.kind, due.pod, f"{due.tries} attempt{'s' * (due.tries != 1)}", why,
            )  # fmt: skip
            self.told("given_up")
            await self._over(due)
            return
        else:
            logger.info("webhook %s: %s failed (%s), and is tried again in %.0f s", name, due.id, why, wait)
        if answer.status in BUSY and answer.retry_after:
            self._held = max(self._held, now + answer.retry_after)
        self._queue([due])
        await self._thread(self.outbox.later, due)

    async def _over(self, due: Due) -> None:
        if await self._thread(self.outbox.over, due):
            self._names.add(due.pod)

    async def _thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await anyio.to_thread.run_sync(work, *args, limiter=self._one)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of an attempt: the status (0: none), and for how many seconds the receiver asks to be left alone."""

    status: int
    retry_after: float = 0.0
    why: str = ""


@dataclass
class _Client:
    """A client of one receiver: another one that stalls holds none of its connections."""

    url: str
    made: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> httpx2.AsyncClient:
        # A proxy would be asked for its own loopback address.
        near = is_loopback(self.url)
        verify = True if self.url.startswith("http:") else await anyio.to_thread.run_sync(tls)
        self.made = httpx2.AsyncClient(
            verify=verify, trust_env=not near, follow_redirects=False,
            timeout=httpx2.Timeout(READ, connect=CONNECT, pool=WHOLE),
            limits=httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE),
        )  # fmt: skip
        return self.made

    async def __aexit__(self, *error: object) -> None:
        assert self.made is not None
        with anyio.CancelScope(shield=True):
            await self.made.aclose()


async def _passed_over(response: httpx2.Response) -> None:
    """Reads a short answer to its end; of a longer one the connection is closed."""
    left = ANSWER
    pieces = response.aiter_raw()
    async with aclosing(pieces):
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                return


@dataclass(eq=False)
class Telling:
    """All receivers of a service."""

    receivers: tuple[Receiver, ...] = ()

    @classmethod
    def of(
        cls, webhooks: Sequence[Webhook], folder: Path, home: Path, *, shared: bool, told: Callable[[str, str], object]
    ) -> Telling:
        """The receivers, with their marks in `folder`. `told` gets the name of one and what came of an attempt.

        Raises `UsageProblem` where two have one name.
        """
        known = labels(webhooks)
        if len(known) < len(webhooks):
            names = [each.name for each in webhooks]
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageProblem(f"two webhooks are called {twice!r}: give each a name of its own (name=...)")
        return cls(
            tuple(
                Receiver(
                    each,
                    Outbox(folder / label, home, each),
                    SWEEP_SHARED if shared else SWEEP,
                    _named(told, each.name),
                    RETRIES,
                )
                for label, each in known.items()
            )
        )

    async def watch(self, name: str) -> None:
        """From now on what happens to a pod is told."""
        for receiver in self.receivers:
            await receiver.watch(name)

    def news(self, name: str) -> None:
        """There may be something new in the log of a pod."""
        for receiver in self.receivers:
            receiver.news(name)

    async def run(self) -> None:
        """Tells what there is to tell, until it is cancelled."""
        async with anyio.create_task_group() as group:
            for receiver in self.receivers:
                group.start_soon(self._kept_up, receiver)

    async def _kept_up(self, receiver: Receiver) -> None:
        """Runs a receiver; begins again after a while with one that the system, or anything else, has brought down."""
        while True:
            try:
                await receiver.run()
            except Exception as error:
                logger.error(
                    "webhook %s failed, and is begun again in %g s", receiver.webhook.name, AGAIN, exc_info=alone(error)
                )
            await anyio.sleep(AGAIN)

    async def settle(self, within: float) -> None:
        """Begins no further attempt, and gives those under way so many seconds."""
        with anyio.move_on_after(within):
            for receiver in self.receivers:
                await receiver.settle()


def _named(told: Callable[[str, str], object], name: str) -> Callable[[str], object]:
    return lambda outcome: told(name, outcome)
