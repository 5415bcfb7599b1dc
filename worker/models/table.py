"""What is known of models: windows, output limits, tokenizer families, bindings, prices, each with source and date.

Windows and prices come from genai-prices where it is installed, else from the table here (as of genai-prices 0.2.3),
which also has what that lacks: output limits, tokenizer families, bindings and cache lives (facts, providers 2.6, 5.1
and 6.1). Lookup order of a window: manifest, learned from the provider, genai-prices, this table, the fallback.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from worker.models.base import (
    FALLBACK_OUTPUT,
    FALLBACK_WINDOW,
    Capabilities,
    Counting,
    Family,
    ModelSettings,
    NativeWay,
    Price,
    Source,
)

OWN = "own table"
OWN_DATE = "2026-11-29"
"""When the rows below were last compared with their sources."""

GENAI_DATES = {"0.2.3": "2026-11"}
"""When releases of genai-prices were made: their data do not say."""


class Origin(NamedTuple):
    """Where a figure comes from, and of what date it is (empty where that is not known)."""

    source: str
    date: str = ""

    def __str__(self) -> str:
        return f"{self.source}, {self.date}" if self.date else self.source


@dataclass(frozen=True, slots=True)
class Known:
    """One row: tokens, and what a model family does. `price` is input, output, cache read, cache write per million
    tokens; `compacts` says that its vendor compacts histories for it, `clears` that it clears old tool results.
    """

    window: int
    max_output: int
    family: Family
    history_binding: Literal["none", "thinking_prefix"] = "none"
    turn_bound_reasoning: bool = True
    images: bool = True
    price: tuple[float, float, float, float] | None = None
    cache_ttl: float = 300.0
    compacts: bool = False
    clears: bool = False

    @property
    def vendor(self) -> str:
        """The provider whose own models these are."""
        return "anthropic" if self.family in ("claude", "claude_old") else "openai"


WAYS: dict[str, tuple[NativeWay, ...]] = {
    "openai": ("responses.compact", "compaction_trigger"),
    "anthropic": ("summarize", "threshold_edit"),
}
"""How the vendors compact (facts, providers 2.1 and 2.4), in the order of trying.

OpenAI's SDK lists every model it knows for the endpoint, back to gpt-3.5, so that list tells nothing: the rows below
say it of gpt-5 and later only. Anthropic names its models.
"""


def _claude(
    window: int,
    output: int,
    family: Family,
    price: tuple[float, float, float, float] | None,
    *,
    bound: bool = False,
    compacts: bool = True,
    managed: bool = True,
) -> Known:
    binding: Literal["none", "thinking_prefix"] = "thinking_prefix" if bound else "none"
    return Known(window, output, family, binding, price=price, compacts=compacts and managed, clears=managed)


def _gpt(
    window: int,
    output: int,
    price: tuple[float, float, float, float] | None,
    *,
    bound: bool = False,
    reasons: bool = True,
    ttl: float = 300.0,
    compacts: bool = True,
) -> Known:
    binding: Literal["none", "thinking_prefix"] = "thinking_prefix" if bound else "none"
    return Known(
        window, output, "o200k", binding, turn_bound_reasoning=reasons, price=price, cache_ttl=ttl, compacts=compacts
    )


_ROWS: tuple[tuple[re.Pattern[str], Known], ...] = tuple(
    (re.compile(rf"(?:^|[/.:@]){pattern}(?![.\d])"), known)
    for pattern, known in (
        (r"claude-(?:fable|mythos)-5[-.]2", _claude(1_000_000, 64_000, "claude", (8, 40, 0.2, 10), bound=True)),
        (r"claude-(?:fable|mythos)-5[-.]1", _claude(1_000_000, 64_000, "claude", (10, 50, 0.25, 12.5), bound=True)),
        (r"claude-(?:fable|mythos)-5", _claude(1_000_000, 64_000, "claude", (10, 50, 1, 12.5))),
        (r"claude-opus-5[-.]5", _claude(1_000_000, 64_000, "claude", (4, 20, 0.2, 5), bound=True)),
        (r"claude-sonnet-5[-.]5", _claude(1_000_000, 64_000, "claude", (2, 10, 0.1, 2.5), bound=True)),
        (r"claude-haiku-5[-.]5", _claude(1_000_000, 64_000, "claude", (0.1, 0.5, 0.01, 0.125), bound=True)),
        (r"claude-opus-5", _claude(1_000_000, 64_000, "claude", (5, 25, 0.5, 6.25))),
        (r"claude-sonnet-5", _claude(1_000_000, 64_000, "claude", (2, 10, 0.2, 2.5))),
        (r"claude-opus-4[-.][78]", _claude(1_000_000, 64_000, "claude", (5, 25, 0.5, 6.25))),
        (r"claude-opus-4[-.]6", _claude(1_000_000, 64_000, "claude_old", (5, 25, 0.5, 6.25))),
        (r"claude-sonnet-4[-.]6", _claude(1_000_000, 64_000, "claude_old", (3, 15, 0.3, 3.75))),
        (r"claude-opus-4[-.]5", _claude(200_000, 64_000, "claude_old", (5, 25, 0.5, 6.25), compacts=False)),
        (r"claude-opus-4(?:[-.][01])?", _claude(200_000, 32_000, "claude_old", (15, 75, 1.5, 18.75), compacts=False)),
        (r"claude-sonnet-4(?:[-.][05])?", _claude(200_000, 64_000, "claude_old", (3, 15, 0.3, 3.75), compacts=False)),
        (r"claude-haiku-4[-.]5", _claude(200_000, 64_000, "claude_old", (1, 5, 0.1, 1.25), compacts=False)),
        (r"claude-3[-.]7-sonnet", _claude(200_000, 64_000, "claude_old", (3, 15, 0.3, 3.75), managed=False)),
        (r"claude-3[-.a-z0-9]*", _claude(200_000, 4_096, "claude_old", None, managed=False)),
        (r"gpt-6[-.]1-sol", _gpt(1_050_000, 128_000, (2, 10, 0.1, 2.5), bound=True, ttl=1_800)),
        (r"gpt-6[-.]1-terra", _gpt(1_050_000, 128_000, (1, 5, 0.05, 1.25), bound=True, ttl=1_800)),
        (r"gpt-6-astra", _gpt(1_050_000, 128_000, (10, 50, 1, 12.5), bound=True, ttl=1_800)),
        (r"gpt-6-sol", _gpt(1_050_000, 128_000, (2, 10, 0.2, 2.5), bound=True, ttl=1_800)),
        (r"gpt-6-luna", _gpt(1_050_000, 128_000, (0.1, 0.5, 0.01, 0.125), bound=True, ttl=1_800)),
        (r"gpt-5\.6-sol", _gpt(1_050_000, 128_000, (4, 20, 0.4, 5), bound=True, ttl=1_800)),
        (r"gpt-5\.6-terra", _gpt(1_050_000, 128_000, (2, 12, 0.2, 2.5), bound=True, ttl=1_800)),
        (r"gpt-5\.6-luna", _gpt(1_050_000, 128_000, (0.2, 1.2, 0.02, 0.25), bound=True, ttl=1_800)),
        (r"gpt-(?:6(?:\.\d+)?|5\.6)(?:-[a-z]+)?", _gpt(1_050_000, 128_000, None, bound=True, ttl=1_800)),
        (r"gpt-5\.5-pro", _gpt(1_000_000, 128_000, (30, 180, 30, 30))),
        (r"gpt-5\.5", _gpt(1_000_000, 128_000, (5, 30, 0.5, 5))),
        (r"gpt-5\.4-mini", _gpt(400_000, 128_000, (0.75, 4.5, 0.075, 0.75))),
        (r"gpt-5\.4-nano", _gpt(400_000, 128_000, (0.2, 1.25, 0.02, 0.2))),
        (r"gpt-5\.4-pro", _gpt(1_050_000, 128_000, (30, 180, 30, 30))),
        (r"gpt-5\.4", _gpt(1_050_000, 128_000, (2.5, 15, 0.25, 2.5))),
        (r"gpt-5\.[23](?:-codex)?", _gpt(400_000, 128_000, (1.75, 14, 0.175, 1.75))),
        (r"gpt-5-mini", _gpt(400_000, 128_000, (0.25, 2, 0.025, 0.25))),
        (r"gpt-5-nano", _gpt(400_000, 128_000, (0.05, 0.4, 0.005, 0.05))),
        (r"gpt-5(?:\.1)?", _gpt(400_000, 128_000, (1.25, 10, 0.125, 1.25))),
        (r"gpt-4\.1-mini", _gpt(1_000_000, 32_768, (0.4, 1.6, 0.1, 0.4), reasons=False, compacts=False)),
        (r"gpt-4\.1-nano", _gpt(1_000_000, 32_768, (0.1, 0.4, 0.025, 0.1), reasons=False, compacts=False)),
        (r"gpt-4\.1", _gpt(1_000_000, 32_768, (2, 8, 0.5, 2), reasons=False, compacts=False)),
        (r"gpt-4o-mini", _gpt(128_000, 16_384, (0.15, 0.6, 0.075, 0.15), reasons=False, compacts=False)),
        (r"gpt-4o", _gpt(128_000, 16_384, (2.5, 10, 1.25, 2.5), reasons=False, compacts=False)),
        (r"o4-mini", _gpt(200_000, 100_000, (1.1, 4.4, 0.275, 1.1), compacts=False)),
        (r"o3", _gpt(200_000, 100_000, (2, 8, 0.5, 2), compacts=False)),
    )
)  # fmt: skip


class CacheRatios(NamedTuple):
    """Prices of cached input relative to uncached input (facts, providers 6.1)."""

    read: float
    write: float


def known(model: str) -> Known | None:
    """The row of a model, also under a longer name such as `anthropic/claude-opus-5-5` or one with a date."""
    name = model.lower()
    return next((row for pattern, row in _ROWS if pattern.search(name)), None)


def takes_images(model: str) -> bool:
    """Whether a model takes images; an unknown one is taken at its user's word."""
    row = known(model)
    return row is None or row.images


def cache_ratios(model: str) -> CacheRatios | None:
    """What reading from and writing to the prompt cache costs relative to uncached input; None for an unknown model."""
    row = known(model)
    if row is None or row.price is None:
        return None
    return CacheRatios(row.price[2] / row.price[0], row.price[3] / row.price[0])


def capabilities(
    provider: str,
    model: str,
    settings: ModelSettings,
    *,
    learned: int | None = None,
    base_url: str | None = None,
    local: bool = False,
) -> Capabilities:
    """What a model can do, each number with its source.

    `learned` is a window in tokens that the provider itself named. `local` says that the server is this machine: a
    model there costs nothing and its name says little of its window.
    """
    row = known(model)
    own = row if row is not None and row.vendor == provider else None
    window = _window(model, settings, learned, row, base_url, local)
    output = _Limit(FALLBACK_OUTPUT, "fallback", Origin("assumed"))
    if settings.max_output_tokens > 0:
        output = _Limit(settings.max_output_tokens, "manifest", Origin("manifest"))
    elif row is not None:
        output = _Limit(row.max_output, "table", Origin(OWN, OWN_DATE))
    return Capabilities(
        window=window.tokens,
        window_source=window.source,
        window_origin=str(window.origin),
        max_output=output.tokens,
        max_output_source=output.source,
        max_output_origin=str(output.origin),
        counting=_counting(provider, row),
        family=row.family if row else "unknown",
        images=row.images if row else True,
        history_binding=row.history_binding if row and provider != "openai-chat" else "none",
        turn_bound_reasoning=row.turn_bound_reasoning if row else False,
        native_compaction=WAYS[provider] if own and own.compacts else (),
        tool_clearing=own is not None and own.clears,
        cache_ttl=_ttl(provider, settings, row),
        cache_least=4_096 if provider == "anthropic" else 1_024,
        cache_markers=provider == "anthropic",
        price=None if local else price(provider, model, base_url=base_url, cache_ttl=settings.cache_ttl),
    )


class _Limit(NamedTuple):
    tokens: int
    source: Source
    origin: Origin


def _window(
    model: str, settings: ModelSettings, learned: int | None, row: Known | None, base_url: str | None, local: bool
) -> _Limit:
    if settings.context_window > 0:
        return _Limit(settings.context_window, "manifest", Origin("manifest"))
    if learned:
        return _Limit(learned, "learned", Origin("named by the provider"))
    found = None if local else _genai(model, base_url)
    if found is not None and found[1]:
        return _Limit(found[1], "table", _release(found[2]))
    if row is not None:
        return _Limit(row.window, "table", Origin(OWN, OWN_DATE))
    return _Limit(FALLBACK_WINDOW, "fallback", Origin("assumed"))


def _release(version: str) -> Origin:
    return Origin(f"genai-prices {version}", GENAI_DATES.get(version, ""))


def _counting(provider: str, row: Known | None) -> Counting:
    """How a request can be counted: the vendors' own APIs have an endpoint; elsewhere the tokenizer knows one family."""
    if provider in ("anthropic", "openai"):
        return "provider"
    return "tokenizer" if row is not None and row.family == "o200k" else "none"


def _ttl(provider: str, settings: ModelSettings, row: Known | None) -> float:
    if provider == "anthropic":
        return {"5m": 300.0, "1h": 3_600.0}.get(settings.cache_ttl, 0.0)
    return row.cache_ttl if row else 300.0


def price(provider: str, model: str, *, base_url: str | None = None, cache_ttl: str = "5m") -> Price | None:
    """US dollars per million tokens: genai-prices where it is installed, else our own table; None where neither knows
    the model.

    Steps of the price by input size are not followed: the figure is that of the lowest step.
    """
    found = _genai(model, base_url)
    if found is not None and found[0] is not None:
        entry, origin = found[0], _release(found[2])
        fresh = _rate(entry, "input_mtok")
        if fresh is not None:
            write = _rate(entry, "cache_write_mtok")
            if provider == "anthropic" and cache_ttl == "1h":
                write = _rate(entry, "cache_write_1h_mtok") or write
            read = _rate(entry, "cache_read_mtok")
            return Price(
                input=fresh,
                output=_rate(entry, "output_mtok") or 0.0,
                cache_read=fresh if read is None else read,
                cache_write=fresh if write is None else write,
                source=origin.source,
                date=origin.date,
            )
    row = known(model)
    if row is None or row.price is None:
        return None
    fresh, output, read, write = row.price
    if provider == "anthropic" and cache_ttl == "1h":
        write = fresh * 2
    return Price(fresh, output, read, write, OWN, OWN_DATE)


@lru_cache(maxsize=64)
def _genai(model: str, base_url: str | None) -> tuple[Any, int | None, str] | None:
    """The price, window and version from genai-prices. Not knowing a model is normal (facts, providers 4)."""
    if importlib.util.find_spec("genai_prices") is None:
        return None
    import genai_prices
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, info = get_snapshot().find_provider_model(model, None, None, base_url)
        return info.get_prices(datetime.now(UTC)), info.context_window, genai_prices.__version__
    except LookupError:
        return None


def _rate(entry: Any, key: str) -> float | None:
    value = getattr(entry, key, None)
    value = getattr(value, "base", value)
    return None if value is None else float(value)
