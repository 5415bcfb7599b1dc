"""What is under way, told to whoever traces it: the port, and which tracing is in force here. Without one nothing happens.

A tracing belongs to the context (`contextvars`): what a tool's function, its thread or a child of it begins finds the work that it
stands in. Nothing that a tracing raises reaches the work: it is logged once, and the work goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

from worker.items import Item, ToolCallItem
from worker.models.base import Model, ToolSpec, Usage
from worker.records import Record
from worker.tools import Tool

logger = logging.getLogger("worker.tracing")

HEADERS = ("traceparent", "tracestate")
"""What tells another process of a work: ids alone, nothing that somebody may have attached to them."""


class Work:
    """Something that takes time and may fail. Each kind is a frozen dataclass of the floor that does it."""


@dataclass(frozen=True, slots=True)
class ModelWork(Work):
    """One model is asked, until it answers or is given up. `items` is the view itself, which goes on changing; `tokens` is what the
    request is estimated at."""

    model: Model
    purpose: Literal["chat", "compact"]
    system: str = field(repr=False)
    tools: Sequence[ToolSpec] = field(repr=False)
    items: Sequence[Item] = field(repr=False)
    max_output_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolWork(Work):
    """A call runs. `call` is as it stands on record, without secrets."""

    call: ToolCallItem
    tool: Tool


@dataclass(frozen=True, slots=True)
class Replied:
    """What no record holds of an answer: the model by the provider's own word, and the usage of a compaction by the provider."""

    model: str = ""
    usage: Usage | None = None


Told: TypeAlias = Record | Replied


class Tracing(Protocol):
    """Follows what is under way. Everything it is told has passed the gate for secrets."""

    def doing(self, work: Work) -> AbstractContextManager[object]:
        """Entered where a work begins, left where it ends (with what is raised through it), in one task."""
        ...

    def told(self, told: Told) -> None:
        """Something went on record in the work that is under way here."""
        ...

    def outgoing(self) -> Mapping[str, str]:
        """The headers, names in lower case, that tell another process of the work under way here (`traceparent`)."""
        ...

    def incoming(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Within it, what begins belongs to the work of another process that these headers tell of."""
        ...


class Guarded:
    """A tracing that never raises: its first failure is logged with a traceback, later ones at debug level."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._failed = False

    def doing(self, work: Work) -> AbstractContextManager[None]:
        """As `Tracing.doing`. What is raised within always passes through."""
        return _Around(self, lambda: self.tracing.doing(work))

    def told(self, told: Told) -> None:
        """As `Tracing.told`."""
        try:
            self.tracing.told(told)
        except Exception as error:
            self.failed(error)

    def outgoing(self) -> Mapping[str, str]:
        """As `Tracing.outgoing`; empty after a failure."""
        try:
            return self.tracing.outgoing()
        except Exception as error:
            self.failed(error)
            return {}

    def incoming(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """As `Tracing.incoming`."""
        return _Around(self, lambda: self.tracing.incoming(headers))

    def failed(self, error: Exception) -> None:
        """Logs what the tracing raised."""
        name = type(self.tracing).__qualname__
        if self._failed:
            logger.debug("the tracing %s failed again: %r", name, error)
            return
        self._failed = True
        logger.error(
            "the tracing %s failed; the work goes on, and later failures are logged at debug level",
            name,
            exc_info=error,
        )


class _Around(AbstractContextManager[None]):
    """A context manager of a tracing, entered and left without harm."""

    def __init__(self, guarded: Guarded, make: _Maker) -> None:
        self._guarded, self._make = guarded, make
        self._entered: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        try:
            made = self._make()
            made.__enter__()
            self._entered = made
        except Exception as error:
            self._guarded.failed(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is None:
            return
        try:
            self._entered.__exit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:
                self._guarded.failed(failure)


class _Maker(Protocol):
    def __call__(self) -> AbstractContextManager[object]: ...


_chosen: ContextVar[Guarded | None] = ContextVar("tracing", default=None)
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class _Process:
    tracing: Guarded | None = None


_process = _Process()


def install(tracing: Tracing | None) -> None:
    """The tracing of this whole process, where the context has none of its own; None takes it away."""
    _process.tracing = None if tracing is None else Guarded(tracing)


@contextmanager
def using(tracing: Guarded | None) -> Generator[None]:
    """Within it this tracing is in force; with None, the one that is so already."""
    if tracing is None:
        yield
        return
    token = _chosen.set(tracing)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that was thrown away is closed in another context
            _chosen.reset(token)


def _in_force() -> Guarded | None:
    return _chosen.get() or _process.tracing


def doing(work: Work) -> AbstractContextManager[None]:
    """Around a work, within one task."""
    tracing = _in_force()
    return _NOTHING if tracing is None else tracing.doing(work)


def told(told: Told) -> None:
    """Tells of what went on record."""
    tracing = _in_force()
    if tracing is not None:
        tracing.told(told)


def outgoing() -> Mapping[str, str]:
    """The headers that tell another process of the work under way here; none where nothing is traced."""
    tracing = _in_force()
    return {} if tracing is None else tracing.outgoing()


def incoming(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Around what another process asked for, with the headers of its request, names in lower case."""
    tracing = _in_force()
    return _NOTHING if tracing is None else tracing.incoming(headers)
