"""From a name to a model: `provider:model`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from worker.errors import ConfigError
from worker.models.base import Model, ModelSettings

Factory: TypeAlias = Callable[[str, ModelSettings], Model]

GROUP = "pod_runtime.models"
"""Entry points of this group add providers: name is the provider, value a callable `(model_id, settings) -> Model`."""

BUILT_IN: dict[str, str] = {
    "anthropic": "worker.models.anthropic:create",
    "openai": "worker.models.openai_responses:create",
    "openai-chat": "worker.models.openai_chat:create",
    "offline": "worker.offline:create",
}
"""Providers that come with the runtime, as `module:callable`, imported when one is asked for."""

KNOWN = (
    "anthropic:claude-opus-5-5", "anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-5-5", "anthropic:claude-opus-5",
    "anthropic:claude-sonnet-5", "anthropic:claude-opus-4-8", "anthropic:claude-sonnet-4-6",
    "anthropic:claude-haiku-4-5",
    "openai:gpt-6.1-sol", "openai:gpt-6.1-terra", "openai:gpt-6-astra", "openai:gpt-6-sol", "openai:gpt-6-luna",
    "openai:gpt-5.6-sol", "openai:gpt-5.6-terra", "openai:gpt-5.6-luna", "openai:gpt-5.5", "openai:gpt-5.4",
    "openai:gpt-5.4-mini", "openai:gpt-5.2", "openai:gpt-5", "openai:gpt-5-mini", "openai:gpt-4.1", "openai:gpt-4o",
    "openai:o3", "openai:o4-mini", "offline:surveyor", "offline:summarizer",
)  # fmt: skip
"""Models by name, for lists and hints; any other name of a provider works as well."""

_HINTS = (("claude", "anthropic"), ("gpt", "openai"), ("o3", "openai"), ("o4", "openai"))


def providers() -> tuple[str, ...]:
    """The names of all providers, built in and installed, sorted."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def create_model(name: str, settings: ModelSettings | None = None) -> Model:
    """The model of this name, for example `anthropic:claude-opus-5-5`.

    Reads no key and opens no connection: a missing key is an `AuthFailed` at the first send. Raises `ConfigError` for a
    name without provider, an unknown provider (it names the nearest one), or settings that cannot work.
    """
    provider, colon, model_id = name.partition(":")
    if not colon or not model_id or not provider:
        raise ConfigError(f"the model {name!r} must be written provider:model{_hint(name)}")
    return _factory(provider, name)(model_id, settings or ModelSettings())


def guessed_window(name: str, window: int, key: str = "[model] context_window") -> str:
    """That the window of a model is a guess, with the nearest known name, and the key that sets it."""
    near = near_model(name)
    hint = f" (did you mean {near}?)" if near else ""
    return f"the window of {name} is not known{hint}: {window:,} tokens are a guess; {key} sets what the model has"


def near_model(name: str) -> str | None:
    """The known model of the same provider whose name is nearest to one that is not known."""
    provider, _, model_id = name.partition(":")
    ids = [known.partition(":")[2] for known in KNOWN if known.startswith(f"{provider}:")]
    near = difflib.get_close_matches(model_id, ids, n=1, cutoff=0.8)
    return f"{provider}:{near[0]}" if near else None


def _factory(provider: str, name: str) -> Factory:
    place = BUILT_IN.get(provider)
    if place is not None:
        module, _, attribute = place.partition(":")
        factory: Factory = getattr(importlib.import_module(module), attribute)
        return factory
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=provider))
    if not found:
        known = providers()
        near = difflib.get_close_matches(provider, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown provider {provider!r} in the model {name!r}{hint} (known: {', '.join(known)})")
    try:
        return found[0].load()
    except Exception as e:
        raise ConfigError(
            f"the provider {provider!r} ({found[0].value}) cannot be loaded: {type(e).__name__}: {e}"
        ) from e


def _hint(name: str) -> str:
    provider = next((provider for start, provider in _HINTS if name.startswith(start)), None)
    return f", for example {provider}:{name}" if provider and name else ""
