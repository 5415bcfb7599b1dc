"""The metrics: what is counted of records, and how long works took."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.metrics import Histogram, Meter

from pod.log import entries as e
from pod.otel.records import CANCELLED
from pod.otel.works import ERROR, OPERATION, TRIGGER, Attributes, model_named
from pod.traced import CompactionWork, RunWork
from worker import records as w
from worker.memory import maker_of
from worker.models.base import Usage
from worker.tracing import ModelWork, Replied, Told, ToolWork, Work

TOKENS = tuple(4**n for n in range(14))
"""Bounds of the buckets of tokens, as the conventions have them."""

SECONDS = tuple(round(0.01 * 2**n, 2) for n in range(14))
"""Those of seconds, for requests and tools."""

RUN_SECONDS = tuple(round(0.1 * 2**n, 1) for n in range(13))
"""Those of whole runs; compactions have them too."""


class Meters:
    """All instruments."""

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, what: str, bounds: Sequence[float], unit: str = "s") -> Histogram:
            return meter.create_histogram(name, unit, what, explicit_bucket_boundaries_advisory=bounds)

        self._tokens = histogram(
            "gen_ai.client.token.usage", "Number of input and output tokens used.", TOKENS, "{token}"
        )
        self._request = histogram("gen_ai.client.operation.duration", "GenAI operation duration.", SECONDS)
        self._tool = histogram("gen_ai.execute_tool.duration", "The duration of a single tool execution.", SECONDS)
        self._run = histogram(
            "gen_ai.invoke_agent.duration", "The duration of a run, or of one stretch of it.", RUN_SECONDS
        )
        self._compaction = histogram("pod.compaction.duration", "The duration of a compaction.", RUN_SECONDS)
        self._cost = meter.create_counter("pod.cost", "{USD}", "What requests cost, where their prices are known.")
        self._compactions = meter.create_counter("pod.compactions", "{compaction}", "Compactions that were tried.")
        self._prunes = meter.create_counter("pod.prunes", "{prune}", "Prunes of old tool results.")
        self._saved = meter.create_counter(
            "pod.tokens_saved", "{token}", "Tokens that prunes and compactions took out."
        )
        self._retries = meter.create_counter("pod.retries", "{retry}", "Requests that were sent again.")
        self._calls = meter.create_counter("pod.tool_results", "{call}", "Results of calls, those not run included.")
        self._runs = meter.create_counter("pod.runs", "{run}", "Runs that ended, by their status.")

    def ended(self, work: Work, seconds: float, measured: Attributes, failed: str) -> None:
        """A work is over; `failed` is its `error.type`, if any."""
        attributes = measured | ({ERROR: failed} if failed else {})
        match work:
            case ModelWork():
                self._request.record(seconds, attributes)
            case ToolWork():
                self._tool.record(seconds, attributes)
            case RunWork():
                self._run.record(seconds, attributes)
            case CompactionWork():
                self._compaction.record(seconds, attributes)
            case _:
                pass

    def told(self, told: Told, asking: Attributes) -> None:
        """Counts a record; `asking` are the attributes of the request that is under way around it."""
        match told:
            case w.ReplyRecord():
                self._used(told.counts, asking or model_named(told.model) | {OPERATION: "chat"})
                self._cost.add(told.cost_usd or 0.0, model_named(told.model))
            case Replied(usage=Usage() as usage):
                self._used(usage, asking)
            case e.NativeMade():
                self._cost.add(told.cost_usd or 0.0, model_named(maker_of(told.item)))
            case w.Retry():
                self._retries.add(1, model_named(told.model) | {ERROR: told.error})
            case w.Pruned():
                self._prunes.add(1)
                self._saved.add(max(told.tokens_saved, 0), {"pod.cause": "prune"})
            case w.ToolResult():
                self._calls.add(1, {"pod.status": told.item.status})  # the name may be one that a model made up
            case e.CompactionCompleted():
                self._compactions.add(1, {TRIGGER: told.trigger, "pod.rung": told.rung, "pod.outcome": "completed"})
                self._saved.add(max(told.before - told.after, 0), {"pod.cause": "compaction"})
            case e.CompactionFailed():
                self._compactions.add(1, {"pod.outcome": "held" if told.held else "failed"})
            case e.CompactionInterrupted():
                self._compactions.add(1, {"pod.outcome": CANCELLED})
            case e.RunEndedEntry():
                self._runs.add(1, {"pod.status": told.status})
            case _:
                pass

    def _used(self, usage: Usage, asking: Attributes) -> None:
        """A provider that reported nothing is not counted: estimates are no usage."""
        if usage.input_tokens is None:
            return
        self._tokens.record(usage.input_tokens, asking | {"gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, asking | {"gen_ai.token.type": "output"})
