"""The loop: admit, ask, send, record, call. One request is one `step`."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from worker import interceptor as ic
from worker.accuracy import JUDGED, MISSES
from worker.booking import Booking, Sent, book
from worker.calling import Caller
from worker.codes import ESTIMATE_BARRED, USAGE_DOUBTED
from worker.errors import ContextOverflow, ModelError, Refused
from worker.history import History
from worker.ids import uuid7
from worker.items import (
    AssistantItem,
    ContextItem,
    OpaqueItem,
    ReasoningItem,
    ReplyItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)
from worker.ledger import Ledger
from worker.models.base import Delta, Reply
from worker.records import Admitted, ContextAdded, Edited, Input, ReplyRecord, Warned
from worker.results import Failed, Finished, Outcome, Yielded
from worker.sending import Answered, OverBudget, Sender
from worker.text import clipped

EMPTY_REPLIES = 1
"""How often an empty reply is asked again."""

PAUSES = 10
"""How often in a run a provider may pause its own turn and be asked to go on."""

logger = logging.getLogger("worker")


class Observer(Protocol):
    """Watches a worker for display. Nothing here is state; what it raises is logged and the run goes on (case B164)."""

    def request_started(self, ctx: ic.RequestContext) -> None: ...

    def delta(self, delta: Delta) -> None: ...


class Silent:
    """An observer that does nothing."""

    def request_started(self, ctx: ic.RequestContext) -> None:
        """Nothing."""

    def delta(self, delta: Delta) -> None:
        """Nothing."""


async def nothing() -> None:
    """No other source of input."""


LONGEST_WORD = 200
"""Characters of a provider's own word for why it stopped."""

Heed: TypeAlias = Callable[[ic.Interceptor, Yielded], bool]
"""Whether a yield of an interceptor is followed; where it is not, the interceptor has said nothing."""


def always(interceptor: ic.Interceptor, said: Yielded) -> bool:
    """Every yield is followed."""
    return True


@dataclass(slots=True)
class Worker:
    """One conversation with a model, until it ends its turn or an interceptor says otherwise.

    `intake` is asked before each request, and before the run ends: it puts what has arrived from outside into the queue
    (through the ledger). `heed` is asked of each yield.
    """

    ledger: Ledger
    sender: Sender
    caller: Caller
    interceptors: Sequence[ic.Interceptor] = ()
    intake: Callable[[], Awaitable[None]] = nothing
    observer: Observer = field(default_factory=Silent)
    heed: Heed = always
    _first: bool = True
    _observer_failed: bool = False

    @property
    def history(self) -> History:
        """What this worker has seen and done."""
        return self.ledger.history

    async def ask(self, text: str) -> Outcome:
        """Runs with a new user message; what was put on record is durable when it returns. For a worker without a pod.

        Cancelled, what is on record stays: the message too, so that `run` goes on from there.
        """
        self.history.begin_run()
        for interceptor in self.interceptors:
            interceptor.begin_run()
        self.ledger.put(Input(item=UserItem(text=text)))
        outcome = await self.run()
        await self.ledger.sync()
        return outcome

    async def run(self) -> Outcome:
        """Steps until an outcome. Cancelled, what is on record stays; an open call stays open."""
        while True:
            outcome = await self.step()
            if outcome is not None:
                return outcome

    async def step(self) -> Outcome | None:
        """One request and its calls. None means: go on."""
        if self.history.unresolved:
            return self.ledger.fault or await self.caller.run()
        await self.admit()
        await self.sender.measure()
        ctx, decided = await self.consult()
        if decided is not None:
            return decided
        self._show(self.observer.request_started, ctx)
        try:
            answered = await self.sender.send(lambda delta: self._show(self.observer.delta, delta), self.record)
        except ModelError as error:
            # What made it too large came up while it was sent: whoever can make it smaller is asked again.
            return None if isinstance(error, OverBudget) and error.grew else await self.failed(error)
        ended = await self.told(ctx, answered)
        if ended is not None:
            return ended
        if answered.reply.stop == "refusal":
            self.caller.close("the model refused to go on")
        if self.history.unresolved:
            return await self.caller.run()
        return await self.unless_asked(self.ending(answered.reply, answered.model.name))

    async def admit(self) -> None:
        """Queued input takes its place in the view, as much of it as goes with this request."""
        await self.intake()
        if going := self.sender.going():
            self.ledger.put(Admitted(ids=tuple(item.id for item in going)))

    async def consult(self) -> tuple[ic.RequestContext, Outcome | None]:
        """Asks each interceptor, on the view as it then is.

        After an `Append` the chain starts again, once per interceptor.
        """
        appended: set[int] = set()
        at = 0
        ctx = self.context()
        while at < len(self.interceptors) and self.ledger.fault is None:
            interceptor = self.interceptors[at]
            at += 1
            if not ic.overrides(interceptor, "before_request"):
                continue
            try:
                decision = await interceptor.before_request(ctx)
                edited = decision.items(self.history) if isinstance(decision, ic.Edit) else ()
            except Exception as e:
                return ctx, ic.failure(interceptor, e)
            match decision:
                case ic.Continue():
                    continue
                case ic.Append(items=items):
                    if at in appended:
                        continue
                    appended.add(at)
                    self.ledger.put(ContextAdded(items=items, by=interceptor.name))
                    at = 0
                case ic.Edit(record=record, reason=reason):
                    self.ledger.put(record or Edited(items=edited, by=interceptor.name, reason=reason))
                case ic.Note(record=record):
                    self.ledger.put(record)
                    continue
                case ic.Yield(reason=reason, detail=detail):
                    said = Yielded(reason, detail)
                    if self.heed(interceptor, said):
                        return ctx, said
                    continue
                case ic.Stop(outcome=outcome):
                    return ctx, outcome
                case _:
                    return ctx, ic.failure(interceptor, TypeError(f"before_request returned {decision!r}"))
            ctx = self.context()
        return ctx, self.ledger.fault

    def context(self) -> ic.RequestContext:
        """What interceptors see of the next request."""
        model = self.sender.model
        return ic.RequestContext(
            history=self.history,
            occupancy=self.sender.occupancy(),
            budget=self.sender.budget(model),
            model=model.name,
            capabilities=model.capabilities,
            tag=self.caller.tag,
            first=self._first,
            now=self.sender.clock(),
            wall=time.time(),
            deps=self.caller.deps,
        )

    def record(self, answered: Answered) -> None:
        """Puts a complete reply on record, before any tool runs. Call ids are made unique in the session's view; ids and words that
        are none that a provider would choose are left out."""
        self._first = False
        reply, model, estimate = answered.reply, answered.model, answered.occupancy.tokens
        budget, price = self.sender.budget(model), model.capabilities.price
        sent = Sent(
            model.name, model.capabilities.family, estimate, self.sender.whole(model), budget.output,
            max(budget.window, model.capabilities.window),
        )  # fmt: skip
        booking = book(reply.usage, reply.items, reply.transformations, self.history, sent)
        recorded = self.ledger.put(
            ReplyRecord(
                items=self._named(reply.items),
                usage=booking.usage,
                doubted=booking.doubted,
                doubt=booking.why,
                booked=booking.booked,
                whole=booking.whole,
                stop=reply.stop,
                native_stop=clipped(reply.native_stop, LONGEST_WORD),
                model=model.name,
                provider_id=self.ledger.gate.id(reply.provider_id),
                estimate=estimate,
                provenance=answered.occupancy.provenance,
                buffer=answered.buffer,
                cost_usd=None if price is None else round(price.cost(booking.booked or booking.usage), 8),
                attempts=answered.attempts,
                seconds=round(answered.seconds, 3),
                transformations=reply.transformations,
            )
        )
        # Interceptors are told what counts, as it stands on record.
        usage = booking.booked or booking.usage
        answered.reply = replace(reply, items=recorded.items, usage=usage, native_stop=recorded.native_stop)
        self._say_doubted(model.name, booking, estimate)
        self._say_barred(model.name)

    def _say_doubted(self, model: str, booking: Booking, estimate: int) -> None:
        """Puts on record, once in a segment for each model and kind, that a report is not believed."""
        if booking.why is None or (model, booking.kind) in self.history.doubted:
            return
        message = (
            f"{model} reported a usage that is not believed: {booking.why}. It is kept on record and decides nothing; the "
            "estimate stands, and the request is booked at the larger of the two"
        )
        figures = {"model": model, "kind": booking.kind, "estimate": estimate}
        self.ledger.put(Warned(code=USAGE_DOUBTED, message=message, figures=figures))

    def _say_barred(self, model: str) -> None:
        """Puts on record, once, that a model's estimates were too low too often."""
        accuracy = self.history.calibration.accuracy(model)
        if not accuracy.barred or accuracy.told:
            return
        message = (
            f"{MISSES} of the last {JUDGED} requests to {model} were larger than estimated, by more than the buffer: until that "
            "is put right (by a correct estimate, a count or a refusal that names its size), automatic compaction acts only on "
            "what the provider has reported"
        )
        figures = {
            "model": model,
            "lowest": accuracy.every.lowest,
            "calibration": self.history.calibration.factor(model),
        }
        self.ledger.put(Warned(code=ESTIMATE_BARRED, message=message, figures=figures))

    def _named(self, items: Sequence[ReplyItem]) -> tuple[ReplyItem, ...]:
        label, known, named, gate = uuid7(), set[str](), list[ReplyItem](), self.ledger.gate
        for item in items:
            changes: dict[str, str | None] = {"reply": label}
            if isinstance(item, ToolCallItem):
                chosen = gate.id(item.call_id)
                if chosen is None or chosen in known or chosen in self.history.call_ids:
                    chosen = f"call_{uuid7().replace('-', '')}"
                changes["call_id"] = chosen
                known.add(chosen)
            if isinstance(item, ToolCallItem | AssistantItem) and item.native_id is not None:
                changes["native_id"] = gate.id(item.native_id)
            named.append(item.model_copy(update=changes))
        return tuple(named)

    async def told(self, ctx: ic.RequestContext, answered: Answered) -> Outcome | None:
        """Tells the interceptors of a reply, which is on record: one that raises ends the run before the calls."""
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "after_request"):
                continue
            try:
                await interceptor.after_request(ctx, answered.reply)
            except Exception as e:
                return ic.failure(interceptor, e)
        return self.ledger.fault

    async def failed(self, error: ModelError) -> Outcome:
        """A request failed for good: an interceptor may give it a meaning, else the run fails."""
        ctx = self.context()
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "after_error"):
                continue
            try:
                decision = await interceptor.after_error(ctx, error)
            except Exception as e:
                return ic.failure(interceptor, e, f"{error.kind}: {error.message}")
            match decision:
                case ic.Yield(reason=reason, detail=detail):
                    said = Yielded(reason, detail)
                    if self.heed(interceptor, said):
                        return said
                case ic.Stop(outcome=outcome):
                    return outcome
                case _:
                    continue
        details = {"status": error.status, "code": error.code, "request_id": error.request_id, "model": error.model}
        details = {key: value for key, value in details.items() if value}
        if isinstance(error, ContextOverflow):
            details |= {"limit": error.limit, "requested": error.requested}
        text = error.partial if isinstance(error, Refused) else ""
        message = f"{error.message} ({error.gave_up})" if error.gave_up else error.message
        return Failed(error.kind, message, text=text, details={**details, "retryable": error.retryable})

    def ending(self, reply: Reply | ReplyRecord, name: str) -> Outcome | None:
        """What a reply without calls means, which `name` gave: just now, or before a restart."""
        counters = self.history.counters
        text = "".join(item.text for item in reply.items if isinstance(item, AssistantItem))
        if reply.stop == "pause":
            if counters.pauses <= PAUSES:
                return None
            return Failed("pauses", f"{name} paused its turn {counters.pauses} times; {PAUSES} are allowed", text=text)
        if reply.stop == "refusal":
            return Failed("refused", f"{name} refused to answer ({reply.native_stop})", text=text)
        if reply.stop == "length":
            return Failed("output_limit", "the reply was cut off at the output limit", text=text)
        if text.strip():
            return Finished(text)
        if reply.usage.output_tokens > 0 and self._after_tool():
            return Finished("", empty=True)
        if counters.empty_replies > EMPTY_REPLIES:
            return Failed("empty_replies", f"{name} gave {EMPTY_REPLIES + 1} empty replies in a row")
        return None

    async def unless_asked(self, outcome: Outcome | None) -> Outcome | None:
        """The outcome, unless it is a good end and the user has said more in the meantime: then the run goes on."""
        if not isinstance(outcome, Finished):
            return outcome
        await self.intake()
        return None if self.history.queue else outcome

    def _after_tool(self) -> bool:
        """Whether what the last reply answered was the result of a tool."""
        passed = (OpaqueItem, ReasoningItem, ContextItem)
        return isinstance(
            next((i for i in reversed(self.history.view) if not isinstance(i, passed)), None), ToolResultItem
        )

    def _show(self, tell: Callable[..., None], *what: object) -> None:
        try:
            tell(*what)
        except Exception as error:
            if self._observer_failed:
                logger.debug("the observer of the worker failed again: %r", error)
                return
            self._observer_failed = True
            logger.exception(
                "the observer of the worker failed; it goes on being called, and later failures are logged at debug level"
            )
