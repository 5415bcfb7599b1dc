"""Each wrong input is told with its exact place, exit code 2, no traceback, and nothing is written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pod.cli.main import main
from pod.manifest import ManifestError, Problem, load_manifest
from tests.manifest.wrong_inputs import MODEL, WRONG, Wrong

IDS = [each.what for each in WRONG]
UNPARSED = [each for each in WRONG if not each.key and each.line and "nested" not in each.message]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with a home that does not exist yet."""
    work = tmp_path / "work"
    work.mkdir()
    for name in [name for name in os.environ if name.startswith("POD_")]:
        monkeypatch.delenv(name)
    for name in ("POD_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.chdir(work)
    return work


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def problems(manifest: str = "m.toml") -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        load_manifest(manifest)
    assert caught.value.exit_code == 2
    return caught.value.problems


def tree(root: Path) -> list[tuple[str, float]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*"))


def refuse(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """Runs a command that must be refused as a mistake of the user's and touch nothing; what it says."""
    before = tree(folder.parent)
    assert main(arguments) == 2
    assert tree(folder.parent) == before
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert all(line.startswith("pod:") for line in err.splitlines())
    return err


@pytest.mark.parametrize("wrong", WRONG, ids=IDS)
def test_a_wrong_manifest_is_told_with_its_place_and_touches_nothing_b138_b139_b142(
    folder: Path, capsys: pytest.CaptureFixture[str], wrong: Wrong
) -> None:
    """B138, B139, B142."""
    put(folder / "m.toml", wrong.text)
    (found,) = problems()
    told = (found.file, found.line, found.column, found.key, found.message, found.hint)
    assert told == ("m.toml", *wrong[2:])
    place = "m.toml" if found.line is None else f"m.toml:{found.line}"
    for command in (("manifest", "check", "m.toml"), ("run", "m.toml", "go"), ("manifest", "show", "m.toml")):
        said = refuse(capsys, folder, *command)
        assert said.startswith(f"pod: error: {place}") and wrong.message in said


@pytest.mark.parametrize("where", ["user", "project"])
@pytest.mark.parametrize("wrong", UNPARSED, ids=[each.what for each in UNPARSED])
def test_a_configuration_that_does_not_parse_is_told_like_a_manifest(folder: Path, wrong: Wrong, where: str) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "pod" / "config.toml" if where == "user" else Path(".pod/config.toml")
    put(file, wrong.text)
    put(folder / "m.toml", MODEL)
    (found,) = problems()
    assert (found.file, found.line, found.column, found.message) == (
        str(file), wrong.line, wrong.column, wrong.message,
    )  # fmt: skip
    way = f"`pod trust --ignore {folder}` leaves the file out"
    assert found.hint == "; ".join(part for part in (wrong.hint, way if where == "project" else "") if part)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (lambda path: path.mkdir(), "is a folder, and a file is needed"),
    "a FIFO": (os.mkfifo, "is a FIFO, and a file is needed"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device or a socket, and a file is needed"),
    "a lost link": (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "too many levels of symbolic links"),
}


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # an address holds few characters
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


ODD["a socket"] = (bind, "is a device or a socket, and a file is needed")


@pytest.mark.parametrize("where", ["manifest", "base", "user", "project"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_named_in_each_layer_and_never_passed_over_or_waited_for(
    folder: Path, capsys: pytest.CaptureFixture[str], odd: str, where: str
) -> None:
    make, message = ODD[odd]
    user = Path(os.environ["XDG_CONFIG_HOME"]) / "pod" / "config.toml"
    path = {"manifest": folder / "m.toml", "base": folder / "base.toml", "user": user,
            "project": folder / ".pod" / "config.toml"}[where]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    if where != "manifest":
        put(folder / "m.toml", "extends = 'base.toml'\n" + MODEL if where == "base" else MODEL)
    make(path)
    (found,) = problems()
    if where == "base":
        assert (found.file, found.line, found.column, found.key) == ("m.toml", 1, 1, "extends")
        assert found.message == f"{message}: base.toml" or odd in {"a device", "a lost link"}
    elif where == "manifest":
        assert found.file == "m.toml"
        assert found.message == ("is a folder, not a manifest" if odd == "a folder" else message)
    else:
        assert found.file in {str(path), ".pod/config.toml"} and found.message == message
    refuse(capsys, folder, "run", "m.toml", "go")


def test_a_text_that_is_no_toml_is_shown_with_its_line_and_a_mark(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder / "m.toml", MODEL + "[retry]\n\tmax_attempts = = \x1b[31m3\u202e\n")
    said = refuse(capsys, folder, "manifest", "check", "m.toml").splitlines()
    assert said == [
        "pod: error: m.toml:4:17: is not valid TOML: Invalid value",
        "pod:       4 |  max_attempts = = \N{REPLACEMENT CHARACTER}[31m3\N{REPLACEMENT CHARACTER}",
        "pod:         |                 ^",
    ]


@pytest.mark.parametrize(
    "line", ["api_key = 'sk-x", "[model] password=hunter2", "x = sk-abcdefghijklmnopqrstuvwxyz0123"]
)
def test_a_line_that_may_hold_a_secret_is_not_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    put(folder / "m.toml", MODEL + line + "\n")
    said = refuse(capsys, folder, "manifest", "check", "m.toml")
    assert "m.toml:3:" in said and line.rpartition("=")[2].strip(" '") not in said


def test_a_long_line_is_shown_around_its_mistake(folder: Path) -> None:
    put(folder / "m.toml", MODEL + f"extra_body = {{ a = '{'x' * 5000}', b = }}\n")
    (found,) = problems()
    line, mark = found.excerpt.splitlines()
    assert len(line) < 120 and line[mark.index("^")] == "}"


@pytest.mark.parametrize(
    ("name", "value", "key", "message", "hint"),
    [
        ("POD__RETRY__MAX_ATTEMPS", "3", "[retry] max_attemps", "unknown key", "did you mean max_attempts?"),
        ("POD__RETYR__MAX_ATTEMPTS", "3", "[retyr]", "unknown table", "did you mean [retry]?"),
        ("POD__RETRY__MAX_ATTEMPTS", "three", "[retry] max_attempts", "should be a whole number, not a string", ""),
        ("POD__TOOLS__ENABLE", "shell", "[tools] enable", "should be an array, not a string", "put it in brackets: [...]"),
        ("POD__TOOLS__ENABLE", '["shell", 3]', "[tools.enable #2]", "should be a string, not a whole number", ""),
        ("POD__LIMITS__STALL", "{ stpo = 3 }", "[limits.stall] stpo", "unknown key", "did you mean stop?"),
        ("POD__LIMITS__STALL", "3", "[limits] stall", "should be a table, not a whole number", ""),
        ("POD__LOG__DURABILITY", "fsnc", "[log] durability", "should be 'fsync', 'batch' or 'os'",
         "did you mean 'fsync'?"),
        ("POD__MAX_STEPS", "3", "max_steps", "unknown key", "did you mean [worker] max_requests?"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_told_by_its_name_and_key_b138(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    key: str,
    message: str,
    hint: str,
) -> None:
    """B138."""
    put(folder / "m.toml", MODEL)
    monkeypatch.setenv(name, value)
    (found,) = problems()
    assert (found.file, found.line, found.key, found.message, found.hint) == (name, None, key, message, hint)
    refuse(capsys, folder, "run", "m.toml", "go")
