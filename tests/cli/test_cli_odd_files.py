"""What stands where a pod's files should and is none of them: told in one line with the way out, put aside, removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod import Manifest, Pod, UsageProblem
from pod.log.folder import PodFolder
from pod.session import Session


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


def made(home: Path, name: str) -> PodFolder:
    session = Session.create(home, name, blobs={"system": "Be exact."}, manifest="m")
    session.close()
    return session.folder


def loop(path: Path) -> None:
    path.symlink_to(path)


ODD: dict[str, Callable[[Path], None]] = {"a FIFO": os.mkfifo, "a folder": Path.mkdir, "a loop of links": loop}


def one_line(shell: Shell, *words: str) -> None:
    assert shell.err.count("\n") == 1 and all(word in shell.err for word in words), shell.err
    assert not (shell.rig.home / "crash").exists()


# -- the pointer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ODD, "missing"])
def test_a_pod_whose_pointer_is_no_file_is_listed_repaired_and_removed(kind: str, shell: Shell) -> None:
    folder = made(shell.rig.home, "d1")
    for again in (False, True):
        folder.pointer_path.unlink()
        if kind in ODD:
            ODD[kind](folder.pointer_path)
        (listed,) = shell.json("ls")
        assert listed["status"] == "unreadable" and "`pod doctor d1 --repair`" in listed["problem"]
        assert "unreadable" in shell("ls") and "d1" in shell("gc", "--older-than", "0s")
        shell("resume", "d1", "hi", code=2)
        one_line(shell, str(folder.pointer_path), "`pod doctor d1 --repair`")
        shell("run", "offline-survey", "x", "--name", "d1", "-q", code=2)
        one_line(shell, "`pod doctor d1 --repair`")
        if again:
            shell("rm", "d1")
            assert not folder.path.exists()
        else:
            assert "(--repair mends it)" in shell("doctor", "d1", code=1)
            assert "pod.json written anew" in shell("doctor", "d1", "--repair")
            assert shell.json("ls")[0]["status"] == "new"
            aside = [path.name for path in folder.path.glob("quarantine/*")]
            assert len(aside) == (kind in ODD) and "nothing to repair" in shell("doctor", "d1", "--repair")


# -- a segment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ODD)
def test_a_segment_that_is_no_file_is_one_line_with_the_way_out(kind: str, shell: Shell) -> None:
    folder = made(shell.rig.home, "s2")
    path = folder.segment_path(folder.pointer().segment)
    path.unlink()
    ODD[kind](path)
    for command in ("show", "log", "inspect", "context", "resume", "export", "compact"):
        more = ("-o", "out.tar") if command == "export" else ()
        shell(command, "s2", *more, code=2)
        one_line(shell, f"{path}: {kind}", "pod doctor")
    shell("send", "s2", "x", code=2)
    one_line(shell, f"{path}: {kind}")
    shell("fork", "s2", "s3", code=2)
    one_line(shell, f"{path}: {kind}")
    assert f"{path}: {kind}" in shell.json("ls")[0]["problem"]
    for flag in ((), ("--repair",)):
        assert "its entries are lost" in shell("doctor", "s2", *flag, code=1)
    shell("rm", "s2")


def test_a_fifo_that_nothing_needs_is_put_aside(shell: Shell) -> None:
    folder = made(shell.rig.home, "s2")
    os.mkfifo(folder.segment_path("00-earlier"), 0o600)
    assert "nothing needs it" in shell("doctor", "s2")
    assert "put aside" in shell("doctor", "s2", "--repair")
    assert ": fine:" in shell("doctor", "s2")


# -- left over ------------------------------------------------------------------------------------------------


def test_what_a_killed_making_left_has_one_verdict_and_goes_with_gc(shell: Shell) -> None:
    left = PodFolder(shell.rig.home, "g/k3")
    left.lock()
    left.put_blob("text")
    assert "a process is making" in shell("doctor", "g/k3")
    assert "stays" in shell("gc", "--older-than", "1d", "--force") and left.path.exists()
    left.unlock()
    for command in (("doctor",), ("doctor", "g/k3"), ("doctor", "g/k3", "--repair")):
        assert "g/k3: no pod\n" in shell(*command) and "killed while it made" in shell(*command)
    shell("resume", "g/k3", code=2)
    one_line(shell, "there is no pod named 'g/k3'", "killed while it made", "pod gc")
    assert shell.json("ls") == []
    assert "would be removed" in shell("gc", "--older-than", "1d") and left.path.exists()
    assert "removed" in shell("gc", "--older-than", "1d", "--force") and not left.path.parent.exists()
    left.lock()
    left.unlock()
    shell("rm", "g/k3")
    assert not left.path.exists()


# -- output ---------------------------------------------------------------------------------------------------


def test_o_never_replaces_a_file_of_a_pod(shell: Shell) -> None:
    folder = made(shell.rig.home, "p1")
    link = shell.rig.work / "link"
    link.symlink_to(folder.pointer_path)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    for target in (*before, link, folder.path / "new", shell.rig.home / "pods" / "p9"):
        for command in (("resume", "p1", "hi", "-q"), ("export", "p1")):
            shell(*command, "-o", target, code=2)
            one_line(shell, f"{target} would replace a pod's own file")
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_o_never_replaces_the_instructions_that_the_run_reads(shell: Shell) -> None:
    (shell.rig.work / "AGENTS.md").write_text("Be brief.")
    shell("run", "offline-survey", "x", "--name", "g", "-q", "-o", "AGENTS.md", code=2)
    one_line(shell, "-o AGENTS.md would replace", "which the run reads")
    assert (shell.rig.work / "AGENTS.md").read_text() == "Be brief."


# -- the current folder, and what programs give ---------------------------------------------------------------


def test_a_current_folder_that_is_gone_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = shell.rig.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for cwd, home in ((None, shell.rig.home), ("here", shell.rig.home), (shell.rig.work, "here")):
        with pytest.raises(UsageProblem, match="the current folder is gone"):
            Pod.open(Manifest(), name="g", cwd=cwd, home=home)
    with pytest.raises(UsageProblem, match="the current folder is gone"):
        Pod.open("agent.toml", home=shell.rig.home)
    shell("manifest", "new", "a.toml", code=2)
    one_line(shell, "the current folder is gone")


@pytest.mark.parametrize("given", [5, None, {}, b"x"])
def test_what_is_no_manifest_or_name_is_said(given: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"the manifest is a path, .* not "):
        Pod.open(given, home=tmp_path)
    wrong: list[dict[str, Any]] = [{key: given} for key in ("name", "cwd", "home") if given is not None]
    for more in wrong:
        with pytest.raises(UsageProblem, match=rf" is (text|a path), not {type(given).__name__}"):
            Pod.open(Manifest(), **more)


# -- short words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "offline-survey", "x", "--set", f"{'a.' * 3000}b=1"], "..."),
        (["show", "p1", "--item", "x" * 5000], "has no item"),
        (["run", "offline-survey", "x", "--set", "worker.max_steps=3"], "did you mean max_requests?"),
        (["run", "offline-survey", "x", "--set", "limits.max_turns=3"], "did you mean [worker] max_requests?"),
        (["help", "xyzzy"], "`pod --help` lists the commands"),
        (["help", "run", "x"], "`pod help run` takes nothing more: x"),
        (
            ["run", "offline-survey", "x", "--output-schema", "."],
            "--output-schema .: is a folder, and a file is needed",
        ),
    ],
)
def test_a_mistake_is_one_short_line(arguments: list[str], said: str, shell: Shell) -> None:
    made(shell.rig.home, "p1")
    shell(*arguments, code=2)
    one_line(shell, said)
    assert len(shell.err) < 1200
