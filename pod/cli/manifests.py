"""`pod manifest new | check | show | schema`."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from pathlib import Path

from pod.cli.failing import note
from pod.cli.output import is_terminal, put, show, show_json
from pod.cli.run import folder_of
from pod.errors import UsageProblem, folder_is_gone
from pod.manifest import Loaded, Problem, load_manifest
from pod.manifest.errors import key_label


def manifest(args: argparse.Namespace) -> int:
    """Does one of the four."""
    actions = {"new": _new, "check": _check, "show": _show, "schema": _schema}
    return actions[args.action](args)


def _new(args: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from pod.manifest import ModelSection
    from pod.manifest.render import new_manifest_text
    from pod.manifest.validate import said
    from worker.models.registry import create_model

    given = None if args.what == "-" else args.what
    path = Path(given) if given is not None and given.endswith(".toml") else None
    name = args.name or (path.stem if path is not None else given) or "agent"
    try:
        text = new_manifest_text(name, args.model)
    except ValidationError as error:
        if error.title == ModelSection.__name__:
            raise UsageProblem(f"--model {args.model}: {said(error)}") from error
        if args.name is not None:
            raise UsageProblem(f"--name {args.name}: {said(error)}") from error
        if path is None:
            raise UsageProblem(
                f"{name} is neither a pod's name nor a file: a manifest's name ends with .toml"
            ) from error
        raise UsageProblem(f"{name} {said(error)}; name the pod with --name") from error
    create_model(args.model)  # raises for a name that no run would take
    if path is None:
        put(text)
        if is_terminal(sys.stdout):
            note(f"`pod manifest new {name}.toml` writes it into a file")
        return 0
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageProblem(f"{path} is there already; it was kept") from None
    except OSError as error:
        if error.errno == errno.ENOSPC or (isinstance(error, FileNotFoundError) and folder_is_gone()):
            raise
        raise UsageProblem(f"{path} can't be written: {error.strerror}") from error
    note(f"{path} written; `pod manifest check {path}` checks it")
    return 0


def _check(args: argparse.Namespace) -> int:
    from pod.cli.parts import check_parts, doubts
    from pod.proof import MissingKey, check_keys, check_native, check_numbers, check_prices, numbers_of

    cwd = folder_of(args.cwd)

    def more(loaded: Loaded) -> list[Problem]:
        return [*check_parts(loaded, interceptors=True), *doubts(loaded)]

    loaded = load_manifest(args.manifest, args.set, cwd=cwd, more=more)
    for warning in loaded.warnings:
        note(f"pod: warning: {warning}")
    for each in loaded.lowered:
        note(f"pod: {key_label(each.key)}: {each}")
    check_prices(loaded.manifest)
    check_native(loaded.manifest)
    numbers = numbers_of(loaded.manifest, cwd)
    lines = check_numbers(numbers)
    if args.json:
        proof = [{"label": x.label, "tokens": x.tokens, "limit": x.limit, "ok": x.ok, "kind": x.kind} for x in lines]
        show_json({"manifest": str(loaded.path), "digest": loaded.digest, "model": numbers.model,
                   "window": numbers.window, "window_source": numbers.window_source, "available": numbers.available,
                   "proof": proof, "warnings": [str(w) for w in loaded.warnings],
                   "lowered": [{"key": key_label(x.key), "was": x.was, "now": x.now} for x in loaded.lowered]})  # fmt: skip
        return 0
    window = f"window {numbers.window:,}, {numbers.window_source}; {numbers.available:,} for input"
    head = f"{loaded.path}: fine ({numbers.model}, {window})"
    show("\n".join([head, *(f"  {line}" for line in lines)]))
    try:
        for text in check_keys(loaded.manifest):
            note(f"pod: warning: {text}")
    except MissingKey as missing:
        note(f"pod: warning: {str(missing).splitlines()[0]}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from pod.manifest.render import show as as_table
    from pod.manifest.render import to_toml

    loaded = load_manifest(args.manifest, args.set, cwd=folder_of(args.cwd))
    if args.json:
        sources = {key: str(origin) for key, origin in loaded.sources.items()}
        show_json({"manifest": loaded.manifest.model_dump(mode="json"), "sources": sources, "digest": loaded.digest})
    elif args.toml:
        put(to_toml(loaded.manifest))
    else:
        show(as_table(loaded))
    return 0


def _schema(args: argparse.Namespace) -> int:
    from pod.manifest.render import json_schema

    put(json.dumps(json_schema(), indent=2))
    return 0
