"""`-C` on a pod that exists: its folder and the scope that started from it move together, for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod.log.folder import PodFolder
from pod.stored import stored_manifest
from pod.transfer import export_pod, import_pod

TASK = "Survey the Python files in src. Write the report to report.md."


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for folder, word in ((rig.work, "first"), (rig.root / "other", "second")):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "m.py").write_text(f"def {word}():\n    return 1\n")
    return Shell(rig, capsys, monkeypatch)


def _stands(shell: Shell, folder: Path) -> None:
    """The pod's folder and scope, as a plain command finds them."""
    manifest, cwd = stored_manifest(PodFolder(shell.rig.home, "p"))
    assert cwd == str(folder)
    assert (manifest.scope.read, manifest.scope.write) == ((cwd,), (cwd,))


@pytest.mark.parametrize("command", ["run", "resume"])
def test_another_folder_takes_the_scope_along_and_stays(command: str, shell: Shell) -> None:
    shell("run", "offline-survey", "hello", "--name", "p", "-q", "-p")
    _stands(shell, shell.rig.work)
    other = shell.rig.root / "other"
    words = ("run", "offline-survey", TASK, "--name", "p") if command == "run" else ("resume", "p", TASK)
    shell(*words, "-C", other, "-q", "-p")
    assert shell.err.count("now it works in") == 1 and "denied" not in shell.err
    assert "second" in (other / "report.md").read_text()
    _stands(shell, other)
    assert {row["cwd"] for row in shell.json("ls")} == {str(other)}
    shell("resume", "p", TASK.replace("report.md", "lib.md"), "-q", "-p")
    assert "now it works in" not in shell.err and (other / "lib.md").is_file()
    shell("fork", "p", "q")
    assert stored_manifest(PodFolder(shell.rig.home, "q"))[1] == str(other)
    export_pod(shell.rig.home, "p", shell.rig.root / "p.tar")
    import_pod(shell.rig.root / "p.tar", shell.rig.root / "home2")
    assert stored_manifest(PodFolder(shell.rig.root / "home2", "p"))[1] == str(other)


def test_what_is_set_for_one_run_does_not_stay_with_the_folder(shell: Shell) -> None:
    shell("run", "offline-survey", TASK, "--name", "p", "-q", "-p")
    other = shell.rig.root / "other"
    shell("resume", "p", TASK, "-C", other, "--max-requests", "77", "-q", "-p")
    assert stored_manifest(PodFolder(shell.rig.home, "p"))[0].worker.max_requests != 77
    _stands(shell, other)
