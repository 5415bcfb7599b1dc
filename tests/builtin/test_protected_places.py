"""Places that no tool writes, whatever name leads to them, looked at when they are opened."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.builtin.scope import Scope
from worker.tools import ToolFault


class Place:
    def __init__(self, base: Path) -> None:
        self.root = base / "work"
        self.home = self.root / "pods"
        self.home.mkdir(parents=True)
        self.log = self.home / "log"
        self.log.write_text("before")
        self.manifest = self.root / "Agent.toml"
        self.manifest.write_text("before")
        self.scope = Scope(self.root, write=["."], protected=[self.home, self.manifest])

    def refuses(self, path: str, scope: Scope | None = None) -> None:
        """Neither way of writing gets there."""
        for way in ((scope or self.scope).open_write, (scope or self.scope).open_append):
            with pytest.raises(ToolFault), way(path) as opened:
                getattr(opened, "file", opened).write(b"after")
        assert self.log.read_text() == self.manifest.read_text() == "before"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "pods/log",
        "pods/new/file",
        "pods/../pods/log",
        "./pods//log",
        "Agent.toml",
        "a/../Agent.toml",
        "linked/log",
        "link.toml",
    ],
)
def test_a_protected_place_is_not_written_by_any_spelling(place: Place, path: str) -> None:
    (place.root / "linked").symlink_to("pods")
    (place.root / "link.toml").symlink_to("Agent.toml")
    place.refuses(path)


@pytest.mark.parametrize(
    "path", [".pod/config.toml", "sub/.pod/x", ".POD/config.toml", ".Git/hooks/x", "to-pod/x", "sub/.git"]
)
def test_git_and_pod_folders_are_not_written_in_whatever_case(place: Place, path: str) -> None:
    (place.root / ".pod").mkdir()
    (place.root / "to-pod").symlink_to(".pod")
    place.refuses(path)


@pytest.mark.parametrize("target", ["log", "manifest"])
def test_a_hard_link_to_a_protected_file_is_no_way_to_it(place: Place, target: str) -> None:
    os.link(getattr(place, target), place.root / "innocent.txt")
    place.refuses("innocent.txt")


@pytest.mark.parametrize("kept", [".git/config", ".pod/config.toml", ".git"])
@pytest.mark.parametrize("folder", [".", "sub", "other"])
def test_a_hard_link_into_a_git_or_pod_folder_is_no_way_to_it(tmp_path: Path, kept: str, folder: str) -> None:
    """From beside it, from below, and from another root."""
    work, other = tmp_path / "work", tmp_path / "other"
    for each in (work / "sub", other):
        each.mkdir(parents=True)
    file = work / kept
    file.parent.mkdir(exist_ok=True)
    file.write_text("before")
    link = (other if folder == "other" else work / folder) / "innocent.txt"
    os.link(file, link)
    scope = Scope(work, write=[".", other])
    for way in (scope.open_write, scope.open_append):
        with pytest.raises(ToolFault, match="protected place"), way(str(link)) as opened:
            getattr(opened, "file", opened).write(b"after")
    assert file.read_text() == "before"


def test_a_bind_mount_of_a_git_folder_is_no_way_to_it(place: Place) -> None:
    git, other = place.root / ".git", place.root / "other"
    git.mkdir()
    other.mkdir()
    with bound(git, other):
        place.refuses("other/hooks/post-commit")
    assert not [*git.iterdir()]


GIT_DATA = {
    "a file": lambda git: git.write_text("gitdir: data/one\n"),
    "a file with an absolute path": lambda git: git.write_text(f"gitdir: {git.parent}/data/one"),
    "a link": lambda git: git.symlink_to("data/one"),
}


@pytest.mark.parametrize("how", list(GIT_DATA))
@pytest.mark.parametrize("kept", ["one/hooks/pre-commit", "one/new", "common/config"])
def test_what_a_git_that_is_no_folder_stands_for_is_not_written(how: str, kept: str, place: Place) -> None:
    """Its hooks and settings lie elsewhere in scope, those of a worktree in a place in common; what lies beside is free."""
    data = place.root / "data"
    for folder in ("one/hooks", "common"):
        (data / folder).mkdir(parents=True)
    (data / "one" / "commondir").write_text("../common\n")
    GIT_DATA[how](place.root / ".git")
    place.refuses(f"data/{kept}")
    with place.scope.open_write("data/free") as file:
        file.write(b"after")


@pytest.mark.parametrize(
    "said", ["gitdir: .", "gitdir: ..", "gitdir: /", "gitdir:", "", "gitdir: nowhere", "gitdir: \0"]
)
def test_a_strangers_git_file_keeps_no_file_of_the_folder_from_being_written(said: str, place: Place) -> None:
    (place.root / ".git").write_text(said)
    with place.scope.open_write("free") as file:
        file.write(b"after")
    assert (place.root / "free").read_bytes() == b"after"


def test_a_file_of_several_names_that_are_all_free_is_written(place: Place) -> None:
    (place.root / "a").write_text("x")
    os.link(place.root / "a", place.root / "b")
    with place.scope.open_append("b") as appended:
        appended.file.write(b"y")
    assert (place.root / "a").read_text() == "xy"


def test_a_bind_mount_of_a_protected_folder_is_no_way_to_it(place: Place) -> None:
    other = place.root / "other"
    other.mkdir()
    with bound(place.home, other):
        place.refuses("other/log")
        place.refuses("other/new/file")
    assert sorted(os.listdir(place.home)) == ["log"]


@contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    done = subprocess.run(["mount", "--bind", source, target], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting needs privileges that this process has not")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)
