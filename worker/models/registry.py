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
