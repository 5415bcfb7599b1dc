"""Pods that go: one by name, or all that ended long ago."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pod.errors import PodBusy
from pod.log.folder import PodFolder, check_name, pod_names
from pod.names import of_a_pod
from pod.peek import Glance, glance
from pod.staging import STAGES, abandoned


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod's folder held: logs of segments (those of compact workers are not counted), files, bytes."""

    segments: int
    files: int
    size: int


def remove(home: Path, name: str) -> Held:
    """Removes a pod for good: logs, blobs, artifacts. Returns what it had. Blocks.

    What forks of it refer to is theirs as well and stays. Pods grouped below its name stay. Raises `PodNotFound`,
    `PodBusy`.
    """
    folder = PodFolder(home, check_name(name))
    folder.pointer()
    folder.lock()
    try:
        found = held(folder.path)
        folder.files.unlink(folder.pointer_path)
        folder.files.sync_folder(folder.path)
        for child in list(folder.path.iterdir()):
            if child.name == "lock" or _holds_pods(child):
                continue
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink(missing_ok=True)
        (folder.path / "lock").unlink(missing_ok=True)
    finally:
        folder.unlock()
    _remove_empty(folder.path, home / "pods")
    return found


def _holds_pods(path: Path) -> bool:
    """Whether other pods lie in this folder: `a/b` lies in the folder of `a`."""
    if of_a_pod(path.name) or not path.is_dir() or path.is_symlink():
        return False
    return next(path.rglob("pod.json"), None) is not None


def _remove_empty(path: Path, root: Path) -> None:
    while path != root and root in path.parents:
        try:
            path.rmdir()
        except OSError:
            return
        path = path.parent


def held(path: Path) -> Held:
    """What the folder of one pod holds; what lies in pods grouped below it does not count."""
    own = [child for child in path.iterdir() if not _holds_pods(child)]
    inner = [p for child in own if child.is_dir() and not child.is_symlink() for p in child.rglob("*")]
    files = [p for p in (*own, *inner) if p.is_file() and not p.is_symlink()]
    segments = [p for p in own if p.suffix == ".jsonl" and ".compact-" not in p.name]
    return Held(len(segments), len(files), sum(p.stat().st_size for p in files))


@dataclass(frozen=True, slots=True)
class Collected:
    """One pod as `collect` saw it. `removed` says that it is gone (in a dry run: would be), `reason` why or why not."""

    name: str
    removed: bool
    reason: str
    size: int = 0


ENDED = frozenset({"finished", "failed", "cancelled", "limit", "new"})
"""How a pod stands that nothing is under way in; with all but `finished` there may be work to go on with."""


def collect(
    home: Path, older_than: float, *, force: bool = False, all_ended: bool = False, at: float | None = None
) -> Iterator[Collected]:
    """Looks at every pod and removes those whose last run finished and that nothing was done with for `older_than`
    seconds; with `all_ended` also those whose last run failed, was stopped or came to a limit, and those without a run.

    What an import that was killed left goes as well, whatever its age. Without `force` nothing is removed. Pods with a
    writer, open work, a question or stored input stay, whatever their age. `at` is the time in UTC seconds (default:
    now). Blocks.
    """
    moment = datetime.now(UTC).timestamp() if at is None else at
    yield from _left_by_imports(home, moment, force=force)
    for name in list(pod_names(home)):
        folder = PodFolder(home, name)
        look = glance(folder)
        reason = _stays(look, older_than, moment, all_ended=all_ended)
        if reason is not None:
            yield Collected(name, False, reason)
            continue
        if not force:
            yield Collected(name, True, look.status, held(folder.path).size)
            continue
        try:
            yield Collected(name, True, look.status, remove(home, name).size)
        except PodBusy:
            yield Collected(name, False, "in use")


def _left_by_imports(home: Path, moment: float, *, force: bool) -> Iterator[Collected]:
    """Folders in which an import unpacked: each is locked while its process lives."""
    for path in sorted(home.glob(STAGES)):
        try:
            with abandoned(path, moment) as over:
                if not over:
                    yield Collected(path.name, False, "an import is under way")
                    continue
                size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file() and not p.is_symlink())
                if force:
                    shutil.rmtree(path)
            yield Collected(path.name, True, "left by an import that was killed", size)
        except FileNotFoundError:  # its process ended, and took it away
            continue


def _stays(look: Glance, older_than: float, moment: float, *, all_ended: bool) -> str | None:
    if look.busy:
        return "in use"
    if look.status != "finished" and not (all_ended and look.status in ENDED):
        flag = "--all-ended takes it too, " if look.status in ENDED else ""
        return f"{look.status}: {flag}`pod rm {look.name}` removes it all the same"
    try:
        old = moment - datetime.fromisoformat(look.at).timestamp()
    except ValueError:
        return "its age is unknown"
    return None if old >= older_than else "not old enough"
