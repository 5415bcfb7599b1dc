"""Each error ends with a way out that is one: no option is taken as not given because its value is empty, no hint leads to a
repair that can't help, and what the system refuses is told with the file and with what to do."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod.cli.commands import COMMANDS
from pod.cli.flags import Argument, Usage, usages
from pod.log.folder import PodFolder
from pod.session import Session
from worker.items import UserItem
from worker.records import Admitted, Input


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


def _made(home: Path) -> PodFolder:
    session = Session.create(home, "p", blobs={"system": "Be exact."}, manifest="m")
    item = UserItem(text="hello")
    session.put(Input(item=item))
    session.put(Admitted(ids=(item.id,)))
    session.close()
    return session.folder


VALUED = [(usage, option) for usage in usages() for option in usage.options if option.kind != "none"]


@pytest.mark.parametrize(("usage", "option"), VALUED, ids=[f"{u.name} {o.flags[-1]}" for u, o in VALUED])
def test_an_option_without_a_value_is_never_taken_as_not_given(usage: Usage, option: Argument, shell: Shell) -> None:
    words = [each.choices[0] if each.choices else "word" for each in usage.positionals if each.needed]
    shell(*usage.words, *words, option.flags[-1], "", code=2)
    assert f"{option.flags[-1]}: " in shell.err or f"{option.flags[-1]}/" in shell.err
    assert "is empty; give it a value, or leave it out" in shell.err
    assert not shell.rig.home.exists()


def _names(usage: Usage) -> bool:
    return any(each.value not in ("TASK", "INPUT", "TEXT") for each in usage.positionals)


@pytest.mark.parametrize("usage", [u for u in usages() if _names(u) and u.words[-1] in (*COMMANDS, "new", "check", "show")],
                         ids=lambda u: u.name)  # fmt: skip
def test_an_empty_name_or_file_is_not_the_current_folder(usage: Usage, shell: Shell) -> None:
    """`pod trust "$DIR"` with an empty variable would have trusted the folder that one stands in."""
    needed = [word for each in usage.options if each.needed for word in (each.flags[-1], "1")]
    empty = ["" for each in usage.positionals if each.value not in ("TASK", "INPUT", "TEXT")]
    shell(*usage.words, *needed, *empty, code=2)
    assert "is empty; give it a value" in shell.err or "invalid choice" in shell.err, shell.err
    assert not shell.rig.home.exists()


def _spoil_first(log: Path) -> None:
    log.write_bytes(b"#" + log.read_bytes()[1:])


LOST: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink, "empty": lambda log: log.write_bytes(b""), "first entry damaged": _spoil_first,
    "first entry cut off": lambda log: log.write_bytes(log.read_bytes().partition(b"\n")[2]),
}  # fmt: skip


@pytest.mark.parametrize("how", LOST)
def test_a_log_that_no_repair_brings_back_sends_nobody_to_a_repair(how: str, shell: Shell) -> None:
    folder = _made(shell.rig.home)
    LOST[how](folder.logs()[0])
    for words in ("resume p x", "clear p", "fork p q", "send p x"):
        shell(*words.split(), code=1)
        assert "--repair" not in shell.err, shell.err
        assert "begin a new pod to go on with the work" in shell.err, shell.err
    assert "begin a new pod to go on with the work" in shell("doctor", "p", "--repair", code=1)


def test_a_log_that_a_repair_brings_back_says_so_and_it_does(shell: Shell) -> None:
    folder = _made(shell.rig.home)
    lines = folder.logs()[0].read_bytes().splitlines(keepends=True)
    folder.logs()[0].write_bytes(b"".join([*lines[:2], b"#" + lines[2][1:], *lines[3:]]))
    shell("clear", "p", code=1)
    assert "`pod doctor --repair` puts the damage aside" in shell.err
    shell("doctor", "p", "--repair")
    shell("clear", "p")


WRITES = ["send p x", "send p x --id one", "clear p", "fork p q", "import {tar}", "trust --yes", "doctor p --repair",
          "rewind p --to 3"]  # fmt: skip


@pytest.mark.parametrize("line", WRITES)
def test_a_file_that_can_not_be_written_is_named_with_a_way_out(line: str, rig: Rig) -> None:
    """The limit of file sizes stands for a full disk: the system says as little of which file it was."""
    folder = _made(rig.home)
    if line.startswith("doctor"):
        log = folder.logs()[0]
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join([*lines[:2], b"#" + lines[2][1:], *lines[3:]]))
    (rig.work / ".pod").mkdir()
    (rig.work / ".pod" / "config.toml").write_text('[tools]\npython = ["x:y"]\n')
    assert rig.pod("export", "p", "-o", rig.root / "p.tar").code in (0, 1)
    line = line.format(tar=f"{rig.root / 'p.tar'} --name other")
    before = _hashes(rig.home)
    command = f"export PYTHONDONTWRITEBYTECODE=1; ulimit -f 0; exec {shlex.quote(sys.executable)} -m pod {line}"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=rig.work, env=rig.env(), capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=60, check=False,
    )  # fmt: skip
    errors = [text for text in ran.stderr.splitlines() if text.startswith("pod: error: ")]
    assert ran.returncode == 1 and len(errors) == 1, (ran.returncode, ran.stderr)
    assert str(rig.home) in errors[0] and "File too large" in errors[0], errors
    assert "ulimit -f" in errors[0] or "remove the cause (free space, permissions)" in errors[0], errors
    assert _hashes(rig.home) == before


def _hashes(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in home.rglob("*")
        if path.is_file() and path.name != "lock" and path.parent.name != "crash"
    }
