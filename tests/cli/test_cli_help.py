"""Help: fast, complete, with examples; mistakes in arguments are one line."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_rig import Rig

from pod.cli.commands import COMMANDS, GROUPS
from pod.cli.main import main

HEAVY = (
    "pydantic",
    "anyio",
    "trio",
    "asyncio",
    "rich",
    "openai",
    "anthropic",
    "httpx2",
    "tiktoken",
    "pod.pod",
    "pod.manifest",
)


def test_help_of_any_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, io, contextlib\n"
        "from pod.cli.main import main\n"
        "from pod.cli.commands import COMMANDS\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    codes = [main(['--help']), *(main([name, '--help']) for name in COMMANDS)]\n"
        f"print(json.dumps([codes, [m for m in {HEAVY!r} if m in sys.modules]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    codes, loaded = json.loads(done.stdout)
    assert set(codes) == {0}
    assert loaded == []


def test_help_costs_at_most_twice_the_processor_of_an_empty_click_program(tmp_path: Path) -> None:
    pytest.importorskip("click")
    program = tmp_path / "empty.py"
    program.write_text("import click\n@click.command()\ndef main(): pass\nmain()\n")

    def cost(*args: str) -> float:
        best = 9.0
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True, timeout=30)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return best

    assert cost("-m", "pod", "--help") <= 2 * cost(str(program), "--help")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_ends_with_one_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    last = capsys.readouterr().out.rstrip().splitlines()
    assert last[-2] == "example:"
    assert last[-1].strip().startswith(f"pod {name}")


def test_the_help_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_the_examples_parse() -> None:
    import shlex

    from pod.cli.parser import WITH_ACTIONS

    for command in COMMANDS.values():
        words = shlex.split(command.example)
        assert words[:2] == ["pod", command.name]
        parser = command.parser()
        assert (parser.parse_args if command.name in WITH_ACTIONS else parser.parse_intermixed_args)(words[2:])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "did you mean 'run'?"),
        (["rum"], "did you mean 'run' or 'rm'?"),
        (["cler"], "did you mean 'clear'?"),
        (["--jsno"], "unknown option"),
        (["--versoin"], "did you mean '--version'?"),
        (["run", "offline-survey", "x", "--naem", "y"], "--naem y; did you mean '--name'? See `pod run --help`"),
        (["run", "offline-survey", "x", "--naem=y"], "did you mean '--name'?"),
        (["run", "offline-survey", "x", "--quxxy"], "--quxxy; see `pod run --help`"),
        (["run", "offline-survey", "x", "--profile", "saef"], "did you mean 'safe'?"),
        (["show", "x", "--jsn"], "did you mean '--json'?"),
        (["manifest", "chek", "coder"], "did you mean 'check'?"),
        (["help", "manifest", "chek"], "did you mean 'check'?"),
        (["manifest", "check", "coder", "--jsn"], "did you mean '--json'?"),
        (["run", "offline-survay", "x"], "no such file; did you mean offline-survey? shipped manifests: "),
        (["manifest", "show", "codr.toml"], "did you mean coder?"),
        (["run"], "required: MANIFEST; see `pod run --help`"),
        (["gc"], "gc needs an age: pod gc --older-than 30d"),
        (["gc", "--older-than", "soon"], "write it as 12h, 30d or 8w"),
        (["rewind", "x", "--to", "many"], "--to: should be the number of an entry"),
        (["show", "nobody"], "there is no pod named 'nobody'"),
        (["show", "../x"], "can't be a pod's name"),
        (["run", "nothing.toml", "x"], "nothing.toml: no such file"),
        (["run", "offline-survey"], "no task"),
        (["run", "offline-survey", "x", "-C", "/nowhere-at-all"], "no such folder"),
        (["run", "offline-survey", "x", "--set", "model.nmae=1"], "nmae"),
        (["run", "offline-survey", "x", "-c"], "leave out -c to begin one"),
        (["doctor", "--repair"], "name the pod to repair"),
    ],
)
def test_a_mistake_is_one_line_with_a_way_out_and_exit_code_2(
    arguments: list[str], said: str, rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_HOME", str(rig.home))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("pod: error: ") and err.count("\n") == 1
    assert not (rig.home / "pods").exists()


def test_an_unexpected_error_leaves_its_traceback_in_a_file(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_HOME", str(rig.home))
    monkeypatch.setattr("pod.cli.listing.glances", lambda *_: 1 / 0)
    assert main(["ls"]) == 1
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError" in err and "Traceback" not in err
    (kept,) = (rig.home / "crash").iterdir()
    assert str(kept) in err
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
