from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from builtin.builtin_rig import Rig

from worker.builtin.scope import Scope, Use
from worker.tools import ToolFault


def test_a_link_inside_to_a_file_outside_is_refused_with_its_target(rig: Rig, tmp_path: Path) -> None:
    """B098."""
    (tmp_path / "secret").write_text("key")
    (rig.root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolFault, match=r"outside the read scope: link .it leads to .*/secret"):
        rig.scope.open_read("link")
    with pytest.raises(ToolFault, match=r"outside the write scope: link .it leads to .*/secret"):
        rig.scope.resolve("link", "write")


def test_a_link_inside_to_a_file_inside_is_read(rig: Rig) -> None:
    rig.file("a/real.txt", "hello")
    (rig.root / "link").symlink_to("a/real.txt")
    with rig.scope.open_read("link") as opened:
        assert opened.file.read() == b"hello"
        assert opened.name == "a/real.txt"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "~/x"])
def test_paths_that_lead_out_are_refused(rig: Rig, path: str) -> None:
    with pytest.raises(ToolFault, match="outside the read scope"):
        rig.scope.open_read(path)


def test_a_name_that_only_starts_like_a_root_is_outside(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work2").mkdir()
    (tmp_path / "work2" / "a").write_text("x")
    with pytest.raises(ToolFault, match="outside"):
        Scope(tmp_path / "work").open_read("../work2/a")


class Swapping(Scope):
    """Something outside swaps a name for a link right after it was decided on."""

    swap: Path
    target: Path

    def resolve(self, path: str | Path, use: Use = "read") -> Path:
        found = super().resolve(path, use)
        if not self.swap.is_symlink():
            self.swap.rename(self.swap.with_name("moved"))
            self.swap.symlink_to(self.target)
        return found


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_what_is_swapped_for_a_link_after_the_decision_is_not_followed(tmp_path: Path, swapped: str) -> None:
    """B098, the variant with a swap."""
    root, outside = tmp_path / "work", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    (root / "d" / "f").write_text("inside")
    (outside / "f").write_text("secret")
    scope = Swapping(root, write=["."])
    scope.swap, scope.target = (root / "d" / "f", outside / "f") if swapped == "file" else (root / "d", outside)
    with pytest.raises(ToolFault, match="link while it was being opened"):
        scope.open_read("d/f")
    with pytest.raises(ToolFault), scope.open_write("d/f") as file:
        file.write(b"mine")
    assert (outside / "f").read_text() == "secret"


def test_special_files_are_refused_by_type_and_at_once(rig: Rig) -> None:
    """B099: none of these may block; there is no writer on the pipe."""
    os.mkfifo(rig.root / "pipe")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(rig.root / "sock"))
        (rig.root / "folder").mkdir()
        expected = {"pipe": "named pipe", "sock": "socket", "folder": "directory"}
        for name, word in expected.items():
            with pytest.raises(ToolFault, match=f"{name} is a {word}"):
                rig.scope.open_read(name)
            with pytest.raises(ToolFault, match=f"{name} is a {word}"), rig.scope.open_write(name):
                pass
    with pytest.raises(ToolFault, match="character device"):
        Scope("/dev").open_read("zero")


def test_a_missing_file_names_the_nearest_one(rig: Rig) -> None:
    rig.file("src/utils.py")
    with pytest.raises(ToolFault, match=r"no such file: src/utls.py. Did you mean src/utils.py"):
        rig.scope.open_read("src/utls.py")
    with pytest.raises(ToolFault, match=r"Did you mean src\?"):
        rig.scope.open_read("srcs/utils.py")
    with pytest.raises(ToolFault, match=r"list_files\(path='src'\)"):
        rig.scope.open_read("src/nothing-like-it")


def test_a_missing_file_outside_is_not_told_from_one_that_is_there(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "one-x").write_text("x")
    texts: list[str] = []
    for name in ("one-x", "two-y"):
        with pytest.raises(ToolFault) as e:
            rig.scope.open_read(f"../{name}")
        texts.append(str(e.value).replace(name, ""))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("path", [".git/config", "sub/.git/hooks/x", ".GIT/x", "way-in/config", ".pod/log"])
def test_git_folders_and_protected_places_are_never_written(rig: Rig, path: str) -> None:
    (rig.root / ".git").mkdir()
    (rig.root / "way-in").symlink_to(".git")
    with pytest.raises(ToolFault, match="not written"), rig.scope.open_write(path):
        pass
    with pytest.raises(ToolFault, match="not written"), rig.scope.open_append(path):
        pass


def test_what_may_be_read_may_not_be_written(tmp_path: Path) -> None:
    scope = Scope(tmp_path, read=["."], write=["out"])
    with scope.open_write("out/a") as file:
        file.write(b"x")
    with scope.open_read("out/a") as opened:
        assert opened.file.read() == b"x"
    with pytest.raises(ToolFault, match=r"may write in: out\."), scope.open_write("b"):
        pass


def test_a_write_replaces_in_one_step_and_keeps_the_mode(rig: Rig) -> None:
    target = rig.file("run.sh", "old")
    target.chmod(0o750)
    with rig.scope.open_write("run.sh") as file:
        file.write(b"new")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert [p.name for p in rig.root.iterdir()] == ["run.sh"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(rig: Rig) -> None:
    target = rig.file("a", "old")
    with pytest.raises(ZeroDivisionError), rig.scope.open_write("a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert [p.name for p in rig.root.iterdir()] == ["a"]


def test_a_write_refuses_where_the_file_changed_meanwhile(rig: Rig) -> None:
    target = rig.file("a", "old")
    with rig.scope.open_read("a") as opened:
        info = opened.info
    with (
        pytest.raises(ToolFault, match="changed at this very moment"),
        rig.scope.open_write("a", unchanged=info) as file,
    ):
        file.write(b"mine")
        target.write_text("theirs")
    assert target.read_text() == "theirs"


def test_an_append_that_fails_leaves_the_old_content(rig: Rig) -> None:
    target = rig.file("a", "old\n")
    with pytest.raises(ZeroDivisionError), rig.scope.open_append("a") as appended:
        appended.file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old\n"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300, "file/below"])
def test_paths_that_are_none_are_refused_in_words(rig: Rig, path: str) -> None:
    rig.file("file")
    with pytest.raises(ToolFault):
        rig.scope.open_read(path)


@pytest.mark.parametrize("path", ["loop", "loop/below", "one"])
@pytest.mark.parametrize("use", ["read", "write"])
def test_a_link_that_leads_back_to_itself_is_refused_as_one(rig: Rig, path: str, use: Use) -> None:
    (rig.root / "loop").symlink_to("loop")
    (rig.root / "one").symlink_to("two")
    (rig.root / "two").symlink_to("one")
    with pytest.raises(ToolFault, match="leads back to itself"):
        rig.scope.resolve(path, use)
