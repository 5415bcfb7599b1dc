"""Completion scripts, in real shells where there are any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pod.cli.commands import COMMANDS
from pod.cli.completing import bash, fish, zsh
from pod.cli.flags import usages
from pod.cli.main import main

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash here")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, a `pod` that only lists names, and some files."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "pod.bash").write_text(bash())
    program = folder / "bin" / "pod"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$*" = "ls --names" ] && printf "fix-flaky\\nfix-two\\nteam/a\\n"\n')
    program.chmod(0o755)
    (folder / "work").mkdir()
    (folder / "work" / "my agent.toml").touch()
    (folder / "work" / "mine").mkdir()
    return folder


def completed(place: Path, *words: str) -> list[str]:
    """What the last word can become."""
    script = (
        'source ../pod.bash; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pod; '
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    env = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-c", script, "bash", *words], cwd=place / "work", env=env, capture_output=True, text=True,
        timeout=20, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines() if done.stdout.strip() else []


def test_bash_takes_the_script(place: Path) -> None:
    assert BASH is not None
    subprocess.run([BASH, "-n", place / "pod.bash"], check=True, timeout=20)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["r"], ["run", "resume", "rewind", "rm"]),
        ([""], list(COMMANDS)),
        (["--v"], ["--version"]),
        (["show", "fix"], ["fix-flaky", "fix-two"]),
        (["export", "-o", "x", "t"], ["team/a"]),
        (["resume", "fix-two", "fix"], []),
        (["fork", "fix-two", ""], []),
        (["run", "off"], ["offline-survey"]),
        (["run", "m"], ["my agent.toml", "mine"]),
        (["run", "-C", "m"], ["mine"]),
        (["run", "coder", "fix"], []),
        (["run", "--name", "fix-f"], ["fix-flaky"]),
        (["run", "--name", "=", "fix-f"], ["fix-flaky"]),
        (["run", "--name", "="], ["fix-flaky", "fix-two", "team/a"]),
        (["run", "--name", "=", "x", "off"], ["offline-survey"]),
        (["run", "--profile", "w"], ["workspace-write"]),
        (["run", "--max"], ["--max-requests", "--max-cost"]),
        (["run", "-q", "--wait", "cod"], ["coder"]),
        (["run", "--max-cost", "5", "cod"], ["coder"]),
        (["manifest", ""], ["new", "check", "show", "schema"]),
        (["manifest", "check", "res"], ["researcher"]),
        (["manifest", "show", "--t"], ["--toml"]),
        (["import", "my"], ["my agent.toml"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["unheard-of", "x"], []),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], wanted: list[str], place: Path) -> None:
    assert completed(place, "pod", *words) == wanted


def test_every_command_and_flag_is_in_each_script() -> None:
    scripts = {"bash": bash(), "zsh": zsh(), "fish": fish()}
    for usage in usages():
        for shell, script in scripts.items():
            assert usage.words[-1] in script
            for option in usage.options:
                for flag in option.flags:
                    wanted = f"-l {flag[2:]}" if shell == "fish" and flag.startswith("--") else flag
                    assert (wanted if shell != "fish" or flag.startswith("--") else f"-s {flag[1:]}") in script


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for name, made in (("bash", bash), ("zsh", zsh), ("fish", fish)):
        assert main(["completion", name]) == 0
        assert capsys.readouterr().out == made() + "\n"
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_scripts(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    script = tmp_path / "script"
    script.write_text({"zsh": zsh, "fish": fish}[shell]())
    subprocess.run([program, "-n", script], check=True, timeout=20)


def test_names_are_listed_without_a_look_into_any_pod(tmp_path: Path) -> None:
    for name in ("b", "a/c", "$(touch evil)"):
        folder = tmp_path / "pods" / name
        folder.mkdir(parents=True)
        (folder / "pod.json").write_text("not read")
    env = {**os.environ, "POD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pod", "ls", "--names"], env=env, capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout == "a/c\nb\n", "what a shell would expand is no pod's name"
