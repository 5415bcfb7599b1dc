"""The disk in the middle of a write, byte by byte, and what must be true of a pod that opens there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from crash.crash_boundary import STEER, TASK, World, put

from pod.log.files import Files
from pod.session import Session
from pod.testing import Op, RecordingFiles
from pod.testing.recording import Disk
from worker.items import ContextItem, ToolCallItem, ToolResultItem, UserItem

Wanted = Callable[[Op, int], bool]
"""Whether a write is looked at where it was cut behind this many of its bytes."""


class Cut(NamedTuple):
    """A world whose last write, the `number`-th operation, got no further than `length` bytes."""

    world: World
    number: int
    length: int


class Unsynced(Files):
    """Syncs nothing: what is looked at is what a process that was killed left."""

    def sync(self, fd: int) -> None:
        """Nothing."""

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


def cuts(
    files: RecordingFiles, within: range, root: Path, policy: str, wanted: Wanted, *, anew: bool = False
) -> Iterator[Cut]:
    """A world for each byte but the last of each write in this stretch. It stands until the next one is asked for; with `anew` all
    of it is made again, so that more may be done in it than to open the pod.
    """
    disk = files.start.copy()
    for number, op in enumerate(files.ops[: within.stop]):
        if number not in within or op.kind != "write":
            disk.do(op)
            continue
        world: World | None = None
        for length in range(1, len(op.data) + 1):
            disk.do(replace(op, data=op.data[length - 1 : length]))
            if length == len(op.data) or not wanted(op, length):
                continue
            if world is None or anew:
                world = put(disk, files.ops[:number], root, policy)
            else:
                again(disk, world)
            yield Cut(world, number, length)


def again(disk: Disk, world: World) -> None:
    """Puts back what an opening changed: the files of the pod's own folder. Blobs stay as they are."""
    folder = world.rig.folder().path
    names = {path: file for path, file in disk.names.items() if (world.rig.home / path).parent == folder and file}
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and os.path.relpath(entry.path, world.rig.home) not in names:
            os.unlink(entry.path)
    for path, file in names.items():
        (world.rig.home / path).write_bytes(file.data)


def opens_once(cut: Cut) -> None:
    """The pod opens at the old segment or at the whole new one. What stood in its logs stands there still, each call has its one
    result, and each message is there once.
    """
    world = cut.world
    before = logs(world)
    session = Session.open(world.rig.home, "p", family="o200k", files=Unsynced(), durability="os")
    session.close()
    state, after = session.state, logs(world)
    whole = {name: data[: data.rfind(b"\n") + 1] for name, data in before.items()}
    assert all(after[name].startswith(data) for name, data in whole.items()), f"{cut.number}, {cut.length}: bytes lost"
    assert state.compaction is None and set(after) == set(before) and len(after) <= 2
    view = [*state.history.view, *state.queued]
    said = Counter(
        i.text for i in view if isinstance(i, UserItem) or (isinstance(i, ContextItem) and i.trust == "user")
    )
    assert said[TASK] == 1 and said[STEER] <= 1, f"{cut.number}, {cut.length}: {said}"
    calls = Counter(i.call_id for i in view if isinstance(i, ToolCallItem))
    assert calls == Counter(i.call_id for i in view if isinstance(i, ToolResultItem)), f"{cut.number}, {cut.length}"


def logs(world: World) -> dict[str, bytes]:
    """The segments' own logs."""
    paths = world.rig.folder().path.glob("*.jsonl")
    return {path.name: path.read_bytes() for path in paths if ".compact-" not in path.name and path.name[0] != "."}
