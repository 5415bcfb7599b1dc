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
"""The file in a repository's git folder under which one works with its worktrees at a time, whatever batch it is for: git stumbles
over one that another git has half made, or takes it for one that is gone."""

_MAKING = "added with --lock"
"""The reason that git gives a worktree's lock at its making; one that a user set has another."""


class WorkspaceFailed(PodError):
    """A task's working folder can't be made."""


@dataclass(frozen=True, slots=True)
class Workspaces:
    """`base` is the folder of the batch, `root` where the folders of its tasks lie, `batch` the name that their branches bear.

    `inside` is where in its repository the base lies: a worktree holds the whole of it. `common` is git's folder of the repository.
    """

    kind: Workspace
    base: Path
    root: Path
    batch: str
    inside: str = ""
    common: Path = Path()

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
            inside, common = (
                os.fsdecode(self._git("rev-parse", ask).stdout).strip() for ask in ("--show-prefix", "--git-common-dir")
            )
            return replace(self, inside=inside, common=self.base / common)
        return self

    def of(self, index: int) -> Path:
        """The working folder of a task, whether it is there or not."""
        return self.base if self.kind == "none" else self.root / str(index) / self.inside

    def make(self, index: int) -> Path:
        """The working folder of a task, made where it is not there yet: whole or not at all. Blocks. Raises `WorkspaceFailed`."""
        folder = self.root / str(index)
        if self.kind == "none":
            return self.base
        if folder.is_dir():
            if self.kind == "git-worktree":
                self._unlock(folder)
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
        """Makes it under another name, and checks its files out beside other tasks. It is locked until it has its own: while it is
        moved it stands nowhere, and a `git worktree prune` of the user's would take it for gone.
        """
        begun = folder.with_name(f"{folder.name}.tmp")
        with exclusive(self.common / LOCK):
            made = None if begun.exists() else self._begin(begun, index)
            if made is None or made.returncode:  # a kill left it, or a folder that is gone still has the branch
                for left in (begun, folder):
                    self._git("worktree", "unlock", str(left))
                    self._git("worktree", "remove", "--force", "--force", str(left))
                shutil.rmtree(begun, ignore_errors=True)
                self._git("worktree", "prune")
                made = self._begin(begun, index)
        if not made.returncode:
            made = self._git("checkout", "--force", "--quiet", at=begun)
        with exclusive(self.common / LOCK):
            if not made.returncode:
                made = self._git("worktree", "move", "--force", "--force", str(begun), str(folder))
            if made.returncode:
                said = made.stderr.decode(errors="replace").strip().splitlines()
                raise WorkspaceFailed(
                    f"the working folder of task {index} can't be made: git: {said[-1] if said else 'failed'}"
                )
            self._git("worktree", "unlock", str(folder))

    def _begin(self, begun: Path, index: int) -> subprocess.CompletedProcess[bytes]:
        return self._git(
            "worktree", "add", "--lock", "--no-checkout", "-B", f"pod/{self.batch}/{index}", str(begun), "HEAD"
        )

    def _unlock(self, folder: Path) -> None:
        """Takes the lock of its making away, which a kill may have left; a lock of the user's own stays."""
        try:
            where = (
                (folder / ".git").read_text(encoding="utf-8", errors="surrogateescape").removeprefix("gitdir:").strip()
            )
            said = (folder / where / "locked").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return
        if said == _MAKING:
            with exclusive(self.common / LOCK):
                self._git("worktree", "unlock", str(folder))

    def _git(self, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {"LC_ALL": "C"}
        try:
            return subprocess.run(
                ["git", "-C", str(at or self.base), *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_SECONDS, env=env,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise WorkspaceFailed(f"git {words[0]} takes longer than {GIT_SECONDS:g} s in {self.base}") from error
