"""`pod manifest new | check | show | schema`."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pod.cli.failing import note
from pod.cli.output import is_terminal, put, show, show_json
from pod.cli.run import folder_of
from pod.cli.text import hidden
from pod.errors import UsageProblem, folder_is_gone
from pod.manifest import Loaded, Problem, load_manifest
from pod.manifest.errors import key_label
from pod.manifest.render import toml_value
from pod.manifest.shipped import shipped_names, shipped_path
from pod.manifest.values import is_table
from worker.text import visible


def manifest(args: argparse.Namespace) -> int:
    """Does one of the four."""
    actions = {"new": _new, "check": _check, "show": _show, "schema": _schema}
    return actions[args.action](args)


def _new(args: argparse.Namespace) -> int:
    from pod.names import unfit_name

    given = None if args.what == "-" else args.what
    if given in shipped_names():
        return _new_as_shipped(args, given)
    path = Path(given) if given is not None and given.endswith(".toml") else None
    if path is None and given is not None and unfit_name(given) is not None:
        raise UsageProblem(f"{given} is neither a pod's name nor a file: a manifest's name ends with .toml")
    name = args.name or given or "agent"
    file = path.name if path is not None else f"{name.rpartition('/')[2]}.toml"
    text = _fresh(args, file)
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


def _new_as_shipped(args: argparse.Namespace, name: str) -> int:
    """A shipped manifest as it stands, to begin with."""
    if args.name is not None or args.set or args.full or args.model is not None:
        raise UsageProblem(
            f"{name} is a shipped manifest, and is printed as it stands: leave the options out and edit the copy, or build on "
            f'it with extends = "{name}" in a manifest of your own'
        )
    path = shipped_path(name)
    assert path is not None  # it is among the names
    put(path.read_text(encoding="utf-8"))
    note(
        f'the shipped manifest {name}: `pod manifest new {name} > agent.toml` copies it, extends = "{name}" builds on it'
    )
    return 0


def _fresh(args: argparse.Namespace, file: str) -> str:
    """The text of a new manifest whose numbers fit its model's window. Raises `ManifestError`, `ConfigError`, `DoesNotFit`."""
    from pod.cli.commands import NEW_MODEL
    from pod.manifest import ManifestError, check, fit, unsupported
    from pod.manifest.aliases import rename
    from pod.manifest.fresh import choices, new_manifest_text
    from pod.manifest.layers import Flag, Override, set_layer
    from pod.manifest.model import Manifest
    from pod.manifest.numbers import take_large
    from pod.manifest.secrets import take_secrets
    from pod.proof import DoesNotFit, check_native, check_numbers, check_prices, numbers_of
    from pod.stored import with_overrides
    from worker.models.registry import create_model

    flags: list[Override] = [Flag("--model", "model.name", args.model or NEW_MODEL)]
    flags += [] if args.name is None else [Flag("--name", "pod.name", args.name)]
    flags += args.set
    here = folder_of(None)
    layer, wrong = set_layer(flags, here)
    wrong += [*take_secrets(layer, os.environ), *take_large(layer), *rename(layer)]
    if wrong:
        raise ManifestError(wrong)
    asked = with_overrides(Manifest(), flags, here)  # raises for what no manifest may hold
    create_model(asked.model.name or "")  # raises for a name that no run would take
    given = _leaves(layer.data)
    refused: DoesNotFit | None = None
    for chosen in choices(asked.model.name or "", given):
        live = {**given, **chosen}
        values = [f"{'.'.join(key)}={toml_value(value)}" for key, value in chosen.items()]
        manifest = fit(with_overrides(Manifest(), [*flags, *values], here), lambda key, live=live: key in live).manifest
        wrong = [problem for problem in (*check(manifest), *unsupported(manifest)) if problem.severity == "error"]
        if wrong:
            raise ManifestError(wrong)
        check_prices(manifest)
        check_native(manifest)
        try:
            check_numbers(numbers_of(manifest, here))
        except DoesNotFit as problem:
            refused = refused or problem
            continue
        return new_manifest_text(file, str(manifest.model.name), live, full=args.full)
    assert refused is not None  # there is always one choice
    raise refused


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Values by their place. A table that is a key's own value stays whole."""
    from pod.manifest.schema import key_at

    found: dict[tuple[str, ...], Any] = {}
    for name, value in table.items():
        key = key_at((*path, name))
        if is_table(value) and key is not None and key.section is not None:
            found |= _leaves(value, (*path, name))
        else:
            found[*path, name] = value
    return found


def _check(args: argparse.Namespace) -> int:
    from pod.cli.doubts import doubts
    from pod.cli.parts import check_parts
    from pod.proof import MissingKey, check_keys, check_native, check_numbers, check_prices, numbers_of

    cwd = folder_of(args.cwd)

    def more(loaded: Loaded) -> list[Problem]:
        return [*check_parts(loaded), *doubts(loaded)]

    loaded = load_manifest(args.manifest, args.set, cwd=cwd, more=more)
    _tell(loaded)
    for each in loaded.lowered:
        note(f"pod: {key_label(each.key)}: {each}")
    check_prices(loaded.manifest, loaded.sources)
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
    from pod.manifest.render import tightened_values, to_toml_with_sources

    loaded = load_manifest(args.manifest, args.set, cwd=folder_of(args.cwd))
    if args.json:
        sources = {key: str(origin) for key, origin in loaded.sources.items()}
        tightened = {
            key: {"from": was.value, "source": str(was.origin)} for key, was in tightened_values(loaded).items()
        }
        project = loaded.project
        show_json({
            "manifest": loaded.manifest.model_dump(mode="json"), "sources": sources, "digest": loaded.digest,
            "files": [str(file) for file in loaded.files], "tightened": tightened,
            "project": None if project is None else {
                "file": str(project.file), "state": project.standing,
                "left_out": [
                    {"key": each.problem.key, "line": each.problem.line, "why": each.problem.message}
                    for each in project.left_out
                ],
            },
        })  # fmt: skip
    elif args.toml:
        put(hidden(to_toml_with_sources(loaded)))
    else:
        show(as_table(loaded))
    _tell(loaded)
    return 0


def _tell(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        note(f"pod: warning: {visible(str(warning))}")


def _schema(args: argparse.Namespace) -> int:
    from pod.manifest.render import json_schema

    put(json.dumps(json_schema(), indent=2))
    return 0
