"""Numbers that contradict each other are errors that name both keys (B142)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.manifest import (
    ACTING,
    CompactionSection,
    Loaded,
    Manifest,
    ManifestError,
    ModelSection,
    check,
    load_manifest,
    trigger_tokens,
)

MODEL = '[model]\nname = "offline:surveyor"\n'


def load(folder: Path, text: str) -> Loaded:
    path = folder / "m.toml"
    path.write_text(text)
    return load_manifest(path, env={}, cwd=folder)


WINDOW = (
    MODEL
    + "context_window = 32768\n[compaction]\nworker_context_max_tokens = 20000\noverview_deadline_tokens = 16000\n"
)

CONTRADICTIONS = [
    (MODEL + "[compaction]\nrequest_threshold = 8000\n", "retained_tokens", "request_threshold"),
    (MODEL + "[compaction]\nretained_tokens = 9000\nthreshold = 9000\n", "retained_tokens", "threshold"),
    (MODEL + "[compaction]\nfinal_reserve_tokens = 50000\n", "final_reserve_tokens", "worker_context_max_tokens"),
    (MODEL + "[compaction]\nfinal_reserve_tokens = 9000\n", "final_reserve_tokens", "finish_warning_remaining_tokens"),
    (
        MODEL + "[compaction]\nfinish_warning_remaining_tokens = 3999\n",
        "finish_warning_remaining_tokens",
        "final_reserve_tokens",
    ),
    (
        MODEL + "[compaction]\nfinish_warning_remaining_tokens = 50000\n",
        "finish_warning_remaining_tokens",
        "worker_context_max_tokens",
    ),
    (MODEL + "[compaction]\nsummary_target_tokens = 3001\n", "summary_target_tokens", "summary_max_tokens"),
    (MODEL + "[compaction]\nretained_floor_tokens = 8001\n", "retained_floor_tokens", "retained_tokens"),
    (MODEL + "[compaction]\noverview_target_tokens = 16001\n", "overview_target_tokens", "overview_warning_tokens"),
    (MODEL + "[compaction]\noverview_warning_tokens = 40001\n", "overview_warning_tokens", "overview_deadline_tokens"),
    (MODEL + "[compaction]\nresult_context_max_tokens = 2000\n", "summary_max_tokens", "result_context_max_tokens"),
    (WINDOW + "result_context_max_tokens = 32769\n", "result_context_max_tokens", "context_window"),
    (WINDOW + "request_threshold = 24576\n", "request_threshold", "context_window"),
    (WINDOW + "retained_tokens = 12288\nthreshold = '50%'\n", "retained_tokens", "threshold"),
    (MODEL + "context_window = 32768\nmax_output_tokens = 32768\n", "max_output_tokens", "context_window"),
    (MODEL + "context_window = 128000\n[context]\nbuffer_tokens = 100000\n", "buffer_tokens", "context_window"),
    (
        MODEL + "context_window = 16000\n[compaction]\nworker_context_max_tokens = 50000\n",
        "worker_context_max_tokens",
        "context_window",
    ),
    (MODEL + "[limits]\nrepeat_call = { remind = [3, 12], stop = 12 }\n", "remind", "stop"),
    (MODEL + "[worker]\nsystem_prompt = 'a'\nsystem_prompt_file = 'm.toml'\n", "system_prompt_file", "system_prompt"),
]


@pytest.mark.parametrize(("text", "first", "second"), CONTRADICTIONS)
def test_a_contradiction_names_both_keys_b142(tmp_path: Path, text: str, first: str, second: str) -> None:
    """B142."""
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text)
    found = [p for p in caught.value.problems if first in str(p) and second in str(p)]
    assert found, str(caught.value)
    assert all(problem.line is not None for problem in found)


def test_the_place_is_that_of_the_key_that_was_written(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, MODEL + "[compaction]\nrequest_threshold = 6000\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (4, "[compaction] request_threshold")
    assert problem.message == "retained_tokens (8000) must be below request_threshold (6000)"
    assert problem.hint == "retained_tokens has its default"


def test_a_written_budget_above_the_compact_models_window_is_refused_b012(tmp_path: Path) -> None:
    """B012."""
    model = "[compaction.model]\nname = 'offline:summarizer'\ncontext_window = 16000\n"
    with pytest.raises(
        ManifestError, match=r"worker_context_max_tokens \(50000\) must not be above context_window \(16000\)"
    ):
        load(tmp_path, MODEL + "[compaction]\nworker_context_max_tokens = 50000\n" + model)
    assert load(tmp_path, MODEL + "[compaction]\nworker_context_max_tokens = 16000\n" + model).manifest.compaction


def test_a_compact_model_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"\[compaction.model\] name: name is missing"):
        load(tmp_path, MODEL + "[compaction.model]\nreasoning = 'low'\n")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[compaction]\nthreshold = 90000\nrequest_threshold = 80000\n", "[compaction] threshold"),
        ("[compaction]\nsummary_max_tokens = 5000\n", "[compaction] summary_max_tokens"),
        ("[prune]\nprotected_tokens = 90000\n[compaction]\nthreshold = 80000\n", "[prune] protected_tokens"),
        ('[context]\npolicy = "off"\n[compaction]\nthreshold = 80000\n', "[compaction] threshold"),
        ('[context]\npolicy = "warn"\n[compaction]\nrequest_threshold = "70%"\n', "[compaction] request_threshold"),
        ("context_window = 32768\n[context]\nbuffer_tokens = 9000\n", "[context] buffer_tokens"),
    ],
)
def test_what_works_but_helps_little_is_a_warning(tmp_path: Path, text: str, key: str) -> None:
    warnings = load(tmp_path, MODEL + text).warnings
    assert [warning.key for warning in warnings] == [key]
    assert warnings[0].severity == "warning"
    assert warnings[0].line is not None


def test_triggers_that_start_nothing_are_named_with_the_way_out_and_act_nowhere(tmp_path: Path) -> None:
    text = "[compaction]\nthreshold = 70000\nrequest_threshold = 80000\n[context]\npolicy = "
    inert = load(tmp_path, MODEL + text + '"warn"\n')
    (warning,) = inert.warnings
    assert "threshold and request_threshold start no compaction: the context policy is 'warn'" in str(warning)
    assert "a policy that acts" in str(warning) and warning.line == 4
    assert inert.manifest.acting_triggers == {} and inert.manifest.triggers
    for policy in ACTING:
        acting = load(tmp_path, MODEL + text + f'"{policy}"\n')
        assert acting.manifest.acting_triggers == acting.manifest.triggers
        assert not any("no compaction" in str(warning) for warning in acting.warnings)


def test_equal_numbers_at_the_border_are_allowed(tmp_path: Path) -> None:
    text = "retained_floor_tokens = 8000\nsummary_target_tokens = 3000\nthreshold = 8001\n"
    text += "finish_warning_remaining_tokens = 4000\n"
    text += "overview_target_tokens = 16000\noverview_deadline_tokens = 16000\n"
    assert load(tmp_path, MODEL + "[prune]\nprotected_tokens = 0\n[compaction]\n" + text).warnings == ()


def test_a_manifest_made_in_code_is_checked_by_the_same_rules() -> None:
    manifest = Manifest(
        model=ModelSection(name="offline:surveyor"), compaction=CompactionSection(request_threshold=100, threshold=200)
    )
    found = check(manifest)
    assert {problem.severity for problem in found} == {"error", "warning"}
    assert any(problem.key == "[compaction] retained_tokens" for problem in found)


def test_a_trigger_is_tokens_or_a_share_of_what_is_available() -> None:
    assert trigger_tokens(80_000, 100) == 80_000
    assert trigger_tokens("60%", 24_576) == 14_745
    assert trigger_tokens("62.5%", 1000) == 625


def test_a_rollover_that_warns_too_late_is_a_contradiction() -> None:
    from pod.manifest import ContextSection, RolloverSection

    policy = ContextSection(policy="rollover")
    found = check(Manifest(context=policy, rollover=RolloverSection(warn="80%", at="75%")))
    assert [problem.key for problem in found] == ["[rollover] warn"]
    assert check(Manifest(context=policy, rollover=RolloverSection())) == []
    [unused] = check(Manifest(rollover=RolloverSection()))
    assert unused.severity == "warning" and "has no effect" in unused.message
