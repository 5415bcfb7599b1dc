"""A vendor's key goes to that vendor only: not to another one's host, and not over another one's wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod import setup
from pod.manifest import Manifest, load_manifest
from pod.manifest.layers import Flag
from pod.options import compact_models_given, models_given
from pod.stored import with_overrides
from worker.errors import ConfigError
from worker.models.base import ModelSettings
from worker.models.registry import create_model

HERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("model", "url", "variable"),
    [
        ("openai:gpt-5", None, "ANTHROPIC_API_KEY"),
        ("openai:gpt-5", HERE, "ANTHROPIC_API_KEY"),
        ("openai-chat:m", HERE, "ANTHROPIC_API_KEY"),
        ("openai-chat:m", "https://openrouter.ai/api/v1", "OPENAI_API_KEY"),
        ("openai-chat:m", "https://me.openai.azure.com/v1", "OPENAI_API_KEY"),
        ("openai-chat:m", "https://api.anthropic.com/v1", "OPENAI_API_KEY"),
        ("anthropic:m", None, "OPENAI_API_KEY"),
        ("anthropic:m", HERE, "OPENROUTER_API_KEY"),
        ("anthropic:m", "https://api.deepseek.com/anthropic", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_variable_known_as_another_vendors_is_refused_by_name(model: str, url: str | None, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"api_key_env names {variable}.* not sent to {model}"):
        create_model(model, ModelSettings(base_url=url, api_key_env=variable))


@pytest.mark.parametrize(
    ("model", "url", "variable"),
    [
        ("openai:gpt-5", None, "OPENAI_API_KEY"),
        ("openai:gpt-5", "https://gateway.example/v1", "OPENAI_API_KEY"),
        ("anthropic:m", HERE, "ANTHROPIC_API_KEY"),
        ("openai-chat:m", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("anthropic:m", "https://api.deepseek.com/anthropic", "DEEPSEEK_API_KEY"),
        ("openai:gpt-5", None, "MY_KEY"),
    ],
)
def test_a_key_goes_to_its_vendor_to_a_proxy_of_its_wire_and_where_the_user_says(
    model: str, url: str | None, variable: str
) -> None:
    assert create_model(model, ModelSettings(base_url=url, api_key_env=variable)).key_env() == variable  # type: ignore


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "WORK_KEY"])
def test_another_providers_model_leaves_the_key_of_the_manifest_behind(variable: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        f'[model]\nname = "anthropic:a"\napi_key_env = "{variable}"\n'
        f'[compaction.model]\nname = "anthropic:b"\napi_key_env = "{variable}"\n'
    )

    def keys(*overrides: str | Flag) -> tuple[str | None, str | None]:
        manifest = load_manifest(path, overrides, env={}, cwd=tmp_path).manifest
        assert manifest.compaction and manifest.compaction.model
        stored = load_manifest(path, env={}, cwd=tmp_path).manifest
        assert with_overrides(stored, overrides, tmp_path).model == manifest.model
        return manifest.model.api_key_env, manifest.compaction.model.api_key_env

    assert keys() == (variable, variable)
    assert keys(Flag("--model", "model.name", "anthropic:c")) == (variable, variable)
    assert keys(Flag("--model", "model.name", "openai:gpt-5")) == (None, variable)
    assert keys("compaction.model.name=openai-chat:x") == (variable, None)
    assert keys("model.name=openai:gpt-5", "model.api_key_env=OTHER_KEY") == ("OTHER_KEY", variable)


def test_a_model_given_in_python_and_a_fallback_take_no_key_of_another_provider() -> None:
    section = {"name": "anthropic:a", "api_key_env": "WORK_KEY", "fallback": ["openai:gpt-5", "anthropic:b"]}
    manifest = Manifest.model_validate({"model": section})
    made = (
        *setup.models_of(manifest.model),
        *models_given("openai:gpt-5", manifest, {}),
        *compact_models_given("openai:gpt-5", manifest, ()),
        *compact_models_given("anthropic:c", manifest, ()),
    )
    found = [model.key_env() for model in made]  # type: ignore
    assert found == ["WORK_KEY", "OPENAI_API_KEY", "WORK_KEY", "OPENAI_API_KEY", "OPENAI_API_KEY", "WORK_KEY"]
