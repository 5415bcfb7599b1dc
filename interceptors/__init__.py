"""Interceptors: what looks at each request before it leaves and at each call before it runs.

They prune old tool output, keep a request under its budget, make a worker yield when its context has grown past a
threshold, hold limits and permissions, and notice repetition. Each decides by a pure function; the worker's loop acts
and puts it on record.
"""

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
