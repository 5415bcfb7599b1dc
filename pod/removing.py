"""Pods that go: one by name, or all that ended long ago."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pod.errors import PodBusy
from pod.log.folder import RESERVED, PodFolder, check_name, pod_names
from pod.peek import Glance, glance


def remove(home: Path, name: str) -> int:
    """Removes a pod for good: logs, blobs, artifacts. Returns the bytes that it had. Blocks.

    What forks of it refer to is theirs as well and stays. Pods grouped below its name stay. Raises `PodNotFound`,
    `PodBusy`.
    """
    folder = PodFolder(home, check_name(name))
    folder.pointer()
    folder.lock()
    try:
        size = folder_size(folder.path)
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
    return size


def _holds_pods(path: Path) -> bool:
    """Whether other pods lie in this folder: `a/b` lies in the folder of `a`."""
    if path.name in RESERVED or not path.is_dir() or path.is_symlink():
        return False
    return next(path.rglob("pod.json"), None) is not None


def _remove_empty(path: Path, root: Path) -> None:
    while path != root and root in path.parents:
        try:
            path.rmdir()
        except OSError:
            return
        path = path.parent


def folder_size(path: Path) -> int:
    """Bytes of the files of one pod; what lies in pods grouped below it does not count."""
    total = 0
    for child in path.iterdir():
        if child.is_symlink():
            continue
        if child.is_file():
            total += child.stat().st_size
        elif child.is_dir() and not _holds_pods(child):
            total += sum(p.stat().st_size for p in child.rglob("*") if p.is_file() and not p.is_symlink())
    return total


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

    Without `force` nothing is removed. Pods with a writer, open work, a question or stored input stay, whatever
    their age. `at` is the time in UTC seconds (default: now). Blocks.
    """
    moment = datetime.now(UTC).timestamp() if at is None else at
    for name in list(pod_names(home)):
        folder = PodFolder(home, name)
        look = glance(folder)
        reason = _stays(look, older_than, moment, all_ended=all_ended)
        if reason is not None:
            yield Collected(name, False, reason)
            continue
        if not force:
            yield Collected(name, True, look.status, folder_size(folder.path))
            continue
        try:
            yield Collected(name, True, look.status, remove(home, name))
        except PodBusy:
            yield Collected(name, False, "in use")


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
