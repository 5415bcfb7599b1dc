"""Where output goes: what stood there stays until there is something to write, and a mistake is one line."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod.cli.main import main
from pod.errors import UsageProblem
from pod.session import Session
from pod.target import Target

RUN = ("run", "offline-survey", "hello", "-q")


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


# -- a file ---------------------------------------------------------------------------------------------------


def test_a_command_that_does_not_begin_leaves_the_file_of_o_as_it_is(shell: Shell) -> None:
    out = shell.rig.work / "out"
    out.write_text("precious")
    shell(*RUN, "--name", "held")
    session = Session.open(shell.rig.home, "held")
    try:
        for code, arguments in (
            (2, ("run", "nope", "x")),
            (2, ("run", "offline-survey", "x", "--name", "..")),
            (2, ("run", "offline-survey", "")),
            (2, ("run", "offline-survey", "x", "--max-requests", "0")),
            (2, ("resume", "unknown", "x")),
            (75, ("resume", "held", "x")),
        ):
            shell(*arguments, "-q", "-o", out, code=code)
            assert out.read_text() == "precious", arguments
    finally:
        session.close()
    shell("resume", "held", "hello", "-q", "-o", out)
    assert out.read_text() not in {"precious", ""}
    assert sorted(path.name for path in shell.rig.work.iterdir()) == ["out"]


def test_o_never_replaces_what_the_run_reads(shell: Shell) -> None:
    base, manifest, schema = (shell.rig.work / name for name in ("base.toml", "m.toml", "s.json"))
    base.write_text('version = 1\n[model]\nname = "offline:surveyor"\n')
    manifest.write_text('extends = "base.toml"\n')
    schema.write_text("{}")
    (shell.rig.work / "other").hardlink_to(manifest)
    for target in ("m.toml", "other", "base.toml", "s.json"):
        shell("run", "m.toml", "x", "-o", target, "--output-schema", "s.json", code=2)
        assert f"-o {target} would replace" in shell.err
    assert (base.stat().st_size, manifest.read_text(), schema.read_text()) == (46, 'extends = "base.toml"\n', "{}")


@pytest.mark.parametrize("place", ["folder", "missing/file", "x" * 300])
def test_a_place_that_can_not_be_written_is_refused_before_anything_is_done(place: str, shell: Shell) -> None:
    (shell.rig.work / "folder").mkdir()
    shell(*RUN, "--name", "a", "-o", place, code=2)
    assert not (shell.rig.home / "pods").exists() and shell.err.count("\n") == 1
    shell(*RUN, "--name", "a")
    shell("export", "a", "-o", place, code=2)
    assert shell.err.startswith(f"pod: error: {place}") and shell.err.count("\n") == 1


def test_a_link_stays_and_the_file_behind_it_is_replaced_with_its_permissions(shell: Shell) -> None:
    there, link = shell.rig.work / "there", shell.rig.work / "link"
    there.write_text("old")
    there.chmod(0o640)
    link.symlink_to("there")
    shell(*RUN, "--name", "a", "-o", link)
    assert link.is_symlink() and there.read_text() != "old" and stat.S_IMODE(there.stat().st_mode) == 0o640
    shell("export", "a", "-o", link)
    assert link.is_symlink() and b"contents.json" in there.read_bytes()
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


@pytest.mark.parametrize("command", [("export", "a"), ("resume", "a", "hello", "-q")])
def test_a_fifo_is_written_through_and_stays_one(command: tuple[str, ...], shell: Shell) -> None:
    shell(*RUN, "--name", "a")
    fifo = shell.rig.work / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    shell(*command, "-o", fifo)
    reader.join(10)
    assert stat.S_ISFIFO(fifo.lstat().st_mode) and len(got[0]) > 10


def test_what_is_written_first_replaces_the_file_in_one_step_and_the_rest_follows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    target = Target(path)
    fd = target.open()
    os.write(fd, b"new")
    assert path.read_text() == "old"
    target.keep()
    os.write(fd, b" and more")
    target.close()
    assert path.read_text() == "new and more"
    other = Target(path)
    os.write(other.open(), b"half")
    other.close()
    assert path.read_text() == "new and more" and list(tmp_path.iterdir()) == [path]


def test_a_socket_is_no_place_for_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        with pytest.raises(UsageProblem, match="s is a socket"):
            Target(Path("s"))


# -- output that fails, and streams that are closed -----------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "stream-json"])
def test_a_full_disk_behind_o_is_one_line_and_the_run_is_on_record(
    form: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Target) -> int:
        return os.open("/dev/full", os.O_WRONLY)

    with monkeypatch.context() as patched:
        patched.setattr(Target, "open", full)
        shell(*RUN, "--name", "a", "--output-format", form, "-o", "out", code=1)
    assert shell.err == "pod: error: the output can't be written: No space left on device\n"
    (look,) = shell.json("ls")
    assert look["status"] in ({"finished"} if form == "text" else {"queued", "cancelled"})
    if form == "stream-json":
        assert shell("resume", "a", "-q")


@pytest.mark.parametrize(
    ("arguments", "code"), [(("ls",), 0), (("--help",), 0), (("run", "--help"), 0), (RUN, 0), (("export", "a"), 2)]
)
def test_closed_streams_do_not_keep_a_command_from_its_work(
    arguments: tuple[str, ...], code: int, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(*RUN, "--name", "a")
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(arguments) == code
    assert not (shell.rig.home / "crash").exists()
    assert len(list((shell.rig.home / "pods").iterdir())) == (2 if arguments == RUN else 1)


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    code = "from pod.cli.streams import stand_in; stand_in(); import os, sys; sys.exit(os.open('/', os.O_RDONLY))"
    done = subprocess.run(["bash", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], timeout=30)
    assert done.returncode == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ECONNRESET])
def test_what_the_system_refuses_is_no_surprise(number: int, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pod.cli.listing.ls", failing)
    shell("ls", code=1)
    assert shell.err.startswith(f"pod: error: {os.strerror(number)}") and "unexpected" not in shell.err


# -- a current folder that is gone ----------------------------------------------------------------------------


@pytest.fixture
def gone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    folder = shell.rig.root / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return shell


def test_whole_paths_do_without_the_current_folder(gone: Shell) -> None:
    gone(*RUN, "--name", "a", "-C", gone.rig.work, "-o", gone.rig.work / "out")
    gone("resume", "a", "hello", "-q")
    gone("manifest", "check", "offline-survey", "-C", gone.rig.work)
    gone("ls")


@pytest.mark.parametrize(
    ("arguments", "home"),
    [
        (RUN, None),
        (("manifest", "check", "offline-survey"), None),
        ((*RUN, "-C", "/", "-o", "out"), None),
        ((*RUN, "-C", "/", "--output-schema", "s.json"), None),
        (("export", "a", "-o", "out"), None),
        (("ls",), "relative"),
    ],
)
def test_without_it_the_command_says_so(
    arguments: tuple[str, ...], home: str | None, gone: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    if home is not None:
        monkeypatch.setenv("POD_HOME", home)
    gone(*arguments, code=2)
    assert gone.err.startswith("pod: error: the current folder is gone;")


# -- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
@pytest.mark.parametrize(
    ("flag", "command"),
    [
        ("--timeout", ("stop", "a")),
        ("--after", ("log", "a")),
        ("--at", ("fork", "a", "b")),
        ("--to", ("rewind", "a")),
        ("--timeout", RUN),
        ("--max-cost", RUN),
        ("--max-requests", RUN),
    ],
)
def test_a_flag_that_takes_no_such_number_names_itself(
    flag: str, command: tuple[str, ...], value: str, shell: Shell
) -> None:
    shell(*command, flag, value, code=2)
    assert flag in shell.err and shell.err.count("\n") == 1 and "unexpected" not in shell.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "fifo", "x"), "is a FIFO"),
        (("run", "x" * 300, "x"), "file name too long"),
        ((*RUN, "-C", "x" * 300), "File name too long"),
        ((*RUN, "--output-schema", "x" * 300), "file name too long"),
        ((*RUN, "--set", f"limits.{'a.' * 3000}b=1"), "unknown table"),
        ((*RUN, "--set", f"scope.read={'[' * 5000}"), "scope"),
        ((*RUN, "--max-requests", "9" * 5000), "--max-requests"),
    ],
)
def test_what_is_too_long_too_deep_or_no_file_is_a_usage_error(
    arguments: tuple[str, ...], said: str, shell: Shell
) -> None:
    os.mkfifo(shell.rig.work / "fifo")
    shell(*arguments, code=2)
    assert said in shell.err and "unexpected" not in shell.err
    assert not (shell.rig.home / "pods").exists()
