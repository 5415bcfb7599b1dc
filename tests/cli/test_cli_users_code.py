"""Code of the user's own that a manifest names may do anything while it is imported or made: it is told in one error with its
place, nothing is made, and no exit of its own is taken for the command's."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

HEAD = 'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = []\n'
NAMED = {
    "tool": ('python = ["{module}:made"]\n', "m.toml:6: [tools] python"),
    "interceptor": ('[[interceptors]]\nuse = "{module}:made"\n', "m.toml:6: [interceptors #1] use"),
    "hook": ('[[hooks]]\nevent = "Stop"\nuse = "{module}:made"\n', "m.toml:6: [hooks #1] use"),
}
MODULES = {
    "exits_zero": ("import sys\nsys.exit(0)\n", 'SystemExit: 0); put what a script does behind `if __name__ == "__main__":`'),
    "exits_five": ("raise SystemExit(5)\n", "SystemExit: 5"),
    "fails": ("raise ValueError('not today')\n", "ValueError: not today"),
    "no_python": ("def made(:\n", "SyntaxError: invalid syntax"),
    "own_kind": ("class Odd(BaseException): pass\nraise Odd('odd')\n", "Odd: odd"),
    "mute": ("class Mute(Exception):\n    def __str__(self): raise KeyError\nraise Mute\n", "Mute: (its text can't be read"),
    "exits_when_made": (
        "import sys\nfrom worker import Interceptor\nclass made(Interceptor):\n"
        "    name = 'made'\n    def __init__(self): sys.exit(0)\n", "SystemExit: 0"),
}  # fmt: skip


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.syspath_prepend(rig.work)
    return Shell(rig, capsys, monkeypatch)


CASES = [(what, use) for what in MODULES for use in NAMED if (what, use) != ("exits_when_made", "tool")]
"""No object is made of a tool."""


@pytest.mark.parametrize(("what", "use"), CASES)
def test_code_that_fails_or_exits_as_it_is_loaded_is_told_with_its_place(what: str, use: str, shell: Shell) -> None:
    module = f"users_code_{what}_{use}"
    body, why = MODULES[what]
    text, place = NAMED[use]
    Path(f"{module}.py").write_text(body)
    Path("m.toml").write_text(HEAD + text.format(module=module))
    for command in (["manifest", "check", "m.toml"], ["run", "m.toml", "a task", "--name", "x"]):
        shell(*command, code=2)
        errors = [line for line in shell.err.splitlines() if line.startswith("pod: error: ")]
        assert len(errors) == 1 and place in errors[0] and why in errors[0], shell.err
        assert errors[0].count("[[hooks]] use") == 0, "the place stands there once"
    assert not (shell.rig.home / "pods").exists() and not (shell.rig.home / "crash").exists()


def test_check_says_of_a_hook_whose_program_is_not_there_what_that_will_mean(shell: Shell) -> None:
    Path("there").write_text("#!/bin/sh\n")
    Path("there").chmod(0o755)
    Path("plain").write_text("no program\n")
    hooks = [
        ("PreToolUse", "no-such-program"), ("Stop", "./nothing"), ("PreToolUse", "./there"), ("RunStart", "./plain"),
        ("Stop", "sh"), ("Stop", "./folder"),
    ]  # fmt: skip
    Path("folder").mkdir()
    Path("m.toml").write_text(HEAD + "".join(f'[[hooks]]\nevent = "{e}"\ncommand = ["{c}"]\n' for e, c in hooks))
    assert "fine" in shell("manifest", "check", "m.toml")
    assert [line.partition("command: ")[2] for line in shell.err.splitlines()] == [
        "no-such-program is not in PATH: what it is asked about is blocked",
        f"./nothing is not there in the working folder {Path.cwd()}: it is passed over",
        "./plain may not be executed (chmod +x ./plain): it is passed over",
        "./folder is a folder, and no program: it is passed over",
    ]


@pytest.mark.parametrize(
    ("command", "why"), [('["a\\u0000b"]', "holds a NUL character"), ('["", "x"]', "should begin with a program")]
)
def test_a_hook_whose_program_can_never_be_started_is_refused(command: str, why: str, shell: Shell) -> None:
    Path("m.toml").write_text(HEAD + f'[[hooks]]\nevent = "Stop"\ncommand = {command}\n')
    shell("manifest", "check", "m.toml", code=2)
    assert "m.toml:8: [hooks #1] command: " in shell.err and why in shell.err
