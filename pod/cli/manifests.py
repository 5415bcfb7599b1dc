"""`pod manifest new | check | show | schema`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pod.cli.failing import note
from pod.cli.output import show, show_json
from pod.cli.run import folder_of
from pod.errors import UsageProblem
from pod.manifest import load_manifest


def manifest(args: argparse.Namespace) -> int:
    """Does one of the four."""
    actions = {"new": _new, "check": _check, "show": _show, "schema": _schema}
    return actions[args.action](args)


def _new(args: argparse.Namespace) -> int:
    from pod.manifest.render import new_manifest_text

    try:
        text = new_manifest_text(args.name, args.model)
    except ValueError as error:
        raise UsageProblem(
            f"--name {args.name} or --model {args.model} can't stand in a manifest: {_short(error)}"
        ) from error
    if args.file is None or args.file == "-":
        show(text)
        return 0
    try:
        with Path(args.file).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageProblem(f"{args.file} is there already; it was kept") from None
    note(f"{args.file} written; `pod manifest check {args.file}` checks it")
    return 0


def _short(error: ValueError) -> str:
    errors: Any = getattr(error, "errors", None)
    return "; ".join(str(e["msg"]) for e in errors()) if errors is not None else str(error)


def _check(args: argparse.Namespace) -> int:
    from pod.proof import check_numbers, check_prices, numbers_of

    cwd = folder_of(args.cwd)
    loaded = load_manifest(args.manifest, args.set, cwd=cwd)
    for warning in loaded.warnings:
        note(f"pod: warning: {warning}")
    check_prices(loaded.manifest)
    numbers = numbers_of(loaded.manifest, cwd)
    lines = check_numbers(numbers)
    if args.json:
        proof = [{"label": x.label, "tokens": x.tokens, "limit": x.limit, "ok": x.ok, "kind": x.kind} for x in lines]
        show_json({"manifest": str(loaded.path), "digest": loaded.digest, "model": numbers.model,
                   "window": numbers.window, "window_source": numbers.window_source, "available": numbers.available,
                   "proof": proof, "warnings": [str(w) for w in loaded.warnings]})  # fmt: skip
        return 0
    window = f"window {numbers.window:,}, {numbers.window_source}; {numbers.available:,} for input"
    head = f"{loaded.path}: fine ({numbers.model}, {window})"
    show("\n".join([head, *(f"  {line}" for line in lines)]))
    return 0


def _show(args: argparse.Namespace) -> int:
    from pod.manifest.render import show as as_table
    from pod.manifest.render import to_toml

    loaded = load_manifest(args.manifest, args.set, cwd=folder_of(args.cwd))
    if args.json:
        sources = {key: str(origin) for key, origin in loaded.sources.items()}
        show_json({"manifest": loaded.manifest.model_dump(mode="json"), "sources": sources, "digest": loaded.digest})
    else:
        show(to_toml(loaded.manifest) if args.toml else as_table(loaded))
    return 0


def _schema(args: argparse.Namespace) -> int:
    from pod.manifest.render import json_schema

    show(json.dumps(json_schema(), indent=2))
    return 0
