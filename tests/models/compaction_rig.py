"""A model behind a server that compacts: a conversation of two rounds, its first part compacted, what comes after."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from worker.items import Item, OpaqueItem, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Compacted, Delta, ModelSettings, NativeWay, Reply, Request, ToolSpec
from worker.models.registry import create_model
from worker.models.wire import Wire
from worker.testing.provider_server import Answer, Call, ProviderServer

WAYS: list[tuple[str, NativeWay]] = [
    ("openai", "responses.compact"),
    ("openai", "compaction_trigger"),
    ("anthropic", "summarize"),
    ("anthropic", "threshold_edit"),
]
NAMES = {"openai": "openai:gpt-6-sol", "anthropic": "anthropic:claude-opus-5-5"}
READ = ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
LONG = "Read a.py and b.py, and say what they do. " * 7_000
"""More than 50,000 tokens, by the estimator and by the server."""


def request_of(model: Any, items: Sequence[Item], *, tools: tuple[ToolSpec, ...] = (READ,)) -> Request:
    return Request("You are a test.", tools, items, Wire(model.encoder, items).body(), 4_000, "pod-1")


@asynccontextmanager
async def model_of(server: ProviderServer, name: str = "", **settings: Any) -> AsyncGenerator[Any]:
    model = create_model(name or NAMES[server.wire], ModelSettings(base_url=server.url, **settings))
    try:
        yield model
    finally:
        await model.aclose()


async def sent(model: Any, items: Sequence[Item], **rest: Any) -> Reply:
    return await model.send(request_of(model, items, **rest), _show_nothing)


def _show_nothing(_: Delta) -> None: ...


ROUNDS = [
    Answer("First a.", reasoning="Look at a.", calls=[Call("read_file", {"path": "a.py"}, "call_a")]),
    Answer("Now b.", reasoning="Then at b.", calls=[Call("read_file", {"path": "b.py"}, "call_b")]),
]


async def conversation(model: Any, text: str = LONG) -> tuple[list[Item], list[Item]]:
    """Two rounds with the server's `ROUNDS`: what is compacted, and the turn that is kept behind it."""
    history: list[Item] = [UserItem(id="u1", text=text)]
    cut = 0
    for number in (1, 2):
        cut = len(history)
        reply = await sent(model, history)
        items = [
            item.model_copy(update={"id": f"{number}.{n}", "reply": f"r{number}"}) for n, item in enumerate(reply.items)
        ]
        call = next(item for item in items if isinstance(item, ToolCallItem))
        result = ToolResultItem(
            id=f"{number}.r",
            call_id=call.call_id,
            name=call.name,
            status="ok",
            summary="1 line",
            content=f"x = {number}",
        )
        history += [*items, result]
    return history[:cut], history[cut:]


def readable(made: Compacted, text: str = "The deterministic extract.") -> OpaqueItem:
    """The memory as a pod keeps it: where the provider has no readable text, with one."""
    return made.item if made.item.readable else made.item.model_copy(update={"readable": text})
