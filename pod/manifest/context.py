"""The sections of a manifest that govern the context: prune, context, rollover, compaction."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Strict

from pod.manifest.sections import ModelSection
from pod.manifest.types import Count, Savings, Seconds, Section, Tokens, Trigger

Policy: TypeAlias = Literal["off", "warn", "compact", "rollover", "checkpoint", "native"]
Rung: TypeAlias = Literal["native", "compact", "coarse", "checkpoint", "rollover"]
TokensOrZero: TypeAlias = Annotated[int, Field(ge=0)]

ACTING: frozenset[Policy] = frozenset({"compact", "rollover", "checkpoint", "native"})
"""The policies that change the context by themselves."""


class PruneSection(Section):
    """Pruning: requests leave out the content of old tool results and keep its summary. The log keeps everything."""

    enabled: bool = Field(default=True, description="Whether old tool results are pruned.")
    protected_tokens: TokensOrZero = Field(
        default=8000, description="Tokens at the end of the history that are never pruned."
    )
    min_savings: Savings = Field(
        default="auto",
        description="Tokens that a prune must newly save. `auto`: what pays by the model's prices, the state of its cache "
        "and the expected requests, at least `min_savings_floor`; without prices, or where the model costs nothing, at least `protected_tokens` too.",
        json_schema_extra={"kind": 'tokens or "auto"'},
    )
    min_savings_floor: TokensOrZero = Field(default=4096, description="Tokens that `auto` never goes below.")
    excerpt_chars: Annotated[int, Field(ge=0)] = Field(
        default=200, description="Characters of its most telling lines that a pruned result keeps."
    )
    supersede_in_tail: bool = Field(
        default=False,
        description="Whether a read that a later read or write made stale is pruned from the protected tail too.",
    )
    prune_arguments: bool = Field(default=False, description="Whether large arguments of old calls are pruned too.")
    pin_budget_tokens: TokensOrZero = Field(default=4000, description="Tokens that pinned items may have together.")


class ContextSection(Section):
    """What happens when the context grows."""

    policy: Policy | None = Field(
        default=None,
        description="`off` reports; `warn` warns and refuses what cannot fit; the others act: `compact` has a compact worker "
        "write a summary, `checkpoint` makes an extract by code alone, `rollover` begins a new window without either (the "
        "old one is searched with `session_history`, notes stand at its start), `native` has the provider compact the history "
        "itself, and goes on down the ladder where it can't. Unset: `compact` where `[compaction]` sets a trigger, else `warn`.",
        examples=["compact"],
    )
    buffer_tokens: Tokens = Field(
        default=8192,
        description="Tokens of the window kept free where the requested output is smaller; never more than a quarter "
        "of the window.",
    )
    overflow_recovery: bool | None = Field(
        default=None,
        description="Whether a request that the provider rejects as too long is made shorter and sent once more. "
        "Unset: where the policy acts.",
        examples=[True],
    )
    ladder: Annotated[tuple[Rung, ...], Strict(False), Field(min_length=1)] = Field(
        default=("compact", "coarse", "checkpoint", "rollover"),
        description="What is tried in turn when the context must get smaller: `compact` (the compact worker), `coarse` (again, with a coarse "
        "overview), `checkpoint` (quotes from the record, chosen by code without a model), `rollover` (a plain new segment "
        "with the user's words, the state and `session_history`), `native` (the provider's own compaction, where the model has "
        "one; not in the default). The policies `checkpoint` and `rollover` begin at the rung of their name; `native` begins "
        "with it, and the others follow.",
    )
    tool_clearing: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether the provider clears old tool results itself, where it can (`pod models`), in the place of `[prune]`: "
        "what is sent stays as it was, so no reasoning loses what it is bound to. By the numbers of `[prune]`: above 60 % of the "
        "lowest trigger (or of what is available), at least `protected_tokens`; all but the newest 3 uses; where that clears "
        "`min_savings` (`auto`: `min_savings_floor`). `auto`: under the policy `native`, for models that bind their reasoning.",
    )


class RolloverSection(Section):
    """The policy `rollover`: a new window without a summary; what came before is found by `session_history`, and the
    agent's own notes (`context-notes.md` in its working folder) stand at the start of each window."""

    warn: Trigger = Field(
        default="60%",
        description="Where the agent is told that the window ends soon. Unset, and the window ends before that: at 80 % of its end.",
        json_schema_extra={"kind": "tokens or percent"},
    )
    at: Trigger = Field(
        default="75%",
        description="Where the window ends. The triggers of `[compaction]` count too: the lower one ends it, and `threshold` "
        "acts between runs.",
        json_schema_extra={"kind": "tokens or percent"},
    )


class CompactionSection(Section):
    """Compaction: a finished part of the history is replaced by a summary. Where no trigger is set here, a `policy` that was
    written and acts compacts at the ceiling only (and after an overflow); without a written one it happens by hand only.

    The numbers before the new segment (overview, worker) bound the compact worker, those after it (retained,
    summary, auto-read, result) what the new segment starts with. All are tokens unless the key says otherwise.
    """

    threshold: Trigger | None = Field(
        default=None,
        description="Occupancy above which the context is compacted between runs: tokens, or a share of what the "
        "window leaves for input. Unset: not between runs.",
        examples=[80_000],
        json_schema_extra={"kind": "tokens or percent"},
    )
    request_threshold: Trigger | None = Field(
        default=None,
        description="Occupancy above which a run is interrupted between two requests, compacted and continued. Unset:"
        " not between requests.",
        examples=[90_000],
        json_schema_extra={"kind": "tokens or percent"},
    )
    source: Literal["auto", "prefix", "overview"] = Field(
        default="auto",
        description="What the compact worker reads: `prefix` continues the pod's own history on a warm cache, "
        "`overview` starts small and looks up the rest, `auto` takes the cheaper one that fits.",
    )
    retained_tokens: Tokens = Field(
        default=8000, description="Tokens at the end of the history that are kept as they are."
    )
    retained_floor_tokens: TokensOrZero = Field(
        default=2000, description="Tokens below which the kept end is not shrunk to fit."
    )
    user_words_tokens: TokensOrZero = Field(
        default=4000,
        description="Tokens of earlier user messages that are kept verbatim, beside the first input and the current "
        "one, which are always kept.",
    )
    overview_target_tokens: Tokens = Field(default=8000, description="Tokens that the first overview aims at.")
    overview_warning_tokens: Tokens = Field(
        default=16_000, description="Tokens of the overview above which there is a warning."
    )
    overview_deadline_tokens: Tokens = Field(
        default=40_000, description="Tokens of the overview above which a coarse one is taken instead."
    )
    worker_context_max_tokens: Tokens = Field(
        default=50_000,
        description="Tokens that the compact worker's own context may reach (from a prefix: may grow by).",
    )
    finish_warning_remaining_tokens: Tokens = Field(
        default=8000, description="Tokens left in the compact worker's context at which it is told to finish."
    )
    final_reserve_tokens: Tokens = Field(
        default=4000, description="Tokens left below which the compact worker can only write its summary."
    )
    worker_max_turns: Count = Field(default=20, description="Requests that the compact worker may make.")
    deadline: Seconds = Field(default=600.0, description="Seconds that a compaction may take.")
    summary_target_tokens: Tokens = Field(default=1500, description="Tokens that the summary aims at.")
    summary_max_tokens: Tokens = Field(default=3000, description="Tokens above which a summary is refused.")
    auto_read_budget_tokens: TokensOrZero = Field(
        default=8000, description="Tokens of files that are read again into the new segment."
    )
    result_context_max_tokens: Tokens = Field(
        default=24_000, description="Tokens that the new segment's start may have."
    )
    breaker_cooldown: Seconds = Field(
        default=1800.0, description="Seconds without a compact worker after three failures in a row."
    )
    model: ModelSection | None = Field(
        default=None, description="Another model for the compact worker. Unset: the pod's own."
    )
