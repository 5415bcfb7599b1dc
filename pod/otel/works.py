"""What a span says of a work when it begins: its name, kind and attributes. Pure.

Names of the conventions: https://github.com/open-telemetry/semantic-conventions-genai; those of ours begin with `pod.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind

from pod.traced import CompactionWork, PodWork, RunWork, SegmentWork
from worker.models.base import Model
from worker.tracing import ModelWork, ToolWork, Work

Value: TypeAlias = str | int | float | bool | tuple[str, ...]
Attributes: TypeAlias = dict[str, Value]

OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
MODEL, ANSWERED_BY = "gen_ai.request.model", "gen_ai.response.model"
AGENT, CONVERSATION = "gen_ai.agent.name", "gen_ai.conversation.id"
TOOL, TOOL_TYPE, CALL = "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"
ERROR = "error.type"
SEGMENT, OCCUPANCY, TRIGGER = "pod.segment", "pod.occupancy", "pod.compaction.trigger"

_PROVIDERS = {"openai-chat": "openai"}
"""What the conventions call a provider where we call it otherwise."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A span's beginning. `measured` are the attributes that its metric has too: few values each."""

    name: str
    kind: SpanKind
    attributes: Attributes
    measured: Attributes = field(default_factory=dict[str, Value])


def begun(work: Work, within: PodWork | None) -> Begun | None:
    """How the span of a work begins; `within` is the innermost work of a pod around it. None for a kind that is not known."""
    match work:
        case RunWork():
            named = model_named(work.model) | {OPERATION: "invoke_agent"}
            return Begun(f"invoke_agent {work.pod}", SpanKind.INTERNAL, named | _of_pod(work), named)
        case SegmentWork():
            return Begun("segment", SpanKind.INTERNAL, _of_pod(work))
        case CompactionWork():
            measured: Attributes = {TRIGGER: work.trigger}
            more: Attributes = {OCCUPANCY: work.tokens}
            return Begun("compaction", SpanKind.INTERNAL, measured | more | _of_pod(work), measured)
        case ModelWork():
            named = model_named(work.model.name) | {OPERATION: work.purpose} | _server(work.model)
            more = {"gen_ai.request.max_tokens": work.max_output_tokens, OCCUPANCY: work.tokens}
            name = f"{work.purpose} {named[MODEL]}"
            return Begun(name, SpanKind.CLIENT, named | more | _within(within), named)
        case ToolWork():
            measured = {TOOL: work.tool.name, TOOL_TYPE: "function"}
            more = {OPERATION: "execute_tool", CALL: work.call.call_id, "pod.tool.effect": work.tool.effect}
            name = f"execute_tool {work.tool.name}"
            return Begun(name, SpanKind.INTERNAL, measured | more | _within(within), measured)
        case _:
            return None


def model_named(name: str) -> Attributes:
    """Provider and model of a name `provider:model`."""
    provider, _, model = name.partition(":")
    return {PROVIDER: _PROVIDERS.get(provider, provider), MODEL: model or name}


def _of_pod(work: PodWork) -> Attributes:
    return {AGENT: work.pod, CONVERSATION: work.session, SEGMENT: work.segment}


def _within(work: PodWork | None) -> Attributes:
    return {} if work is None else _of_pod(work)


def _server(model: Model) -> Attributes:
    """The host that a model is asked at, where it has one; never what else its address holds."""
    account: object = getattr(model, "account", None)
    address: object = getattr(account, "base_url", "")
    parts: Mapping[str, int] = {"https": 443, "http": 80}
    try:
        url = urlsplit(address if isinstance(address, str) else "")
        port = url.port or parts.get(url.scheme, 0)
    except ValueError:
        return {}
    return {"server.address": url.hostname, "server.port": port} if url.hostname else {}
