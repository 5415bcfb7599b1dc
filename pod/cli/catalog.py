"""`pod models` and `pod tools`: what the runtime knows."""

from __future__ import annotations

import argparse
import textwrap
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from pod.cli.output import show, show_json
from pod.cli.text import table

if TYPE_CHECKING:
    from worker.models.base import Capabilities


def models(args: argparse.Namespace) -> int:
    """Providers, and models whose windows and prices are known; or those that a manifest may ask."""
    from worker.models.registry import providers

    rows = _listed() if args.manifest is None else _asked(args.manifest)
    if args.json:
        show_json({"providers": list(providers()), "models": rows})
        return 0
    roles = any(row["role"] for row in rows)
    heads = ("MODEL", "WINDOW", "FROM", "OUTPUT", "FROM", "IN $/M", "OUT $/M", "CACHED $/M", "FROM")
    notes: dict[str, str] = {}
    cells = [(*((str(row["role"]),) if roles else ()), *_cells(row, notes)) for row in rows]
    show(table(cells, ("ROLE", *heads) if roles else heads))
    own: dict[str, list[str]] = {}
    for row in rows:
        own.setdefault(_own(row), []).append(str(row["model"]))
    for does, names in own.items():
        if does:
            show(f"the provider {does} ({NATIVE_SOURCE}): {', '.join(names)}")
    show("from: " + "; ".join(f"{mark} {origin}" for origin, mark in notes.items()))
    if args.manifest is None:
        show(f"providers: {', '.join(providers())}. Other models of a provider work too: name them provider:model, "
             "with [model] context_window where it is not known.")  # fmt: skip
    return 0


def _cells(row: dict[str, Any], notes: dict[str, str]) -> tuple[str, ...]:
    """A row of the table; sources with their dates are numbered in `notes`."""

    def mark(origin: str | None) -> str:
        return notes.setdefault(origin, f"[{len(notes) + 1}]") if origin else "-"

    prices = ("-" if row[key] is None else f"{row[key]:g}" for key in ("input", "output", "cache_read"))
    window, output = (
        (f"{row['window']:,}", mark(row["window_origin"])),
        (f"{row['max_output']:,}", mark(row["max_output_origin"])),
    )
    return str(row["model"]), *window, *output, *prices, mark(row["price_origin"])


NATIVE_SOURCE = "the adapters of this version, by the providers' own pages"
"""Where it comes from that a provider compacts a history or clears old tool results itself."""


def _own(row: dict[str, Any]) -> str:
    """What the provider of a model does to a context itself."""
    ways = f"compacts by {', '.join(row['native_compaction'])}" if row["native_compaction"] else ""
    return " and ".join(does for does in (ways, "clears tool results" if row["tool_clearing"] else "") if does)


def _listed() -> list[dict[str, Any]]:
    from worker.models.base import ModelSettings
    from worker.models.registry import KNOWN, create_model
    from worker.models.table import capabilities

    rows: list[dict[str, Any]] = []
    for name in KNOWN:
        provider, _, model = name.partition(":")
        # Those of the table are looked up there, so that no provider's package is loaded for a list.
        known = create_model(name).capabilities if provider == "offline" else None
        rows.append(_row("", name, known or capabilities(provider, model, ModelSettings())))
    return rows


def _asked(manifest: str) -> list[dict[str, Any]]:
    """The models of a manifest: the first, its fallbacks, the compact worker's own."""
    from pod import setup
    from pod.manifest import load_manifest

    loaded = load_manifest(manifest).manifest
    rows = [
        _row("fallback" if number else "model", model.name, model.capabilities)
        for number, model in enumerate(setup.models_of(loaded.model))
    ]
    section = loaded.compaction.model if loaded.compaction else None
    if section is not None and section.name is not None:
        rows += [_row("compaction.model", model.name, model.capabilities) for model in setup.models_of(section)]
    return rows


def _row(role: str, name: str, known: Capabilities) -> dict[str, Any]:
    from worker.models.table import Origin

    price = known.price
    return {
        "role": role,
        "model": name,
        "window": known.window,
        "window_source": known.window_source,
        "window_origin": known.window_origin or known.window_source,
        "max_output": known.max_output,
        "max_output_source": known.max_output_source,
        "max_output_origin": known.max_output_origin or known.max_output_source,
        "counting": known.counting,
        "native_compaction": list(known.native_compaction),
        "tool_clearing": known.tool_clearing,
        "native_source": NATIVE_SOURCE,
        "input": price.input if price else None,
        "output": price.output if price else None,
        "cache_read": price.cache_read if price else None,
        "cache_write": price.cache_write if price else None,
        "price_source": price.source if price else None,
        "price_date": (price.date or None) if price else None,
        "price_origin": str(Origin(price.source, price.date)) if price else None,
    }


def tools(args: argparse.Namespace) -> int:
    """The built-in tools, or those of a manifest."""
    if args.manifest is not None:
        from pod.cli.servers import tools_of_manifest

        return tools_of_manifest(args)
    from pod.manifest import ToolsSection
    from pod.tools import POD_TOOLS
    from worker.builtin.registry import BUILTIN, builtin_tool

    on: tuple[str, ...] = ToolsSection.model_fields["enable"].default
    found = [*(builtin_tool(name) for name in BUILTIN), *(make() for make in POD_TOOLS.values())]
    if args.json:
        show_json([
            {"name": t.name, "effect": t.effect, "default": t.name in on, "idempotent": t.idempotent, "prunable": t.prunable,
             "timeout": t.timeout, "max_output": t.max_output, "description": t.description, "parameters": t.parameters}
            for t in found
        ])  # fmt: skip
        return 0
    width = max(get_terminal_size().columns, 60)
    before = sum(
        max(map(len, column)) + 2 for column in (("EFFECT", *(t.effect for t in found)), [t.name for t in found])
    )
    rows: list[tuple[str, str, str]] = []
    for each in found:
        about = " ".join(each.description.split("\n\n")[0].split())
        lines = textwrap.wrap(about, width - before)
        rows += [(each.name, each.effect, lines[0]), *(("", "", line) for line in lines[1:])]
    show(table(rows, ("NAME", "EFFECT", "WHAT IT DOES")))
    last = (f"On by default: {', '.join(on)}. Where [tools] enable is set, exactly those that it lists are on; the runtime adds "
            "jobs beside shell, and session_history where it shortens the context.")  # fmt: skip
    show(textwrap.fill(last, width, break_on_hyphens=False))
    return 0
