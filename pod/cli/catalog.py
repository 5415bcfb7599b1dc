"""`pod models` and `pod tools`: what the runtime knows."""

from __future__ import annotations

import argparse

from pod.cli.output import show, show_json
from pod.cli.text import table


def models(args: argparse.Namespace) -> int:
    """Providers, and models whose windows and prices are known. Any other model of a provider can be named as well."""
    from worker.models.registry import providers
    from worker.models.table import known_models

    rows = known_models()
    if args.json:
        show_json({"providers": list(providers()), "models": rows})
        return 0
    heads = ("MODEL", "WINDOW", "OUTPUT", "IN $/M", "OUT $/M", "CACHED $/M")
    cells = [
        (str(row["model"]), f"{row['window']:,}", f"{row['max_output']:,}",
         *("-" if row[key] is None else f"{row[key]:g}" for key in ("input", "output", "cache_read")))
        for row in rows
    ]  # fmt: skip
    show(table(cells, heads))
    show(f"providers: {', '.join(providers())}. Other models of a provider work too: name them provider:model, "
         "with [model] context_window where it is not known.")  # fmt: skip
    return 0


def tools(args: argparse.Namespace) -> int:
    """The built-in tools."""
    from pod.tools import POD_TOOLS
    from worker.builtin.registry import BUILTIN, builtin_tool

    found = [*(builtin_tool(name) for name in BUILTIN), *(make() for make in POD_TOOLS.values())]
    if args.json:
        show_json([
            {"name": t.name, "effect": t.effect, "idempotent": t.idempotent, "prunable": t.prunable, "timeout": t.timeout,
             "max_output": t.max_output, "description": t.description, "parameters": t.parameters}
            for t in found
        ])  # fmt: skip
        return 0
    show(table([(t.name, t.effect, t.description.split("\n\n")[0]) for t in found], ("NAME", "EFFECT", "WHAT IT DOES")))
    show("Each is off unless [tools] enable lists it.")
    return 0
