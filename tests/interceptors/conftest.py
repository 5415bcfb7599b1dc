"""A worker's state without a model, and a worker with a scripted one: what tests of interceptors stand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from worker import interceptor as ic
from worker.budget import Budget, budget_of
from worker.calling import Caller
from worker.history import Counters, History
from worker.interceptor import Interceptor, RequestContext
from worker.items import AssistantItem, FileRange, ToolCallItem, ToolResultItem, UserItem, make_call
from worker.ledger import Ledger
from worker.loop import Worker
from worker.models.base import Capabilities, Usage
from worker.occupancy import Occupancy
from worker.records import Admitted, ContextAdded, Edited, Input, MemoryJournal, Record, ReplyRecord, ToolResult
from worker.sending import Sender
from worker.tools import Tool

MODEL = "test:model"


@dataclass
class Rig:
    """A history with its journal, and the context that interceptors would see of the next request."""

    interceptors: Sequence[Interceptor] = ()
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(window=200_000, window_source="table", max_output=8_192)
    )
    wall: float = 1_000_000.0
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    history: History = field(default_factory=History)
    first: bool = True

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.journal, self.history, self.interceptors)

    @property
    def budget(self) -> Budget:
        return budget_of(self.capabilities)

    @property
    def records(self) -> list[Record]:
        return self.journal.records

    def new_segment(self) -> None:
        """Another segment: a new history, the run's counters go on, the same interceptors."""
        counters = self.history.counters
        self.history = History()
        self.history.begin_run(counters)
        self.ledger = Ledger(self.journal, self.history, self.interceptors)
        self.first = True

    def user(self, text: str = "go on") -> UserItem:
        item = UserItem(text=text)
        self.ledger.put(Input(item=item))
        self.ledger.put(Admitted(ids=(item.id,)))
        return item

    def reply(self, *items: Any, usage: Usage | None = None, cost: float | None = 0.0) -> None:
        self.first = False
        self.ledger.put(
            ReplyRecord(
                items=tuple(i.model_copy(update={"reply": items[0].id}) for i in items),
                usage=usage or Usage(),
                model=MODEL,
                cost_usd=cost,
            )
        )

    def result(self, call: ToolCallItem, content: str | None = None, **more: Any) -> ToolResultItem:
        values = {"summary": f"{call.name} done", "status": "ok", **more}
        item = ToolResultItem(call_id=call.call_id, name=call.name, content=content, **values)
        self.ledger.put(ToolResult(item=item))
        return item

    def turn(self, name: str, content: str | None, arguments: str = "{}", **more: Any) -> ToolResultItem:
        """One reply with one call, and its result."""
        call = make_call(f"call_{len(self.history.view)}_{id(self) % 997}", name, arguments)
        self.reply(call)
        return self.result(call, content, **more)

    def read(self, path: str, content: str, *, first: int = 1, last: int = 100, sha: str = "a") -> ToolResultItem:
        return self.turn("read_file", content, reads=FileRange(path=path, first=first, last=last, sha256=sha))

    def say(self, text: str = "done") -> None:
        self.reply(AssistantItem(text=text))

    def count(self, **counters: Any) -> None:
        self.history.counters = Counters(**{**self.history.counters.model_dump(), **counters})

    def ctx(self, *, tokens: int | None = None, provenance: Any = "usage", model: str = MODEL) -> RequestContext:
        occupancy = self.history.occupancy(model, 0)
        if tokens is not None:
            occupancy = Occupancy(tokens=tokens, provenance=provenance, overhead=0)
        return RequestContext(
            history=self.history,
            occupancy=occupancy,
            budget=self.budget,
            model=model,
            capabilities=self.capabilities,
            tag="tag123",
            first=self.first,
            now=0.0,
            wall=self.wall,
        )

    async def ask(self, interceptor: Interceptor, **context: Any) -> ic.Decision:
        """Asks before a request, and puts on record what the loop would."""
        ctx = self.ctx(**context)
        decision = await interceptor.before_request(ctx)
        match decision:
            case ic.Edit(replacements=replacements, record=record):
                self.ledger.put(record or Edited(items=tuple(replacements.values())))
            case ic.Append(items=items):
                self.ledger.put(ContextAdded(items=items, by=interceptor.name))
            case ic.Note(record=record):
                self.ledger.put(record)
            case _:
                pass
        return decision


def worker_of(
    model: Any, interceptors: Sequence[Interceptor], tools: Sequence[Tool] = (), cwd: Path | None = None
) -> Worker:
    """A worker with this model, these interceptors and tools, and a journal in memory."""
    ledger = Ledger(MemoryJournal(), History(family=model.capabilities.family), interceptors)
    caller = Caller(ledger, {t.name: t for t in tools}, interceptors, cwd or Path.cwd(), "tag123")
    sender = Sender([model], ledger, "You are a test.", tuple(t.spec for t in tools))
    return Worker(ledger, sender, caller, interceptors)


@pytest.fixture
def rig() -> type[Rig]:
    return Rig


@pytest.fixture
def make_worker() -> Any:
    return worker_of
