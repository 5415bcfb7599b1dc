"""The shipped manifests load without a complaint, and are what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.manifest import check, load_manifest, shipped_names, shipped_path, unsupported
from pod.manifest.render import to_toml

NAMES = ["batch-triage", "coder", "offline-survey", "researcher"]


def test_the_shipped_manifests_are_found_by_name() -> None:
    assert shipped_names() == NAMES
    assert shipped_path("coder") is not None
    assert shipped_path("../manifests/coder") is None
    assert shipped_path("none") is None


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_manifest_loads_without_a_warning(name: str, tmp_path: Path) -> None:
    loaded = load_manifest(name, env={}, cwd=tmp_path)
    manifest = loaded.manifest
    assert loaded.warnings == ()
    assert check(manifest) == []
    assert unsupported(manifest) == []
    assert manifest.pod.description
    assert manifest.worker.system_prompt
    assert len(manifest.worker.system_prompt) > 300
    assert manifest.policy == "compact"
    assert manifest.limits.max_wall_seconds
    assert manifest.scope.read == (str(tmp_path.resolve()),)
    again = tmp_path / "again.toml"
    again.write_text(to_toml(manifest))
    assert load_manifest(again, env={}, cwd=tmp_path).manifest == manifest


def test_a_file_of_the_same_name_wins_over_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("coder").write_text('[model]\nname = "offline:surveyor"\n')
    assert load_manifest("coder", env={}).manifest.model.name == "offline:surveyor"


def test_the_offline_survey_needs_no_key_and_fits_its_window(tmp_path: Path) -> None:
    manifest = load_manifest("offline-survey", env={}, cwd=tmp_path).manifest
    compaction = manifest.compaction
    assert compaction is not None
    assert compaction.model is not None
    assert (manifest.model.name, compaction.model.name) == ("offline:surveyor", "offline:summarizer")
    assert manifest.model.api_key_env is None
    assert manifest.model.context_window == 32_768
    assert set(manifest.tools.enable) == {"read_file", "list_files", "find_files", "append_file", "write_file"}
    assert manifest.permissions.profile == "unattended"
    assert manifest.scope.write == manifest.scope.read
    trigger = compaction.request_threshold
    assert isinstance(trigger, int)
    assert trigger < manifest.model.context_window - manifest.context.buffer_tokens
    lowest = min(value for value in manifest.triggers.values() if isinstance(value, int))
    assert compaction.result_context_max_tokens < lowest / 2
    parts = compaction.retained_tokens + compaction.summary_max_tokens + compaction.auto_read_budget_tokens
    assert parts + compaction.user_words_tokens <= compaction.result_context_max_tokens


@pytest.mark.parametrize("name", ["batch-triage", "coder", "researcher"])
def test_a_key_is_the_usual_one_of_whatever_model_is_chosen(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name, env={}, cwd=tmp_path).manifest
    assert manifest.model.name and manifest.model.api_key_env is None


def test_the_triage_writes_and_asks_nothing(tmp_path: Path) -> None:
    manifest = load_manifest("batch-triage", env={}, cwd=tmp_path).manifest
    assert manifest.scope.write == ()
    assert (manifest.permissions.profile, manifest.permissions.when_headless) == ("read-only", "deny")
