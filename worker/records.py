"""What a worker puts on record, in the order in which it happened.

A record is durable before what follows from it: a reply before its tools run, a started call before its tool does anything. The
history is a pure fold of these records, so a restart gives the same view, byte for byte.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from worker.budget import DEFAULT_BUFFER
from worker.items import ContextItem, Item, OrderItem, ReplyItem, ToolResultItem, UserItem
from worker.models.base import Refusals, StopReason, Usage
from worker.pace import Reason


class Record(BaseModel):
    """Base of all records; `kind` names the entry in a log, `screened` says that what looks like a secret was looked for when its texts
    were made: the gate then masks known values alone.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    kind: ClassVar[str] = ""
    screened: ClassVar[bool] = False


class Input(Record):
    """A user message has arrived; it is not yet in the view. `inbox` is its idempotency key where it came from another process."""

    kind = "input"
    item: UserItem
    inbox: str | None = None


class Admitted(Record):
    """Queued inputs take their place at the end of the view, in this order."""

    kind = "admitted"
    ids: tuple[str, ...]


class Withdrawn(Record):
    """Inputs are given back to their sender: the run was cancelled before anything of the model was kept."""

    kind = "withdrawn"
    ids: tuple[str, ...]


class ContextAdded(Record):
    """Items that an interceptor or the runtime put at the end of the view. `by` names who."""

    kind = "context_added"
    items: tuple[ContextItem | OrderItem | UserItem, ...]
    by: str = ""


class Edited(Record):
    """A projection: items of the view are shown as these replacements from now on, in this segment."""

    kind = "edited"
    items: tuple[Item, ...]
    by: str = ""
    reason: str = ""


class Pruned(Record):
    """Old tool results lose their content in the view (the log keeps it). Figures are estimated tokens.

    `cold` says that the prefix cache was lost anyway. `requests` is how many were expected from the next one on,
    `expected_usd` what the next one was expected to cost more for it (below 0: less); None without prices.
    """

    kind = "pruned"
    items: tuple[Item, ...]
    renderer: int = 1
    tokens_saved: int = 0
    tokens_before: int = 0
    tail_tokens: int = 0
    min_savings: int = 0
    reason: str = ""
    first_changed: int = 0
    cold: bool = False
    requests: float | None = None
    expected_usd: float | None = None


class ReplyRecord(Record):
    """A complete reply of the model: its items and figures, in one entry, before any tool runs.

    `estimate` is the occupancy that was computed for this request before it was sent, `provenance` how, `buffer` the tokens
    that the budget kept free for its errors. `usage` are the reported figures that are believed. Where that is not all,
    `doubted` is the report as it came, `doubt` says what is wrong with it, and totals and cost are reckoned from `booked`
    (see `worker.booking`). `whole` is the raw estimate of the request, where its report belongs to a row of those that were
    not believed.
    """

    kind = "reply"
    items: tuple[ReplyItem, ...]
    usage: Usage = Usage()
    doubted: Usage | None = None
    doubt: str | None = None
    booked: Usage | None = None
    whole: int | None = None
    stop: StopReason = "end"
    native_stop: str = ""
    model: str = ""
    provider_id: str | None = None
    estimate: int = 0
    provenance: str = "heuristic"
    buffer: int = DEFAULT_BUFFER
    cost_usd: float | None = None
    attempts: int = 1
    seconds: float = 0.0
    transformations: tuple[dict[str, Any], ...] = ()

    @property
    def counts(self) -> Usage:
        """The usage that totals and cost are reckoned from."""
        return self.booked or self.usage


class ToolStarted(Record):
    """A call is about to run. Without a result after it, its outcome is unknown."""

    kind = "tool_started"
    call_id: str


class ToolResult(Record):
    """A call has ended; `ran` tells whether the tool itself was run."""

    kind = "tool_result"
    item: ToolResultItem
    ran: bool = True
    seconds: float = 0.0


class Retry(Record):
    """A request is sent again after `wait` seconds."""

    kind = "retry"
    error: str
    message: str
    attempt: int
    max_attempts: int
    wait: float
    model: str = ""
    status: int | None = None


class Paced(Record):
    """A request waits for its turn, since the account's requests are limited: put once for each wait that takes more than a
    second. `reason` is what is waited for (a limit to be whole again, the end of a refusal, the end of a request in flight),
    `wait` for how many seconds at least (0: not known), `waiting` how many requests of this process wait for the account.
    """

    kind = "paced"
    model: str
    reason: Reason
    wait: float = 0.0
    waiting: int = 1


class ModelSwitched(Record):
    """A fallback model takes over, or was skipped because the request does not fit it."""

    kind = "model_switched"
    from_model: str
    to_model: str
    reason: str
    skipped: bool = False


class WindowLearned(Record):
    """A refusal taught the real window. `source` is `stated` (the refusal named it), `guessed` (90 % of what was refused), or
    `declared`: the window was declared anew, and what was learned before is dropped. `declared` is the window that the model
    was taken to have, `message` the provider's words. `counted` are the input's tokens as the refusal names them, `parts` what
    of them was known and the raw estimate of the rest, `whole` the raw estimate of all of them."""

    kind = "window_learned"
    model: str
    window: int
    source: Literal["stated", "guessed", "declared"]
    requested: int | None = None
    declared: int = 0
    message: str = ""
    counted: int | None = None
    parts: tuple[int, int] = (0, 0)
    whole: int = 0


class ProviderRefused(Record):
    """What a model's server is known not to take, all of it: rejected memories, ways to compact. The newest one counts."""

    kind = "provider_refused"
    model: str
    refusals: Refusals


class SizeRefused(Record):
    """A request was refused for its size in words that say nothing of the window: the rate tier lets none of this size
    through, or the limit that they name lies below what the model has accepted, or below what every request holds."""

    kind = "size_refused"
    model: str
    limit: int | None = None
    requested: int | None = None
    message: str = ""


class TokensCounted(Record):
    """The view as it stands was counted, near a threshold. `estimate` is the number that stood before, `parts` what of it was known
    and the raw estimate of the rest.
    """

    kind = "tokens_counted"
    model: str
    tokens: int
    provenance: Literal["provider count", "tokenizer"]
    estimate: int = 0
    parts: tuple[int, int] = (0, 0)
    seconds: float = 0.0


class ToolsChanged(Record):
    """The system prompt or the schemas at a resume are others than the segment began with; the cache is cold."""

    kind = "tools_changed"
    system: str
    tools: str


class Warned(Record):
    """Something a human should know; the run goes on."""

    kind = "warning"
    code: str
    message: str
    figures: dict[str, Any] = Field(default_factory=dict)


class Syncing(Protocol):
    """A sync that is done by the thread which needs it: one trip to a thread for the sync and for what must follow it."""

    def wait(self) -> None:
        """Blocks until all that was written before is durable. Raises what the store's device raises, or `Abandoned`."""
        ...

    def settle(self) -> None:
        """Takes note of the sync, back in the event loop. Raises the store's own typed error."""
        ...

    def leave(self) -> None:
        """Nobody waits for what follows the sync any more: where it has not begun, it does not begin."""
        ...


class Abandoned(Exception):
    """Whoever asked for a sync has gone away: what should follow it must not begin."""


class Journal(Protocol):
    """Where records go. `write` is ordered and immediate but not yet durable; `sync` makes all that was written durable, `begin_sync` starts
    that without waiting (an error shows in the next `sync`). `syncing` is a sync for another thread, None where there is no such thing.

    All raise the store's own typed error; after one, nothing more is accepted.
    """

    def write(self, record: Record) -> None: ...

    def begin_sync(self) -> None: ...

    def syncing(self) -> Syncing | None: ...

    async def sync(self) -> None: ...


class MemoryJournal:
    """A journal that keeps records in a list: for a worker without a pod, and for tests."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def begin_sync(self) -> None:
        """Nothing to do."""

    def syncing(self) -> None:
        """Nothing to wait for."""

    def write(self, record: Record) -> None:
        """Keeps the record."""
        self.records.append(record)

    async def sync(self) -> None:
        """Nothing to do."""
