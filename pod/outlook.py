"""What fills a pod's context and what a compaction would do, without running or writing anything.

Made from the log, the stored manifest and the models' capabilities: the same functions and numbers that a run
decides by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from interceptors.ceiling import BudgetLine, budget_table, overhead_of
from interceptors.prune import Prune
from pod import setup
from pod.clearing import bounded, clears, uncleared_tokens
from pod.context.policy import Plan, least_after, plan_of, standing_before, utc
from pod.log.folder import PodFolder
from pod.manifest import ACTING, Manifest, trigger_tokens
from pod.servers import stored_specs
from pod.session import load, tell
from pod.state import PodState
from pod.stored import stored_manifest
from worker.accuracy import Accuracy, Errors
from worker.budget import Budget
from worker.estimate import estimate_item
from worker.items import ContextItem, ToolResultItem
from worker.ledger import Ledger
from worker.memory import maker_of, memory_of, provenance
from worker.models.base import Family, Model
from worker.occupancy import Occupancy
from worker.records import MemoryJournal
from worker.sizing import Sizing

Acceptance: TypeAlias = Literal["yes", "maybe", "no"]
"""`maybe`: a summary of the greatest length would be too much, a shorter one would not."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The context of a pod as the next request would send it. Tokens; `categories` and `overhead` are raw estimates. `prune` is
    the interceptor that a run would ask, told what the segment holds."""

    manifest: Manifest
    state: PodState
    sizes: Sizing
    budget: Budget
    occupancy: Occupancy
    categories: tuple[BudgetLine, ...]
    prune: Prune

    @property
    def model(self) -> Model:
        """The model that would be asked."""
        return self.sizes.model

    @property
    def overhead(self) -> int:
        """What no compaction can lower: system prompt and tool schemas."""
        return self.sizes.overhead(self.model)

    @property
    def triggers(self) -> dict[str, int]:
        """The set triggers in tokens."""
        return {key: trigger_tokens(value, self.budget.available) for key, value in self.manifest.triggers.items()}

    @property
    def window_origin(self) -> str:
        """Where the window comes from, with the date of the figure where it is known."""
        known, source = self.model.capabilities, self.budget.window_source
        return known.window_origin or source if known.window_source == source else source

    @property
    def accuracy(self) -> Accuracy:
        """How well the requests to this model were estimated, in the whole session."""
        return self.state.history.calibration.accuracy(self.model.name)

    def plan(self) -> Plan:
        """What a compaction by hand would do now."""
        config = setup.compaction_config(self.manifest)
        available = self.budget.available
        return plan_of(
            self.state, self.occupancy, available, config.triggers(available), "hand",
            overhead=self.overhead, factor=self._factor,
            retained=config.retained_tokens, floor=config.retained_floor_tokens,
            summary_max=config.worker.summary_max_tokens,
        )  # fmt: skip

    def least(self, plan: Plan) -> int:
        """Tokens that a new segment has at least, however short its summary is."""
        return least_after(self.state, plan, self._factor)

    @property
    def _factor(self) -> float:
        """By what raw estimates of a whole request are multiplied."""
        return self.state.history.calibration.whole(self.model.name)

    def acceptance(self, plan: Plan) -> Acceptance:
        """Whether a compaction by this plan will be accepted, by the figures of now."""
        if plan.accepts(plan.expected):
            return "yes"
        return "maybe" if plan.possible and plan.accepts(self.least(plan)) else "no"

    @property
    def prunable(self) -> int:
        """Raw tokens of tool output behind the protected tail that a prune could take out at most."""
        history, left = self.state.history, self.manifest.prune.protected_tokens
        total = 0
        for item, tokens in zip(reversed(history.view), reversed(history.tokens), strict=True):
            if left > 0:
                left -= tokens
                continue
            open_to_it = isinstance(item, ToolResultItem) and item.prunable and item.content is not None
            if open_to_it or (isinstance(item, ContextItem) and item.kind == "auto_read" and not item.pruned):
                total += tokens if item.id not in self.state.pins else 0
        return total

    @property
    def uncleared(self) -> int:
        """Tokens of the whole history, where its size is by itself a reason to compact it; else 0."""
        if not bounded(self.manifest, self.model.capabilities):
            return 0
        return uncleared_tokens(self.state.history, self.model, self.overhead)

    def native_passed_over(self, plan: Plan) -> str:
        """Why the rung `native` would be passed over by its model and by the size of what it would compact, or nothing."""
        from pod.context.native import above_ceiling, compacts, no_way

        if not compacts(self.model):
            return no_way(self.model)
        in_full = clears(self.manifest, self.model.capabilities)
        return above_ceiling(self.sizes, self.model, plan.cut.at, in_full=in_full)

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """What the checkpoint at the start of the segment is and comes from; `stale` says why it would not be taken up."""
        found = self.state.checkpoint
        if found is None:
            return None
        from pod.context.checkpoint import standing_fault

        return {**found.provenance(), "stale": standing_fault(found, self.state.start.items) or None}

    @property
    def native(self) -> dict[str, Any] | None:
        """What the provider's memory at the start of the segment is; `read` says that the model reads it as it is."""
        memory = memory_of(self.state.history.view)
        if memory is None:
            return None
        facts = provenance(memory, estimate_item(memory, self.model.capabilities.family))
        return {**facts, "read": maker_of(memory) == self.model.name}

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON. What was saved is that of the session, None where a price is not known; `last_prune` is
        the newest one of this segment whose effect was measured.
        """
        state, plan = self.state, self.plan()
        accepted, measured, base = state.accepted, state.savings.newest, state.history.baseline
        return {
            "model": self.model.name,
            "window": self.budget.window,
            "window_source": self.budget.window_source,
            "available": self.budget.available,
            "reserve": max(self.budget.output, self.budget.buffer),
            "policy": self.manifest.policy,
            "triggers": self.triggers,
            "occupancy": self.occupancy.tokens,
            "provenance": self.occupancy.provenance,
            "margin": self.occupancy.margin,
            "overhead": self.occupancy.overhead,
            "queued": self.occupancy.pending,
            "categories": {line.category: line.tokens for line in self.categories},
            "items": len(state.history.view),
            "prunable": self.prunable,
            "pinned": len(state.pins),
            "retained": plan.retained_tokens,
            "summarisable": plan.summarised_tokens,
            "compaction_possible": plan.possible,
            "breaker": {
                "failures": state.breaker.failures,
                "open_until": None if state.breaker.open_until is None else utc(state.breaker.open_until),
            },
            "segment": state.start.segment,
            "lineage": state.start.lineage.kind_,
            "made_by": state.made_by or None,
            "summary": state.summary is not None,
            "checkpoint": self.checkpoint,
            "native": self.native,
            "native_passed_over": self.native_passed_over(plan) or None if "native" in self.manifest.ladder else None,
            "tool_clearing": clears(self.manifest, self.model.capabilities),
            "uncleared": self.uncleared or None,
            "accepted": accepted.after if accepted else None,
            "reported_first": state.first_reported or None,
            "estimate_last": state.last_estimate or None,
            "reported_last": base.reported if base is not None and base.source == "usage" else None,
            "calibration": state.history.calibration.factor(self.model.name),
            "estimates": _errors(self.accuracy.every),
            "first_estimates": _errors(self.accuracy.first),
            "doubted_reports": _errors(self.accuracy.doubted),
            "estimates_barred": self.accuracy.barred,
            "window_origin": self.window_origin,
            "counting": self.model.capabilities.counting,
            "prunes": state.totals.prunes,
            "compactions": state.totals.compactions,
            "prune_saved_usd": None if state.totals.unpriced else round(state.totals.prune_saved_usd, 6),
            "compaction_saved_usd": None if state.totals.unpriced else round(state.totals.compaction_saved_usd, 6),
            "last_prune": None if measured is None else measured.model_dump(exclude={"cause"}),
        }


def _errors(errors: Errors) -> dict[str, Any]:
    """Estimates against reports, in per cent of the report."""
    shares = {"mean": errors.mean, "lowest": errors.lowest, "highest": errors.highest}
    return {"compared": errors.count} | {key: round(100 * value, 2) for key, value in shares.items()}


def outlook(folder: PodFolder, states: Callable[[Path, Family], PodState] = load) -> Outlook:
    """The outlook of a pod. Blocks; needs no lock, opens no connection. `states` gives the state of a log, for a family of models;
    it is left as it is.

    Raises `PodNotFound`, `LogDamaged`, `UsageProblem`, `ConfigError`.
    """
    manifest, _ = stored_manifest(folder)
    model = setup.models_of(manifest.model)[0]
    family = model.capabilities.family
    path = folder.segment_path(folder.pointer().segment)
    state = states(path, family)
    history = state.history
    system = folder.blob(state.blobs["system"])
    own = [tool.spec for tool in setup.tools_of(manifest).values()]
    schemas = folder.blob(state.schemas) if manifest.mcp and folder.holds(state.schemas) else ""
    specs = (*own, *stored_specs(manifest, schemas))
    triggers = setup.trigger_list(manifest)
    sizes = Sizing(
        models=(model,),
        ledger=Ledger(MemoryJournal(), history),
        system=system,
        tools=specs,
        max_output_tokens=manifest.model.max_output_tokens,
        buffer=manifest.context.buffer_tokens,
        thresholds=lambda budget: triggers(budget.available) if manifest.policy in ACTING else (),
        standing=lambda: standing_before(state),
    )
    prune = setup.prune_of(manifest, state, (model,))
    tell(Ledger(MemoryJournal(), history, (prune,)), (prune,), state, path)
    budget, occupancy = sizes.budget(model), sizes.occupancy()
    table = budget_table(history, overhead_of(system, specs, family), budget, occupancy.pending)
    return Outlook(manifest, state, sizes, budget, occupancy, tuple(table), prune)
