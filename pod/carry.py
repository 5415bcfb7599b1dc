"""What crosses a segment boundary as data, written by code: never left to a summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pod.context.facts import Checkpoint
from worker.budget import LearnedWindow
from worker.calibration import Calibration
from worker.history import Counters
from worker.models.base import Refusals


class Totals(BaseModel):
    """Figures of the whole session; they never fall (case B159). `by` itemises by purpose and model.

    Only `prune_saved_usd` and `compaction_saved_usd` may: below 0 they say that more was lost than saved.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    segments: int = 1
    compactions: int = 0
    prunes: int = 0
    denied: int = 0
    prune_saved_usd: float = 0.0
    compaction_saved_usd: float = 0.0
    by: dict[str, dict[str, float]] = Field(default_factory=dict[str, dict[str, float]])


class NotesMark(BaseModel):
    """The agent's notes as they stood when the session was cleared: what stands in them up to here is of before.

    `sha256` (hex) of the first `size` bytes; empty where the file could not be read then.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    size: int
    sha256: str


class BreakerState(BaseModel):
    """Failures of the compact worker in a row, and until when (UTC seconds) its rungs are skipped."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    failures: int = 0
    open_until: float | None = None


class Grant(BaseModel):
    """What a human allowed for the rest of a run."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    run: str
    effect: str
    by: str = ""


class OpenRun(BaseModel):
    """A run that goes on in the new segment: its id, when it began (UTC seconds), its counters and the guards' state.

    `driven` are the seconds that processes had driven it in stretches that are over (None in logs that did not tell:
    then one stretch counts from its start), `since` when the one under way began, `generation` its writer's.
    `small_window`: it was warned that a window is too small for more than one reply.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    run: str
    started: float
    driven: float | None = None
    since: float | None = None
    generation: int = 0
    counters: Counters = Counters()
    guards: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    instructions: dict[str, str] = Field(default_factory=dict[str, str])
    instructions_cut: dict[str, int] = Field(default_factory=dict[str, int])
    small_window: bool = False


class Carry(BaseModel):
    """The typed state of a session at a segment boundary.

    `seen` maps each file to the hash of its content that the model last saw; `recent` lists touched files, newest last; `state` is
    the tools' own (tasks, processes); `inbox` the last command ids, so that one taken twice is known; `first_input` and `run_inputs` name
    the user's words that stay whole, `omitted_words` counts those that no longer stand in the context.
    `taken_back` names user inputs that were given back or rejected: history does not show them.
    `last_run` is the newest run, `last_status` how it ended (empty while it is open). `unknown_windows` names the models of
    whose unknown window a warning was told,
    `refusals` what each model's server is known not to take. `checkpoint` is the one whose text is the segment's summary, where that is one.
    `notes` are the agent's notes as the last clear left them. `warned` is the item that warned this very window of its end: a
    fork and a rewind go on in a window, a compaction begins another one. `instructions` are those of the newest run,
    `servers` how each server of tools stood last. `trace` is the `traceparent` of the newest run, where it is traced.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    totals: Totals = Totals()
    windows: dict[str, LearnedWindow] = Field(default_factory=dict[str, LearnedWindow])
    calibration: Calibration = Calibration()
    breaker: BreakerState = BreakerState()
    pins: tuple[str, ...] = ()
    seen: dict[str, str] = Field(default_factory=dict[str, str])
    recent: tuple[str, ...] = ()
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    inbox: tuple[str, ...] = ()
    manifest: str = ""
    last_reply_at: float = 0.0
    failed_at_tokens: int = 0
    summary: str | None = None
    first_input: str | None = None
    run_inputs: tuple[str, ...] = ()
    omitted_words: int = 0
    last_run: str | None = None
    last_status: str = ""
    unknown_windows: tuple[str, ...] = ()
    refusals: dict[str, Refusals] = Field(default_factory=dict[str, Refusals])
    taken_back: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    runs: int = 0
    run_requests: int = 0
    trace: str | None = None
    notes: NotesMark | None = None
    warned: str | None = None
    servers: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    instructions: dict[str, str] = Field(default_factory=dict[str, str])
    instructions_cut: dict[str, int] = Field(default_factory=dict[str, int])


def whole_counts(by: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, int | float]]:
    """Figures by purpose and model, counts as whole numbers; only costs have a fraction."""
    return {
        label: {name: round(value, 6) if name == "cost_usd" else round(value) for name, value in figures.items()}
        for label, figures in by.items()
    }
