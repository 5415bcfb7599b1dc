"""How a run ended, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeAlias, cast

from pydantic import BaseModel, Field, PrivateAttr, field_serializer
from typing_extensions import TypeVar

from interceptors.approvals import ApprovalAsked
from pod.carry import whole_counts
from pod.errors import PodError
from pod.log import entries as e
from pod.state import PodState
from worker import results as w
from worker.errors import told
from worker.items import AssistantItem

OutputT = TypeVar("OutputT", default=Any)
"""The type of a pod's answers (`output_type=`)."""

V = TypeVar("V", default=Any)

Status: TypeAlias = Literal["finished", "failed", "paused", "limit", "cancelled", "yielded"]

EXIT: dict[str, int] = {"finished": 0, "failed": 1, "paused": 3, "yielded": 3, "limit": 4, "cancelled": 130}
"""Exit codes by status (design, part 4)."""

EXIT_BY_KIND: dict[str, int] = {
    "refused": 5,
    "model_not_found": 69,
    "quota": 69,
    "auth": 77,
    "rate_limited": 75,
    "overloaded": 75,
    "provider_down": 75,
    "stream_broken": 75,
    "stream_stalled": 75,
}
"""Exit codes of failures that are not plain 1."""


class RunFailed(PodError):
    """Raised by `raise_for_status`: the run did not finish. `result` has everything."""

    def __init__(self, result: RunResult[Any]) -> None:
        self.result = result
        self.exit_code = result.exit_code
        why = result.error or result.why_runtime_stopped
        kind = f" ({result.error_kind})" if result.error and result.error_kind else ""
        super().__init__(f"the run of {result.pod!r} ended as {result.status}{kind}{f': {why}' if why else ''}")


class RunResult(BaseModel, Generic[OutputT], frozen=True):
    """A run's end. `text` is None unless it finished; `partial` is what a failed run had said.

    `output` is the answer as JSON where there is an output schema, as an object where the pod was opened with an `output_type`;
    None unless it finished. Written as JSON, it is what the model answered.

    `approvals` are the ids of questions that a human must answer first (`details` says what they ask and how they are answered),
    `queued` those of stored messages that no request has seen yet. `requests` are the worker's own, `compaction_requests` those
    of its compact workers. `resumable` says whether `resume` has something to go on with. Tokens and US dollars of this run;
    `session_cost_usd` of the whole session, compact workers included. `prune_saved_usd` and `compaction_saved_usd` are what
    pruning and compaction saved in this run by the provider's reports, less what they cost (below 0: a loss; `pod.savings` says
    how it is reckoned); None where a price is not known. `duration_s` is the time that processes drove the run, through
    restarts and without what it waited for a human or lay stopped.
    """

    pod: str
    session: str
    segment: str
    run: str | None
    status: Status
    text: str | None = None
    output: OutputT | None = None
    partial: str = ""
    error: str | None = None
    error_kind: str | None = None
    details: dict[str, Any] = Field(default_factory=dict[str, Any])
    why_model_stopped: str = ""
    why_runtime_stopped: str = ""
    approvals: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    truncated: bool = False
    empty: bool = False
    requests: int = 0
    compaction_requests: int = 0
    tool_calls: int = 0
    retries: int = 0
    denials: int = 0
    segments: int = 1
    compactions: int = 0
    prunes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    session_cost_usd: float | None = None
    prune_saved_usd: float | None = None
    compaction_saved_usd: float | None = None
    usage: dict[str, dict[str, int | float]] = Field(default_factory=dict[str, dict[str, int | float]])
    duration_s: float = 0.0
    resumable: bool = True
    exit_code: int = 0

    _answered: Any = PrivateAttr(default=None)

    def raise_for_status(self) -> FinishedResult[OutputT]:
        """Itself where the run finished. Raises `RunFailed` otherwise."""
        if isinstance(self, FinishedResult):
            return self
        if self.status != "finished":
            raise RunFailed(self)
        return FinishedResult[OutputT](**dict(self))  # one that was read from a stream

    def with_output(self, output: V, answered: Any) -> RunResult[V]:
        """The same with an object as its output; `answered` is the JSON value that it was made of."""
        made: Any = self.model_copy(update={"output": output})
        made._answered = answered
        return made

    @field_serializer("output")
    def _as_answered(self, output: Any) -> Any:
        return output if self._answered is None else self._answered

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What differs from the defaults: of some thirty fields the few that say something."""
        fields = type(self).model_fields
        return [(name, value) for name, value in self if value != fields[name].get_default(call_default_factory=True)]


class FinishedResult(RunResult[OutputT], Generic[OutputT], frozen=True):
    """The end of a run that finished: it has a `text`, and an `output` where one was asked for."""

    status: Literal["finished"]
    text: str = ""
    output: OutputT = cast("Any", None)  # so without an output schema


def waits_for(asked: Iterable[ApprovalAsked], pod: str) -> dict[str, Any]:
    """What a pod waits for, and how it is answered: `questions`, each with `id`, `tool` and `summary`, and `answer`."""
    questions = [{"id": each.id, "tool": each.tool, "summary": each.summary} for each in asked]
    which = " --all" if len(questions) > 1 else ""
    return {"questions": questions, "answer": f"pod approve {pod}{which} --resume, or pod deny {pod}{which} --resume"}


def failed_result(error: BaseException, state: PodState, pod: str, exit_code: int = 1) -> RunResult:
    """The result of a run that an error ended, for readers of its stream; the error itself is raised beside it."""
    kind = type(error).__name__
    result = result_of(w.Failed(kind, told(error) or kind), state, pod, state.run)
    return result.model_copy(update={"exit_code": exit_code})


def result_without_run(
    pod: str, status: Status, why: str, *, error: str | None = None, exit_code: int | None = None
) -> RunResult:
    """The result of a pod that could not be opened, or was not begun: there is nothing to go on with, and no figures."""
    return RunResult(
        pod=pod, session="", segment="", run=None, status=status, error=error, error_kind=None if error is None else why,
        why_runtime_stopped=why, resumable=False, exit_code=EXIT[status] if exit_code is None else exit_code,
    )  # fmt: skip


def outcome_of(ended: e.RunEndedEntry) -> w.Outcome:
    """The outcome that a run's end put on record."""
    said = ended.result
    match ended.status:
        case "finished":
            return w.Finished(said.get("text", ""), said.get("output"), said.get("empty", False))
        case "limit":
            return w.LimitReached(said.get("limit", ""), said.get("message", ""), said.get("figures", {}))
        case "cancelled":
            return w.Cancelled(tuple(said.get("withdrawn", ())))
        case _:
            return w.Failed(
                said.get("kind", ""), said.get("message", ""), said.get("text", ""), said.get("details", {})
            )


def last_result(state: PodState, pod: str) -> RunResult:
    """The result of the last run, which has ended, as its log tells it."""
    ended = state.ended
    if ended is None:
        # A compaction between runs began a segment since: the answer is the last that was said in it.
        said = [item.text for item in state.history.view if isinstance(item, AssistantItem)]
        return result_of(w.Finished(said[-1] if said else ""), state, pod, state.last_run)
    return result_of(outcome_of(ended), state, pod, ended.run)


def result_of(outcome: w.Outcome, state: PodState, pod: str, run: str | None, stopped: str = "") -> RunResult:
    """The result that an outcome and the state's figures give."""
    counters, totals = state.history.counters, state.totals
    fields: dict[str, Any] = {
        "pod": pod,
        "session": state.start.session,
        "segment": state.start.segment,
        "run": run,
        "requests": counters.requests,
        "compaction_requests": counters.worker_requests,
        "tool_calls": counters.tool_calls,
        "retries": counters.retries,
        "denials": counters.denied,
        "segments": counters.segments,
        "compactions": counters.compactions,
        "prunes": counters.prunes,
        "input_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        "output_tokens": counters.output_tokens,
        "cost_usd": None if counters.unpriced else round(counters.cost_usd + counters.worker_cost_usd, 6),
        "session_cost_usd": None if totals.unpriced else round(totals.cost_usd, 6),
        "prune_saved_usd": None if counters.unpriced else round(counters.prune_saved_usd, 6),
        "compaction_saved_usd": (
            None if counters.unpriced or counters.worker_unpriced else round(counters.compaction_saved_usd, 6)
        ),
        "usage": whole_counts(totals.by),
        "duration_s": round(state.driven.seconds(state.driven.newest), 3),
        "why_runtime_stopped": stopped,
    }
    match outcome:
        case w.Finished():
            fields |= {"status": "finished", "text": outcome.text, "output": outcome.output, "empty": outcome.empty}
            fields |= {"why_model_stopped": "end"}
        case w.Failed():
            fields |= {
                "status": "failed",
                "error": outcome.message,
                "error_kind": outcome.kind,
                "partial": outcome.text,
            }
            fields |= {"details": outcome.details, "truncated": outcome.kind == "output_limit"}
            fields["why_model_stopped"] = {"output_limit": "length", "refused": "refusal"}.get(outcome.kind, "")
            fields["why_runtime_stopped"] = stopped or outcome.kind
        case w.LimitReached():
            fields |= {
                "status": "limit",
                "error": outcome.message,
                "error_kind": outcome.limit,
                "details": outcome.figures,
            }
            fields["why_runtime_stopped"] = stopped or f"limit {outcome.limit}"
        case w.Paused():
            fields |= {"status": "paused", "approvals": outcome.approvals, "why_runtime_stopped": "waits for approval"}
            fields["details"] = waits_for(state.approvals.values(), pod)
        case w.Cancelled():
            fields |= {
                "status": "cancelled",
                "withdrawn": outcome.withdrawn,
                "why_runtime_stopped": stopped or "cancelled",
            }
        case w.Yielded():
            fields |= {
                "status": "yielded",
                "details": outcome.detail,
                "why_runtime_stopped": f"yielded: {outcome.reason}",
            }
    fields["queued"] = tuple(state.history.queue)
    kind = fields.get("error_kind") or ""
    fields["resumable"] = state.unanswered
    fields["exit_code"] = EXIT_BY_KIND.get(kind, EXIT[fields["status"]])
    if stopped == "SIGTERM":
        fields["exit_code"] = 143
    return (FinishedResult if isinstance(outcome, w.Finished) else RunResult).model_validate(fields)
