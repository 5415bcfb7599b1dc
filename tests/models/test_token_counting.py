"""Counting over the wires: what is asked of the provider, and that a server without the endpoint is not asked again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from worker.counting import count_tokens
from worker.items import UserItem
from worker.models.adapter import HttpModel
from worker.models.anthropic import MessagesModel
from worker.models.base import ModelSettings, Request, ToolSpec
from worker.models.openai_chat import ChatModel
from worker.models.openai_responses import ResponsesModel
from worker.testing.provider_server import Answer, Drop, Http, ProviderServer

pytestmark = pytest.mark.anyio
ADAPTERS: dict[str, Any] = {"anthropic": MessagesModel, "openai": ResponsesModel}
SPEC = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


@asynccontextmanager
async def model_of(server: ProviderServer, **settings: Any) -> AsyncGenerator[HttpModel]:
    made = ADAPTERS[server.wire]("some-model", ModelSettings(base_url=server.url, **settings))
    try:
        yield made
    finally:
        await made.aclose()


def request_of(model: HttpModel) -> Request:
    items = (UserItem(text="hello"),)
    return Request("Be brief.", (SPEC,), items, model.encoder.encode(items), 100)


@pytest.mark.parametrize("wire", list(ADAPTERS))
async def test_the_provider_counts_the_very_input_that_would_be_sent(wire: Any) -> None:
    with ProviderServer([Answer("hi")], wire=wire, counts=lambda request: 1_234) as server:
        async with model_of(server, reasoning="low") as model:
            request = request_of(model)
            assert model.capabilities.counting == "provider"
            assert await count_tokens(model, request) == (1_234, "provider count", "")
            await model.send(request, lambda _: None)
    (counted,), (sent,) = server.counted, server.requests
    assert server.remaining == 0, "a count takes no step of the script"
    for key in {"model", "system", "instructions", "tools", "messages", "input"} & sent.json.keys():
        assert counted.json[key] == sent.json[key], key
    about_the_reply = {"stream", "max_tokens", "max_output_tokens", "store", "include", "prompt_cache_key"}
    assert not about_the_reply & counted.json.keys()


@pytest.mark.parametrize("wire", list(ADAPTERS))
async def test_a_server_without_the_endpoint_is_asked_once(wire: Any) -> None:
    with ProviderServer([], wire=wire) as server:
        async with model_of(server) as model:
            counted = await count_tokens(model, request_of(model))
            assert counted.tokens is None and "ModelNotFound" in counted.problem
            assert model.capabilities.counting == "none"
    assert len(server.counted) == 1 and server.requests == []


@pytest.mark.parametrize(
    "answer",
    [Http(500, {"error": {"message": "down"}}), Http(200, "no json"), Http(200, {"input_tokens": "many"}), Drop()],
    ids=["down", "no-json", "no-number", "dropped"],
)
async def test_a_count_that_fails_is_none_and_leaves_the_connection_usable(answer: Any) -> None:
    with ProviderServer([Answer("hi")], wire="anthropic", counts=lambda request: answer) as server:
        async with model_of(server) as model:
            counted = await count_tokens(model, request_of(model))
            assert counted.tokens is None and counted.problem
            reply = await model.send(request_of(model), lambda _: None)
    assert reply.stop == "end"


async def test_thinking_counts_as_it_would_be_sent() -> None:
    with ProviderServer([], wire="anthropic", counts=lambda request: 7) as server:
        async with model_of(server, extra_body={"metadata": {"a": 1}}) as model:
            assert (await count_tokens(model, request_of(model))).tokens == 7
    body = json.loads(server.counted[0].body)
    assert "thinking" not in body and body["metadata"] == {"a": 1}


async def test_the_chat_api_has_no_endpoint_for_it() -> None:
    model = ChatModel("some-model", ModelSettings(base_url="http://127.0.0.1:9/v1"))
    assert model.capabilities.counting == "none"
