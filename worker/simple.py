"""A worker without a pod: in memory, for a script, a test, or a service with a store of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.budget import DEFAULT_BUFFER
from worker.calling import Caller
from worker.errors import ConfigError
from worker.history import History
from worker.hooks import checked
from worker.ids import uuid7
from worker.interceptor import Interceptor
from worker.ledger import Ledger
from worker.loop import Observer, Silent, Worker
from worker.models.base import Model
from worker.records import Journal, MemoryJournal
from worker.retry import RetryPolicy
from worker.sending import Sender
from worker.tools import Tool, tool


def make_worker(
    model: Model | str,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    *,
    system: str = "",
    interceptors: Sequence[Interceptor] = (),
    fallback: Sequence[Model | str] = (),
    journal: Journal | None = None,
    observer: Observer | None = None,
    cwd: Path | None = None,
    deps: Any = None,
    services: Mapping[type, object] | None = None,
    retry: RetryPolicy | None = None,
    max_output_tokens: int = 0,
    buffer: int = DEFAULT_BUFFER,
    tag: str = "",
) -> Worker:
    """A worker with an empty history. Talk to it with `Worker.ask`.

    `model` and `fallback` are models or names (`provider:model`); who makes the worker closes them. Plain functions
    among `tools` are made into tools. `journal` is where records go, by default a list in memory (`MemoryJournal`).
    `deps` and `services` are handed to tools (`deps` to interceptors too), `cwd` is their folder. `max_output_tokens` and `buffer` are tokens (0:
    what the model gives). `tag` marks the orders of interceptors; name it in `system` where they give some.

    Nothing here compacts: a request above what the model's window leaves ends the run as `Failed("over_budget")`.
    Raises `ConfigError` for an unknown model name, a tool that cannot be made, two tools of one name, or what is no interceptor.
    """
    models = [_model(each) for each in (model, *fallback)]
    offered = [each if isinstance(each, Tool) else tool(each) for each in tools]
    twice = [name for name, count in Counter(each.name for each in offered).items() if count > 1]
    if twice:
        raise ConfigError(f"two tools are named {twice[0]!r}; give one of them another name: @tool(name=...)")
    asked = checked(interceptors)
    ledger = Ledger(journal or MemoryJournal(), History(family=models[0].capabilities.family), asked)
    sender = Sender(
        models=models,
        ledger=ledger,
        system=system,
        tools=tuple(each.spec for each in offered),
        max_output_tokens=max_output_tokens,
        buffer=buffer,
        retry=retry or RetryPolicy(),
        cache_key=uuid7(),
    )
    caller = Caller(
        ledger=ledger,
        tools={each.name: each for each in offered},
        interceptors=asked,
        cwd=cwd or Path.cwd(),
        tag=tag or uuid7()[-12:],
        deps=deps,
        services=dict(services or {}),
    )
    return Worker(ledger, sender, caller, asked, observer=observer or Silent())


def _model(model: Model | str) -> Model:
    if not isinstance(model, str):
        return model
    from worker.models.registry import create_model

    return create_model(model)
