"""`pod export` and `pod import`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from pod.cli.failing import note
from pod.cli.listing import is_meant
from pod.cli.output import STDOUT, OutputFailed, is_terminal
from pod.cli.streams import Nowhere
from pod.cli.text import count, one_line
from pod.errors import PodError, UsageProblem
from pod.log.files import label_of
from pod.log.folder import PodFolder, check_name, default_home, home_of, pod_names
from pod.losses import losses
from pod.manifest import Manifest
from pod.session import load
from pod.state import nothing_left
from pod.transfer import Exported, Imported, export_pod, import_pod
from worker.text import size

IN_MEMORY = 8 * 1024 * 1024
"""Bytes of a pod on its way from home to home that are held in memory; more go through a file."""


def export(args: argparse.Namespace) -> int:
    """Writes a pod into a file, or to standard output."""
    if args.output not in STDOUT:
        done = _exported(args.name, Path(args.output))
    elif isinstance(sys.stdout, Nowhere):
        raise UsageProblem(f"standard output is closed: pod export {args.name} -o {_file_name(args.name)}")
    elif is_terminal(sys.stdout):
        raise UsageProblem(f"an export is no text for a terminal: pod export {args.name} -o {_file_name(args.name)}")
    else:
        done = _exported(args.name, sys.stdout.buffer)
    note(f"pod {done.name}: exported: {_held(done)}")
    if done.left_behind:
        note(f"pod {done.name}: left behind: {', '.join(done.left_behind)}")
    return 0


def _held(done: Exported | Imported) -> str:
    past = f" and {done.origins} of the past that it was forked from" if done.origins else ""
    return f"{count(done.segments, 'segment')}{past}, {count(done.files, 'file')}, {size(done.size)}"


def _exported(name: str, target: Path | BinaryIO) -> Exported:
    try:
        done = export_pod(default_home(), name, target)
        if not isinstance(target, Path):
            target.flush()
    except OSError as error:
        if error.filename is not None or isinstance(error, BrokenPipeError | FileNotFoundError):
            raise
        raise OutputFailed(error) from error  # what is read has a name
    return done


def _file_name(name: str) -> str:
    return f"{name.replace('/', '-')}.pod.tar"


def import_(args: argparse.Namespace) -> int:
    """Makes a pod of an export, or copies those of another home."""
    if args.other is not None:
        return _copied(args)
    if args.file is None:
        raise UsageProblem(
            "what is to be imported? `pod import FILE` takes what `pod export` wrote, `pod import --from HOME` another home"
        )
    source = sys.stdin.buffer if args.file == "-" else Path(args.file)
    done = import_pod(source, default_home(), args.name)
    was = "" if done.name == done.was else f" (it was {one_line(done.was)})"
    note(f"pod {done.name}: imported{was}: {_held(done)}")
    _tell_manifest(done.name)
    for loss in losses(PodFolder(default_home(), done.name)):
        note(f"pod {done.name}: warning: {loss}")
    where = "" if Path(done.cwd).is_dir() else " -C DIR"
    if where:
        note(f"pod {done.name}: its working folder {one_line(done.cwd, 300)} is not here; name another one with -C")
    note(f"pod {done.name}: {_next(done.name, where)}")
    return 0


def _copied(args: argparse.Namespace) -> int:
    """Copies the pods of another home, one after the other; 1 where one could not be. Those that are here already stay."""
    source, home = home_of(args.other), default_home()
    if args.name is not None:
        raise UsageProblem("--name is for one file: pods of another home keep their names")
    if source == home:
        raise UsageProblem(f"--from {one_line(label_of(source))}: that is this home (POD_HOME)")
    names = [name for name in pod_names(source) if is_meant(args.file, name)]
    if not names:
        which = "no pods" if args.file is None else f"no pods of the name {args.file!r}"
        raise UsageProblem(f"--from: {which} in {label_of(source)}")
    done = here = 0
    for name in names:
        try:
            check_name(name)
            if PodFolder(home, name).exists():  # before anything is read of it
                here += 1
                continue
            with SpooledTemporaryFile(IN_MEMORY) as file:
                export_pod(source, name, cast(BinaryIO, file))
                file.seek(0)
                note(f"pod {name}: imported: {_held(import_pod(cast(BinaryIO, file), home, name))}")
            done += 1
        except (PodError, OSError) as error:
            note(f"pod {name}: error: {error}")
    failed = len(names) - done - here
    more = [f"{here} stood here already"] * bool(here) + [f"{failed} failed"] * bool(failed)
    note(f"{count(done, 'pod')} imported from {label_of(source)}" + "".join(f", {each}" for each in more))
    return 1 if failed else 0


def _next(name: str, where: str) -> str:
    """What can be done with the pod as it stands."""
    folder = PodFolder(default_home(), name)
    state = load(folder.segment_path(folder.pointer().segment))
    if state.approvals:
        return f"it waits for a human: `pod show {name}` says for what"
    if state.unanswered:
        return f"`pod resume {name}{where}` goes on"
    return f'{nothing_left(state)}; `pod show {name}` shows it, `pod resume {name}{where} "..."` gives it a new message'


def _tell_manifest(name: str) -> None:
    """What the pod may do here, since its manifest came with it: all that it would start, ask or send a key to."""
    from pod.log.texts import texts_of
    from pod.stored import stored_manifest
    from worker.masking import marks_in

    folder = PodFolder(default_home(), name)
    try:
        manifest, _ = stored_manifest(folder)
    except UsageProblem as problem:
        note(f"pod {name}: {problem}")
        return
    own = [*manifest.tools.python, *(use.use for use in manifest.interceptors)]
    facts = [f"model {manifest.model.name}", f"profile {manifest.permissions.profile}"]
    facts += [f"base_url {manifest.model.base_url}"] if manifest.model.base_url else []
    facts += [f"code of yours: {', '.join(own)}"] if own else []
    note(f"pod {name}: its manifest: {one_line(', '.join(facts), 300)}")
    for what in starts(manifest):
        note(f"pod {name}: its manifest {one_line(what, 300)}")
    if marks := marks_in(folder.blob(texts_of(folder, folder.pointer().segment)["manifest"])):
        note(f"pod {name}: its manifest takes in values of this environment: {one_line(', '.join(marks), 300)}")


def starts(manifest: Manifest) -> Iterator[str]:
    """The programs that a manifest starts, and the addresses that it asks, with the variables that they get."""
    for hook in manifest.hooks:
        yield f"runs the hook {' '.join(hook.command)}" if hook.command else f"runs the hook {hook.use}"
    for server in manifest.mcp:
        given = [*server.env, *server.headers_env.values()]
        with_ = f", with {', '.join(given)}" if given else ""
        yield (
            f"starts the server {' '.join(server.command)}{with_}"
            if server.command
            else f"asks the server {server.url}{with_}"
        )
    if manifest.model.api_key_env:
        yield f"sends {manifest.model.api_key_env} to its model"
    if manifest.tools.shell.env:
        yield f"hands {', '.join(manifest.tools.shell.env)} to commands"
