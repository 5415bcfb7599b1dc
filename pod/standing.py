"""How the pod of a task stands before somebody goes on with it: read from its log, which is what counts after a kill."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pod.errors import PodError
from pod.log.folder import PodFolder
from pod.result import RunResult, last_result, result_of
from pod.session import load
from pod.state import PodState
from worker.results import Failed, Paused

ALONE_FROM = 2
"""Fruitless starts from which a task is begun last, with no other beside it: what brings a process down must not take others along."""

POISONED = "poisoned"
"""The kind of failure of a task whose process died again and again before anything came of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`ended` is the result of a run that came to its end, `starts` how often it was begun since anything last came of it,
    `cost_usd` what its session has cost. `waits` says that a human must answer before it can go on.
    """

    ended: RunResult | None = None
    starts: int = 0
    cost_usd: float = 0.0
    waits: bool = False


def standing_of(folder: PodFolder) -> Standing | None:
    """None for a pod that was not made yet, and for one whose log does not read: opening it says why. Blocks; needs no lock."""
    try:
        folder.files.look(folder.path)
    except OSError:
        return None
    if not os.path.lexists(folder.pointer_path):
        return None
    try:
        state = load(folder.segment_path(folder.pointer().segment))
    except (PodError, OSError):
        return None
    ended = last_result(state, folder.name) if _is_over(state) else None
    return Standing(ended, state.fruitless_starts, state.totals.cost_usd, bool(state.approvals))


def _is_over(state: PodState) -> bool:
    return state.run is None and state.last_run is not None and not state.history.queue


def waiting(folder: PodFolder) -> RunResult:
    """The result of a pod that waits for a human. Blocks. Raises as `pod.session.load` does."""
    state = load(folder.segment_path(folder.pointer().segment))
    return result_of(Paused(tuple(state.approvals)), state, folder.name, state.run)


def poisoned(folder: PodFolder, starts: int) -> RunResult:
    """The result of a task that is given up: it was begun too often, and nothing came of it. Blocks. Raises as `pod.session.load` does."""
    state = load(folder.segment_path(folder.pointer().segment))
    return result_of(
        Failed(POISONED, given_up(folder, starts, "`--retry-failed` again in its batch")), state, folder.name, state.run
    )


def given_up(folder: PodFolder, starts: int, again: str) -> str:
    """Why a task is given up, and the ways on; `again` is the one beside a try by hand."""
    return (
        f"it was begun {starts} times, and each time its process ended before anything came of it; "
        f"`pod resume {folder.name}` tries it alone, {again}"
    )
