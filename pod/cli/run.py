"""`pod run` and `pod resume`."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from pod.cli.driving import Drive, drive
from pod.cli.failing import note
from pod.cli.given import task_of
from pod.cli.output import Output, output_of
from pod.errors import UsageProblem
from pod.log.folder import PodFolder, check_name, default_home
from pod.manifest import Loaded, Manifest, load_manifest


@dataclass
class Plan:
    """What is to be run: the manifest, the pod's name, home and working folder, the task (None: go on without
    input).
    """

    manifest: Manifest | Loaded
    name: str | None
    home: Path
    cwd: Path
    task: str | None
    exists: bool
    changed: tuple[str, ...] = ()


def run(args: argparse.Namespace) -> int:
    """Runs a task to its end, in a new pod or an existing one."""
    with output_of(args) as output:
        home, temporary = default_home(), None
        if args.ephemeral:
            temporary = Path(tempfile.mkdtemp(prefix="pod-"))
            home = temporary
        try:
            plan = _plan_run(args, home)
            return execute(plan, args, output)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)


def resume(args: argparse.Namespace) -> int:
    """Goes on with a pod."""
    with output_of(args) as output:
        return execute(plan_resume(args, default_home(), task_of(args.task)), args, output)


def execute(plan: Plan, args: argparse.Namespace, output: Output) -> int:
    """Proves the numbers, then drives the run to its end. The exit code."""
    manifest = plan.manifest.manifest if isinstance(plan.manifest, Loaded) else plan.manifest
    _prove(manifest, plan)
    _check_keys(manifest)
    for line in plan.changed:
        note(f"pod: manifest changes: {line}")
    job = Drive(
        manifest=plan.manifest, name=plan.name, home=plan.home, cwd=plan.cwd, task=plan.task,
        exists=plan.exists, wait=getattr(args, "wait", False), ephemeral=getattr(args, "ephemeral", False),
        changed=plan.changed, timeout=getattr(args, "timeout", None),
    )  # fmt: skip
    return anyio.run(drive, job, output, backend="asyncio" if args.asyncio else "trio")


def _prove(manifest: Manifest, plan: Plan) -> None:
    from pod.cli.parts import check_parts
    from pod.proof import check_numbers, check_prices, numbers_of

    if isinstance(plan.manifest, Loaded):
        for warning in check_parts(plan.manifest):
            note(f"pod: warning: {warning}")
    check_prices(manifest)
    check_numbers(numbers_of(manifest, plan.cwd, plan.task or ""))


def _check_keys(manifest: Manifest) -> None:
    from pod.proof import check_keys

    for warning in check_keys(manifest):
        note(f"pod: warning: {warning}")


# -- what to run ----------------------------------------------------------------------------------------------


def _plan_run(args: argparse.Namespace, home: Path) -> Plan:
    cwd = folder_of(args.cwd)
    loaded = load_manifest(args.manifest, overrides_of(args), cwd=cwd)
    for warning in loaded.warnings:
        note(f"pod: warning: {warning}")
    task = task_of(args.task)
    name = args.name or loaded.manifest.pod.name
    if args.continue_:
        name = _newest(home, loaded, cwd, args.name)
    if name is not None:
        check_name(name)
    exists = name is not None and PodFolder(home, name).exists()
    if task is None and not exists:
        raise UsageProblem(f'no task: pod run {args.manifest} "what to do" (or - to read it from standard input)')
    changed: tuple[str, ...] = ()
    if exists and name is not None:
        from pod.stored import changes, stored_manifest

        stored, where = stored_manifest(PodFolder(home, name))
        changed = changes(stored, loaded.manifest)
        if where != str(cwd):
            note(f"pod: warning: pod {name} worked in {where} so far; now it works in {cwd}")
    return Plan(loaded, name, home, cwd, task, exists, changed)


def plan_resume(args: argparse.Namespace, home: Path, task: str | None) -> Plan:
    """What `resume` (and `approve --resume`) goes on with: the stored manifest, or the one that is given."""
    from pod.stored import changes, stored_manifest, with_overrides

    folder = PodFolder(home, check_name(args.name))
    stored, where = stored_manifest(folder)
    given = getattr(args, "cwd", None)
    cwd = folder_of(given) if given else Path(where)
    if not cwd.is_dir():
        raise UsageProblem(f"the working folder of pod {args.name!r} is gone: {cwd}; name another one with -C")
    new: Manifest | Loaded
    if getattr(args, "manifest", None):
        new = load_manifest(args.manifest, overrides_of(args), cwd=cwd)
    else:
        new = with_overrides(stored, overrides_of(args), cwd)
    plain = new.manifest if isinstance(new, Loaded) else new
    changed = changes(stored, plain) if getattr(args, "manifest", None) else ()
    return Plan(new, args.name, home, cwd, task, True, changed)


def folder_of(given: str | None) -> Path:
    """The working folder. Raises `UsageProblem` where it is none."""
    path = Path(os.path.realpath(given or "."))
    if not path.is_dir():
        raise UsageProblem(f"-C {given}: no such folder")
    return path


def overrides_of(args: Any) -> list[str]:
    """The flags that stand for keys of the manifest, as `--set` texts; `--set` itself comes last and wins."""
    pairs = (
        ("model.name", getattr(args, "model", None)),
        ("permissions.profile", getattr(args, "profile", None)),
        ("worker.max_requests", getattr(args, "max_requests", None)),
        ("limits.max_cost_usd", getattr(args, "max_cost", None)),
        ("limits.max_wall_seconds", getattr(args, "timeout", None)),
    )
    given = [f"{key}={value}" for key, value in pairs if value is not None]
    if schema := getattr(args, "output_schema", None):
        given.append(f"worker.output_schema={_schema_path(schema)}")
    return given + list(getattr(args, "set", []))


def _schema_path(given: str) -> str:
    """The file of `--output-schema`, relative to the current folder, as a manifest would name it."""
    from pod.manifest.expand import escape

    path = Path(given).absolute()
    if not path.is_file():
        raise UsageProblem(f"--output-schema {given}: no such file")
    return escape(str(path))


def _newest(home: Path, loaded: Loaded, cwd: Path, name: str | None) -> str:
    """The pod of this manifest and working folder that was last active. Raises `UsageProblem` where there is none."""
    from pod.peek import glances

    own = loaded.manifest.pod.name
    stem = f"{loaded.path.stem}-"
    found = [
        look
        for look in glances(home)
        if look.cwd == str(cwd)
        and (name is None or look.name == name)
        and (look.name == own or look.manifest == loaded.digest or (own is None and look.name.startswith(stem)))
    ]
    if not found:
        raise UsageProblem(f"no pod of {loaded.path.name} in {cwd} to go on with; leave out -c to begin one")
    return max(found, key=lambda look: look.at).name
