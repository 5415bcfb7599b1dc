"""Defaults give way to a small window that a manifest names; what someone wrote does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.manifest import CompactionSection, Loaded, Manifest, ManifestError, ModelSection, check, fit, load_manifest
from pod.manifest.render import show

MODEL = '[model]\nname = "offline:surveyor"\n'


def load(folder: Path, text: str, **options: object) -> Loaded:
    path = folder / "m.toml"
    path.write_text(text)
    return load_manifest(path, env={}, cwd=folder)


@pytest.mark.parametrize("window", [2_000, 8_192, 16_000, 32_768, 49_000, 60_000, 128_000])
@pytest.mark.parametrize("more", ["", "threshold = '50%'\n", "request_threshold = '70%'\n", "source = 'overview'\n"])
def test_a_window_alone_is_never_a_contradiction(tmp_path: Path, window: int, more: str) -> None:
    loaded = load(tmp_path, f"{MODEL}context_window = {window}\n[compaction]\n{more}")
    assert loaded.warnings == ()
    c = loaded.manifest.compaction
    assert c is not None and max(c.worker_context_max_tokens, c.result_context_max_tokens) <= window
    assert check(loaded.manifest) == [], "what was lowered holds together by itself"


def test_a_window_that_fits_the_defaults_changes_nothing(tmp_path: Path) -> None:
    loaded = load(tmp_path, MODEL + "context_window = 128000\n[compaction]\nthreshold = 80000\n")
    assert loaded.lowered == ()
    assert loaded.manifest.compaction == CompactionSection(threshold=80_000)


def test_what_was_lowered_is_told_with_its_old_value_and_the_reason(tmp_path: Path) -> None:
    loaded = load(tmp_path, MODEL + "context_window = 16000\n[compaction]\n")
    told = {each.key[-1]: str(each) for each in loaded.lowered}
    assert told["worker_context_max_tokens"] == "its default 50000 is lowered to 8000, to fit context_window"
    (row,) = [line for line in show(loaded).splitlines() if line.startswith("compaction.worker_context_max_tokens")]
    assert row.endswith("default 50000, lowered to fit context_window")


def test_a_written_number_stays_and_lifts_the_default_that_must_not_lie_below_it(tmp_path: Path) -> None:
    text = (
        MODEL + "context_window = 32768\n[compaction]\nsummary_target_tokens = 2900\noverview_target_tokens = 13000\n"
    )
    c = load(tmp_path, text).manifest.compaction
    assert c is not None
    assert (c.summary_target_tokens, c.overview_target_tokens) == (2900, 13_000)
    assert c.summary_max_tokens >= 2900 and c.overview_warning_tokens >= 13_000


@pytest.mark.parametrize(
    "key", ["worker_context_max_tokens", "result_context_max_tokens", "finish_warning_remaining_tokens"]
)
def test_a_written_number_that_does_not_fit_is_an_error_even_where_it_is_the_default(tmp_path: Path, key: str) -> None:
    default = CompactionSection.model_fields[key].default
    with pytest.raises(ManifestError, match=key):
        load(tmp_path, MODEL + f"context_window = 4000\n[compaction]\n{key} = {default}\n")


def test_the_compact_models_own_small_window_lowers_its_budget_b012(tmp_path: Path) -> None:
    """B012: the effective cap is the window's room, and is shown as such."""
    model = "[compaction.model]\nname = 'offline:summarizer'\ncontext_window = 16000\n"
    loaded = load(tmp_path, MODEL + "[compaction]\n" + model)
    c = loaded.manifest.compaction
    assert c is not None and c.worker_context_max_tokens < 16_000
    assert ("compaction", "model", "context_window") in {each.reason for each in loaded.lowered}


def test_a_manifest_made_in_code_is_fitted_where_its_numbers_are_used() -> None:
    from pod.setup import compaction_config

    made = Manifest(
        model=ModelSection(name="offline:surveyor", context_window=16_000),
        compaction=CompactionSection(threshold="50%"),
    )
    assert check(made) == []
    config = compaction_config(made)
    assert config.worker.worker_context_max_tokens == 8000
    assert fit(fit(made).manifest).lowered == (), "what was fitted fits"


RULE = "[permissions]\nrules = [{ tool = '%s', action = 'deny' }]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MODEL + RULE % "bash", "[permissions.rules #1] tool: the rule is about 'bash', and no enabled tool is named so; did you mean shell?"),
        ("[model]\nname = 'anthropic:claude-sonnet-5-5'\ncache_ttl = '2h'\n", "not known to take '2h'; nothing is cached so; known: 5m, 1h"),
        ("[model]\nname = 'openai:gpt-5'\nreasoning = 'hgih'\n", "openai is not known to take 'hgih'"),
        ("[model]\nname = 'openai-chat:x'\n", "asks api.openai.com"),
        (MODEL + "[compaction]\n[compaction.model]\nname = 'openai-chat:x'\n", "[compaction.model] name: openai-chat"),
    ],
)  # fmt: skip
def test_what_nobody_will_understand_is_a_warning_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (warning,) = load(tmp_path, text).warnings
    assert said in str(warning) and warning.line is not None


@pytest.mark.parametrize("tool", ["*", "shell", "read_*", "session_history", "jobs"])
def test_a_rule_about_a_tool_that_the_agent_has_is_no_slip(tmp_path: Path, tool: str) -> None:
    assert load(tmp_path, MODEL + RULE % tool).warnings == ()


def test_a_rule_of_the_project_may_be_about_any_tool(tmp_path: Path) -> None:
    (tmp_path / ".pod").mkdir()
    (tmp_path / ".pod" / "config.toml").write_text(RULE % "fetch_url")
    assert load(tmp_path, MODEL).warnings == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("bash", "shell"), ("cat", "read_file"), ("Write", "write_file"), ("str_replace", "edit_file"), ("grep", "search_text"),
     ("ls", "list_files"), ("glob", "find_files"), ("todo", "tasks"), ("read_fiel", "read_file")],
)  # fmt: skip
def test_the_name_that_another_runtime_gives_a_tool_is_explained(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(ManifestError, match=f"did you mean {meant}\\?"):
        load(tmp_path, MODEL + f"[tools]\nenable = ['{name}']\n")
