"""Hooks: programs and functions of the user's own that are asked at six events, and can only tighten."""

from __future__ import annotations

from pod.hooks.answers import Block, GoOn
from pod.hooks.define import Hook
from pod.hooks.inputs import HookInput, PostCompact, PostToolUse, PreCompact, PreToolUse, RunStart, Stop

__all__ = [
    "Block",
    "GoOn",
    "Hook",
    "HookInput",
    "PostCompact",
    "PostToolUse",
    "PreCompact",
    "PreToolUse",
    "RunStart",
    "Stop",
]
