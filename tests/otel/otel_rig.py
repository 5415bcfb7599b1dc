"""What is followed in memory: the spans that ended, as a tree, and the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from pod.otel import Telemetry


class _Open(SpanProcessor):
    """Counts the spans that have begun and not ended."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.count += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.count -= 1


class Traces:
    """Providers in memory. `telemetry` is for `Pod.open`."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._open, self._reader = InMemorySpanExporter(), _Open(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracers.add_span_processor(self._open)
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans in the order in which they began; every one that began has ended."""
        assert self._open.count == 0, "a span has not ended"
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, beginning: str) -> list[ReadableSpan]:
        """Those whose name begins so."""
        return [span for span in self.spans if span.name.startswith(beginning)]

    def one(self, beginning: str) -> ReadableSpan:
        """The only one whose name begins so."""
        (found,) = self.named(beginning)
        return found

    def tree(self) -> list[str]:
        """All of them, each behind its parent and indented below it."""
        return list(self._below(None, 0))

    def _below(self, parent: int | None, depth: int) -> Iterable[str]:
        known = {ids(span).span_id for span in self.spans}
        for span in self.spans:
            above = span.parent.span_id if span.parent is not None and span.parent.span_id in known else None
            if above == parent:
                yield "  " * depth + span.name
                yield from self._below(ids(span).span_id, depth + 1)

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        """The span that another one stands below, where it is one of these."""
        above = None if span.parent is None else span.parent.span_id
        return next((each for each in self.spans if ids(each).span_id == above), None)

    def points(self, name: str) -> list[Any]:
        """The points of a metric."""
        data = self._reader.get_metrics_data()
        found: list[Any] = []
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                found += [p for metric in scope.metrics if metric.name == name for p in metric.data.data_points]
        return found

    def text(self) -> str:
        """Everything that left with spans, as one text."""
        return "\n".join(span.to_json() for span in self.spans)


def ids(span: ReadableSpan) -> SpanContext:
    """Its trace and itself, as numbers."""
    assert span.context is not None
    return span.context


def events(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    """The attributes of a span's events of this name."""
    return [dict(event.attributes or {}) for event in span.events if event.name == name]


def said(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes."""
    return dict(span.attributes or {})
