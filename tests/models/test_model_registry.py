"""From a name to a model, and what is known of it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from worker.errors import ConfigError
from worker.models import registry, table
from worker.models.base import FALLBACK_OUTPUT, FALLBACK_WINDOW, ModelSettings, Usage
from worker.models.registry import create_model, providers
from worker.models.table import OWN, OWN_DATE

OFF_THE_SHELF = {"anthropic", "openai", "openai-chat", "offline"}


@pytest.fixture
def without_genai_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_genai", lambda model, base_url: None)


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat"])
def test_a_model_has_the_name_that_it_was_asked_for_by(provider: str) -> None:
    model = create_model(f"{provider}:llama3:8b")
    assert model.name == f"{provider}:llama3:8b"


def test_a_missing_key_is_no_matter_when_a_model_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    create_model("openai:gpt-6-sol")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("antropic:claude-opus-5-5", ["'antropic'", "did you mean 'anthropic'"]),
        ("openai_chat:m", ["did you mean 'openai-chat'"]),
        ("zzz:m", ["unknown provider 'zzz'", "known: "]),
        ("claude-opus-5-5", ["provider:model", "anthropic:claude-opus-5-5"]),
        ("gpt-6-sol", ["openai:gpt-6-sol"]),
        ("openai:", ["provider:model"]),
        (":m", ["provider:model"]),
        ("", ["provider:model"]),
    ],
)
def test_a_name_that_cannot_work_is_told_with_the_way_out(name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        create_model(name)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_provider_can_be_added_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("mine", "worker.models.openai_chat:create", registry.GROUP),
        EntryPoint("broken", "no_such_module_at_all:create", registry.GROUP),
    ]

    def entry_points(**select: str) -> list[EntryPoint]:
        assert select["group"] == "pod_runtime.models"
        return [p for p in points if select.get("name") in (None, p.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert create_model("mine:m").name == "openai-chat:m"
    assert {*OFF_THE_SHELF, "mine", "broken"} == set(providers())
    with pytest.raises(ConfigError, match="no_such_module_at_all"):
        create_model("broken:m")


def test_no_sdk_is_imported_before_the_first_send() -> None:
    code = (
        "import sys; from worker.models.registry import create_model\n"
        "for p in ('openai', 'openai-chat', 'anthropic'): create_model(p + ':m').encoder\n"
        "heavy = {'openai', 'anthropic', 'genai_prices', 'httpx2', 'tiktoken'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- windows


def look(model: str, provider: str = "openai", **settings: Any) -> table.Capabilities:
    learned, local = settings.pop("learned", None), settings.pop("local", False)
    return table.capabilities(provider, model, ModelSettings(**settings), learned=learned, local=local)


def test_the_window_comes_from_the_first_source_that_knows_it(without_genai_prices: None) -> None:
    assert (look("gpt-6-sol").window, look("gpt-6-sol").window_source) == (1_050_000, "table")
    learned = look("gpt-6-sol", learned=9_000)
    assert (learned.window, learned.window_source) == (9_000, "learned")
    told = look("gpt-6-sol", learned=9_000, context_window=7_000)
    assert (told.window, told.window_source) == (7_000, "manifest")
    unknown = look("novel-model")
    assert (unknown.window, unknown.window_source) == (FALLBACK_WINDOW, "fallback")
    assert (unknown.max_output, unknown.max_output_source) == (FALLBACK_OUTPUT, "fallback")
    assert unknown.family == "unknown" and unknown.price is None
    assert look("novel-model", max_output_tokens=99).max_output == 99


def test_a_model_learns_its_window_from_the_provider() -> None:
    model = create_model("openai-chat:novel", ModelSettings(base_url="http://127.0.0.1:1"))
    assert model.capabilities.window_source == "fallback"
    model.learn(8_192)  # type: ignore[attr-defined]
    assert (model.capabilities.window, model.capabilities.window_source) == (8_192, "learned")


@pytest.mark.parametrize(
    ("model", "window", "family", "binding"),
    [
        ("claude-opus-5-5", 1_000_000, "claude", "thinking_prefix"),
        ("claude-opus-5-5-20261101", 1_000_000, "claude", "thinking_prefix"),
        ("us.anthropic.claude-haiku-5-5-v1:0", 1_000_000, "claude", "thinking_prefix"),
        ("claude-fable-5-2", 1_000_000, "claude", "thinking_prefix"),
        ("claude-opus-5", 1_000_000, "claude", "none"),
        ("claude-opus-4-7", 1_000_000, "claude", "none"),
        ("claude-opus-4-6", 1_000_000, "claude_old", "none"),
        ("claude-opus-4-5-20251101", 200_000, "claude_old", "none"),
        ("claude-sonnet-4-20250514", 200_000, "claude_old", "none"),
        ("claude-3-haiku-20240307", 200_000, "claude_old", "none"),
        ("gpt-6.2-sol", 1_050_000, "o200k", "thinking_prefix"),
        ("gpt-5.6-cyber", 1_050_000, "o200k", "thinking_prefix"),
        ("gpt-5.5-2026-01-01", 1_000_000, "o200k", "none"),
        ("gpt-5-mini", 400_000, "o200k", "none"),
        ("gpt-4o-2024-08-06", 128_000, "o200k", "none"),
    ],
)
def test_families_are_told_apart_by_their_ids(model: str, window: int, family: str, binding: str) -> None:
    found = look(model, "anthropic")
    assert (found.window, found.family, found.history_binding) == (window, family, binding)


def test_a_compatible_server_binds_nothing() -> None:
    assert look("anthropic/claude-opus-5.5", "openai-chat").history_binding == "none"


def test_prices_come_from_the_table_and_follow_the_cache_life(without_genai_prices: None) -> None:
    short, long = look("claude-opus-5-5", "anthropic").price, look("claude-opus-5-5", "anthropic", cache_ttl="1h").price
    assert short and long
    assert (short.input, short.output, short.cache_read, short.cache_write) == (4, 20, 0.2, 5)
    assert (short.source, short.date) == (OWN, OWN_DATE)
    assert long.cache_write == 8
    usage = Usage(input_tokens=1_000_000, cached_tokens=900_000, cache_write_tokens=50_000, output_tokens=10_000)
    assert short.cost(usage) == pytest.approx(0.05 * 4 + 0.9 * 0.2 + 0.05 * 5 + 0.01 * 20)
    assert look("gpt-6.2-sol").price is None, "a price that nobody named is not invented"
    assert look("claude-opus-5-5", "anthropic", cache_ttl="1h").cache_ttl == 3_600


def test_a_local_model_has_no_price() -> None:
    assert look("gpt-4o", "openai-chat", local=True).price is None


def test_genai_prices_is_asked_first_where_it_is_installed() -> None:
    pytest.importorskip("genai_prices")
    price = look("claude-opus-5-5", "anthropic", cache_ttl="1h").price
    assert price and price.source.startswith("genai-prices") and price.date
    assert (price.input, price.cache_write) == (4, 8)
    assert look("no-such-model-anywhere").price is None
    known = look("claude-opus-5-5", "anthropic")
    assert known.window_origin == f"{price.source}, {price.date}"
    assert known.max_output_origin == f"{OWN}, {OWN_DATE}", "what it lacks comes from the own table"


def test_each_window_says_where_it_comes_from_and_of_what_date(without_genai_prices: None) -> None:
    assert look("gpt-6-sol").window_origin == f"{OWN}, {OWN_DATE}"
    assert look("gpt-6-sol", context_window=9).window_origin == "manifest"
    assert look("novel-model").window_origin == "assumed"


def test_only_the_vendors_own_apis_count_and_the_tokenizer_only_its_family() -> None:
    assert look("claude-opus-5-5", "anthropic").counting == look("gpt-6-sol").counting == "provider"
    assert look("gpt-4.1", "openai-chat").counting == "tokenizer"
    assert look("claude-opus-5-5", "openai-chat").counting == look("novel", "openai-chat").counting == "none"


def test_cache_ratios_are_those_of_the_facts() -> None:
    """Facts, providers 6.1."""
    assert table.cache_ratios("claude-opus-4-8") == pytest.approx((0.10, 1.25))
    assert table.cache_ratios("claude-sonnet-5-5") == pytest.approx((0.05, 1.25))
    assert table.cache_ratios("claude-fable-5-2") == pytest.approx((0.025, 1.25))
    assert table.cache_ratios("gpt-6-sol") == pytest.approx((0.10, 1.25))
    assert table.cache_ratios("gpt-5.5") == pytest.approx((0.10, 1.0))
    assert table.cache_ratios("gpt-4.1") == pytest.approx((0.25, 1.0))
    assert table.cache_ratios("gpt-4o") == pytest.approx((0.50, 1.0))
    assert table.cache_ratios("novel") is None
