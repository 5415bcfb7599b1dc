"""Values of `[model]` that the provider does not know, as far as the runtime knows the provider. Warnings only: a provider
may have learned more meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from pod.manifest.errors import Finding, KeyPath
from pod.manifest.model import Manifest
from pod.manifest.sections import ModelSection

REASONING: dict[str, tuple[str, ...]] = {
    "anthropic": ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "openai": ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max"),
}
"""Labels of `reasoning` by provider (facts, providers 2.1 and 2.3); `off` is ours, for `none`."""

CACHE_TTL: dict[str, tuple[str, ...]] = {"anthropic": ("5m", "1h")}
"""Times of `cache_ttl` by provider, where it offers a choice (facts, providers 2.3)."""


def providers_know(manifest: Manifest) -> Iterator[Finding]:
    """What the providers of the model and of the compact worker's own model will not understand."""
    yield from _section(manifest.model, ("model",))
    if manifest.compaction is not None and manifest.compaction.model is not None:
        yield from _section(manifest.compaction.model, ("compaction", "model"))


def _section(section: ModelSection, table: KeyPath) -> Iterator[Finding]:
    if section.name is None:
        return
    provider = section.name.partition(":")[0]
    if (labels := REASONING.get(provider)) and isinstance(section.reasoning, str) and section.reasoning not in labels:
        yield _unknown(table, "reasoning", section.reasoning, provider, labels)
    if (times := CACHE_TTL.get(provider)) and section.cache_ttl not in times:
        yield _unknown(table, "cache_ttl", section.cache_ttl, provider, times, "; nothing is cached so")
    if provider == "openai-chat" and section.base_url is None:
        yield Finding(
            "openai-chat without base_url asks api.openai.com",
            ((*table, "name"),),
            "warning",
            "set base_url to the address of the server that is meant, or take openai:",
        )


def _unknown(table: KeyPath, key: str, value: str, provider: str, known: tuple[str, ...], effect: str = "") -> Finding:
    return Finding(
        f"{provider} is not known to take {value!r}{effect}", ((*table, key),), "warning", f"known: {', '.join(known)}"
    )
