"""What the service counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pod.result import RunResult

SECONDS = (1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400)
"""Bounds of the durations of runs."""


class Metrics:
    """The figures of one service. No pod's name is in them: names may say what nobody else should read, and there may be many."""

    def __init__(
        self, *, running: Callable[[], int], readers: Callable[[], int], waiting: Mapping[str, Callable[[], int]]
    ) -> None:
        self._registry = registry = CollectorRegistry()
        Gauge("pod_running", "Pods that run here or wait for a place", registry=registry).set_function(running)
        Gauge("pod_event_readers", "Streams of events that are open", registry=registry).set_function(readers)
        self._runs = Counter("pod_runs", "Runs that ended here, by how", ["status"], registry=registry)
        self._seconds = Histogram("pod_run_seconds", "How long runs took", buckets=SECONDS, registry=registry)
        self._tokens = Counter("pod_tokens", "Tokens of runs that ended here", ["kind"], registry=registry)
        self._cost = Counter(
            "pod_cost_usd", "US dollars of runs that ended here, where prices are known", registry=registry
        )
        self._requests = Counter("pod_requests", "Requests to models of runs that ended here", registry=registry)
        self._compactions = Counter("pod_compactions", "Compactions of runs that ended here", registry=registry)

        self._webhooks = Counter(
            "pod_webhooks", "Attempts of webhooks, by what came of them", ["receiver", "outcome"], registry=registry
        )
        told = Gauge(
            "pod_webhooks_waiting", "Events that a receiver is still to accept", ["receiver"], registry=registry
        )
        for receiver, many in waiting.items():
            told.labels(receiver).set_function(many)

    def webhook(self, receiver: str, outcome: str) -> None:
        """An attempt was `accepted` or `failed`; an event was `given_up`."""
        self._webhooks.labels(receiver, outcome).inc()

    def ended(self, result: RunResult) -> None:
        """A run ended."""
        self._runs.labels(result.status).inc()
        self._seconds.observe(result.duration_s)
        for kind, many in (
            ("input", result.input_tokens),
            ("cached", result.cached_tokens),
            ("output", result.output_tokens),
        ):
            self._tokens.labels(kind).inc(many)
        self._cost.inc(result.cost_usd or 0.0)
        self._requests.inc(result.requests + result.compaction_requests)
        self._compactions.inc(result.compactions)

    def text(self) -> bytes:
        """All of it, in the text format."""
        return generate_latest(self._registry)
