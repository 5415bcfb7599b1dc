"""Memories that a server does not take back: which refusals are laid to them, what is remembered, what was paid for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.compaction_rig import LONG, WAYS, model_of, readable, request_of, sent
from worker.errors import BadRequest, InvalidHistory, ModelError, ProviderDown
from worker.items import OpaqueItem, UserItem
from worker.memory import distrust, reads_in_words
from worker.models.anthropic import MessagesModel
from worker.models.base import NativeWay, NoCompaction
from worker.models.compaction import form_refused
from worker.models.openai_responses import ResponsesModel
from worker.testing.provider_server import Answer, Compaction, Http, ProviderServer, Tokens
from worker.testing.provider_wires import error_body
from worker.text import sha256

pytestmark = pytest.mark.anyio

each_way = pytest.mark.parametrize(("wire", "way"), WAYS)
each_wire = pytest.mark.parametrize("wire", ["openai", "anthropic"])


def memory(wire: str, number: int = 1, **fields: Any) -> OpaqueItem:
    model = "gpt-6-sol" if wire == "openai" else "claude-opus-5-5"
    payload = json.dumps({"type": "compaction", "id": f"cmp_{number}", "encrypted_content": f"sealed {number}"})
    given: dict[str, Any] = {"provider": wire, "model": model, "payload": payload}
    return OpaqueItem(source_hash="h", readable="The text.", **(given | fields))


async def refused(model: Any, item: OpaqueItem) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await sent(model, [item, UserItem(text="Go on.")])
    return caught.value


def answering(*steps: Any, wire: Any) -> ProviderServer:
    server = ProviderServer(list(steps), wire=wire)
    server._refuse = lambda *_: None  # type: ignore[method-assign]  # a server with its own words
    return server


REFUSALS = [
    (400, "messages.0.content.0: Input tag 'compaction' found using 'type' does not match any of the expected tags"),
    (400, "unsupported content block type in assistant message"),
    (400, "messages.0: Invalid `signature` in block"),
    (422, "union_tag_invalid"),
    (400, "Unknown input item type"),
    (404, "Item with id 'cmp_1' not found. Items are not persisted when `store` is set to false."),
    (500, "KeyError: 'text'"),
]


@each_wire
@pytest.mark.parametrize(("status", "message"), REFUSALS)
async def test_b013_any_refusal_may_mean_a_memory_that_was_never_taken(wire: Any, status: int, message: str) -> None:
    """B013: a server that knows no such block has many words for that, and the session goes on all the same."""
    with answering(Http(status, error_body(wire, message)), Answer("Done."), wire=wire) as server:
        async with model_of(server) as model:
            own = memory(wire)
            error = await refused(model, own)
            assert error.memory == sha256(own.payload) and model.repair(error)
            await sent(model, [own, UserItem(text="Go on.")])
            assert model.rejects(own) and reads_in_words(model, own) and model.encoder.reasoning
        assert b"The text." in server.requests[-1].body and b"sealed 1" not in server.requests[-1].body


@each_wire
async def test_a_memory_that_was_taken_once_is_not_laid_every_fault_to(wire: Any) -> None:
    with answering(Answer("Done."), Http(400, error_body(wire, "bad field")), wire=wire) as server:
        async with model_of(server) as model:
            own = memory(wire)
            await sent(model, [own, UserItem(text="Go on.")])
            assert model.repair(await refused(model, own)) is None and not model.rejects(own)


@each_wire
async def test_a_memory_that_was_not_the_reason_is_sent_as_it_is_again(wire: Any) -> None:
    with answering(Http(500, error_body(wire, "boom")), Answer("Done."), wire=wire) as server:
        async with model_of(server) as model:
            own = memory(wire)
            error = await refused(model, own)
            assert model.repair(error)
            model.believe(error.memory)
            await sent(model, [own, UserItem(text="Go on.")])
            assert not model.rejects(own) and model.memories_rejected == 0
        assert b"sealed 1" in server.requests[-1].body.replace(b"\\", b"")


@each_wire
async def test_only_the_rejected_memory_is_in_words_and_two_in_a_row_are_enough(wire: Any) -> None:
    bad = Http(400, error_body(wire, "no such block"))
    with answering(bad, Answer("1"), Answer("2"), bad, Answer("3"), bad, Answer("4"), wire=wire) as server:
        async with model_of(server) as model:

            async def rejected(number: int) -> None:
                own = memory(wire, number)
                assert model.repair(await refused(model, own))
                await sent(model, [own, UserItem(text="Go on.")])

            await rejected(1)
            assert distrust(model) == ""
            await sent(model, [memory(wire, 2), UserItem(text="Go on.")])
            assert not model.rejects(memory(wire, 2)) and model.memories_rejected == 0
            await rejected(3)
            await rejected(4)
            assert "its memories are not accepted" in distrust(model)


def test_reasoning_is_left_out_first_where_it_is_named() -> None:
    model = ResponsesModel("gpt-6-sol")
    error = InvalidHistory("The encrypted content for item rs_1 could not be verified.")
    error.memory = sha256(memory("openai").payload)
    assert model.repair(error) and not model.encoder.reasoning and not model.encoder.rejected


async def test_other_failures_are_not_laid_to_a_memory() -> None:
    model = MessagesModel("claude-opus-5-5")
    for error in (ProviderDown("no connection"), ModelError("x")):
        error.memory = "hash"
        assert model.repair(error) is None


@pytest.mark.parametrize("make", [lambda: MessagesModel("claude-opus-5-5"), lambda: ResponsesModel("gpt-6-sol")])
@pytest.mark.parametrize("half", [r"\ud83d lone", "\ud83d lone"])
def test_b145_a_memory_with_half_a_character_is_read_in_words_by_its_own_model_too(make: Any, half: str) -> None:
    """B145, B146: no provider takes such a text back."""
    model = make()
    own = memory(model.provider, payload='{"type":"compaction","content":"' + half + '"}')
    assert own.is_damaged and reads_in_words(model, own)
    body = model.body(request_of(model, [own, UserItem(text="x")]))
    assert (
        b"The text." in body and b"lone" not in body and "compact-" not in str(model.headers(request_of(model, [own])))
    )
    whole = memory(model.provider, payload=r'{"type":"compaction","content":"\ud83d\ude00 \\ud83d"}')
    assert not whole.is_damaged and not reads_in_words(model, whole)


# -- what was paid for, and which way is left


@each_way
async def test_b158_an_answer_without_a_compaction_says_what_it_cost(wire: str, way: NativeWay) -> None:
    """B158: it was billed all the same."""
    usage = Tokens(60_000, 700, 50_000, 100)
    answers = [Compaction(None, usage=usage)]
    answers += [] if way == "responses.compact" else [Compaction("S", beside="A text.", usage=usage)]
    for answer in answers:
        with ProviderServer([], wire=wire, compacts=lambda _, a=answer: a, ways=(way,)) as server:  # type: ignore[arg-type]
            async with model_of(server) as model:
                with pytest.raises(NoCompaction) as caught:
                    await model.compact_by(way, request_of(model, [UserItem(text=LONG)]))
        paid = caught.value.usage
        assert (paid.input_tokens, paid.cached_tokens, paid.output_tokens) == (60_000, 50_000, 700)


@pytest.mark.parametrize(
    ("way", "status", "message", "gone"),
    [
        ("summarize", 400, "messages.4: the conversation is too short to compact", False),
        ("summarize", 400, "compaction is temporarily disabled for your workspace", False),
        ("summarize", 400, "messages: at least one tool is not supported", False),
        ("summarize", 404, "upstream not found", False),
        ("compaction_trigger", 400, "Compaction failed: try again", False),
        ("responses.compact", 400, "image input is not supported here", False),
        ("responses.compact", 404, "Item with id 'cmp_1' not found.", False),
        ("responses.compact", 404, "no such path", True),
        ("responses.compact", 405, "method not allowed", True),
        ("responses.compact", 400, "Unknown parameter: 'input'.", True),
        ("compaction_trigger", 400, "Invalid value: 'compaction_trigger'. Supported values are: 'message'", True),
        ("summarize", 400, "compaction: Extra inputs are not permitted", True),
        ("summarize", 400, "Unexpected value(s) `compact-2026-09-04` for the `anthropic-beta` header.", True),
        ("threshold_edit", 400, "context_management is not supported", True),
    ],
)
def test_a_way_is_gone_only_where_its_form_is_refused(way: NativeWay, status: int, message: str, gone: bool) -> None:
    assert form_refused(BadRequest(message, status=status), way) == gone


async def test_the_first_refusal_is_named_where_the_last_way_fails() -> None:
    with ProviderServer([], wire="anthropic", compacts="S", ways=("threshold_edit",)) as server:
        async with model_of(server) as model:
            with pytest.raises(BadRequest, match=r"at least 50,000.*refused before: summarize: .*Extra inputs"):
                await model.compact(request_of(model, [UserItem(text="short")]))


@each_wire
async def test_a_refusal_that_may_mean_the_memory_takes_no_way_away(wire: Any) -> None:
    refusal = Http(400, error_body(wire, "Input tag 'compaction' found using 'type' does not match any expected tag"))
    answers = iter([refusal, "S"])
    with ProviderServer([], wire=wire, compacts=lambda _: next(answers)) as server:
        server._refuse = lambda *_: None  # type: ignore[method-assign]  # a server with its own words
        async with model_of(server) as model:
            ways, items = model.capabilities.native_compaction, [memory(wire), UserItem(text=LONG)]
            with pytest.raises(ModelError) as caught:
                await model.compact(request_of(model, items))
            assert model.repair(caught.value)
            assert readable(await model.compact(request_of(model, items))).way == ways[0]
            assert model.capabilities.native_compaction == ways
