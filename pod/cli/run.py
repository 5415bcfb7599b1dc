"""`pod run` and `pod resume`."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pod.cli.driving import Drive, drive
from pod.cli.failing import note
from pod.cli.given import task_of
from pod.cli.output import Output, not_over, output_of
from pod.errors import UsageProblem
from pod.instructions import collect
from pod.log.folder import PodFolder, check_name, default_home
from pod.manifest import Loaded, Manifest, load_manifest
from pod.manifest.layers import Flag, Override
from pod.manifest.source import no_file
from worker.text import visible

if TYPE_CHECKING:
    from pod.stored import Kept


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
    """Proves that the plan can work, then drives the run to its end. The exit code."""
    prove(plan, args)
    return drive_through(plan, args, output)


def prove(plan: Plan, args: argparse.Namespace) -> None:
    """Looks whether a plan can work: its output, its numbers, its prices, its keys. Raises `PodError`; nothing is written."""
    manifest = plan.manifest.manifest if isinstance(plan.manifest, Loaded) else plan.manifest
    files = plan.manifest.files if isinstance(plan.manifest, Loaded) else ()
    found = collect(plan.cwd, manifest.worker.instructions, manifest.scope.read).files if args.output else ()
    read = (path for path, _ in found)
    not_over(args.output, (*files, manifest.worker.system_prompt_file, manifest.worker.output_schema_file, *read))
    _prove(manifest, plan)
    _check_keys(manifest)


def drive_through(plan: Plan, args: argparse.Namespace, output: Output) -> int:
    """Drives a run that was proved to its end. The exit code."""
    for line in plan.changed:
        note(f"pod: manifest changes: {line}")
    job = Drive(
        manifest=plan.manifest, name=plan.name, home=plan.home, cwd=plan.cwd, task=plan.task,
        exists=plan.exists, wait=getattr(args, "wait", False), ephemeral=getattr(args, "ephemeral", False),
        changed=plan.changed, timeout=getattr(args, "timeout", None),
    )  # fmt: skip
    return anyio.run(drive, job, output, backend="asyncio" if args.asyncio else "trio")


def _prove(manifest: Manifest, plan: Plan) -> None:
    from pod.proof import check_native, check_numbers, check_prices, numbers_of

    check_prices(manifest, plan.manifest.sources if isinstance(plan.manifest, Loaded) else None)
    check_native(manifest)
    check_numbers(numbers_of(manifest, plan.cwd, plan.task or ""))


def _check_keys(manifest: Manifest) -> None:
    from pod.proof import check_keys

    for warning in check_keys(manifest):
        note(f"pod: warning: {warning}")


# -- what to run ----------------------------------------------------------------------------------------------


def _plan_run(args: argparse.Namespace, home: Path) -> Plan:
    cwd = folder_of(args.cwd)
    loaded = _loaded(args, cwd)
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
        from pod.stored import kept
        from pod.unfinished import check_stored

        if task is None:
            check_stored(PodFolder(home, name))
        stored = kept(PodFolder(home, name))
        changed = _changed(stored, loaded.manifest, cwd)
        _tell_lost(stored)
        _tell_moved(stored, cwd)
    return Plan(loaded, name, home, cwd, task, exists, changed)


def plan_resume(args: argparse.Namespace, home: Path, task: str | None) -> Plan:
    """What `resume` (and `approve --resume`) goes on with: the stored manifest, or the one that is given."""
    from pod.stored import kept, moved, with_overrides
    from pod.unfinished import check_stored

    folder = PodFolder(home, check_name(args.name))
    if task is None:
        check_stored(folder)
    stored = kept(folder)
    given, file = getattr(args, "cwd", None), getattr(args, "manifest", None)
    stored.require(*([] if file else ["manifest", "files"]), *([] if given else ["cwd"]))
    cwd = folder_of(given) if given else Path(stored.cwd or "")
    if not cwd.is_dir():
        raise UsageProblem(f"the working folder of pod {args.name!r} is gone: {cwd}; name another one with -C")
    new: Manifest | Loaded
    changed: tuple[str, ...] = ()
    if file or stored.manifest is None:
        new = _loaded(args, cwd)
        changed = _changed(stored, new.manifest, cwd)
    else:
        new = with_overrides(moved(stored.manifest, stored.cwd, cwd), overrides_of(args), cwd)
    _tell_lost(stored)
    _tell_moved(stored, cwd)
    return Plan(new, args.name, home, cwd, task, True, changed)


def _changed(stored: Kept, new: Manifest, cwd: Path) -> tuple[str, ...]:
    """What a given manifest changes beside the folder; one that takes the place of a lost one is put on record as that."""
    from pod.stored import changes, moved

    if stored.manifest is not None:
        return changes(moved(stored.manifest, stored.cwd, cwd), new)
    return () if "manifest" in stored.lost else ("the manifest before it does not read any more",)


def _tell_lost(stored: Kept) -> None:
    if said := stored.lost_words:
        note(f"pod: warning: pod {stored.name} has lost its {said}; made anew, as for a new segment")


def _tell_moved(stored: Kept, cwd: Path) -> None:
    if stored.cwd is not None and stored.cwd != str(cwd):
        note(
            f"pod: warning: pod {stored.name} worked in {stored.cwd} so far; now it works in {cwd}, and what of its scope "
            "lay in the folder before lies in this one"
        )


def _loaded(args: argparse.Namespace, cwd: Path) -> Loaded:
    """The manifest with all its parts looked at; its warnings are told."""
    from pod.cli.parts import check_parts

    loaded = load_manifest(args.manifest, overrides_of(args), cwd=cwd, more=check_parts)
    for warning in loaded.warnings:
        note(f"pod: warning: {visible(str(warning))}")
    return loaded


def folder_of(given: str | None) -> Path:
    """The working folder. Raises `UsageProblem` where it is none."""
    path = Path(os.path.realpath(given or "."))
    try:
        found = path.is_dir()
    except OSError as error:
        raise UsageProblem(f"-C {given}: {error.strerror}") from None
    if not found:
        raise UsageProblem(f"-C {given}: no such folder")
    return path


_KEYS = {
    "--model": "model.name",
    "--profile": "permissions.profile",
    "--max-requests": "worker.max_requests",
    "--max-cost": "limits.max_cost_usd",
    "--timeout": "limits.max_wall_seconds",
}
"""The flags that stand for keys of the manifest."""


def overrides_of(args: Any) -> list[Override]:
    """The values of flags that stand for keys of the manifest; `--set` itself comes last and wins."""
    values = ((flag, key, getattr(args, flag[2:].replace("-", "_"), None)) for flag, key in _KEYS.items())
    given: list[Override] = [
        Flag(flag, key, str(value).removesuffix(".0")) for flag, key, value in values if value is not None
    ]
    if schema := getattr(args, "output_schema", None):
        given.append(Flag("--output-schema", "worker.output_schema", _schema_path(schema)))
    return [*given, *getattr(args, "set", [])]


def _schema_path(given: str) -> str:
    """The file of `--output-schema`, relative to the current folder, as a manifest would name it."""
    from pod.manifest.expand import escape

    path = Path(given).absolute()
    if (why := no_file(path)) is not None:
        raise UsageProblem(f"--output-schema {given}: {why}")
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
