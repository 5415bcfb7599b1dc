"""The manifest: what a pod is told before it starts. Loads, checks, explains and writes it."""

from __future__ import annotations

from pod.manifest.check import check
from pod.manifest.context import (
    ACTING,
    CompactionSection,
    ContextSection,
    Policy,
    PruneSection,
    RolloverSection,
    Rung,
)
from pod.manifest.errors import ManifestError, Problem
from pod.manifest.expand import fill_prompt
from pod.manifest.fitting import fit
from pod.manifest.load import Loaded, find_manifest, load_manifest
from pod.manifest.model import Manifest
from pod.manifest.sections import (
    BUILT_IN_TOOLS,
    Action,
    Hook,
    InterceptorUse,
    LimitsSection,
    LogSection,
    McpServer,
    ModelSection,
    PermissionsSection,
    PodSection,
    Profile,
    RepeatCall,
    RetrySection,
    Rule,
    SandboxSection,
    ScopeSection,
    ShellTool,
    ToolsSection,
    WorkerSection,
)
from pod.manifest.shipped import shipped_names, shipped_path
from pod.manifest.source import Origin
from pod.manifest.support import unsupported
from pod.manifest.types import trigger_tokens

__all__ = [
    "ACTING",
    "BUILT_IN_TOOLS",
    "Action",
    "CompactionSection",
    "ContextSection",
    "Hook",
    "InterceptorUse",
    "LimitsSection",
    "Loaded",
    "LogSection",
    "Manifest",
    "ManifestError",
    "McpServer",
    "ModelSection",
    "Origin",
    "PermissionsSection",
    "PodSection",
    "Policy",
    "Problem",
    "Profile",
    "PruneSection",
    "RepeatCall",
    "RetrySection",
    "RolloverSection",
    "Rule",
    "Rung",
    "SandboxSection",
    "ScopeSection",
    "ShellTool",
    "ToolsSection",
    "WorkerSection",
    "check",
    "fill_prompt",
    "find_manifest",
    "fit",
    "load_manifest",
    "shipped_names",
    "shipped_path",
    "trigger_tokens",
    "unsupported",
]
