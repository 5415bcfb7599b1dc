"""A file layer that notes what it does, and what a power cut leaves of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pod.log.files import Files

Kind: TypeAlias = Literal[
    "mkdir", "create", "open", "write", "sync", "sync_folder", "rename", "unlink", "truncate", "overwrite", "close",
    "point",
]  # fmt: skip


Lost: TypeAlias = Literal[True, False, "data"]
"""What a crash takes: all that was not synced, nothing, or bytes but not names."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation that was done. Paths are relative to the recorded root.

    `data` is what was written, `length` a cut file's new size, where it is written over, or what a sync covers, `name` a point's; `fd` tells
    descriptors apart.
    """

    kind: Kind
    path: str = ""
    target: str = ""
    fd: int = -1
    data: bytes = b""
    length: int = 0
    name: str = ""


class RecordingFiles(Files):
    """The real file layer, with a record of what it did below `root`.

    `ops` is the record, in order. What stands below `root` when it is made is remembered as durable. `point` is
    recorded too: mark what your test was told is safe.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ops: list[Op] = []
        self.start = Disk.of(root)
        self._paths: dict[int, str] = {}

    def make_folder(self, path: Path) -> None:
        """Makes the folders that are missing, one by one, so that each is an operation."""
        missing: list[Path] = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            self.ops.append(Op("mkdir", self._name(folder)))
            self.sync_folder(folder.parent)

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends."""
        fd = super().open_append(path, create=create)
        self._paths[fd] = self._name(path)
        self.ops.append(Op("create" if create else "open", self._name(path), fd=fd))
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes."""
        super().write(fd, data)
        self.ops.append(Op("write", self._paths.get(fd, ""), fd=fd, data=data))

    def sync(self, fd: int) -> None:
        """Makes the bytes of a file durable."""
        reached = os.fstat(fd).st_size
        super().sync(fd)
        self.ops.append(Op("sync", self._paths.get(fd, ""), fd=fd, length=reached))

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable."""
        super().sync_folder(path)
        self.ops.append(Op("sync_folder", self._name(path)))

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source`."""
        super().rename(source, target)
        self.ops.append(Op("rename", self._name(source), target=self._name(target)))

    def unlink(self, path: Path) -> None:
        """Removes a name."""
        super().unlink(path)
        self.ops.append(Op("unlink", self._name(path)))

    def truncate(self, path: Path, length: int) -> None:
        """Cuts a file back, durably."""
        super().truncate(path, length)
        self.ops.append(Op("truncate", self._name(path), length=length))

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Replaces the end of a file, durably."""
        super().overwrite(path, offset, data)
        self.ops.append(Op("overwrite", self._name(path), data=data, length=offset))

    def close(self, fd: int) -> None:
        """Gives a descriptor up."""
        super().close(fd)
        self.ops.append(Op("close", self._paths.pop(fd, ""), fd=fd))

    def point(self, name: str) -> None:
        """A mark in the record."""
        self.ops.append(Op("point", name=name))

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.root)


@dataclass(slots=True)
class _File:
    """A file's bytes, and how they were at its last sync. Names refer to it, as to an inode."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(slots=True)
class Disk:
    """Files and folders in memory: as processes see them (`names`), and as a power cut leaves them (`durable`).

    Both map a path to its file, or to None for a folder.
    """

    names: dict[str, _File | None] = field(default_factory=dict[str, _File | None])
    durable: dict[str, _File | None] = field(default_factory=dict[str, _File | None])
    _open: dict[int, _File] = field(default_factory=dict[int, _File])

    @classmethod
    def of(cls, root: Path) -> Disk:
        """What stands below `root` now, all of it durable."""
        disk = cls()
        for parent, folders, files in os.walk(root):
            for name in folders:
                disk.names[os.path.relpath(Path(parent) / name, root)] = None
            for name in files:
                path = Path(parent) / name
                data = path.read_bytes()
                disk.names[os.path.relpath(path, root)] = _File(bytearray(data), data)
        disk.durable = dict(disk.names)
        return disk

    def copy(self) -> Disk:
        """A disk that changes by itself."""
        twins = {id(f): _File(bytearray(f.data), f.synced) for f in (*self.names.values(), *self.durable.values()) if f}
        names, durable = (
            {path: twins[id(f)] if f else None for path, f in known.items()} for known in (self.names, self.durable)
        )
        return Disk(names, durable)

    def do(self, op: Op) -> None:
        """Does one operation."""
        match op.kind:
            case "mkdir":
                self.names[op.path] = None
            case "create":
                self._open[op.fd] = file = _File()
                self.names[op.path] = file
            case "open":
                self._open[op.fd] = self._file(op.path)
            case "write":
                self._open[op.fd].data += op.data
            case "sync":
                self._open[op.fd].synced = bytes(self._open[op.fd].data[: op.length])
            case "close":
                self._open.pop(op.fd, None)
            case "rename":
                self.names[op.target] = self.names.pop(op.path)
            case "unlink":
                self.names.pop(op.path, None)
            case "truncate":
                file = self._file(op.path)
                del file.data[op.length :]
                file.synced = bytes(file.data)
            case "overwrite":
                file = self._file(op.path)
                file.data[op.length :] = op.data
                file.synced = bytes(file.data)
            case "sync_folder":
                self._sync_folder(op.path)
            case "point":
                pass

    def _file(self, path: str) -> _File:
        file = self.names[path]
        assert file is not None, f"{path} is a folder"
        return file

    def _sync_folder(self, folder: str) -> None:
        inside = _below(self.names, folder)
        for path in [p for p in self.durable if p not in inside and _parent(p) == folder]:
            del self.durable[path]
        self.durable |= inside

    def put(self, folder: Path, *, lost: Lost) -> None:
        """Writes it out: as a power cut leaves it (`lost`), or as a killed process does."""
        names = self.durable if lost is True else self.names
        for path in sorted(names):
            file = names[path]
            if any(parent not in names for parent in _parents(path)):
                continue
            if file is None:
                (folder / path).mkdir(mode=0o700)
            else:
                (folder / path).write_bytes(file.synced if lost else bytes(file.data))
                (folder / path).chmod(0o600)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _parents(path: str) -> Iterator[str]:
    while (path := _parent(path)) != ".":
        yield path


def _below(names: Mapping[str, _File | None], folder: str) -> dict[str, _File | None]:
    return {path: file for path, file in names.items() if _parent(path) == folder}


def replay_prefixes(recorded: RecordingFiles, folder: Path, *, lost: Lost = True, keep: bool = False) -> Iterator[Path]:
    """The root after none, one, two, … all recorded operations, each in a folder of its own below `folder`.

    With `lost` as a power cut leaves it, at the least that is promised: a file has the bytes of its last sync, a name
    is there (or gone) only since the last sync of its folder. With "data", as another disk may leave it: names are as
    they were, but without the bytes that were not synced. Without, as a killed process leaves it: everything that was
    done. A state is removed when the next one is asked for, unless `keep`. The n-th state (from 0) is that after
    `recorded.ops[:n]`.
    """
    disk = recorded.start.copy()
    for number in range(len(recorded.ops) + 1):
        if number:
            disk.do(recorded.ops[number - 1])
        state = folder / f"state-{number}"
        state.mkdir(parents=True)
        disk.put(state, lost=lost)
        yield state
        if not keep:
            shutil.rmtree(state)
