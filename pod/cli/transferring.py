"""`pod export` and `pod import`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pod.cli.failing import note
from pod.cli.output import STDOUT, OutputFailed, is_terminal
from pod.cli.streams import Nowhere
from pod.cli.text import count, one_line
from pod.errors import UsageProblem
from pod.log.folder import PodFolder, default_home
from pod.losses import losses
from pod.manifest import Manifest
from pod.session import load
from pod.state import nothing_left
from pod.transfer import Exported, Imported, export_pod, import_pod
from worker.text import size


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
    """Makes a pod of an export."""
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
