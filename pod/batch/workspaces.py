"""Where each task of a batch works: in the batch's own folder, in a copy of it, or in a worktree of its repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pod.errors import PodError, UsageProblem
from pod.log.locking import exclusive

Workspace: TypeAlias = Literal["none", "copy", "git-worktree"]
"""How a task's working folder is made."""

GIT_SECONDS = 300.0
"""How long one command of git may take, seconds."""

LOCK = "pod-worktrees.lock"
"""The file in a repository's git folder under which one worktree is made at a time, whatever batch it is for."""


class WorkspaceFailed(PodError):
    """A task's working folder can't be made."""


@dataclass(frozen=True, slots=True)
class Workspaces:
    """`base` is the folder of the batch, `root` where the folders of its tasks lie, `batch` the name that their branches bear.

    `inside` is where in its repository the base lies: a worktree holds the whole of it.
    """

    kind: Workspace
    base: Path
    root: Path
    batch: str
    inside: str = ""

    def checked(self) -> Workspaces:
        """Itself, with all that is known of the base. Blocks. Raises `UsageProblem` where no workspace can be made at all."""
        if self.kind == "none":
            return self
        if self.root.is_relative_to(self.base):
            raise UsageProblem(
                f"--workspace {self.kind}: the folders of the tasks would lie in {self.root}, which is inside of {self.base}; "
                "name another place with --workspaces, or another working folder with -C"
            )
        if self.kind == "git-worktree":
            if shutil.which("git") is None:
                raise UsageProblem("--workspace git-worktree: git is not installed; `--workspace copy` needs none")
            if self._git("rev-parse", "--verify", "--quiet", "HEAD").returncode:
                raise UsageProblem(
                    f"--workspace git-worktree: {self.base} is no git repository with a commit; `--workspace copy` needs none"
                )
            return replace(
                self, inside=self._git("rev-parse", "--show-prefix").stdout.decode(errors="surrogateescape").strip()
            )
        return self

    def of(self, index: int) -> Path:
        """The working folder of a task, whether it is there or not."""
        return self.base if self.kind == "none" else self.root / str(index) / self.inside

    def make(self, index: int) -> Path:
        """The working folder of a task, made where it is not there yet: whole or not at all. Blocks. Raises `WorkspaceFailed`."""
        folder = self.root / str(index)
        if self.kind == "none" or folder.is_dir():
            return self.of(index)
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.kind == "copy":
                self._copy(folder)
            else:
                self._worktree(folder, index)
        except (OSError, shutil.Error) as error:
            raise WorkspaceFailed(f"the working folder of task {index} can't be made in {folder}: {error}") from error
        return self.of(index)

    def _copy(self, folder: Path) -> None:
        begun = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(begun, ignore_errors=True)
        shutil.copytree(self.base, begun, symlinks=True, ignore_dangling_symlinks=True)
        begun.rename(folder)

    def _worktree(self, folder: Path, index: int) -> None:
        begun = folder.with_name(f"{folder.name}.tmp")
        words = ("worktree", "add", "-B", f"pod/{self.batch}/{index}", str(begun), "HEAD")
        shared = self.base / os.fsdecode(self._git("rev-parse", "--git-common-dir").stdout).strip()
        # git reads all worktrees of a repository, and trips over one that it is just making.
        with exclusive(shared / LOCK):
            made = self._git(*words)
            if made.returncode:
                # What a kill left, and what somebody removed by hand.
                for left in (begun, folder):
                    self._git("worktree", "remove", "--force", "--force", str(left))
                shutil.rmtree(begun, ignore_errors=True)
                made = self._git(*words)
            if not made.returncode:
                made = self._git("worktree", "move", str(begun), str(folder))
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().splitlines()
            raise WorkspaceFailed(
                f"the working folder of task {index} can't be made: git: {said[-1] if said else 'failed'}"
            )

    def _git(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        try:
            return subprocess.run(
                ["git", "-C", str(self.base), *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_SECONDS, env=env,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise WorkspaceFailed(f"git {words[0]} takes longer than {GIT_SECONDS:g} s in {self.base}") from error
