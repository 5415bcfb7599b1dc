"""Models that work without a key and without a network, by rules: `offline:surveyor` and `offline:summarizer`.

They make the whole runtime usable and testable, and are templates for test agents of your own: a function from the
request to a reply, given to `worker.testing.FunctionModel`. The surveyor also answers an order for a summary, as any
model would, when a compaction continues its own conversation.
"""

from __future__ import annotations

from worker.errors import ConfigError
from worker.models.base import Capabilities, Model, ModelSettings, Price, Reply, Request

WINDOW = 128_000
"""Tokens of context of an offline model, unless the settings name another number."""

MAX_OUTPUT = 8_192
"""Output tokens of an offline model, unless the settings name another number."""

NAMES = ("surveyor", "summarizer")
"""The offline models."""


def create(model_id: str, settings: ModelSettings) -> Model:
    """The model `offline:<model_id>`. Raises `ConfigError` for an unknown name."""
    from worker.offline.summarizer import is_asked, summarize
    from worker.offline.surveyor import survey
    from worker.testing.function_model import FunctionModel

    def surveyor(request: Request) -> Reply:
        return summarize(request) if is_asked(request) else survey(request)

    name = model_id.removeprefix("offline:")
    functions = {"surveyor": surveyor, "summarizer": summarize}
    if name not in functions:
        raise ConfigError(
            f"there is no model offline:{name}; there are {', '.join(f'offline:{each}' for each in NAMES)}"
        )
    capabilities = Capabilities(
        window=settings.context_window or WINDOW,
        window_source="manifest" if settings.context_window else "table",
        max_output=settings.max_output_tokens or MAX_OUTPUT,
        max_output_source="manifest" if settings.max_output_tokens else "table",
        family="o200k",
        images=False,
        price=Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0, source="offline models are free"),
    )
    return FunctionModel(f"offline:{name}", functions[name], capabilities=capabilities)
