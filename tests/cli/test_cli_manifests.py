"""New manifests that work, mistakes in manifests with their place, keys that are missing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pod.manifest.shipped import shipped_names, shipped_path


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "NOPE_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return Shell(rig, capsys, monkeypatch)


def test_a_word_prints_a_manifest_and_a_file_is_written(shell: Shell) -> None:
    assert "pod run auditor.toml" in shell("manifest", "new", "auditor")
    assert list(shell.rig.work.iterdir()) == []
    for nothing in ((), ("-",)):
        assert "pod run agent.toml" in shell("manifest", "new", *nothing)
    assert shell("manifest", "new", "my auditor.toml") == ""
    written = Path("my auditor.toml").read_text()
    assert "pod run 'my auditor.toml'" in written
    shell("manifest", "new", "my auditor.toml", code=2)
    assert "it was kept" in shell.err and Path("my auditor.toml").read_text() == written


def test_a_pod_is_named_in_a_new_manifest_only_where_someone_named_it(shell: Shell) -> None:
    """So two runs of a fresh manifest are two pods, and not one conversation."""
    assert "name" not in tomllib.loads(shell("manifest", "new", "auditor"))["pod"]
    assert tomllib.loads(shell("manifest", "new", "--name", "team/auditor"))["pod"] == {"name": "team/auditor"}
    shell("manifest", "new", "agent.toml", "--model", "offline:surveyor")
    for _ in range(2):
        shell("run", "agent.toml", "Survey the Python files in . and write the report to report.md.", "-q")
    assert len(shell.json("ls")) == 2


@pytest.mark.parametrize("word", ["./agent", "/tmp/x", "my agent"])
def test_what_is_neither_a_name_nor_a_file_is_refused(word: str, shell: Shell) -> None:
    shell("manifest", "new", word, code=2)
    assert "ends with .toml" in shell.err
    assert list(shell.rig.work.iterdir()) == []


def test_what_a_flag_gives_is_set_in_a_new_manifest_and_a_wrong_one_is_refused(shell: Shell) -> None:
    flags = ("--set", "model.context_window=65536", "--set", "permissions.rules=[{tool='shell', action='deny'}]")
    made = tomllib.loads(shell("manifest", "new", *flags, "--set", "compaction.threshold=30000"))
    assert made["model"]["context_window"] == 65536
    assert made["permissions"] == {"rules": [{"tool": "shell", "action": "deny"}]}
    assert made["compaction"] == {"threshold": 30000}, "a trigger of the user's own is the only one"
    shell("manifest", "new", "x.toml", "--set", "compaction.threshhold=1", "--set", "prune=1", code=2)
    assert "did you mean threshold?" in shell.err and "--set prune" in shell.err
    shell("manifest", "new", "x.toml", "--set", "model.context_window=1000", code=2)
    assert "can't work with these numbers" in shell.err
    assert list(shell.rig.work.iterdir()) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(
        ["anthropic:claude-sonnet-5-5", "anthropic:unknown", "openai:gpt-5", "openai-chat:qwen", "offline:surveyor"]
    ),
    st.one_of(st.none(), st.integers(4_096, 100_000), st.integers(100_000, 2_000_000)),
    st.booleans(),
)
def test_what_new_writes_passes_check_for_every_provider_and_window(
    shell: Shell, model: str, window: int | None, full: bool
) -> None:
    path = Path("fresh.toml")
    path.unlink(missing_ok=True)
    flags = [] if window is None else ["--set", f"model.context_window={window}"]
    shell("manifest", "new", path, "--model", model, *flags, *(["--full"] if full else []))
    proof = shell.json("manifest", "check", path)
    assert all(line["ok"] for line in proof["proof"])
    assert not any("can write nothing" in warning for warning in proof["warnings"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("offline:survayor", "there are offline:surveyor"),
        ("opnai:gpt-5", "did you mean 'openai'?"),
        ("gpt-5", "--model: [model] name"),
    ],
)
def test_a_new_manifest_names_no_model_that_no_run_would_take(model: str, said: str, shell: Shell) -> None:
    for what in ("agent.toml", "agent"):
        assert shell("manifest", "new", what, "--model", model, code=2) == ""
        assert said in shell.err
    assert list(shell.rig.work.iterdir()) == []


def test_an_untouched_new_manifest_says_which_key_is_missing_and_makes_no_pod(shell: Shell) -> None:
    shell("manifest", "new", "agent.toml")
    assert "fine" in shell("manifest", "check", "agent.toml")
    assert "ANTHROPIC_API_KEY is not set" in shell.err
    shell("run", "agent.toml", "hello", code=77)
    assert "ANTHROPIC_API_KEY" in shell.err and "api_key_env" in shell.err
    assert not (shell.rig.home / "pods").exists()


def test_an_untouched_new_manifest_for_the_offline_model_does_its_work(shell: Shell) -> None:
    source = shell.rig.work / "src"
    source.mkdir()
    (source / "m.py").write_text("def public():\n    return 1\n")
    shell("manifest", "new", "agent.toml", "--model", "offline:surveyor")
    shell("manifest", "check", "agent.toml")
    assert shell.err == ""
    task = "Survey the Python files in src. Write the report to report.md."
    assert "report.md" in shell("run", "agent.toml", task, "-q", "-p")
    assert "public" in Path("report.md").read_text()


def test_the_example_of_the_help_does_what_it_says(shell: Shell) -> None:
    import shlex

    source = shell.rig.work / "src"
    source.mkdir()
    (source / "m.py").write_text("def public():\n    return 1\n")
    example = shlex.split(shell("--help").rstrip().splitlines()[-1])
    shell(*example[1:], "-q")
    assert "public" in Path("report.md").read_text()


KEYED = """
version = 1
[model]
name = "openai-chat:x"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "{key}"
context_window = 60000
[tools]
enable = []
"""


def test_a_missing_key_is_found_before_anything_is_sent_for_run_and_resume(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("keyed.toml")
    path.write_text(KEYED.format(key="TEST_KEY"))
    shell("run", path, "x", "--name", "a", "-q", "--set", "retry.max_attempts=1", code=75)
    monkeypatch.delenv("TEST_KEY")
    log = {p: p.read_bytes() for p in (shell.rig.home / "pods" / "a").glob("*.jsonl")}
    shell("resume", "a", code=77)
    assert "TEST_KEY is not set" in shell.err
    assert log == {p: p.read_bytes() for p in (shell.rig.home / "pods" / "a").glob("*.jsonl")}
    path.write_text(KEYED.format(key="NOPE_KEY"))
    shell("run", path, "x", "--name", "b", code=77)
    assert not (shell.rig.home / "pods" / "b").exists()


@pytest.mark.parametrize("name", shipped_names())
def test_a_new_manifest_of_a_shipped_name_is_the_shipped_one(shell: Shell, name: str) -> None:
    path = shipped_path(name)
    assert path is not None and shell("manifest", "new", name) == path.read_text()
    assert f'extends = "{name}"' in shell.err
    for options in (
        ["--full"],
        ["--model", "offline:surveyor"],
        ["--name", "mine"],
        ["--set", "limits.max_cost_usd=5"],
    ):
        assert shell("manifest", "new", name, *options, code=2) == ""
        assert f'extends = "{name}"' in shell.err
    assert shell("manifest", "new", f"{name}.toml") == "" and Path(f"{name}.toml").exists()


def test_a_fallback_without_its_key_is_a_warning(shell: Shell) -> None:
    text = "version = 1\n[model]\nname = 'offline:surveyor'\nfallback = ['anthropic:claude-haiku-4-5']\n"
    Path("m.toml").write_text(text)
    shell("run", "m.toml", "hello", "-q")
    assert "warning: the fallback anthropic:claude-haiku-4-5 can't be asked" in shell.err
    shell("manifest", "check", "m.toml")
    assert "warning: the fallback anthropic:claude-haiku-4-5 can't be asked" in shell.err


def test_the_key_of_the_compact_workers_own_model_is_needed_as_well(shell: Shell) -> None:
    path = Path("m.toml")
    path.write_text(
        "version = 1\n[model]\nname = 'offline:surveyor'\n[compaction.model]\nname = 'anthropic:claude-haiku-4-5'\n"
    )
    shell("run", path, "x", code=77)
    assert "[compaction.model]" in shell.err


BROKEN = """
version = 1
[model]
name = "foo:bar"
fallback = ["offline:surveyor", "nope:x"]
[tools]
python = ["mytools:search", "os:nothing_there", "broken:tool"]
[[interceptors]]
use = "no_such_module_of_mine:Guard"
"""


def test_what_can_not_be_made_is_told_with_file_line_and_key_all_at_once(shell: Shell) -> None:
    Path("bad.toml").write_text(BROKEN)
    Path("mytools.py").write_text("def search():\n    return 1\n")
    for command in (("manifest", "check", "bad.toml"), ("run", "bad.toml", "x")):
        shell(*command, code=2)
        told = [line.removeprefix("pod: error: ") for line in shell.err.splitlines() if "error:" in line]
        assert told[0].startswith("bad.toml:4: [model] name: unknown provider 'foo'")
        assert told[1].startswith("bad.toml:5: [model] fallback: unknown provider 'nope'")
        assert told[2].startswith("bad.toml:7: [tools] python: 'mytools:search' can't be loaded: No module named")
        assert f"PYTHONPATH={shell.rig.work.resolve()}" in told[2]
        assert "'os:nothing_there' can't be loaded" in told[3] and "'broken:tool'" in told[4]
        assert told[5].startswith("bad.toml:8: [interceptors #1] use: 'no_such_module_of_mine:Guard' can't be loaded")
    assert not (shell.rig.home / "pods").exists()


def test_a_setting_that_the_model_refuses_is_placed_at_its_own_line(shell: Shell) -> None:
    Path("m.toml").write_text('version = 1\n[model]\nname = "openai:gpt-5"\n[model.extra_body]\nstream = false\n')
    shell("manifest", "check", "m.toml", code=2)
    assert "m.toml:4: [model] extra_body: cannot set stream" in shell.err


def test_check_imports_interceptors_and_knows_the_names_of_own_tools(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine_of_this_test.py").write_text(
        "from worker.interceptor import Interceptor\n"
        "def look(x: str) -> str:\n    '''Looks.\n\n    Args:\n        x: It.\n    '''\n    return x\n"
        "class Good(Interceptor):\n    name = 'good'\n"
        "class Bad:\n    pass\n"
        "class Plain(Interceptor):\n    def before_request(self, ctx):\n        pass\n"
    )
    monkeypatch.syspath_prepend(shell.rig.work)
    text = (
        'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\npython = ["mine_of_this_test:look"]\n'
        '[permissions]\nrules = [{ tool = "look", action = "ask" }, { tool = "lok", action = "deny" }]\n'
        '[[interceptors]]\nuse = "mine_of_this_test:Good"\n[scope]\nwrite = ["."]\n'
    )
    Path("m.toml").write_text(text)
    assert "fine" in shell("manifest", "check", "m.toml")
    (warning,) = shell.err.splitlines()
    assert "m.toml:7: [permissions.rules #2] tool: the rule is about 'lok'" in warning
    assert "did you mean look?" in warning
    Path("m.toml").write_text(text.replace("Good", "Bad"))
    shell("manifest", "check", "m.toml", code=2)
    assert "m.toml:8: [interceptors #1] use: 'mine_of_this_test:Bad' can't be used" in shell.err
    Path("m.toml").write_text(text.replace("Good", "Plain"))
    shell("manifest", "check", "m.toml", code=2)
    assert "'mine_of_this_test:Plain' can't be used: Plain.before_request must be async" in shell.err


def test_check_says_which_defaults_gave_way_to_a_small_window(shell: Shell) -> None:
    Path("m.toml").write_text(
        'version = 1\n[model]\nname = "offline:surveyor"\ncontext_window = 32768\n[compaction]\n[tools]\nenable = []\n'
    )
    shell("manifest", "check", "m.toml")
    assert "pod: [compaction] worker_context_max_tokens: its default 50000 is lowered" in shell.err
    lowered = shell.json("manifest", "check", "m.toml")["lowered"]
    assert {key: lowered[0][key] for key in ("key", "was")} == {
        "key": "[compaction] worker_context_max_tokens",
        "was": 50_000,
    }


# -- what works and is likely not meant -----------------------------------------------------------------------


def test_check_warns_of_a_window_that_is_a_guess_and_names_the_model_that_may_be_meant(shell: Shell) -> None:
    text = (
        '[model]\nname = "anthropic:claude-sonet-5-5"\nfallback = ["openai:gtp-4o"]\n[tools]\nenable = []\n'
        '[compaction.model]\nname = "openai-chat:own"\nbase_url = "http://localhost:9"\n'
    )
    Path("m.toml").write_text(text)
    warned = shell.json("manifest", "check", "m.toml")["warnings"]
    assert [w.partition(": the window of ")[0] for w in warned] == [
        "m.toml:2: [model] name",
        "m.toml:3: [model] fallback",
        "m.toml:7: [compaction.model] name",
    ]
    assert "(did you mean anthropic:claude-sonnet-5-5?): 32,768 tokens are a guess; [model] context_window" in warned[0]
    assert "did you mean openai:gpt-4o?" in warned[1]
    assert "did you mean" not in warned[2] and "[compaction.model] context_window" in warned[2]
    Path("m.toml").write_text(text.replace("[tools]", "context_window = 100000\n[tools]").partition("[compaction")[0])
    assert not any("m.toml:2" in w for w in shell.json("manifest", "check", "m.toml")["warnings"])


def test_check_warns_of_tools_that_can_write_nothing_and_of_roots_that_are_not_there(shell: Shell) -> None:
    Path("m.toml").write_text('[model]\nname = "offline:surveyor"\n')
    shell("manifest", "check", "m.toml")
    (warning,) = shell.err.splitlines()
    assert "m.toml: [tools] enable: edit_file can write nothing: [scope] write names no folder" in warning
    with Path("m.toml").open("a") as file:
        file.write('[scope]\nread = [".", "none"]\nwrite = ["later"]\n')
    shell("manifest", "check", "m.toml")
    told = [line.partition("warning: ")[2] for line in shell.err.splitlines()]
    work = shell.rig.work.resolve()
    assert told == [
        f"m.toml:4: [scope.read #2]: {work}/none is not there",
        f"m.toml:5: [scope.write #1]: {work}/later is not there",
    ]


def test_a_flag_that_stands_for_a_key_is_blamed_by_its_own_name(shell: Shell) -> None:
    flags = ("--model", "foo", "--max-cost", "0", "--max-requests", "-1", "--timeout", "nan")
    shell("run", "offline-survey", "x", *flags, "--set", "prune.enabled=3", code=2)
    told = [line.removeprefix("pod: error: ").partition(":")[0] for line in shell.err.splitlines()]
    assert sorted(told) == ["--max-cost", "--max-requests", "--model", "--set prune.enabled", "--timeout"]
    shell("manifest", "new", "--model", "foo", code=2)
    assert shell.err.startswith("pod: error: --model: [model] name: should be written provider:model, for example")
    shell("manifest", "new", "--name", "a b", code=2)
    assert shell.err.startswith("pod: error: --name: [pod] name: can't be a pod's name: letters, digits")


@pytest.mark.parametrize(
    "args",
    [
        ("manifest", "check", "x" * 400),
        ("manifest", "new", "x" * 400 + ".toml"),
        ("manifest", "check", "offline-survey", "-C", "x" * 400),
        ("run", "offline-survey", "x", "--name", "x" * 400),
        ("run", "offline-survey", "x", "--name", "ok/lock"),
        ("run", "offline-survey", "x", "--output-schema", "x" * 400),
        ("run", "offline-survey", "x", "--max-requests", "9" * 5000),
    ],
)
def test_a_name_that_no_file_can_have_and_a_number_without_end_are_one_line(
    shell: Shell, args: tuple[str, ...]
) -> None:
    shell(*args, code=2)
    assert shell.err.count("\n") == 1 and "unexpected" not in shell.err


@pytest.mark.parametrize("home", ["file", "x" * 400])
def test_a_home_that_can_be_no_folder_is_one_line(shell: Shell, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("POD_HOME", home)
    shell("ls", code=2)
    assert shell.err.count("\n") == 1 and f"pods lie in {shell.rig.work.resolve() / home}" in shell.err


def test_the_list_of_tools_says_which_are_on_by_default(shell: Shell) -> None:
    on = "read_file, list_files, search_text, edit_file, shell, tasks"
    assert f"On by default: {on}." in shell("tools")
    assert ", ".join(sorted(t["name"] for t in shell.json("tools") if t["default"])) == ", ".join(
        sorted(on.split(", "))
    )


def test_a_run_warns_once_of_a_window_that_is_a_guess_and_goes_on(shell: Shell) -> None:
    manifest = shell.rig.manifest(None)
    shell("run", manifest, "x", "--name", "a", "--model", "openai:gtp-4o", "--set", "model.context_window=0", code=75)
    said = "the window of openai:gtp-4o is not known (did you mean openai:gpt-4o?): 32,768 tokens are a guess"
    assert shell.err.count(said) == 1
    (log,) = (shell.rig.home / "pods" / "a").glob("*.jsonl")
    assert log.read_text().count(said) == 1
