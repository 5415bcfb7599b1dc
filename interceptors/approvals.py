"""What goes on record when a human is asked about a call, answers, or a call is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from worker.records import Record

ApprovalScope: TypeAlias = Literal["once", "run"]
"""How far an approval reaches: this call, or the rest of the run."""


class ApprovalAsked(Record):
    """A call waits for a human. It is bound to the tool and the SHA-256 of the call's canonical arguments (as they are logged, and
    with its id, where a secret was masked in them: a yes then never holds for another call).

    `scope` is how far an approval reaches unless the answer says otherwise: `run` for writes in scope, which then are
    free for the rest of the run. `summary`, `details` (each argument that stands in neither of the others whole) and `diff` are for
    the human; nothing is decided from them. `before_sha256` is
    that of the file that the diff was made from (of nothing where there was none): a yes to this call holds for that content.
    """

    kind = "approval_asked"
    id: str
    call_id: str
    tool: str
    arguments_sha256: str
    summary: str
    details: str | None = None
    diff: str | None = None
    effect: str = ""
    reason: str = ""
    scope: ApprovalScope = "once"
    before_sha256: str | None = None


class ApprovalAnswered(Record):
    """A human's answer, the only thing that grants. `scope` of None takes the one that was asked for; `message` goes to
    the model."""

    kind = "approval_answered"
    id: str
    approved: bool
    by: str = ""
    scope: ApprovalScope | None = None
    message: str = ""


class PermissionDenied(Record):
    """A call was refused; `reason` names the rule, profile or answer, `summary` the tool with its file or command."""

    kind = "permission_denied"
    call_id: str
    tool: str
    reason: str
    summary: str = ""


def settled_by(asked: ApprovalAsked, others: Iterable[ApprovalAsked]) -> list[ApprovalAsked]:
    """The other questions that a yes for the run settles: writes in scope where it was about one of those (they are
    asked for the run), else calls of the same tool with the same arguments.
    """
    rest = [other for other in others if other.id != asked.id]
    if asked.scope == "run":
        return [other for other in rest if other.scope == "run"]
    key = (asked.tool, asked.arguments_sha256)
    return [other for other in rest if (other.tool, other.arguments_sha256) == key]


def reach_of(asked: ApprovalScope, scope: ApprovalScope | None = None) -> str:
    """What a yes allows, in words: `asked` is the question's scope, `scope` the answer's."""
    if (scope or asked) == "once":
        return "this call"
    return "writes for the rest of the run" if asked == "run" else "this call and the same again in this run"
