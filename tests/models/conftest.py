"""A model connected to a scripted provider server, and what it showed while it streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from worker.items import Item, UserItem
from worker.models.base import Delta, ModelSettings, Reply, Request, ToolSpec
from worker.models.registry import create_model
from worker.models.wire import Wire
from worker.testing.provider_server import ProviderServer

NAMES = {
    "openai-chat": "openai-chat:some-model",
    "openai": "openai:gpt-6-sol",
    "anthropic": "anthropic:claude-opus-5-5",
}
READ = ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


class Asker:
    """Asks a model, and keeps the pieces that it streamed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.deltas: list[Delta] = []

    async def __call__(
        self,
        items: Sequence[Item] = (),
        *,
        system: str = "You are a test.",
        tools: tuple[ToolSpec, ...] = (READ,),
        output: int = 1_000,
        cache_key: str = "pod-1",
        emit: Any = None,
    ) -> Reply:
        items = list(items) or [UserItem(text="hello")]
        wire = Wire(self.model.encoder, items)
        request = Request(system, tools, items, wire.body(), output, cache_key)
        with anyio.fail_after(20):
            return await self.model.send(request, emit or self.deltas.append)

    def shown(self, kind: str = "text") -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


@asynccontextmanager
async def _connect(server: ProviderServer, name: str | None = None, **settings: Any) -> AsyncIterator[Asker]:
    model = create_model(name or NAMES[server.wire], ModelSettings(base_url=server.url, **settings))
    try:
        yield Asker(model)
    finally:
        await model.aclose()


@pytest.fixture
def connect() -> Any:
    return _connect


@pytest.fixture
def asker() -> type[Asker]:
    return Asker


@pytest.fixture(params=["openai-chat", "openai", "anthropic"])
def wire(request: pytest.FixtureRequest) -> str:
    return request.param
