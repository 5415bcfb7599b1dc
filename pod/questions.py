"""What waits for a human in a pod, and what lies in its inbox: answered and taken in between runs.

Apart from what else is done to a whole pod, which needs more: a message is sent often.
"""

from __future__ import annotations

from pathlib import Path

from interceptors.approvals import ApprovalAnswered, ApprovalAsked, ApprovalScope
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log import inbox
from pod.log.folder import PodFolder
from pod.session import Session, load


def open_questions(folder: PodFolder) -> dict[str, ApprovalAsked]:
    """What waits for a human in a pod, by id, oldest first.

    Blocks; needs no lock. Raises `PodNotFound`, `LogDamaged`.
    """
    return dict(load(folder.segment_path(folder.pointer().segment)).approvals)


def answer(
    session: Session,
    approval: str,
    *,
    approved: bool,
    by: str = "",
    scope: ApprovalScope | None = None,
    message: str = "",
) -> None:
    """Puts a human's answer on record, durable when it returns. Blocks.

    Raises `UsageProblem` where nothing of this id is asked.
    """
    if approval not in session.state.approvals:
        raise UsageProblem(f"no question {approval!r} is open in pod {session.folder.name!r}")
    session.put(ApprovalAnswered(id=approval, approved=approved, by=by, scope=scope, message=message))
    session.writer.sync_now()


def take_inbox(session: Session) -> int:
    """Takes messages and answers out of the inbox of a pod that nobody runs: recorded, durable, then unlinked.

    Orders to a run (stop, interrupt, compact) are left for the next writer, who gives them their meaning. Returns
    how many were taken.
    """
    taken: list[Path] = []
    for path, command in inbox.waiting(session.folder):
        if command is None:
            for record in inbox.set_aside(session.folder, path):
                session.put(record)
            continue
        known = command.id in session.state.inbox
        args = command.args
        match command.kind:
            case "send":
                if not known:
                    for record in inbox.message_of(command):
                        session.put(record)
            case "approve" | "deny":
                if not known:
                    session.put(e.Commanded(id=command.id, command=command.kind, args=args))
                    label = str(args.get("id", ""))
                    if label in session.state.approvals:
                        session.put(
                            ApprovalAnswered(
                                id=label, approved=command.kind == "approve", by=str(args.get("by") or ""),
                                scope=args.get("scope"), message=str(args.get("message") or ""),
                            )
                        )  # fmt: skip
            case _:
                continue
        taken.append(path)
    session.writer.sync_now()
    for path in taken:
        session.folder.files.unlink(path)
    return len(taken)
