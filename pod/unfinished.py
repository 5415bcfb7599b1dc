"""Whether a pod has anything to go on with: found out before anything is written, so that a refusal leaves it as it is."""

from __future__ import annotations

from pod.errors import UsageProblem
from pod.log.folder import PodFolder
from pod.log.inbox import message_waits
from pod.session import load
from pod.state import PodState, nothing_left


def check_unfinished(state: PodState, folder: PodFolder) -> None:
    """Raises `UsageProblem` where neither the state nor a message in the inbox gives a run anything to do. Blocks; writes nothing."""
    if state.unanswered or message_waits(folder, state.inbox):
        return
    raise UsageProblem(
        f"pod {folder.name!r} has nothing to go on with: {nothing_left(state)}. "
        f'Give it a new message: pod resume {folder.name} "..."'
    )


def check_stored(folder: PodFolder) -> None:
    """`check_unfinished` for a pod that is not open here. What another process writes to is not judged.

    Blocks; needs no lock. Raises `PodNotFound`, `LogDamaged`.
    """
    if not folder.is_busy():
        check_unfinished(load(folder.segment_path(folder.pointer().segment)), folder)
