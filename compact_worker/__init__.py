"""The disposable worker that summarises a part of a session, names the files that must be read again, and is thrown
away.

Names are imported when they are first used, so that a module of this floor costs no more than what it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.lazily import at_first_use

if TYPE_CHECKING:
    from compact_worker.declared import WRITE_SUMMARY, declared_write_summary
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
    from compact_worker.tools import OWN_TOOLS

_HOMES = {
    "declared": "WRITE_SUMMARY declared_write_summary",
    "job": "BROKEN_OFF PREFIX_TURNS compact",
    "material": "CompactFailed CompactResult CompactSettings Directive Figures Mark Material OnEvent PrefixItems Reference Source",
    "prompt": "order_text system_prompt",
    "tools": "OWN_TOOLS",
}

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

__getattr__, __dir__ = at_first_use(globals(), _HOMES)
