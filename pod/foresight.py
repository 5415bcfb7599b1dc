"""What would go next from a pod's context, and why: the decisions before the next request, made ahead and without acting."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from interceptors.triggers import uncleared_limit
from pod import setup
from pod.context.policy import ASK_A_MODEL, Plan, best_effort, resting
from pod.manifest.context import ACTING
from pod.manifest.model import trigger_path
from pod.outlook import Outlook
from worker.interceptor import RequestContext
from worker.items import ContextItem
from worker.memory import read_by_others
from worker.occupancy import Occupancy

Rule: TypeAlias = Literal["prune", "compaction", "ceiling"]

BETWEEN = {"threshold": "between runs"}
"""When a trigger is looked at, where that is not before each request."""


WHY = {
    "min_savings": "[prune] min_savings",
    "cold_cache": "the provider's cache has run out, so that it costs little",
    "model_changed": "the model changed, and with it the cache",
    "tools_changed": "the tools changed, and with them the cache",
    "new_segment": "a new segment has no cache yet",
    "trigger": "that takes the context far enough below its trigger",
    "ceiling": "that takes the request under the ceiling",
}
"""Why a prune must save what it must, in words."""


@dataclass(frozen=True, slots=True)
class Next:
    """What one rule would do before the next request. `happens` says whether it acts, `tokens` how many would go
    (`happens`) or could still come before it acts; `reason` is for people."""

    rule: Rule
    happens: bool
    tokens: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A trigger by its name: its tokens, the table and key of the manifest that set it, and as what."""

    name: str
    tokens: int
    table: str
    key: str
    written: int | str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the summary that a segment began with comes from. Tokens are estimates; `figures` are those of its making."""

    tokens: int
    source: str
    rung: str
    trigger: str
    before: int | None
    after: int | None
    figures: dict[str, Any]


def origins(view: Outlook) -> tuple[Origin, ...]:
    """Where each set trigger comes from."""
    found: list[Origin] = []
    for name, tokens in view.triggers.items():
        *table, key = trigger_path(name)
        found.append(Origin(name, tokens, ".".join(table), key, view.manifest.triggers[name]))
    return tuple(found)


def policy_origin(view: Outlook) -> str:
    """Why the policy is the one in force."""
    if view.manifest.context.policy is not None:
        return "[context] policy"
    return "a trigger is set" if view.triggers else "no trigger is set"


def provenance(view: Outlook) -> Provenance | None:
    """Where the active segment's summary comes from, None where it began without one."""
    state, history = view.state, view.state.history
    for item in map(read_by_others, state.start.items):
        if isinstance(item, ContextItem) and item.kind == "summary":
            at = history.index.get(item.id)
            made = state.accepted
            return Provenance(
                tokens=history.tokens[at] if at is not None else 0, source=item.source, rung=state.made_by,
                trigger=made.trigger if made else "", before=made.before if made else None,
                after=made.after if made else None, figures=dict(made.figures) if made else {},
            )  # fmt: skip
    return None


def foresee(view: Outlook, plan: Plan, now: float) -> tuple[Next, ...]:
    """What would happen before the next request, in the order of the interceptors. `now` is in UTC seconds."""
    prune = _prune(view, now)
    occupancy = view.occupancy
    if prune.happens and prune.tokens:
        occupancy = occupancy.without(int(prune.tokens * _factor(view)))
    return (prune, _compaction(view, plan, occupancy, now), _ceiling(view, occupancy))


def _prune(view: Outlook, now: float) -> Next:
    """By the very interceptor that a run asks, so that both decide alike."""
    if not view.prune.settings.enabled:
        return Next("prune", False, None, "[prune] is off")
    look = view.prune.look(_context(view, now))
    moment, wanted, plan = look.moment, look.wanted, look.plan
    if wanted is None and moment.cleared:
        return Next("prune", False, None, "the provider clears old results itself ([context] tool_clearing)")
    if wanted is None:
        return Next("prune", False, None, "the model's reasoning is bound to what it has read: only at a free moment")
    if plan is not None:
        count = len(plan.replacements)
        return Next("prune", True, plan.tokens_saved, f"{count} old results give way ({WHY[wanted.reason]})")
    most = view.prunable
    if wanted.economy is not None and most > wanted.exceed:
        reason = (
            f"at most {most:,} tokens could go, and by the model's prices that does not pay yet "
            f"({wanted.economy.requests:.1f} requests are expected to be without them)"
        )
        return Next("prune", False, None, reason)
    reason = f"at most {most:,} tokens could go, and it must save more than {wanted.exceed:,} ({WHY[wanted.reason]})"
    return Next("prune", False, max(wanted.exceed - most, 0), reason)


def _context(view: Outlook, now: float) -> RequestContext:
    """The next request as interceptors would see it: of the run under way, else of a new one."""
    history = view.state.history
    if view.state.run is None:
        history = copy(history)
        history.begin_run()
    return RequestContext(
        history=history, occupancy=view.occupancy, budget=view.budget, model=view.model.name,
        capabilities=view.model.capabilities, tag=view.state.start.tag, first=False, now=now, wall=now,
    )  # fmt: skip


def _factor(view: Outlook) -> float:
    return min(view.state.history.calibration.factor(view.model.name), 1.0)


def _compaction(view: Outlook, plan: Plan, occupancy: Occupancy, now: float) -> Next:
    policy, triggers, tokens = view.manifest.policy, view.triggers, occupancy.decides
    if policy not in ACTING:
        return Next("compaction", False, None, f"policy {policy!r} makes nothing smaller by itself")
    if view.uncleared > max(uncleared_limit(view.budget.available), view.state.least_uncleared) and plan.possible:
        rungs, idle = _rungs(view, plan, now, forced=False)
        why = f"the whole history has {view.uncleared:,} tokens, near the ceiling, of which the provider clears a part"
        then = f": before the next request, by {', then '.join(rungs)}" if rungs else f", but {'; '.join(idle)}"
        return Next("compaction", bool(rungs), plan.summarised_tokens if rungs else 0, why + then)
    if not triggers:
        return Next("compaction", False, None, "no trigger is set: only by hand, at the ceiling or after an overflow")
    passed = [name for name, trigger in triggers.items() if tokens > min(trigger, view.budget.available)]
    if not passed:
        name = min(triggers, key=lambda key: triggers[key])
        left = min(triggers[name], view.budget.available) - tokens
        barred = " by what was reported alone: estimates are barred" if occupancy.barred else ""
        return Next("compaction", False, left, f"{left:,} tokens below {name} ({triggers[name]:,}){barred}")
    name = min(passed, key=lambda key: (key in BETWEEN, triggers[key]))
    when, least = BETWEEN.get(name, "before the next request"), view.state.least_trigger
    if name not in BETWEEN and tokens <= least:
        return Next(
            "compaction", False, least - tokens,
            f"{name} is passed, but the last try came to nothing: the next one is above {least:,} tokens",
        )  # fmt: skip
    if not plan.possible:
        return Next("compaction", False, 0, f"{name} is passed, but {plan.reason}")
    rungs, idle = _rungs(view, plan, now, forced=name not in BETWEEN)
    if not rungs:
        return Next("compaction", False, 0, f"{name} ({triggers[name]:,}) is passed, but {'; '.join(idle)}")
    by = ", then ".join(rungs) + "".join(f"; {reason}" for reason in idle)
    return Next("compaction", True, plan.summarised_tokens, f"{name} ({triggers[name]:,}) is passed: {when}, by {by}")


def _rungs(view: Outlook, plan: Plan, now: float, *, forced: bool) -> tuple[list[str], list[str]]:
    """The rungs of the ladder that would be tried, and why others would be passed over."""
    config = setup.compaction_config(view.manifest)
    ladder = config.ladder if forced else best_effort(config.ladder)
    found = dict.fromkeys(ladder, "")
    found |= {name: resting(view.state.breaker, now) for name in ladder if name in ASK_A_MODEL}
    if found.get("native") == "":
        found["native"] = view.native_passed_over(plan)
    if "rollover" in found and not config.history_access:
        found["rollover"] = "session_history is denied, so rollover is passed over"
    return [name for name, why in found.items() if not why], list(dict.fromkeys(filter(None, found.values())))


def _ceiling(view: Outlook, occupancy: Occupancy) -> Next:
    left = view.budget.available - occupancy.upper
    margin = f" with a margin of {occupancy.margin:,}" if occupancy.margin else ""
    if occupancy.fits(view.budget.available):
        return Next("ceiling", False, left, f"{left:,} tokens below it{margin}")
    acts = view.manifest.policy in ACTING
    what = "the context is made smaller first" if acts else "the next request is refused"
    return Next("ceiling", True, -left, f"{-left:,} tokens above it{margin}: {what}")
