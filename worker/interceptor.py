"""Interceptors: small objects that look at each request before it leaves and at each call before it runs.

They decide; the loop acts and puts the decision on record. Everything optional in a worker is an interceptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from worker.budget import Budget
from worker.errors import ModelError, told
from worker.history import History
from worker.items import ContextItem, Item, OrderItem, ToolCallItem, ToolOutput, ToolResultItem
from worker.models.base import Capabilities, Reply
from worker.occupancy import Occupancy
from worker.records import Record
from worker.results import Failed, Outcome
from worker.tools import Tool

# -- before a request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What an interceptor sees of the next request. Read-only.

    `history` holds the view so far, the queue and the run's counters; `occupancy` is the number for this very view;
    `budget` that of the model that will be asked first. `deps` is the embedder's own object.
    """

    history: History
    occupancy: Occupancy
    budget: Budget
    model: str
    capabilities: Capabilities
    tag: str
    first: bool
    now: float
    wall: float
    deps: Any = None


@dataclass(frozen=True, slots=True)
class Continue:
    """Nothing to say."""


@dataclass(frozen=True, slots=True)
class Append:
    """Put these items at the end of the view (durable); the chain starts again, at most once per interceptor and
    request."""

    items: tuple[ContextItem | OrderItem, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Show items of the view as these replacements, by id (a projection, on record). `record` is what is logged.

    A replacement takes the id of what it replaces. A call or a result stays one, of the same call.
    """

    replacements: Mapping[str, Item]
    record: Record | None = None
    reason: str = ""

    def items(self, history: History) -> tuple[Item, ...]:
        """The replacements with their ids. Raises `ValueError` where one would tear a call from its result."""
        items: list[Item] = []
        for key, item in self.replacements.items():
            old = history.view[history.index[key]] if key in history.index else None
            if old is not None and _answers(old) != _answers(item):
                raise ValueError(f"an edit of the {old.type} {key} must leave it one, of the same call")
            items.append(item if item.id == key else item.model_copy(update={"id": key}))
        return tuple(items)


def _answers(item: Item) -> tuple[str, str] | None:
    return (item.type, item.call_id) if isinstance(item, ToolCallItem | ToolResultItem) else None


@dataclass(frozen=True, slots=True)
class Yield:
    """Leave the loop cleanly. The pod gives the reason its meaning."""

    reason: str
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run with this outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Note:
    """Put a record (a warning, say) in the log and go on."""

    record: Record


Decision: TypeAlias = Continue | Append | Edit | Yield | Stop | Note
CONTINUE = Continue()

# -- before a call ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallContext:
    """What an interceptor sees of a call: the call, its tool, its valid arguments, the embedder's `deps`."""

    call: ToolCallItem
    tool: Tool
    arguments: dict[str, Any]
    history: History
    tag: str
    deps: Any = None


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may run."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run; the model gets the message as a result with status `denied`."""

    message: str
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The call does not run; this is its result."""

    output: ToolOutput


@dataclass(frozen=True, slots=True)
class Pause:
    """The call waits for a human; `record` says what is asked."""

    approval: str
    record: Record | None = None


ToolDecision: TypeAlias = Allow | Deny | Answer | Pause | Stop
ALLOW = Allow()


class Interceptor:
    """Base of all interceptors: every method has a default that does nothing.

    An exception in one ends the run as failed, with the interceptor's name. State that must survive a restart is a fold
    of `observe`, and crosses a segment boundary through `carry` and `restore` (plain JSON values).
    """

    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.name or cls.__name__

    async def before_request(self, ctx: RequestContext) -> Decision:
        """Asked before each request leaves, in order."""
        return CONTINUE

    async def after_request(self, ctx: RequestContext, reply: Reply) -> None:
        """Told after a complete reply was put on record."""

    async def after_error(self, ctx: RequestContext, error: ModelError) -> Decision:
        """Asked when a request failed for good; a `Yield` or `Stop` replaces the failure."""
        return CONTINUE

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """Asked before a call with valid arguments runs, in order of the calls."""
        return ALLOW

    async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
        """May replace a tool's output before it is put on record."""
        return output

    def observe(self, record: Record) -> None:
        """Told of each record, live and at a restart, in order."""

    def carry(self) -> dict[str, Any] | None:
        """State of this run that crosses a segment boundary, as JSON values; None for none."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave."""

    def begin_run(self) -> None:
        """A new run begins: counters of the run start anew."""


def failure(interceptor: Interceptor, error: Exception, while_handling: str = "") -> Failed:
    """The end of a run in which an interceptor raised (case B164)."""
    name = interceptor.name
    message = ": ".join(part for part in (f"interceptor {name}", type(error).__name__, told(error)) if part)
    if while_handling:
        message = f"{message} (while handling {while_handling})"
    return Failed("interceptor", message, details={"interceptor": name})


def overrides(interceptor: Interceptor, method: str) -> bool:
    """Whether an interceptor has its own `method`, so that the loop can pass over the others."""
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)
