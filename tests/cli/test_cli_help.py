"""Help: fast, complete, with examples; mistakes in arguments are one line."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_rig import Rig

from pod.cli.commands import COMMANDS, GROUPS, Action, Command
from pod.cli.main import main
from pod.session import Session

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


HEAVY_TO_LOOK = (
    "jsonschema",
    "docstring_parser",
    "compact_worker",
    "worker.mcp",
    "worker.sending",
    "worker.tools",
    "pod.events",
    "pod.foresight",
    "pod.hooks",
    "pod.manifest",
    "pod.setup",
    "pod.state",
)


def loads(home: Path, heavy: tuple[str, ...], *commands: list[str]) -> tuple[list[int], str, list[str]]:
    """What a fresh interpreter makes of these commands on a home with the pod `a`: exit codes, what is shown, what is loaded of `heavy`."""
    Session.create(home, "a", blobs={"system": "be good"}, manifest="m", durability="os").close()
    code = (
        "import sys, json, io, contextlib\n"
        "from pod.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        f"    codes = [main(words) for words in {commands!r}]\n"
        f"print(json.dumps([codes, out.getvalue(), [m for m in {heavy!r} if m in sys.modules]]))\n"
    )
    environment = {**os.environ, "POD_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30, env=environment)
    codes, out, loaded = json.loads(done.stdout)
    return codes, out, loaded


def test_a_list_of_pods_loads_nothing_that_runs_them(tmp_path: Path) -> None:
    codes, out, loaded = loads(tmp_path, HEAVY_TO_LOOK, ["ls"])
    assert codes == [0] and "\na " in out
    assert loaded == []


def test_looking_at_a_pod_and_sending_it_a_message_load_nothing_that_compacts_or_calls(tmp_path: Path) -> None:
    heavy = (
        "jsonschema", "compact_worker", "worker.mcp", "worker.sending", "pod.foresight", "pod.setup", "pod.services",
    )  # fmt: skip
    codes, _, loaded = loads(tmp_path, heavy, ["show", "a"], ["log", "a"], ["send", "a", "hello"])
    assert codes == [0, 0, 0]
    assert loaded == []


def test_a_pod_without_a_compaction_a_schema_or_servers_loads_none_of_that() -> None:
    heavy = ("jsonschema", "docstring_parser", "compact_worker.job", "compact_worker.granting", "worker.mcp.connection")
    code = f"import sys, json; from pod import Pod; print(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    assert json.loads(done.stdout) == []


def test_a_command_is_loaded_without_the_garbage_collector_and_run_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def load(self: Command) -> Action:
        seen.append(gc.isenabled())
        if fails:
            raise ImportError("broken")
        return lambda _: int(not gc.isenabled())

    monkeypatch.setenv("POD_HOME", str(tmp_path))
    monkeypatch.setattr(Command, "load", load)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what other tests left is not to stay for ever
    fails = False
    assert main(["ls"]) == 0
    fails = True
    assert main(["ls"]) != 0
    assert gc.isenabled()
    assert seen == [False, False]


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
