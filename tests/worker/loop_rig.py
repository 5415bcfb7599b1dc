"""What the tests of a worker share: a journal that shows what is durable, tools that count, simple interceptors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel

from worker.history import History
from worker.interceptor import CONTINUE, Decision, Interceptor, RequestContext, Yield
from worker.items import Item, ToolResultItem, UserItem
from worker.loop import Worker
from worker.models.base import Capabilities, Model
from worker.records import Input, Record, ReplyRecord
from worker.retry import RetryPolicy
from worker.simple import make_worker
from worker.tools import Tool, tool

TAG = "0123456789ab"
NO_WAIT = RetryPolicy(chance=lambda: 0.0)


class StoreFault(Exception):
    """The store's own typed error."""


@dataclass
class Journal:
    """Keeps records and knows how many are durable. `fail_sync` is the number of the sync (from 1) that fails."""

    records: list[Record] = field(default_factory=list)
    durable: int = 0
    syncs: int = 0
    fail_sync: int = 0
    fail_write: type[Record] | None = None
    trace: list[str] = field(default_factory=list)

    def write(self, record: Record) -> None:
        if self.fail_write is not None and isinstance(record, self.fail_write):
            raise StoreFault(record.kind)
        self.records.append(record)

    def syncing(self) -> None:
        """No other thread can make it durable."""

    def begin_sync(self) -> None:
        self.trace.append("begin_sync")

    async def sync(self) -> None:
        self.syncs += 1
        await anyio.lowlevel.checkpoint()
        if self.syncs == self.fail_sync:
            raise StoreFault("no space left")
        self.durable = len(self.records)
        self.trace.append("sync")

    @property
    def unsynced(self) -> list[Record]:
        return self.records[self.durable :]

    @property
    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


def worker_of(
    model: Model | Sequence[Model],
    tools: Sequence[Tool | Callable[..., Any]] = (),
    interceptors: Sequence[Interceptor] = (),
    journal: Any = None,
    **more: Any,
) -> Worker:
    """A worker with a recording journal, a known tag, and retries that do not wait."""
    first, *fallback = model if isinstance(model, Sequence) else (model,)
    options = {"system": "You are a test.", "retry": NO_WAIT, "tag": TAG, **more}
    return make_worker(
        first, tools, interceptors=interceptors, journal=journal or Journal(), fallback=fallback, **options
    )


def journal_of(worker: Worker) -> Journal:
    journal = worker.ledger.journal
    assert isinstance(journal, Journal)
    return journal


def put_user(worker: Worker, text: str, **more: Any) -> UserItem:
    item = UserItem(text=text, **more)
    worker.ledger.put(Input(item=item))
    return item


def results(source: Worker | History | Sequence[Item]) -> list[ToolResultItem]:
    """The tool results of a view."""
    view = source.history.view if isinstance(source, Worker) else source.view if isinstance(source, History) else source
    return [item for item in view if isinstance(item, ToolResultItem)]


def replies(worker: Worker) -> list[ReplyRecord]:
    return journal_of(worker).of(ReplyRecord)


def window(tokens: int, *, output: int = 1_000, **more: Any) -> Capabilities:
    """A model's capabilities with a window of this many tokens."""
    return Capabilities(
        window=tokens, window_source="table", max_output=output, max_output_source="table", family="o200k", **more
    )


@dataclass
class Counter:
    """A tool that counts its runs."""

    name: str = "act"
    runs: int = 0
    seen: list[Any] = field(default_factory=list)
    body: Callable[..., Awaitable[Any] | Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def tool(self) -> Tool:
        async def act(n: int = 0) -> Any:
            """Acts.

            Args:
                n: Which.
            """
            self.runs += 1
            self.seen.append(n)
            made = self.body(n) if self.body else f"did {n}"
            return await made if isinstance(made, Awaitable) else made

        return tool(name=self.name, **{"effect": "write", **self.policy})(act)


class Before(Interceptor):
    """Asks a function before each request."""

    def __init__(self, decide: Callable[[RequestContext], Decision | None], name: str = "Before") -> None:
        self.name = name
        self.decide = decide
        self.asked = 0

    async def before_request(self, ctx: RequestContext) -> Decision:
        self.asked += 1
        return self.decide(ctx) or CONTINUE


class YieldAt(Interceptor):
    """Yields where the next request would be at least this large."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    async def before_request(self, ctx: RequestContext) -> Decision:
        tokens = ctx.occupancy.tokens
        return Yield("compact", {"tokens": tokens}) if tokens >= self.threshold else CONTINUE
