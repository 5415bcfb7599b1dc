"""Interceptors: what looks at each request before it leaves and at each call before it runs.

They prune old tool output, keep a request under its budget, make a worker yield when its context has grown past a
threshold, hold limits and permissions, and notice repetition. Each decides by a pure function; the worker's loop acts
and puts it on record.

Names are imported when they are first used, so that a module of this floor costs no more than what it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.lazily import at_first_use

if TYPE_CHECKING:
    from interceptors.approvals import ApprovalAnswered, ApprovalAsked, ApprovalScope, PermissionDenied
    from interceptors.ceiling import BudgetLine, Ceiling, Overhead, budget_table, over_budget, overhead_of
    from interceptors.deciding import Rule, Verdict, decide
    from interceptors.facts import PathScope, Reach
    from interceptors.limits import Limits, LimitSettings
    from interceptors.order import default_chain
    from interceptors.permissions import Permissions
    from interceptors.progress import progressed
    from interceptors.prune import Prune, PrunePlan, PruneSettings, plan_prune, superseded_reads
    from interceptors.repeat import RepeatGuard
    from interceptors.stall import StallGuard
    from interceptors.stubs import RENDERER, render_arguments, render_read_stub, render_stub
    from interceptors.triggers import CompactSettings, CompactTrigger, Lowest, Trigger, lowest_trigger

_HOMES = {
    "approvals": "ApprovalAnswered ApprovalAsked ApprovalScope PermissionDenied",
    "ceiling": "BudgetLine Ceiling Overhead budget_table over_budget overhead_of",
    "deciding": "Rule Verdict decide",
    "facts": "PathScope Reach",
    "limits": "Limits LimitSettings",
    "order": "default_chain",
    "permissions": "Permissions",
    "progress": "progressed",
    "prune": "Prune PrunePlan PruneSettings plan_prune superseded_reads",
    "repeat": "RepeatGuard",
    "stall": "StallGuard",
    "stubs": "RENDERER render_arguments render_read_stub render_stub",
    "triggers": "CompactSettings CompactTrigger Lowest Trigger lowest_trigger",
}

__all__ = [
    "RENDERER",
    "ApprovalAnswered",
    "ApprovalAsked",
    "ApprovalScope",
    "BudgetLine",
    "Ceiling",
    "CompactSettings",
    "CompactTrigger",
    "LimitSettings",
    "Limits",
    "Lowest",
    "Overhead",
    "PathScope",
    "PermissionDenied",
    "Permissions",
    "Prune",
    "PrunePlan",
    "PruneSettings",
    "Reach",
    "RepeatGuard",
    "Rule",
    "StallGuard",
    "Trigger",
    "Verdict",
    "budget_table",
    "decide",
    "default_chain",
    "lowest_trigger",
    "over_budget",
    "overhead_of",
    "plan_prune",
    "progressed",
    "render_arguments",
    "render_read_stub",
    "render_stub",
    "superseded_reads",
]

__getattr__, __dir__ = at_first_use(globals(), _HOMES)
