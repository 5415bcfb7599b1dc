"""The loop: admit, ask, send, record, call. One request is one `step`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker import interceptor as ic
from worker.calling import Caller
from worker.errors import ContextOverflow, ModelError, Refused
from worker.history import History
from worker.items import AssistantItem, ReplyItem, ToolCallItem, ToolResultItem, UserItem
from worker.ids import uuid7
from worker.ledger import Ledger
from worker.models.base import Delta
from worker.records import Admitted, ContextAdded, Edited, Input, ReplyRecord
from worker.results import Failed, Finished, Outcome, Yielded
from worker.sending import Answered, Sender

EMPTY_REPLIES = 1
"""How often an empty reply is asked again."""

PAUSES = 10
"""How often in a run a provider may pause its own turn and be asked to go on."""


class Observer(Protocol):
    """Watches a worker for display. Nothing here is state, and nothing here may fail the run."""

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


@dataclass(slots=True)
class Worker:
    """One conversation with a model, until it ends its turn or an interceptor says otherwise.

    `intake` is asked before each request: it puts what has arrived from outside into the queue (through the ledger).
    """

    ledger: Ledger
    sender: Sender
    caller: Caller
    interceptors: Sequence[ic.Interceptor] = ()
    intake: Callable[[], Awaitable[None]] = nothing
    observer: Observer = field(default_factory=Silent)
    _first: bool = True

    @property
    def history(self) -> History:
        """What this worker has seen and done."""
        return self.ledger.history

    async def ask(self, text: str) -> Outcome:
        """Runs with a new user message. For a worker without a pod."""
        self.ledger.put(Input(item=UserItem(text=text)))
        return await self.run()

    async def run(self) -> Outcome:
        """Steps until an outcome. Cancelled, what is on record stays; an open call stays open."""
        while True:
            outcome = await self.step()
            if outcome is not None:
                return outcome

    async def step(self) -> Outcome | None:
        """One request and its calls. None means: go on."""
        if self.history.unresolved:
            return await self.caller.run()
        await self.admit()
        ctx, decided = await self.consult()
        if decided is not None:
            return decided
        self.observer.request_started(ctx)
        try:
            answered = await self.sender.send(self.observer.delta)
        except ModelError as error:
            return await self.failed(error)
        self.record(answered)
        await self.told(ctx, answered)
        if self.history.unresolved:
            return await self.caller.run()
        return self.ending(answered)

    async def admit(self) -> None:
        """Queued input takes its place in the view."""
        await self.intake()
        if self.history.queue:
            self.ledger.put(Admitted(ids=tuple(self.history.queue)))

    async def consult(self) -> tuple[ic.RequestContext, Outcome | None]:
        """Asks each interceptor, on the view as it then is. After an `Append` the chain starts again, once per interceptor."""
        appended: set[int] = set()
        at = 0
        ctx = self.context()
        while at < len(self.interceptors):
            interceptor = self.interceptors[at]
            at += 1
            if not ic.overrides(interceptor, "before_request"):
                continue
            try:
                decision = await interceptor.before_request(ctx)
            except Exception as e:
                return ctx, Failed("interceptor", f"interceptor {interceptor.name}: {type(e).__name__}: {e}")
            match decision:
                case ic.Continue():
                    continue
                case ic.Append(items=items):
                    if at in appended:
                        continue
                    appended.add(at)
                    self.ledger.put(ContextAdded(items=items, by=interceptor.name))
                    at = 0
                case ic.Edit(replacements=replacements, record=record, reason=reason):
                    self.ledger.put(
                        record or Edited(items=tuple(replacements.values()), by=interceptor.name, reason=reason)
                    )
                case ic.Note(record=record):
                    self.ledger.put(record)
                    continue
                case ic.Yield(reason=reason, detail=detail):
                    return ctx, Yielded(reason, detail)
                case ic.Stop(outcome=outcome):
                    return ctx, outcome
            ctx = self.context()
        return ctx, None

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
        )

    def record(self, answered: Answered) -> None:
        """Puts a complete reply on record, before any tool runs. Call ids are made unique in the session's view."""
        self._first = False
        reply, price = answered.reply, answered.model.capabilities.price
        self.ledger.put(
            ReplyRecord(
                items=self._named(reply.items),
                usage=reply.usage,
                stop=reply.stop,
                native_stop=reply.native_stop,
                model=answered.model.name,
                provider_id=reply.provider_id,
                estimate=answered.occupancy.tokens,
                provenance=answered.occupancy.provenance,
                cost_usd=None if price is None else round(price.cost(reply.usage), 8),
                attempts=answered.attempts,
                seconds=round(answered.seconds, 3),
                transformations=reply.transformations,
            )
        )

    def _named(self, items: Sequence[ReplyItem]) -> tuple[ReplyItem, ...]:
        label, known, named = uuid7(), set[str](), list[ReplyItem]()
        for item in items:
            changes: dict[str, str] = {"reply": label}
            if isinstance(item, ToolCallItem):
                if not item.call_id or item.call_id in known or item.call_id in self.history.call_ids:
                    changes["call_id"] = f"call_{uuid7().replace('-', '')}"
                known.add(changes.get("call_id", item.call_id))
            named.append(item.model_copy(update=changes))
        return tuple(named)

    async def told(self, ctx: ic.RequestContext, answered: Answered) -> None:
        """Tells the interceptors of a reply."""
        for interceptor in self.interceptors:
            if ic.overrides(interceptor, "after_request"):
                await interceptor.after_request(ctx, answered.reply)

    async def failed(self, error: ModelError) -> Outcome:
        """A request failed for good: an interceptor may give it a meaning, else the run fails."""
        ctx = self.context()
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "after_error"):
                continue
            match await interceptor.after_error(ctx, error):
                case ic.Yield(reason=reason, detail=detail):
                    return Yielded(reason, detail)
                case ic.Stop(outcome=outcome):
                    return outcome
                case _:
                    continue
        details = {"status": error.status, "code": error.code, "request_id": error.request_id, "model": error.model}
        details = {key: value for key, value in details.items() if value}
        if isinstance(error, ContextOverflow):
            details |= {"limit": error.limit, "requested": error.requested}
        text = error.partial if isinstance(error, Refused) else ""
        return Failed(error.kind, error.message, text=text, details={**details, "retryable": error.retryable})

    def ending(self, answered: Answered) -> Outcome | None:
        """What a reply without calls means."""
        reply = answered.reply
        text = "".join(item.text for item in reply.items if isinstance(item, AssistantItem))
        if reply.stop == "pause" and self.history.counters.pauses <= PAUSES:
            return None
        if reply.stop == "refusal":
            return Failed("refused", f"{answered.model.name} refused to answer ({reply.native_stop})", text=text)
        if reply.stop == "length":
            return Failed("output_limit", "the reply was cut off at the output limit", text=text)
        if text.strip():
            return Finished(text)
        if self._legal_empty(answered):
            return Finished("", empty=True)
        if self.history.counters.empty_replies > EMPTY_REPLIES:
            return Failed("empty_replies", f"{answered.model.name} gave {EMPTY_REPLIES + 1} empty replies")
        return None

    def _legal_empty(self, answered: Answered) -> bool:
        before = len(self.history.view) - len(answered.reply.items)
        after_tool = before > 0 and isinstance(self.history.view[before - 1], ToolResultItem)
        return after_tool and answered.reply.usage.output_tokens > 0
