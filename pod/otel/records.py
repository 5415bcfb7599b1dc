"""What the span of a work is told by records: attributes and events. Figures and names alone, no text of anybody. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from interceptors.approvals import ApprovalAsked, PermissionDenied
from pod import codes
from pod.log import entries as e
from pod.otel.works import ANSWERED_BY, CALL, ERROR, TOOL, Attributes, Value
from pod.traced import CompactionWork, RunWork
from worker import records as w
from worker.models.base import Usage
from worker.tracing import ModelWork, Replied, Told, ToolWork, Work

_WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")

CANCELLED = "cancelled"
"""The `error.type` of a work that was cancelled."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one record says: attributes of the innermost work of kind `of` around it (None: the innermost one), or an event there.
    `failed` is that work's `error.type`.
    """

    of: type[Work] | None = None
    attributes: Attributes = field(default_factory=dict[str, Value])
    event: str = ""
    failed: str = ""


def said(told: Told, innermost: Work) -> Said | None:
    """What a record says of the works around it, `innermost` first; None for most."""
    match told:
        case Replied():
            usage = {} if told.usage is None else usage_of(told.usage)
            return Said(ModelWork, usage | ({ANSWERED_BY: told.model} if told.model else {}))
        case w.ReplyRecord():
            return Said(ModelWork, _reply(told))
        case w.Retry():
            figures: Attributes = {ERROR: told.error, "pod.attempt": told.attempt, "pod.wait": told.wait}
            status: Attributes = {} if told.status is None else {"http.response.status_code": told.status}
            return Said(ModelWork, figures | status, "pod.retry")
        case w.Paced():
            paced: Attributes = {"pod.reason": told.reason, "pod.wait": told.wait}
            return Said(ModelWork, paced, "pod.paced")
        case w.ModelSwitched():
            switched: Attributes = {"pod.from": told.from_model, "pod.to": told.to_model, "pod.skipped": told.skipped}
            return Said(None, switched, "pod.model_switched")
        case w.ToolResult():
            return _result(told, innermost)
        case w.Pruned():
            pruned: Attributes = {
                "pod.tokens_saved": told.tokens_saved, "pod.tokens_before": told.tokens_before, "pod.results": len(told.items)
            }  # fmt: skip
            return Said(None, pruned, "pod.pruned")
        case w.Warned():
            failed = "not_possible" if told.code == codes.COMPACTION_NOT_POSSIBLE else ""
            if failed:
                return Said(CompactionWork, failed=failed)
            return Said(None, {"pod.code": told.code}, "pod.warning")
        case PermissionDenied():
            return Said(None, {TOOL: told.tool, CALL: told.call_id}, "pod.denied")
        case ApprovalAsked():
            return Said(None, {TOOL: told.tool, CALL: told.call_id}, "pod.approval_asked")
        case e.HookRan():
            ran: Attributes = {"pod.hook.event": told.event, "pod.hook.name": told.name, "pod.outcome": told.outcome}
            return Said(None, ran, "pod.hook_ran")
        case _:
            return _of_pod(told)


def _of_pod(told: Told) -> Said | None:
    match told:
        case e.RunStarted():
            return Said(RunWork, {"pod.run": told.run})
        case e.RunContinued():
            return Said(RunWork, {"pod.run": told.run, "pod.continued": True})
        case e.RunEndedEntry():
            kind = told.result.get("kind") if told.status == "failed" else None
            limit: Attributes = {"pod.limit": str(told.result["limit"])} if "limit" in told.result else {}
            return Said(RunWork, {"pod.status": told.status} | limit, failed=str(kind or ""))
        case e.YieldedEntry():
            if told.reason == "approval":
                return Said(RunWork, {"pod.status": "paused"})
            return Said(None, {"pod.reason": told.reason}, "pod.yielded")
        case e.CompactionStarted():
            return Said(CompactionWork, {"pod.compaction": told.compaction, "pod.items": told.items})
        case e.CompactionRung():
            return Said(CompactionWork, {"pod.rung": told.rung, "pod.state": told.state}, "pod.rung")
        case e.CompactionCompleted():
            done: Attributes = {
                "pod.compaction.rung": told.rung, "pod.tokens_before": told.before, "pod.tokens_after": told.after,
                "pod.tokens_saved": told.before - told.after,
            }  # fmt: skip
            return Said(CompactionWork, done)
        case e.CompactionFailed():
            return Said(CompactionWork, {"pod.held": told.held}, failed="compaction_failed")
        case e.CompactionInterrupted():
            return Said(CompactionWork, failed=CANCELLED)
        case e.SegmentStarted():
            return Said(CompactionWork, {"pod.segment.next": told.segment})
        case _:
            return None


def _result(told: w.ToolResult, innermost: Work) -> Said:
    status = told.item.status
    if isinstance(innermost, ToolWork) and innermost.call.call_id == told.item.call_id:
        return Said(ToolWork, {"pod.status": status}, failed="" if status == "ok" else f"tool_{status}")
    # Without its name: that may be any text of the model's.
    return Said(None, {CALL: told.item.call_id, "pod.status": status}, "pod.tool_not_run")


def _reply(reply: w.ReplyRecord) -> Attributes:
    found: Attributes = {
        "gen_ai.response.finish_reasons": (why_ended(reply),), "pod.attempts": reply.attempts,
        "pod.estimate": reply.estimate,
    }  # fmt: skip
    if reply.provider_id is not None:
        found["gen_ai.response.id"] = reply.provider_id
    if reply.cost_usd is not None:
        found["pod.cost_usd"] = reply.cost_usd
    return found | usage_of(reply.counts)


def why_ended(reply: w.ReplyRecord) -> str:
    """The provider's word for why it stopped, where it is one word; else ours."""
    return reply.native_stop if _WORD.fullmatch(reply.native_stop) else reply.stop


def usage_of(usage: Usage) -> Attributes:
    """Tokens as the conventions name them; nothing where the provider reported nothing. The input holds what was cached."""
    found: Attributes = {"gen_ai.usage.output_tokens": usage.output_tokens}
    if usage.input_tokens is not None:
        found["gen_ai.usage.input_tokens"] = usage.input_tokens
    for name, count in (
        ("cache_read.input_tokens", usage.cached_tokens),
        ("cache_creation.input_tokens", usage.cache_write_tokens),
        ("reasoning.output_tokens", usage.reasoning_tokens),
    ):
        if count:
            found[f"gen_ai.usage.{name}"] = count
    return found
