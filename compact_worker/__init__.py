"""The disposable worker that summarises a part of a session, names the files that must be read again, and is thrown
away."""

from compact_worker.job import BROKEN_OFF, PREFIX_TURNS, compact
from compact_worker.material import (
    CompactFailed,
    CompactResult,
    CompactSettings,
    Directive,
    Figures,
    Mark,
    Material,
    OnEvent,
    PrefixItems,
    Reference,
    Source,
)
from compact_worker.prompt import order_text, system_prompt
from compact_worker.tools import OWN_TOOLS, WRITE_SUMMARY, declared_write_summary

__all__ = [
    "BROKEN_OFF",
    "OWN_TOOLS",
    "PREFIX_TURNS",
    "WRITE_SUMMARY",
    "CompactFailed",
    "CompactResult",
    "CompactSettings",
    "Directive",
    "Figures",
    "Mark",
    "Material",
    "OnEvent",
    "PrefixItems",
    "Reference",
    "Source",
    "compact",
    "declared_write_summary",
    "order_text",
    "system_prompt",
]
