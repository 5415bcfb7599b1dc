"""What the user decided about the configuration that comes with a folder: one small file a folder, beside the pods.

A decision is bound to the folder's real path and to the bytes of its `.pod/config.toml`: another content is not trusted,
nor is a folder above or below. It lies in the user's own state, where the tools of no agent may write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from pod.errors import UsageProblem
from pod.log.files import Files, open_file
from pod.log.folder import local_home
from pod.log.lines import now
from worker.text import sha256

Word: TypeAlias = Literal["trusted", "ignored"]

LARGEST = 8 << 20
"""Bytes of one decision: it holds the configuration that was shown, escaped."""


class Decision(BaseModel):
    """One decision. `sha256` and `text` are those of the configuration as it was shown; `at` is UTC."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Literal[1] = 1
    folder: str
    word: Word
    sha256: str = ""
    text: str = ""
    at: str = ""


class Refused(Exception):
    """A decision is there and is not taken; the text says why."""


class Decisions:
    """The decisions in one home (default: that of the pods). All methods block; what is put is durable.

    Reading raises `Refused` for what others may have written, and `OSError`.
    """

    def __init__(self, home: Path | None = None, files: Files | None = None) -> None:
        self.home = home or local_home()
        self.path = self.home / "trust"
        self._files = files or Files()

    def of(self, folder: Path) -> Decision | None:
        """What was decided about a folder (its real path), None where nothing was."""
        path = self._file(folder)
        if not os.path.lexists(path):
            return None
        if self._lies_in(folder):
            raise Refused(f"{self.path} lies in the folder itself")
        found = self._read(path)
        if found.folder != _name(folder):
            raise Refused(f"{path} is about another folder")
        return found

    def put(self, folder: Path, word: Word, *, digest: str = "", text: str = "") -> Decision:
        """Decides about a folder. Raises `UsageProblem` where the decision would lie in that folder, `OSError`."""
        if self._lies_in(folder):
            raise UsageProblem(
                f"what you decide about {folder} can't be kept in it: pods lie in {self.home} "
                "(POD_HOME names another place)"
            )
        made = Decision(folder=_name(folder), word=word, sha256=digest, text=text, at=now())
        self._files.make_folder(self.path)
        self._files.put(self._file(folder), made.model_dump_json().encode())
        return made

    def remove(self, folder: Path) -> bool:
        """Takes a decision back; whether there was one."""
        path = self._file(folder)
        there = os.path.lexists(path)
        if there:
            self._files.unlink(path)
            self._files.sync_folder(self.path)
        return there

    def all(self) -> Iterator[Decision | tuple[Path, str]]:
        """Each decision, in the order of folders, then what is no decision and why."""
        good: list[Decision] = []
        bad: list[tuple[Path, str]] = []
        try:
            names = sorted(path for path in self.path.iterdir() if path.suffix == ".json")
        except (FileNotFoundError, NotADirectoryError):
            return
        for path in names:
            try:
                good.append(self._read(path))
            except (Refused, OSError) as error:
                bad.append((path, str(error)))
        yield from sorted(good, key=lambda each: each.folder)
        yield from bad

    def _lies_in(self, folder: Path) -> bool:
        """The home folder itself may hold its state; a project that brings its own must not decide about itself."""
        return Path(os.path.realpath(self.path)).is_relative_to(folder) and folder != Path(
            os.path.realpath(Path.home())
        )

    def _file(self, folder: Path) -> Path:
        return self.path / f"{sha256(os.fsencode(folder))}.json"

    def _read(self, path: Path) -> Decision:
        for place in (self.path, path):
            found = place.lstat()
            if found.st_uid not in {os.geteuid(), 0} or (not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022):
                raise Refused(f"others may write {place}")
        with open_file(path) as file:
            data = file.read(LARGEST + 1)
        try:
            return Decision.model_validate_json(data)
        except ValidationError:
            raise Refused(f"{path} does not read") from None


def _name(folder: Path) -> str:
    """A path as text that JSON takes, whatever its bytes are."""
    return os.fsencode(folder).decode("utf-8", "backslashreplace")
