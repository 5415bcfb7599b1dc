"""`pod models` and `pod tools`: what the runtime knows."""

from __future__ import annotations

import argparse
from typing import Any

from pod.cli.output import show, show_json
from pod.cli.text import table

NAMES = (
    "anthropic:claude-opus-5-5", "anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-5-5", "anthropic:claude-opus-5",
    "anthropic:claude-sonnet-5", "anthropic:claude-opus-4-8", "anthropic:claude-sonnet-4-6",
    "anthropic:claude-haiku-4-5",
    "openai:gpt-6.1-sol", "openai:gpt-6.1-terra", "openai:gpt-6-astra", "openai:gpt-6-sol", "openai:gpt-6-luna",
    "openai:gpt-5.6-sol", "openai:gpt-5.6-terra", "openai:gpt-5.6-luna", "openai:gpt-5.5", "openai:gpt-5.4",
    "openai:gpt-5.4-mini", "openai:gpt-5.2", "openai:gpt-5", "openai:gpt-5-mini", "openai:gpt-4.1", "openai:gpt-4o",
    "openai:o3", "openai:o4-mini", "offline:surveyor", "offline:summarizer",
)  # fmt: skip
"""Models that are listed; any other name of a provider works as well."""


def models(args: argparse.Namespace) -> int:
    """Providers, and models whose windows and prices are known. Any other model of a provider can be named as well."""
    from worker.models.registry import providers

    rows = [_model(name) for name in NAMES]
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


def _model(name: str) -> dict[str, Any]:
    from worker.models.base import ModelSettings
    from worker.models.table import capabilities

    provider, _, model = name.partition(":")
    if provider == "offline":
        from worker.offline import MAX_OUTPUT, WINDOW

        unpriced = dict.fromkeys(("input", "output", "cache_read", "source"))
        return {"model": name, "window": WINDOW, "max_output": MAX_OUTPUT, **unpriced}
    known = capabilities(provider, model, ModelSettings())
    price = known.price
    return {
        "model": name,
        "window": known.window,
        "max_output": known.max_output,
        "input": price.input if price else None,
        "output": price.output if price else None,
        "cache_read": price.cache_read if price else None,
        "source": price.source if price else None,
    }


def tools(args: argparse.Namespace) -> int:
    """The built-in tools."""
    from pod.tools import POD_TOOLS
    from worker.builtin.registry import BUILTIN, builtin_tool

    found = [*(builtin_tool(name) for name in BUILTIN), *(make() for make in POD_TOOLS.values())]
    if args.json:
        show_json([
            {"name": t.name, "effect": t.effect, "idempotent": t.idempotent, "prunable": t.prunable,
             "timeout": t.timeout, "max_output": t.max_output, "description": t.description, "parameters": t.parameters}
            for t in found
        ])  # fmt: skip
        return 0
    show(table([(t.name, t.effect, t.description.split("\n\n")[0]) for t in found], ("NAME", "EFFECT", "WHAT IT DOES")))
    show("Each is off unless [tools] enable lists it.")
    return 0
