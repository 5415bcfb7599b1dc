"""Spans and metrics of what is under way: OpenTelemetry behind the port `worker.tracing.Tracing`."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pod.otel.content import Content, wanted
from pod.otel.meters import Meters
from pod.otel.records import CANCELLED, said
from pod.otel.works import ERROR, Attributes, Begun, Value, begun
from pod.traced import PodWork, RunWork
from worker import __version__
from worker.errors import ModelError
from worker.records import ReplyRecord, ToolResult
from worker.tracing import HEADERS, ModelWork, Told, ToolWork, Work

SCOPE = "pod-runtime"
"""The instrumentation's name."""

_CARRIER = TraceContextTextMapPropagator()


@dataclass(eq=False, slots=True)
class _Open:
    """A work under way, with its span. `within` is the innermost work of a pod, itself included."""

    work: Work
    span: Span
    within: PodWork | None
    above: _Open | None
    begun: Begun
    since: float
    failed: str = ""
    spent: dict[str, float] = field(default_factory=dict[str, float])

    def around(self, kind: type[Work] | None) -> _Open | None:
        """The innermost work of this kind, of those around a record; None: whichever is innermost."""
        found: _Open | None = self
        while found is not None and kind is not None and not isinstance(found.work, kind):
            found = found.above
        return found


_open: ContextVar[_Open | None] = ContextVar("pod_otel_open", default=None)


class Telemetry:
    """Follows the runs of pods: `Pod.open(..., telemetry=Telemetry())`.

    The providers are OpenTelemetry's global ones unless they are given; the caller looks after their exporters and their end. With
    `capture_content` messages, arguments and results of calls are attributes of spans, masked; None takes what the environment says
    (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT), else nothing that anybody said leaves.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        self._meters = Meters(metrics.get_meter(SCOPE, __version__, meter_provider))
        captured = wanted() if capture_content is None else capture_content
        self._content = Content() if captured else None

    # -- worker.tracing.Tracing -------------------------------------------------------------------------------

    def doing(self, work: Work) -> AbstractContextManager[object]:
        """A span around a work."""
        above = _open.get()
        within = work if isinstance(work, PodWork) else None if above is None else above.within
        found = begun(work, within)
        return nullcontext() if found is None else self._around(work, within, above, found)

    def told(self, told: Told) -> None:
        """Attributes and events for the spans of the works around a record; counts."""
        innermost = _open.get()
        asking = None if innermost is None else innermost.around(ModelWork)
        self._meters.told(told, {} if asking is None else asking.begun.measured)
        if innermost is None:
            return
        self._spent(told, innermost)
        what = said(told, innermost.work)
        opened = None if what is None else innermost.around(what.of)
        if what is None or opened is None:
            return
        if what.event:
            opened.span.add_event(what.event, what.attributes)
            return
        opened.span.set_attributes(what.attributes | self._said(told, opened))
        opened.failed = what.failed or opened.failed

    def outgoing(self) -> Mapping[str, str]:
        """The current span, whoever began it."""
        carrier: dict[str, str] = {}
        _CARRIER.inject(carrier)
        return carrier

    @contextmanager
    def incoming(self, headers: Mapping[str, str]) -> Generator[None]:
        """The span of another process becomes the current one."""
        known = {name: value for name, value in headers.items() if name in HEADERS}
        token = context.attach(_CARRIER.extract(known))
        try:
            yield
        finally:
            context.detach(token)

    # -- spans ------------------------------------------------------------------------------------------------

    @contextmanager
    def _around(self, work: Work, within: PodWork | None, above: _Open | None, found: Begun) -> Generator[None]:
        span = self._tracer.start_span(
            found.name, kind=found.kind, attributes=found.attributes | self._given(work), links=_links(work)
        )
        opened = _Open(work, span, within, above, found, time.monotonic())
        current, mine = context.attach(trace.set_span_in_context(span)), _open.set(opened)
        try:
            yield
        except BaseException as error:
            opened.failed = opened.failed or _kind(error)
            raise
        finally:
            context.detach(current)
            _open.reset(mine)
            try:
                self._ended(opened)
            finally:
                span.end()  # whatever that raises, what begins next stands below another span

    def _ended(self, opened: _Open) -> None:
        span = opened.span
        if opened.spent:
            span.set_attributes(_figures(opened.spent))
        if opened.failed:
            span.set_attribute(ERROR, opened.failed)
            span.set_status(Status(StatusCode.ERROR))
        self._meters.ended(opened.work, time.monotonic() - opened.since, opened.begun.measured, opened.failed)

    def _spent(self, told: Told, innermost: _Open) -> None:
        """What the requests beneath a run or a compaction came to is told of that too."""
        if not isinstance(told, ReplyRecord):
            return
        figures = {"pod.requests": 1, "pod.cost_usd": told.cost_usd}
        opened: _Open | None = innermost
        while opened is not None:
            if isinstance(opened.work, PodWork):
                for name, value in figures.items():
                    if value is not None:
                        opened.spent[name] = opened.spent.get(name, 0) + value
                if isinstance(opened.work, RunWork):
                    return  # what a tool of another run began is that one's own
            opened = opened.above

    # -- content ----------------------------------------------------------------------------------------------

    def _given(self, work: Work) -> Attributes:
        match work:
            case ModelWork() if self._content is not None:
                return self._content.asked(work)
            case ToolWork() if self._content is not None:
                return self._content.called(work)
            case _:
                return {}

    def _said(self, told: Told, opened: _Open) -> Attributes:
        match told:
            case ReplyRecord() if self._content is not None:
                return self._content.answered(told)
            case ToolResult() if self._content is not None and isinstance(opened.work, ToolWork):
                return self._content.resulted(told)
            case _:
                return {}


def _links(work: Work) -> list[Link]:
    """The stretch before, for a run that goes on: it is over, so it is no parent."""
    if not isinstance(work, RunWork) or not work.earlier:
        return []
    earlier = trace.get_current_span(_CARRIER.extract({"traceparent": work.earlier}, context.Context()))
    found = earlier.get_span_context()
    return [Link(found, {"pod.link": "earlier stretch"})] if found.is_valid else []


def _kind(error: BaseException) -> str:
    """The `error.type` of what a work was left by: never a text, which could hold anything."""
    if isinstance(error, ModelError):
        return error.kind
    return type(error).__name__ if isinstance(error, Exception) else CANCELLED


def _figures(spent: Mapping[str, float]) -> Mapping[str, Value]:
    figures: dict[str, Any] = {name: round(value, 8) for name, value in spent.items()}
    return figures
