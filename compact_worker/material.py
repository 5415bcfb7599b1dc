"""What a compaction is given and what it gives back: frozen data, without a word about pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from worker.budget import LearnedWindow
from worker.calibration import Calibration
from worker.items import Item
from worker.occupancy import Baseline
from worker.tools import Tool

Source: TypeAlias = Literal["prefix", "overview"]

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None]
"""Takes the name of an event (`compaction.overview`, `compaction.warning`, `compaction.nudge`) and its figures."""


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """The numbers of a manifest's `[compaction]` that bound the compact worker, by the same names.

    Tokens, except `worker_max_turns` (requests) and `deadline` (seconds).
    """

    overview_target_tokens: int = 8_000
    overview_warning_tokens: int = 16_000
    overview_deadline_tokens: int = 40_000
    worker_context_max_tokens: int = 50_000
    finish_warning_remaining_tokens: int = 8_000
    final_reserve_tokens: int = 4_000
    worker_max_turns: int = 20
    deadline: float = 600.0
    summary_target_tokens: int = 1_500
    summary_max_tokens: int = 3_000
    auto_read_budget_tokens: int = 8_000


class PrefixItems(Protocol):
    """The summarised range as it stands in the log, unpruned.

    `count` is how many items there are; `read` gives those from `start` (0-based) up to before `stop`. `read` may
    block: it is called in a thread.
    """

    @property
    def count(self) -> int: ...

    def read(self, start: int, stop: int) -> list[Item]: ...


@dataclass(frozen=True, slots=True)
class Material:
    """What is compacted.

    `view` is the pod's whole view as last sent; items before `cut` are summarised, from it on they are kept verbatim;
    `log` is the summarised range unpruned. `tasks` is the task list as the pod holds it; `recent_files` are touched
    files, newest last; `user_texts` are all user messages in view, in order: a directive must stand in one of them, or among the
    directives of `previous_summary`. `system`, `tools` (with `declared_write_summary()` among them for the source
    `prefix`), `tag`, `cwd` and `cache_key` are the pod's own. `baseline`, `calibration` and `windows` are what the
    pod's history has learned, so that the worker measures with the same number.
    """

    view: tuple[Item, ...]
    cut: int
    log: PrefixItems
    tasks: tuple[Mapping[str, Any], ...]
    recent_files: tuple[str, ...]
    previous_summary: str | None
    focus: str | None
    user_texts: tuple[str, ...]
    system: str
    tools: tuple[Tool, ...]
    tag: str
    cwd: Path
    touched_files: bool
    cache_key: str = ""
    baseline: Baseline | None = None
    calibration: Calibration = field(default_factory=Calibration)
    windows: Mapping[str, LearnedWindow] = field(default_factory=dict[str, LearnedWindow])


@dataclass(frozen=True, slots=True)
class Mark:
    """Lines of a file to put before the agent again: from line `offset` (1-based), `limit` lines. None: to the end."""

    path: str
    offset: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A file that was read and is named without its content."""

    path: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Directive:
    """A user's words in the summary; `user` is their message's place in `Material.user_texts` (0-based), None where they are known
    from the previous summary alone."""

    text: str
    user: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a compaction cost and what code did to its summary.

    `requests` counts attempts, `turns` complete replies; tokens are as reported. `cost_usd` is what is known of the
    cost; `unpriced` counts replies without a price. `directives_moved` stood in tool output only and are findings now;
    `directives_dropped` stood nowhere; `lines_excluded` claimed approvals or grants; `missing_paths` are named in the
    prose and do not exist.
    """

    source: Source
    coarse: bool
    model: str
    requests: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0
    first_input_tokens: int = 0
    items_shown: int = 0
    items_omitted: int = 0
    summary_tokens: int = 0
    summaries_refused: int = 0
    auto_read_tokens: int = 0
    directives: int = 0
    directives_moved: int = 0
    directives_dropped: int = 0
    lines_excluded: int = 0
    missing_paths: int = 0
    entries_lost: int = 0
    nudges: int = 0
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values, for a log entry or an event."""
        return {**asdict(self), "warnings": list(self.warnings)}


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction found: a normalised summary, and the files that belong to it.

    `unmarked` are paths that need not even be named; no path stands in two of `marks`, `references` and `unmarked`.
    """

    summary: str
    marks: tuple[Mark, ...]
    references: tuple[Reference, ...]
    unmarked: frozenset[str]
    directives: tuple[Directive, ...]
    figures: Figures


class CompactFailed(Exception):
    """No valid summary came of it. `reason` is a stable word; the text says what happened and names the bound.

    Reasons: `no_room`, `not_declared`, `no_summary`, `cut`, `thin`, `worker_context_max_tokens`, `worker_max_turns`,
    `deadline`, and the kinds of a failed run (`overflow`, `over_budget`, `auth`, `refused`, ...).
    """

    def __init__(self, reason: str, message: str, figures: Figures) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.figures = figures
