"""Sending one request: counts near a decision, retries, fallback models."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

import anyio

from worker import tracing
from worker.believing import doubt_of_count, refusal_holds
from worker.codes import COUNT_FAILED, MEMORY_REBUILT
from worker.counting import Counted, count_tokens
from worker.errors import KEPT_WORDS, ContextOverflow, InvalidHistory, ModelError, StreamBroken, TooLargeForTier
from worker.estimate import HEURISTIC_FACTOR, estimate_item
from worker.history import History
from worker.items import Item, OpaqueItem
from worker.memory import maker_of, memory_of, read_by_others, reads_in_words
from worker.models.base import (
    Compacted,
    CompactsNatively,
    Emit,
    JudgesMemories,
    Model,
    Refusals,
    RemembersRefusals,
    Reply,
    Request,
)
from worker.models.reported import checked
from worker.models.wire import Wire
from worker.occupancy import Occupancy
from worker.pacing import Account, Turn, Waits, paces
from worker.records import (
    ModelSwitched,
    Paced,
    ProviderRefused,
    Retry,
    SizeRefused,
    TokensCounted,
    Warned,
    WindowLearned,
)
from worker.retry import RetryPolicy
from worker.sizing import Sizing
from worker.text import clipped
from worker.tracing import ModelWork, Replied

GUESSED_SHARE = 0.9
"""The window assumed after a refusal that names none, as a share of the refused estimate."""

LEAST_GUESS = 0.25
"""The share of the known window that a guess leaves at least: after a small request it is the estimate or the reading of
the error that is wrong, and a tiny window would never let anything be sent again."""

LEAST_WINDOW = 1_024
"""Tokens below which no stated limit is taken for a window."""

LEAST_GUESSED = 4_096
"""Tokens below which no window is guessed."""

EMPTY_STREAM = "empty_stream"
"""The code of an answer without any event. It may mean an overflow, but first it is taken for a broken stream."""

EMPTY_STREAMS = 1
"""How often a request whose answer was empty is sent again before the answer counts as an overflow."""

REPAIRS = 2
"""How often a request is sent again in another form after the provider has rejected its history."""


REST = 300.0
"""Seconds for which a model that has failed for good is asked after its fallbacks, not before them; for so long nothing
is counted after a count that failed."""


class OverBudget(ModelError):
    """The request is estimated above the ceiling of every model: it was not sent.

    `grew` says that it is so only since a memory in it was rejected, so that what was decided before it holds no more.
    """

    kind = "over_budget"
    grew = False


@dataclass(slots=True)
class Follower:
    """The encoded messages of one model, kept in step with the view."""

    wire: Wire
    seen: int = 0
    changes: int = 0

    def pieces(self, history: History) -> tuple[bytes, ...]:
        """The view's messages as this model is sent them; only what is new or changed is encoded."""
        news = history.changes[self.changes :]
        self.changes = len(history.changes)
        if any(at < 0 for at in news):
            self.wire.reset(history.view)
        else:
            for at in news:
                if at < self.seen:
                    self.wire.replace(at, history.view[at])
            self.wire.extend(history.view[self.seen :])
        self.seen = len(history.view)
        return self.wire.pieces()


T = TypeVar("T", bound="Reply | Compacted")


@dataclass(frozen=True, slots=True)
class Tried(Generic[T]):
    """What a model answered, after how many attempts and seconds."""

    answer: T
    attempts: int
    seconds: float


@dataclass(slots=True)
class Answered:
    """A reply, the model that gave it, its tries and seconds."""

    reply: Reply
    model: Model
    attempts: int
    seconds: float
    occupancy: Occupancy
    buffer: int


@dataclass(slots=True)
class Sender(Sizing):
    """Sends the view to the first model that holds it and answers."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    cache_key: str = ""
    clock: Callable[[], float] = time.monotonic
    resting: dict[str, float] = field(default_factory=dict[str, float])
    _rests: float = 0.0
    _told: bool = False
    _followers: dict[str, Follower] = field(default_factory=dict[str, Follower])

    async def measure(self) -> None:
        """Counts the view where a count could turn a decision: near a threshold, once for each view, never fatal (after
        a failure not again for a while).

        The count is put on record as the base of the number. Cancelled, nothing is kept.
        """
        model = self.model
        how = model.capabilities.counting
        if how == "none" or self.foreign(model):
            return
        occupancy, budget = self.occupancy(model), self.budget(model)
        weaker = {
            "provider": ("provider count",),
            "tokenizer": ("provider count", "tokenizer", "usage", "usage-adjusted"),
        }
        if occupancy.provenance in weaker[how]:
            return
        if not any(occupancy.near(at) for at in (*self.thresholds(budget), budget.available)):
            return
        if self.clock() < self._rests:
            return
        parts, started = self.parts(model), self.clock()
        counted = await count_tokens(model, self._request(model))
        if counted.tokens is not None and counted.provenance == "provider count":
            plain = parts.known + int(parts.raw * HEURISTIC_FACTOR)
            doubt = doubt_of_count(counted.tokens, occupancy.tokens, plain)
            counted = Counted(None, counted.provenance, doubt) if doubt else counted
        if counted.tokens is None:
            self._rests = self.clock() + REST
            self._cannot_count(model, counted.problem)
            return
        self.ledger.put(
            TokensCounted(
                model=model.name, tokens=counted.tokens, provenance=counted.provenance, estimate=occupancy.tokens,
                parts=parts, seconds=round(self.clock() - started, 3),
            )
        )  # fmt: skip

    def _cannot_count(self, model: Model, problem: str) -> None:
        """Says so, once for each sender."""
        if problem and not self._told:
            self._told = True
            message = f"{model.name} could not count the next request, the estimate stands: {problem}"
            self.ledger.put(Warned(code=COUNT_FAILED, message=message, figures={"model": model.name}))

    async def send(self, emit: Emit, keep: Callable[[Answered], None] = lambda _: None) -> Answered:
        """Sends until a model replies. Raises the last `ModelError`.

        `keep` puts the reply on record, while the request is still under way for a tracing. Cancelled, the connection is closed and
        nothing of the reply is kept.
        """
        last: ModelError | None = None
        order = self._order()
        for model in order:
            if not self.fits(model):
                budget = self.budget(model)
                message = (
                    f"the request is estimated at {self.occupancy(model)}, above the ceiling of {self.limit(model):,} "
                    f"for {model.name} (a window of {budget.window:,}, {budget.origin})"
                )
                if last is not None:
                    self._switch(self.model, model, message, skipped=True)
                last = last or OverBudget(message, model=model.name)
                continue
            told = isinstance(last, OverBudget) and order[0] is not self.model
            if last is not None and not told:
                self._switch(self.model, model, f"{last.kind}: {last.message}", skipped=False)
            self._rebuilt(model)
            try:
                return await self._try(model, emit, keep)
            except ContextOverflow as e:
                self._learn(model, e)
                raise
            except ModelError as e:
                last = e
                if not _may_fall_back(e):
                    raise
                if not isinstance(e, OverBudget):
                    self.resting[model.name] = self.clock() + REST
        assert last is not None
        raise last

    @property
    def active(self) -> Model:
        """The model that is asked next: the first one that does not rest."""
        return self._order()[0]

    def _order(self) -> list[Model]:
        """The models in the order in which they are asked: one that has just failed for good comes last for a while."""
        now = self.clock()
        return sorted(self.models, key=lambda model: self.resting.get(model.name, 0.0) > now)

    async def compact(self, model: Model, upto: int, focus: str = "") -> Tried[Compacted]:
        """Has the provider of a model compact the first `upto` items of the view, and look at `focus` above all where it
        can be told. No fallback is asked: the answer is bound to its model.

        Raises the last `ModelError`, with its attempts, and `OverBudget` where the items are too many once the memory
        among them is rejected; what a refusal says of the window is not learned. Cancelled, the connection is closed
        and nothing is kept.
        """
        if not isinstance(model, CompactsNatively):
            raise TypeError(f"{model.name} does not compact by itself")
        self._rebuilt(model)

        def head() -> Request:
            wire = Wire(model.encoder)
            wire.extend(self.history.view[:upto])
            return replace(self._made(model, self.history.view[:upto], wire.pieces()), focus=focus)

        tokens = self.occupancy_of_head(model, upto).tokens
        with tracing.doing(self._work(model, "compact", self.history.view[:upto], tokens)):
            tried = await self._until(model, head, model.compact, lambda: self.occupancy_of_head(model, upto), tokens)
            tracing.told(Replied(usage=checked(tried.answer.usage, model.capabilities.window)))
            return tried

    async def _try(self, model: Model, emit: Emit, keep: Callable[[Answered], None]) -> Answered:
        occupancy = self.occupancy(model)

        def anew() -> Occupancy:
            nonlocal occupancy
            occupancy = self.occupancy(model)
            return occupancy

        def ask(request: Request) -> Awaitable[Reply]:
            return model.send(request, emit)

        with tracing.doing(self._work(model, "chat", self.history.view, occupancy.tokens)):
            tried = await self._until(model, lambda: self._request(model), ask, anew, occupancy.tokens)
            answered = Answered(
                tried.answer, model, tried.attempts, tried.seconds, occupancy, self.budget(model).buffer
            )  # fmt: skip
            tracing.told(Replied(model=self.ledger.gate.id(tried.answer.model) or ""))
            keep(answered)
            return answered

    def _work(self, model: Model, purpose: Literal["chat", "compact"], items: Sequence[Item], tokens: int) -> ModelWork:
        return ModelWork(model, purpose, self.system, self.tools, items, self.budget(model).output, tokens)

    async def _until(
        self,
        model: Model,
        make: Callable[[], Request],
        ask: Callable[[Request], Awaitable[T]],
        size: Callable[[], Occupancy],
        tokens: int,
    ) -> Tried[T]:
        """Asks until there is an answer or no more patience. Raises the last `ModelError`, with its attempts.

        A request that is made anew, in another form, is sent only where its `size` is not above the ceiling. `tokens` is
        its size as it is now.
        """
        try:
            return await self._asked(model, make, ask, size, tokens)
        finally:
            self._refused(model)

    def _refused(self, model: Model) -> None:
        """Puts on record what the server is known not to take, where that is new."""
        if isinstance(model, RemembersRefusals):
            found = model.refusals
            if found != self.history.refusals.get(model.name, Refusals(server=found.server)):
                self.ledger.put(ProviderRefused(model=model.name, refusals=found))

    async def _asked(
        self,
        model: Model,
        make: Callable[[], Request],
        ask: Callable[[Request], Awaitable[T]],
        size: Callable[[], Occupancy],
        tokens: int,
    ) -> Tried[T]:
        began, doubted = self.clock(), ""
        started = began
        request = make()
        attempt = empty = repairs = 0
        while True:
            turn = await self._turn(model, tokens, request.max_output_tokens)
            if not attempt or turn.moved:
                # Waiting while others get their answers is no sign that this one will get none.
                started += turn.waited
            attempt += 1
            try:
                answer = await ask(replace(request, heard=turn.heard))
                turn.answered(answer.usage.output_tokens)
                return Tried(answer, attempt, self.clock() - began)
            except ModelError as e:
                e.model, e.attempts = e.model or model.name, attempt
                waited = self.clock() - started
                wait = self.retry.wait(e, attempt, waited)
                turn.failed(e, self.retry.pause(e, attempt) if wait is None else wait)
                if e.code == EMPTY_STREAM and not e.retryable and empty < EMPTY_STREAMS:
                    empty += 1
                    wait = self.retry.wait(StreamBroken(e.message), attempt, waited)
                elif wait is None and repairs < REPAIRS and (how := _repaired(model, e)):
                    repairs += 1
                    e.message = f"{e.message} ({how})"
                    self._followers.pop(model.name, None)
                    doubted = self._rejected(model, e) or doubted
                    if not self.fits(model, anew := size()):
                        raise self._grown(model, e, anew) from e
                    request = make()
                    wait = 0.0
                if wait is None:
                    e.gave_up = self.retry.gave_up(attempt, waited) if e.retryable else ""
                    if doubted and isinstance(model, JudgesMemories):
                        # In words it was refused as well, so the memory was not the reason.
                        model.believe(doubted)
                        self._followers.pop(model.name, None)
                    raise
                self.ledger.put(
                    Retry(error=e.kind, message=clipped(e.message, 500), attempt=attempt, max_attempts=self.retry.max_attempts,
                          wait=round(wait, 3), model=model.name, status=e.status)
                )  # fmt: skip
                await self.ledger.sync()
                await anyio.sleep(wait)
            finally:
                turn.end()

    async def _turn(self, model: Model, tokens: int, output: int) -> Turn:
        """The request's turn among all that ask the model's account; a wait for it that takes long is put on record."""
        account: Account | None = getattr(model, "account", None)

        def tell(waits: Waits) -> None:
            wait = round(waits.seconds, 3)
            self.ledger.put(Paced(model=model.name, reason=waits.reason, wait=wait, waiting=waits.waiting))

        return await paces().turn(account, tokens, output, tell)

    def _grown(self, model: Model, error: ModelError, size: Occupancy) -> OverBudget:
        limit = f"above the ceiling of {self.limit(model):,} for {model.name}"
        grown = OverBudget(f"{error.message}, and is then estimated at {size}, {limit}", model=model.name)
        grown.attempts, grown.grew = error.attempts, True
        return grown

    def _request(self, model: Model) -> Request:
        follower = self._followers.setdefault(model.name, Follower(Wire(model.encoder)))
        return self._made(model, self.history.view, follower.pieces(self.history))

    def _made(self, model: Model, items: Sequence[Item], pieces: tuple[bytes, ...]) -> Request:
        return Request(
            system=self.system,
            tools=self.tools,
            items=items,
            encoded=pieces,
            max_output_tokens=self.budget(model).output,
            cache_key=self.cache_key,
        )

    def _rebuilt(self, model: Model) -> None:
        """Says, once in a segment for each model, that a memory is read in words since another model made it."""
        memory = memory_of(self.history.view)
        if memory is None or not reads_in_words(model, memory) or model.name in self.history.rebuilt:
            return
        self._in_words(model, memory, f"{model.name} can't read it")

    def _rejected(self, model: Model, error: ModelError) -> str:
        """Says that the provider of a model rejected the memory of its own request, and names that memory's hash; empty
        where it was not about the memory."""
        memory = memory_of(self.history.view)
        if memory is None or not error.memory or not reads_in_words(model, memory):
            return ""
        self._in_words(model, memory, f"its provider rejected a request with it: {clipped(error.message, KEPT_WORDS)}")
        return error.memory

    def _in_words(self, model: Model, memory: OpaqueItem, why: str) -> None:
        family = model.capabilities.family
        before, after = estimate_item(memory, family), estimate_item(read_by_others(memory), family)
        message = (
            f"{maker_of(memory)} made the memory that this segment begins with, and {why}. "
            f"{model.name} gets its text instead ({before:,} tokens before, {after:,} now)"
        )
        figures = {"from": maker_of(memory), "to": model.name, "before": before, "after": after}
        self.ledger.put(Warned(code=MEMORY_REBUILT, message=message, figures=figures))

    def _switch(self, old: Model, new: Model, reason: str, *, skipped: bool) -> None:
        self.ledger.put(
            ModelSwitched(from_model=old.name, to_model=new.name, reason=clipped(reason, 500), skipped=skipped)
        )

    def _learn(self, model: Model, error: ContextOverflow) -> None:
        taught, said = self._taught(model, error), clipped(error.message, KEPT_WORDS)
        if taught is None:
            refused = SizeRefused(model=model.name, limit=error.limit, requested=error.requested, message=said)
            self.ledger.put(refused)
            return
        (window, source), counted = taught, self._input(model, error)
        self.ledger.put(
            WindowLearned(
                model=model.name, window=window, source=source, requested=error.requested,
                declared=model.capabilities.window, message=said, counted=counted,
                parts=self.parts(model) if counted is not None else (0, 0),
                whole=self.whole(model) if counted is not None else 0,
            )
        )  # fmt: skip

    def _taught(self, model: Model, error: ContextOverflow) -> tuple[int, Literal["stated", "guessed"]] | None:
        """The window that a refusal teaches. None where it is about a rate tier, or names a limit that can't be the window:
        the model has accepted more, or every request holds more.

        What it has accepted rests on reports. A refusal that also names a size which is that of this request, above the limit,
        is the stronger evidence: then the reports count otherwise.
        """
        occupancy, window = self.occupancy(model), self.budget(model).window
        known = self.history.windows.get(model.name)
        accepted = 0 if known is None else known.accepted
        named = error.prompt or error.requested
        if named is not None and error.limit is not None and named > error.limit:
            accepted = 0 if refusal_holds(named, self.whole(model), self.history.unsure) else accepted
        if isinstance(error, TooLargeForTier):
            return None
        if error.limit is not None and error.limit < max(accepted, occupancy.overhead, LEAST_WINDOW):
            return None
        # What the provider states outranks an earlier guess, also where it is larger.
        if error.limit is not None and error.limit <= model.capabilities.window:
            return error.limit, "stated"
        shares = int(min(occupancy.tokens, window) * GUESSED_SHARE), int(window * LEAST_GUESS)
        return min(max(*shares, accepted, 2 * occupancy.overhead, LEAST_GUESSED), window), "guessed"

    def _input(self, model: Model, error: ContextOverflow) -> int | None:
        """The input's tokens as a refusal names them, None where it does not contradict the estimate.

        One number for input and output bounds the input on both sides: what the estimate contradicts is what counts.
        """
        if error.prompt is not None or error.requested is None:
            return error.prompt
        estimate, least = self.occupancy(model).tokens, max(error.requested - self.budget(model).output, 1)
        return None if least <= estimate <= error.requested else min(max(estimate, least), error.requested)


def _repaired(model: Model, error: ModelError) -> str | None:
    """What the model does otherwise from now on, None where it knows no other way."""
    if not isinstance(error, InvalidHistory) and not error.memory and not error.pictures:
        return None
    repair: Callable[[ModelError], str | None] | None = getattr(model, "repair", None)
    return None if repair is None else repair(error)


def _may_fall_back(error: ModelError) -> bool:
    return error.retryable or error.kind in {"quota", "auth", "model_not_found", "over_budget"}
