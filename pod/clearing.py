"""Old tool results that the provider clears itself, in the place of `[prune]`: for which models, and by which numbers."""

from __future__ import annotations

from collections.abc import Iterable

from interceptors.prune import TRIGGER_SHARE
from pod.manifest import ACTING, Manifest, trigger_tokens
from worker.budget import budget_of
from worker.history import History
from worker.memory import reading_tokens
from worker.models.base import Capabilities, Model, ToolClearing
from worker.tools import Tool


def clears(manifest: Manifest, capabilities: Capabilities) -> bool:
    """Whether the provider of such a model clears, so that the pod's own prune leaves its requests alone.

    `auto`: under the policy `native`, where the model binds its reasoning to what it has read: there a prune by the pod
    would cost the reasoning.
    """
    mode = manifest.context.tool_clearing
    if mode == "auto":
        wanted = manifest.prune.enabled and manifest.policy == "native" and capabilities.history_binding != "none"
    else:
        wanted = mode == "on"
    return wanted and capabilities.tool_clearing


def bounded(manifest: Manifest, capabilities: Capabilities) -> bool:
    """Whether the whole history is kept small enough for the provider to compact it, since that request goes uncleared."""
    return manifest.policy in ACTING and "native" in manifest.ladder and clears(manifest, capabilities)


def uncleared_tokens(history: History, model: Model, overhead: int) -> int:
    """Tokens of the whole history with its `overhead` (raw), estimated as if nothing of it was left out."""
    raw = overhead + history.total + reading_tokens(history.view, model)
    return int(raw * history.calibration.whole(model.name))


def clearing_of(manifest: Manifest, capabilities: Capabilities, tools: Iterable[Tool]) -> ToolClearing | None:
    """How the provider of such a model is to clear, by the numbers of `[prune]`; None where it does not.

    It begins where a prune at the trigger would end: at 60 % of the lowest trigger or, without one, of what is available.
    """
    if not clears(manifest, capabilities):
        return None
    prune = manifest.prune
    available = budget_of(
        capabilities, requested_output=manifest.model.max_output_tokens, buffer=manifest.context.buffer_tokens
    ).available
    triggers = manifest.acting_triggers.values()
    lowest = min([*(trigger_tokens(trigger, available) for trigger in triggers), available])
    return ToolClearing(
        trigger=max(int(TRIGGER_SHARE * lowest), prune.protected_tokens),
        at_least=prune.min_savings_floor if prune.min_savings == "auto" else int(prune.min_savings),
        exclude=tuple(tool.name for tool in tools if not tool.prunable),
    )
