"""Making a pod: all of it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress

from pod.errors import PodExists, StoreError, UsageProblem
from pod.log.files import odd_kind
from pod.log.folder import PodFolder

_PARTS = ("blobs", "artifacts", "inbox", "origin")


@contextmanager
def making(folder: PodFolder) -> Generator[None]:
    """A pod is made here; its lock is held, also afterwards. Whatever is raised, nothing of it is left.

    Raises `PodExists`, `PodBusy`, `UsageProblem` where logs lie here without a pointer, `StoreError`.
    """
    _refuse_taken(folder)
    before = _names(folder)
    try:
        folder.lock()
    except (OSError, StoreError) as error:
        _unmake(folder, before)
        raise _not_made(folder, error) from error
    try:
        _refuse_taken(folder)
        for path in folder.logs():
            folder.files.unlink(path)  # what a killed process left while it made the pod
        for path in folder.origin.glob("*.jsonl"):
            folder.files.unlink(path)
    except BaseException:
        folder.unlock()
        raise
    try:
        yield
    except BaseException as error:
        _unmake(folder, before)
        folder.unlock()
        if isinstance(error, OSError | StoreError):
            raise _not_made(folder, error) from error
        raise


def _names(folder: PodFolder) -> frozenset[str]:
    return frozenset(path.name for path in folder.path.iterdir()) if folder.path.is_dir() else frozenset()


def _refuse_taken(folder: PodFolder) -> None:
    folder.files.look(folder.path)
    if folder.pointer_path.is_file():
        raise PodExists(
            f"there is already a pod named {folder.name!r}; resume it (pod resume {folder.name}) or take another name"
        )
    if folder.exists():
        kind = odd_kind(folder.pointer_path)
        what = f"its pointer (pod.json) is {kind}" if kind else "logs of a pod lie here without its pointer (pod.json)"
        raise UsageProblem(
            f"{folder.path}: {what}; `pod doctor {folder.name} --repair` writes it anew, or take another name"
        )


def _unmake(folder: PodFolder, before: frozenset[str]) -> None:
    """Takes away what was made since `before`; pods grouped below, and what can't be removed, stay."""
    own = [folder.pointer_path, *folder.logs(), folder.path / "lock"]
    with suppress(OSError):
        for path in own:
            if path.name not in before:
                folder.files.unlink(path)
        for part in _PARTS:
            if part not in before:
                shutil.rmtree(folder.path / part, ignore_errors=True)
        path = folder.path
        while path != folder.home / "pods":
            path.rmdir()
            path = path.parent


def _not_made(folder: PodFolder, error: OSError | StoreError) -> StoreError:
    cause = error.cause if isinstance(error, StoreError) else error
    return StoreError(folder.path, "making the pod", cause, made=False)
