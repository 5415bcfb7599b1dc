"""What the command line's `--otel` does: spans and metrics of the whole process by OTLP over HTTP, as the standard variables say.

A collector that is away holds nothing up and fails nothing: batches are sent by threads of their own, what finds no room is dropped,
and the end waits a few seconds at most.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from pod.errors import UsageProblem
from pod.otel.telemetry import Telemetry
from worker import tracing
from worker.text import clipped

FLUSH = 3.0
"""Seconds that the end of a command waits for what is still to be sent."""

KEPT = 300
"""Characters of what is told of a failure."""

ENDPOINT = "http://localhost:4318"
"""Where the standard says a collector is, unless a variable says otherwise."""

_SIGNALS = ("TRACES", "METRICS")
_REFUSED = re.compile(r"Failed to establish a new connection: (?:\[Errno -?\d+\] )?([^\"')]{1,100})")


def check_environment(environment: Mapping[str, str]) -> None:
    """Whether what the standard variables ask for is done here. Raises `UsageProblem`."""
    for signal in _SIGNALS:
        exporter = f"OTEL_{signal}_EXPORTER"
        if environment.get(exporter, "otlp") not in {"otlp", "none", ""}:
            raise UsageProblem(
                f"{exporter}={environment[exporter]}: --otel sends by otlp; set otlp, or none for nothing"
            )
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", *(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL" for signal in _SIGNALS)):
        if environment.get(name, "http/protobuf") not in {"http/protobuf", ""}:
            raise UsageProblem(
                f"{name}={environment[name]}: --otel speaks http/protobuf (a collector's port 4318) alone"
            )
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", *(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT" for signal in _SIGNALS)):
        given = environment.get(name)
        if given and (urlsplit(given).scheme not in {"http", "https"} or not urlsplit(given).netloc):
            raise UsageProblem(f"{name}: not an address like {ENDPOINT}")


@contextmanager
def exported(tell: Callable[[str], None], *, at_once: bool) -> Generator[None]:
    """Within it all pods of this process are traced, and what is left is sent at its end, for at most `FLUSH` seconds.

    `tell` gets one line where something could not be delivered: at the end, or where it is first seen (`at_once`). A
    TRACEPARENT in the environment is what all of it belongs to. Raises `UsageProblem`.
    """
    check_environment(os.environ)
    troubles = Troubles(tell if at_once else None)
    log = logging.getLogger("opentelemetry")
    before = log.propagate
    log.addHandler(troubles)
    log.propagate = False
    ends, telemetry = _made(os.environ)
    tracing.install(telemetry)
    headers = {name: value for name in tracing.HEADERS if (value := os.environ.get(name.upper())) is not None}
    try:
        with tracing.incoming(headers):
            yield
    finally:
        tracing.install(None)
        ended = _within(FLUSH, ends)
        log.removeHandler(troubles)
        log.propagate = before
        if not at_once and (troubles.first or not ended):
            tell(undelivered(troubles.first or f"not all was sent within {FLUSH:g} s"))


def _made(environment: Mapping[str, str]) -> tuple[list[Callable[[], None]], Telemetry]:
    """What follows the runs, and how its parts are ended."""
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "pod"})
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environment.get("OTEL_TRACES_EXPORTER") != "none":
        spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reads = environment.get("OTEL_METRICS_EXPORTER") != "none"
    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if reads else []
    meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    # The readers' own end may take its thread's time and the last export's; both are bounded from outside.
    return [spans.shutdown, meters.shutdown], Telemetry(tracer_provider=spans, meter_provider=meters)


def _within(seconds: float, ends: list[Callable[[], None]]) -> bool:
    """Runs all of them side by side; whether they were done in time. What still runs then ends with the process."""
    threads = [threading.Thread(target=end, name="pod-otel-end", daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in threads)


class Troubles(logging.Handler):
    """Keeps what the exporters complain of, the first time; none of it reaches a terminal by itself."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        super().__init__(logging.WARNING)
        self.first = ""
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the first one."""
        if self.first:
            return
        self.first = _plain(" ".join(record.getMessage().split()))
        if self._tell is not None:
            self._tell(undelivered(self.first))


def _plain(said: str) -> str:
    """What an exporter says; of a connection that nobody took, why, and how another collector is named."""
    if (refused := _REFUSED.search(said)) is None:
        return clipped(said, KEPT)
    return f"{refused[1]}; $OTEL_EXPORTER_OTLP_ENDPOINT names the collector"


def undelivered(why: str) -> str:
    """The line about it; an address is told without what may be secret in it."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    url = urlsplit(given)
    port = f":{url.port}" if url.port else ""
    return f"telemetry was not all delivered to {url.scheme}://{url.hostname}{port}: {why}"
