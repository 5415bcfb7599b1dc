"""What goes on record when a human is asked about a call, answers, or a call is refused."""

from __future__ import annotations

from typing import Literal, TypeAlias

from worker.records import Record

ApprovalScope: TypeAlias = Literal["once", "run"]
"""How far an approval reaches: this call, or the rest of the run."""


class ApprovalAsked(Record):
    """A call waits for a human. It is bound to the tool and the SHA-256 of the call's canonical arguments.

    `scope` is how far an approval reaches unless the answer says otherwise: `run` for writes in scope, which then are
    free for the rest of the run. `summary` and `diff` are for the human; nothing is decided from them.
    """

    kind = "approval_asked"
    id: str
    call_id: str
    tool: str
    arguments_sha256: str
    summary: str
    diff: str | None = None
    effect: str = ""
    reason: str = ""
    scope: ApprovalScope = "once"


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
    """A call was refused; `reason` names the rule, profile or answer."""

    kind = "permission_denied"
    call_id: str
    tool: str
    reason: str
