"""Places that no tool writes: told by their names, and at the moment of use by what they are."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from worker.tools import ToolFault

NAMES = {
    ".git": "a .git directory, which tools leave alone. Use git itself for that.",
    ".pod": "a .pod folder, the configuration of the runtime, which no tool changes. The user can.",
}
"""Names that are never written, nor anything in folders of these names, in whatever case they are written."""

_ENTRIES = 100_000
_LONGEST_NAME = 4_200
_Id: TypeAlias = tuple[int, int]


class Protected:
    """Files and folders that are never written, and whatever is named as one of `NAMES`. Paths are real ones.

    What is named so is also known by what it is, where it lies in one of `roots` or beside a folder on the way to the file, and
    so is what such a `.git` only points to.
    """

    def __init__(self, places: Iterable[Path] = (), roots: Iterable[Path] = ()) -> None:
        self.places = tuple(dict.fromkeys(places))
        self._roots = tuple(roots)

    def __iter__(self) -> Iterator[Path]:
        return iter(self.places)

    def check_names(self, text: str, lexical: Path, resolved: Path) -> None:
        """Raises `ToolFault` where a path, as it is written or as it is resolved, is or lies in a place."""
        for part in (*lexical.parts, *resolved.parts):
            if why := NAMES.get(part.lower()):
                raise ToolFault(f"not written: {text} lies in {why}")
        if any(resolved.is_relative_to(place) for place in self.places):
            raise _refusal(text)

    def guard(self, resolved: Path) -> Guard:
        """What tells the places by what they are now. Blocks: each is looked at."""
        folders: set[_Id] = set()
        files: set[_Id] = set()
        around = dict.fromkeys((*self._roots, *resolved.parents))
        named = [folder / name for folder in around for name in NAMES]
        found: list[Path] = []
        for place in (*self.places, *named, *(each for folder in around for each in led_to(folder / ".git"))):
            with contextlib.suppress(OSError):
                info = place.stat()
                (folders if stat.S_ISDIR(info.st_mode) else files).add((info.st_dev, info.st_ino))
                found.append(place)
        return Guard(tuple(found), resolved, frozenset(folders), frozenset(files))


class Guard(NamedTuple):
    """The places at one moment, by device and inode: a bind mount, another spelling or a hard link is no way around."""

    places: tuple[Path, ...]
    path: Path
    folders: frozenset[_Id]
    files: frozenset[_Id]

    def check_folder(self, info: os.stat_result) -> None:
        """Raises `ToolFault` where an open folder is a protected one."""
        if (info.st_dev, info.st_ino) in self.folders:
            raise _refusal(str(self.path))

    def check_file(self, info: os.stat_result) -> None:
        """Raises `ToolFault` where a file is a protected one, or one in a protected folder, by another name."""
        if (info.st_dev, info.st_ino) in self.files:
            raise _refusal(str(self.path))
        if info.st_nlink > 1 and self._stands_in_a_place(info):
            raise _refusal(str(self.path))

    def _stands_in_a_place(self, info: os.stat_result) -> bool:
        """Whether a file of several names has one of them in a protected folder; also where there is too much to look at."""
        looked_at = 0
        waiting = [place for place in self.places if place.is_dir()]
        while waiting:
            folder = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    looked_at += 1
                    if looked_at > _ENTRIES:
                        return True
                    if entry.inode() == info.st_ino and entry.stat(follow_symlinks=False).st_dev == info.st_dev:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
        return False


def led_to(place: Path) -> list[Path]:
    """The folders that a place stands for where it is a link, or a `.git` that is a file (`gitdir: ...`): what is in such a folder
    lies there. Blocks.

    None of them holds the place itself, whatever a stranger's file says.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISLNK(place.lstat().st_mode):
            found.append(Path(os.path.realpath(place)))
        if place.name == ".git" and place.is_file():
            found.append(_pointed(place, place.parent, b"gitdir:"))
        # That of a worktree has settings in common with others.
        found += [_pointed(folder / "commondir", folder, b"") for folder in found if (folder / "commondir").is_file()]
    return [folder for folder in found if not place.is_relative_to(folder)]


def _pointed(file: Path, base: Path, begin: bytes) -> Path:
    """The folder that a small file names. Raises `ValueError` where it names none, `OSError`."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        line = opened.read(_LONGEST_NAME).partition(b"\n")[0]
    if not line.startswith(begin) or not (name := line.removeprefix(begin).strip()):
        raise ValueError(f"{file} names no folder")
    return Path(os.path.realpath(base / os.fsdecode(name)))


def _refusal(text: str) -> ToolFault:
    return ToolFault(f"not written: {text} lies in a protected place of the runtime. Choose another path.")
