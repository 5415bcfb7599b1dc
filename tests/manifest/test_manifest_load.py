"""A manifest loads as written, and every mistake in it is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pod.manifest import Loaded, Manifest, ManifestError, Problem, load_manifest

Write = Callable[..., Path]
MODEL = '[model]\nname = "offline:surveyor"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "m.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def load(path: Path, *overrides: str, env: dict[str, str] | None = None) -> Loaded:
    return load_manifest(path, overrides, env=env or {}, cwd=path.parent)


def problems(path: Path, *overrides: str, env: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        load(path, *overrides, env=env)
    return caught.value.problems


def only(path: Path, *overrides: str, env: dict[str, str] | None = None) -> Problem:
    found = problems(path, *overrides, env=env)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def test_the_smallest_manifest_has_all_documented_defaults(write: Write) -> None:
    manifest = load(write(MODEL)).manifest
    assert manifest.version == 1
    assert manifest.worker.instructions == ("AGENTS.md",)
    assert (manifest.worker.max_requests, manifest.limits.max_cost_usd, manifest.limits.max_total_tokens) == (None,) * 3
    assert manifest.model.max_output_tokens == 8192
    assert manifest.model.context_window == 0
    assert manifest.model.cache_ttl == "5m"
    assert manifest.tools.enable == ("read_file", "list_files", "search_text", "edit_file", "shell", "tasks")
    assert (manifest.tools.shell.timeout, manifest.tools.shell.max_output) == (120, 65536)
    assert manifest.scope.write == ()
    assert (manifest.permissions.profile, manifest.permissions.when_headless) == ("safe", "pause")
    prune = manifest.prune
    assert (prune.enabled, prune.protected_tokens, prune.min_savings, prune.min_savings_floor) == (
        True,
        8000,
        "auto",
        4096,
    )
    assert (prune.excerpt_chars, prune.supersede_in_tail, prune.prune_arguments) == (200, False, False)
    assert prune.pin_budget_tokens == 4000
    assert manifest.context.buffer_tokens == 8192
    assert manifest.context.ladder == ("compact", "coarse", "checkpoint", "rollover")
    assert manifest.limits.repeat_call.remind == (3, 5, 8)
    assert manifest.limits.repeat_call.stop == 12
    assert (manifest.retry.max_attempts, manifest.retry.max_seconds) == (6, 300)
    assert (manifest.log.durability, manifest.log.redact) == ("fsync", True)
    assert manifest.compaction is None
    assert manifest.rollover is None


def test_an_empty_compaction_table_has_all_documented_defaults(write: Write) -> None:
    compaction = load(write(MODEL + "[compaction]\n")).manifest.compaction
    assert compaction is not None
    assert compaction.model_dump() == {
        "threshold": None,
        "request_threshold": None,
        "source": "auto",
        "retained_tokens": 8000,
        "retained_floor_tokens": 2000,
        "user_words_tokens": 4000,
        "overview_target_tokens": 8000,
        "overview_warning_tokens": 16000,
        "overview_deadline_tokens": 40000,
        "worker_context_max_tokens": 50000,
        "finish_warning_remaining_tokens": 8000,
        "final_reserve_tokens": 4000,
        "worker_max_turns": 20,
        "deadline": 600,
        "summary_target_tokens": 1500,
        "summary_max_tokens": 3000,
        "auto_read_budget_tokens": 8000,
        "result_context_max_tokens": 24000,
        "breaker_cooldown": 1800,
        "model": None,
    }


def test_the_policy_acts_only_where_a_trigger_is_set(write: Write) -> None:
    def policy(text: str) -> tuple[str, bool]:
        manifest = load(write(MODEL + text)).manifest
        return manifest.policy, manifest.overflow_recovery

    assert policy("") == ("warn", False)
    assert policy("[compaction]\n") == ("warn", False)
    assert policy("[compaction]\nthreshold = 80000\n") == ("compact", True)
    assert policy("[context]\npolicy = 'off'\n[compaction]\nthreshold = 80000\n") == ("off", False)
    assert policy("[context]\noverflow_recovery = true\n") == ("warn", True)


def test_the_compaction_block_of_older_manifests_loads_unchanged(write: Write) -> None:
    old = """
[compaction]
threshold = 80000                  # between turns
request_threshold = 90000
prune_protected_tokens = 7000
prune_min_savings = 5000
retained_tokens = 8000

overview_target_tokens = 8000
overview_warning_tokens = 16000
overview_deadline_tokens = 40000

worker_context_max_tokens = 50000
finish_warning_remaining_tokens = 8000
final_reserve_tokens = 4000
worker_max_turns = 20

summary_target_tokens = 1500
summary_max_tokens = 3000
auto_read_budget_tokens = 8000
result_context_max_tokens = 24000
"""
    loaded = load(write(MODEL + old))
    assert loaded.manifest.compaction is not None
    assert loaded.manifest.triggers == {"threshold": 80000, "request_threshold": 90000}
    assert loaded.manifest.prune.protected_tokens == 7000
    assert loaded.manifest.prune.min_savings == 5000
    assert loaded.warnings == ()
    origin = loaded.sources["prune.protected_tokens"]
    assert (origin.line, origin.key) == (7, ("compaction", "prune_protected_tokens"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compact_threshold", "threshold"),
        ("compact_request_threshold", "request_threshold"),
        ("compact_retained_tokens", "retained_tokens"),
        ("compact_worker_max_input_tokens", "worker_context_max_tokens"),
        ("compact_worker_max_turns", "worker_max_turns"),
        ("compact_auto_read_budget_tokens", "auto_read_budget_tokens"),
    ],
)
def test_an_old_name_loads_as_the_new_one(write: Write, old: str, new: str) -> None:
    loaded = load(write(MODEL + f"[compaction]\n{old} = 12345\n"))
    assert getattr(loaded.manifest.compaction, new) == 12345
    assert loaded.sources[f"compaction.{new}"].line == 4


def test_old_and_new_name_together_name_both_lines_b138(write: Write) -> None:
    """B138: an alias conflict is an error."""
    problem = only(write(MODEL + "[compaction]\nthreshold = 10000\ncompact_threshold = 20000\n"))
    assert problem.line == 5
    assert problem.key == "[compaction] compact_threshold"
    assert "m.toml:4" in problem.message


def test_an_old_name_and_the_new_one_in_another_table_conflict(write: Write) -> None:
    problem = only(write(MODEL + "[compaction]\nprune_min_savings = 1\n[prune]\nmin_savings = 2\n"))
    assert (problem.line, problem.key) == (4, "[compaction] prune_min_savings")
    assert "m.toml:6" in problem.message
    assert "[prune] min_savings" in problem.message


def test_a_removed_key_says_what_to_do(write: Write) -> None:
    problem = only(write(MODEL + "[compaction]\nprune_protected_turns = 3\n"))
    assert (problem.line, problem.message) == (4, "this key was removed")
    assert "[prune] protected_tokens" in problem.hint


def test_a_misspelled_key_is_named_with_line_and_nearest_key_b138(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B138."""
    path = write(MODEL + "\n[compaction]\n  request_treshold = 1\n", "coder.toml")
    monkeypatch.chdir(path.parent)
    problem = only(Path("coder.toml").absolute())
    assert str(problem) == ("coder.toml:5: [compaction] request_treshold: unknown key; did you mean request_threshold?")
    assert problem.column == 3


def test_an_unknown_table_and_a_key_in_the_wrong_table_are_named_b138(write: Write) -> None:
    """B138."""
    found = problems(write(MODEL + "[compacton]\nx = 1\n[context]\nrequest_threshold = 5\n[tools.shel]\ntimeout = 1\n"))
    texts = [str(problem).split("m.toml:")[1] for problem in found]
    assert sorted(texts) == [
        "3: [compacton]: unknown table; did you mean [compaction]?",
        "6: [context] request_threshold: unknown key; did you mean [compaction] request_threshold?",
        "7: [tools.shel]: unknown table; did you mean [tools.shell]?",
    ]


def test_a_key_at_the_top_is_told_its_table(write: Write) -> None:
    problem = only(write("protected_tokens = 1\n" + MODEL))
    assert str(problem).endswith(":1: protected_tokens: unknown key; did you mean [prune] protected_tokens?")


def test_all_problems_are_reported_at_once_and_the_exit_code_is_two(write: Write) -> None:
    path = write(
        MODEL + "x = 1\n[retry]\nmax_attempts = 0\n[log]\nredact = 'yes'\n[compaction]\ncompact_retained_turns = 1\n"
    )
    with pytest.raises(ManifestError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    assert sorted(problem.line or 0 for problem in caught.value.problems) == [3, 5, 7, 9]
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "[compaction]\nretained_tokens = '8000'\n",
            "[compaction] retained_tokens",
            "should be a whole number, not a string",
        ),
        (
            "[compaction]\nretained_tokens = 8000.5\n",
            "[compaction] retained_tokens",
            "should be a whole number, not 8000.5",
        ),
        ("[compaction]\nretained_tokens = -1\n", "[compaction] retained_tokens", "should be greater than 0, not -1"),
        ("[compaction]\nthreshold = 0\n", "[compaction] threshold", "should be a number of tokens above 0"),
        ("[compaction]\nthreshold = '0%'\n", "[compaction] threshold", "should be a number of tokens above 0"),
        ("[compaction]\nthreshold = '100%'\n", "[compaction] threshold", "should be a number of tokens above 0"),
        ("[compaction]\nthreshold = true\n", "[compaction] threshold", "should be a number of tokens above 0"),
        ("[prune]\nenabled = 1\n", "[prune] enabled", "should be true or false, not a whole number"),
        ("[prune]\nmin_savings = 'most'\n", "[prune] min_savings", 'should be a number of tokens, or "auto"'),
        ("[scope]\nread = '.'\n", "[scope] read", "should be an array, not a string"),
        ("[scope]\nread = [1]\n", "[scope.read #1]", "should be a string, not a whole number"),
        ("[permissions]\nrules = [{tool = 'shell'}]\n", "[permissions.rules #1] action", "is missing"),
        ("[retry]\nmax_seconds = inf\n", "[retry] max_seconds", "should be a finite number, not inf"),
        ("[[mcp]]\nname = 'a'\n", "[mcp #1] command", "is missing"),
        ("[[interceptors]]\nuse = 'x'\n", "[interceptors #1] use", "should be written module:function, for example"),
        ("[[hooks]]\nevent = 'PreToolUse'\ncommand = []\n", "[hooks #1] command", "should not be empty"),
    ],
)
def test_a_wrong_value_is_refused_at_its_line(write: Write, text: str, key: str, message: str) -> None:
    problem = only(write(MODEL + text))
    assert problem.key == key
    assert message in problem.message
    assert problem.line is not None
    assert problem.line >= 3


def test_a_negative_window_is_refused_and_zero_means_the_table_b054(write: Write) -> None:
    """B054."""
    assert load(write(MODEL + "context_window = 0\n")).manifest.model.context_window == 0
    problem = only(write(MODEL + "context_window = -1\n"))
    assert (problem.key, problem.line) == ("[model] context_window", 3)


def test_a_misspelled_choice_gets_the_nearest_one(write: Write) -> None:
    problem = only(write(MODEL + "[permissions]\nprofile = 'workspace-wirte'\n"))
    assert problem.hint == "did you mean 'workspace-write'?"


def test_another_version_of_the_format_is_refused(write: Write) -> None:
    problem = only(write("version = 2\n" + MODEL))
    assert (problem.line, problem.message) == (1, "this runtime reads version 1")


def test_a_manifest_without_a_model_is_refused_unless_code_brings_one(write: Write) -> None:
    path = write("[pod]\nname = 'a'\n")
    assert only(path).key == "[model] name"
    assert load_manifest(path, env={}, cwd=path.parent, model_required=False).manifest.model.name is None


def test_an_unknown_tool_gets_the_nearest_name(write: Write) -> None:
    problem = only(write(MODEL + "[tools]\nenable = ['read_fil']\n"))
    assert (problem.line, problem.hint) == (4, "did you mean read_file?")


def test_the_tools_that_the_manifest_knows_are_those_that_are_served() -> None:
    from pod.manifest import BUILT_IN_TOOLS
    from pod.tools import POD_TOOLS
    from worker.builtin.registry import BUILTIN

    assert set(BUILT_IN_TOOLS) == set(BUILTIN) | set(POD_TOOLS)


def test_a_byte_order_mark_and_crlf_load_like_the_plain_file_b139(write: Write) -> None:
    """B139."""
    text = MODEL + "[prune]\nprotected_tokens = 5\n[worker]\nsystem_prompt = 'a'\n"
    plain = load(write(text, "a.toml"))
    marked = load(write(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), "b.toml"))
    assert marked.manifest == plain.manifest
    assert marked.digest == plain.digest
    assert marked.sources["prune.protected_tokens"].line == 4


@pytest.mark.parametrize(("encoding", "named"), [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-32", "UTF-32")])
def test_another_encoding_is_named_b139(write: Write, encoding: str, named: str) -> None:
    """B139."""
    problem = only(write(MODEL.encode(encoding)))
    assert named in problem.message
    assert problem.hint == "save it as UTF-8"


def test_a_byte_that_is_not_utf8_is_named_with_its_line(write: Write) -> None:
    problem = only(write(b"[pod]\ndescription = 'caf\xe9'\n"))
    assert (problem.line, problem.column, problem.message) == (2, 19, "byte 0xe9 (number 25) is not UTF-8")


@pytest.mark.parametrize(
    ("text", "line", "column"), [("[pod]\nname = \n", 2, 8), ("[pod\n", 1, 5), ("[pod]\nname = 'a", 2, 10)]
)
def test_a_syntax_error_has_line_and_column(write: Write, text: str, line: int, column: int) -> None:
    problem = only(write(text))
    assert (problem.line, problem.column) == (line, column)
    assert f"m.toml:{line}:{column}: is not valid TOML" in str(problem)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 51 + "]" * 51, "a = " + "[" * 9000 + "]" * 9000, ".".join("a" * 300) + " = 1"]
)
def test_a_text_that_is_nested_too_deeply_is_refused(write: Write, text: str) -> None:
    assert "nested deeper than 50 levels" in only(write(text)).message


def test_a_missing_file_names_the_shipped_manifests(tmp_path: Path) -> None:
    problem = only(tmp_path / "none.toml")
    assert "offline-survey" in problem.hint


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert only(tmp_path).message == "is a folder, not a manifest"


@pytest.mark.parametrize(
    "text",
    [
        '[model]\nname = "a:b"\napi_key = "KEY"\n',
        '[model]\nname = "a:b"\napi_key_env = "KEY"\n',
        '[model]\nname = "a:b"\nextra_headers = { x-api-key = "KEY" }\n',
        '[model]\nname = "a:b"\nextra_headers = { Authorization = "Bearer abc" }\n',
        '[model]\nname = "a:b"\n[worker]\nsystem_prompt = "use KEY for it"\n',
        '[model]\nname = "a:b"\n[[mcp]]\nname = "a"\ncommand = ["x", "--key", "KEY"]\n',
        'openai_api_key = "abc"\n[model]\nname = "a:b"\n',
    ],
)
def test_a_literal_key_is_refused_and_never_shown(write: Write, text: str) -> None:
    secret = "sk-ant-" + "api03-" + "a1B2" * 8
    found = problems(write(text.replace("KEY", secret)))
    assert any(
        "secret must not stand" in problem.message or "looks like an API key" in problem.message for problem in found
    )
    assert any("api_key_env" in problem.hint for problem in found)
    assert not any("a1B2" in str(problem) or "Bearer" in str(problem) for problem in found)


def test_a_key_given_by_set_is_refused_and_never_shown(write: Write) -> None:
    found = problems(write(MODEL), "model.api_key=" + "sk-proj-" + "x9" * 15)
    assert found[0].file == "--set model.api_key"
    assert "x9x9" not in str(found[0])


def test_what_is_not_served_yet_is_refused_not_ignored(write: Write) -> None:
    text = MODEL + (
        "[sandbox]\nmode = 'off'\n[rollover]\nat = '80%'\n"
        "[[mcp]]\nname = 'docs'\ncommand = ['docs-mcp']\n"
        "[tools]\nenable = ['read_file', 'spawn_pod']\n"
    )
    found = problems(write(text))
    assert {(problem.key, problem.line) for problem in found} == {
        ("[[mcp]]", 7),
        ("[tools] enable", 11),
    }
    assert all("not served yet" in problem.message for problem in found)


@pytest.mark.parametrize(
    ("policy", "written", "expected"),
    [
        ("native", None, ("native", "compact", "coarse", "checkpoint", "rollover")),
        ("native", ["checkpoint", "native"], ("native", "checkpoint")),
        ("compact", ["compact", "native", "rollover"], ("compact", "native", "rollover")),
        ("checkpoint", ["native", "checkpoint", "rollover"], ("checkpoint", "rollover")),
    ],
)
def test_the_policy_native_begins_at_its_rung_and_the_others_follow(
    write: Write, policy: str, written: list[str] | None, expected: tuple[str, ...]
) -> None:
    ladder = "" if written is None else f"ladder = {written}\n"
    assert load(write(MODEL + f"[context]\npolicy = '{policy}'\n{ladder}")).manifest.ladder == expected


def test_a_manifest_made_in_code_equals_the_loaded_one(write: Write) -> None:
    from pod.manifest import ModelSection, ScopeSection

    path = write(MODEL)
    made = Manifest(model=ModelSection(name="offline:surveyor"), scope=ScopeSection(read=(str(path.parent.resolve()),)))
    loaded = load(path)
    assert loaded.manifest == made
    assert loaded.digest == made.digest
    with pytest.raises(ValueError, match="frozen"):
        made.version = 1  # type: ignore[misc]


def test_the_digest_changes_with_any_value(write: Write) -> None:
    path = write(MODEL)
    assert load(path).digest == load(path).digest
    assert load(path).digest != load(path, "prune.protected_tokens=1").digest


def test_plain_http_goes_only_to_this_machine(write: Write) -> None:
    for host in ("localhost", "127.0.0.1:8000", "[::1]:9"):
        assert load(write(MODEL + f"base_url = 'http://{host}/v1'\n")).manifest.model.base_url
    assert "https" in only(write(MODEL + "base_url = 'http://example.org/v1'\n")).message
    assert "localhost" in only(write(MODEL + "base_url = 'http://localhost.example.org/v1'\n")).message
    assert "no user name" in only(write(MODEL + "base_url = 'https://u:p@example.org/v1'\n")).message


@pytest.mark.parametrize(
    ("warn", "at", "refused"), [("'80%'", "'75%'", True), ("9000", "8000", True), ("'50%'", "'75%'", False)]
)
def test_the_warning_of_a_windows_end_comes_before_it(write: Write, warn: str, at: str, refused: bool) -> None:
    path = write(MODEL + f"[context]\npolicy = 'rollover'\n[rollover]\nwarn = {warn}\nat = {at}\n")
    if refused:
        assert any(
            problem.key == "[rollover] warn" and "must be below at" in problem.message for problem in problems(path)
        )
    else:
        assert load(path).manifest.window.at == "75%"
