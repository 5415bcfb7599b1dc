"""Working folders of tasks: made whole or not at all, whoever else works with git's worktrees at that moment."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pod.batch.workspaces import Workspaces

MEDDLING = """#!/bin/sh
# A git beside which somebody tidies up, in the moment in which a worktree that is moved stands nowhere.
case "$*" in
*"worktree move"*)
    for last do before=$from; from=$last; done
    mv "$before" "$before.away"
    "{git}" -C "{repository}" worktree prune
    mv "$before.away" "$before"
    ;;
esac
exec "{git}" "$@"
"""


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, env=env).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "-q")
    (made / "seed.txt").write_text("seed")
    git(made, "add", ".")
    git(made, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x")
    return made


@pytest.fixture
def workspaces(tmp_path: Path, repository: Path) -> Workspaces:
    return Workspaces("git-worktree", repository, tmp_path / "work", "b").checked()


def test_a_worktree_survives_who_tidies_up_while_it_is_made(
    tmp_path: Path, repository: Path, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    meddling = tmp_path / "bin" / "git"
    meddling.write_text(MEDDLING.format(git=real, repository=repository))
    meddling.chmod(0o755)
    monkeypatch.setenv("PATH", f"{meddling.parent}{os.pathsep}{os.environ['PATH']}")
    made = workspaces.make(3)
    monkeypatch.undo()
    assert git(made, "rev-parse", "--abbrev-ref", "HEAD").strip() == "pod/b/3"
    assert "locked" not in git(repository, "worktree", "list", "--porcelain")
    git(repository, "worktree", "remove", str(made))


def test_worktrees_that_are_made_together_are_all_whole(repository: Path, workspaces: Workspaces) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(workspaces.make, range(16)))
    found = [git(folder, "rev-parse", "--abbrev-ref", "HEAD").strip() for folder in made]
    assert found == [f"pod/b/{index}" for index in range(16)]


def test_what_a_kill_left_of_a_worktree_is_made_anew_and_the_lock_of_its_making_is_taken_away(
    repository: Path, workspaces: Workspaces
) -> None:
    workspaces.root.mkdir()
    git(repository, "worktree", "add", "-q", "--lock", "-B", "pod/b/0", str(workspaces.root / "0.tmp"), "HEAD")
    git(repository, "worktree", "add", "-q", "--lock", "-B", "pod/b/1", str(workspaces.root / "1.tmp"), "HEAD")
    shutil.rmtree(workspaces.root / "1.tmp")
    git(repository, "worktree", "add", "-q", "--lock", "-B", "pod/b/2", str(workspaces.root / "2"), "HEAD")
    for index in range(3):
        folder = workspaces.make(index)
        assert git(folder, "rev-parse", "--abbrev-ref", "HEAD").strip() == f"pod/b/{index}"
    assert "locked" not in git(repository, "worktree", "list", "--porcelain")


def test_a_lock_of_the_users_own_stays(repository: Path, workspaces: Workspaces) -> None:
    folder = workspaces.make(0)
    git(repository, "worktree", "lock", "--reason", "mine", str(folder))
    assert workspaces.make(0) == folder
    assert "locked mine" in git(repository, "worktree", "list", "--porcelain")
