"""The encoded messages of a growing view."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.items import (
    AssistantItem,
    ContextItem,
    Image,
    Item,
    OpaqueItem,
    OrderItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)
from worker.models.anthropic import MessagesEncoder
from worker.models.base import Encoder
from worker.models.openai_chat import ChatEncoder
from worker.models.openai_responses import ResponsesEncoder
from worker.models.wire import Wire

pytestmark = pytest.mark.slow

ENCODERS: dict[str, Encoder] = {
    "chat": ChatEncoder("m"),
    "responses": ResponsesEncoder("m"),
    "anthropic": MessagesEncoder("m"),
}
PAYLOADS = {
    "chat": ("openai-chat", '{"reasoning_content":"thought"}'),
    "responses": ("openai", '{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"abc"}'),
    "anthropic": ("anthropic", '{"type":"thinking","thinking":"t","signature":"s"}'),
}

TEXTS = ["", " ", "a", "bc", "<context>", "é𝄞"]
REPLIES = ["", "r1", "r2"]
CALL_IDS = ["c1", "c2", "bad id!"]


@cache
def items(name: str) -> st.SearchStrategy[Item]:
    """Any item of these texts and ids; all of them are made once."""
    provider, payload = PAYLOADS[name]
    image = Image(media_type="image/png", data="QQ==")
    foreign: dict[str, Any] = {"id": "i", "provider": "other", "model": "m"}
    kinds: list[list[Item]] = [
        [UserItem(id="i", text=text) for text in TEXTS],
        [UserItem(id="i", text=text, images=(image,)) for text in TEXTS],
        [AssistantItem(id="i", text=text, reply=reply) for text in TEXTS for reply in REPLIES],
        [
            ReasoningItem(id="i", provider=who, model="m", payload=payload, reply=reply)
            for who in (provider, "other")
            for reply in REPLIES
        ],
        [
            ToolCallItem(id="i", call_id=call_id, name="t", arguments="{}", reply=reply)
            for call_id in CALL_IDS
            for reply in REPLIES
        ],
        [
            ToolResultItem(id="i", call_id=call_id, name="t", status="ok", summary=text)
            for call_id in CALL_IDS
            for text in TEXTS
        ],
        [ContextItem(id="i", kind="notice", text=text) for text in TEXTS],
        [OrderItem(id="i", text=text, tag="T") for text in TEXTS],
        [
            OpaqueItem(id="i", provider=who, model="m", payload='{"type":"compaction"}', source_hash="h", readable=text)
            for who in (provider, "other")
            for text in TEXTS
        ],
        [OpaqueItem(**foreign, payload="{}", reply=reply) for reply in REPLIES],
    ]
    return st.one_of([st.sampled_from(kind) for kind in kinds])


@cache
def steps(name: str) -> st.SearchStrategy[list[tuple[str, Any]]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("extend"), st.lists(items(name), min_size=1, max_size=4)),
            st.tuples(st.just("replace"), st.tuples(st.integers(0, 40), items(name))),
            st.tuples(st.just("body"), st.none()),
        ),
        max_size=12,
    )


@st.composite
def runs(draw: Any) -> tuple[str, list[Item], list[tuple[str, Any]]]:
    name = draw(st.sampled_from(sorted(ENCODERS)))
    return name, draw(st.lists(items(name), max_size=12)), draw(steps(name))


@settings(max_examples=250, deadline=None)
@given(runs())
def test_a_wire_kept_by_steps_equals_one_made_from_scratch(run: tuple[str, list[Item], list[tuple[str, Any]]]) -> None:
    name, view, steps = run
    encoder = ENCODERS[name]
    wire = Wire(encoder, view)
    view = list(view)
    for kind, value in steps:
        if kind == "extend":
            view += value
            wire.extend(value)
        elif kind == "replace" and view:
            index = value[0] % len(view)
            view[index] = value[1]
            wire.replace(index, value[1])
        else:
            wire.body()
        assert wire.body() == Wire(encoder, view).body()
        assert len(wire) == len(view)


@settings(max_examples=200, deadline=None)
@given(runs())
def test_every_body_is_valid_json_and_roles_alternate(run: tuple[str, list[Item], list[tuple[str, Any]]]) -> None:
    name, view, _ = run
    messages = json.loads(b"[" + Wire(ENCODERS[name], view).body() + b"]")
    if name == "responses":
        return
    roles = [message["role"] for message in messages if message["role"] != "tool"]
    for before, after in itertools.pairwise(messages):
        if {"type": "compaction"} in (before["content"][:1] + after["content"][:1] if name == "anthropic" else []):
            continue
        assert before["role"] == "tool" or before["role"] != after["role"], messages
    assert set(roles) <= {"user", "assistant"}


@settings(max_examples=200, deadline=None)
@given(runs())
def test_extending_keeps_every_closed_message_byte_for_byte(run: tuple[str, list[Item], list[tuple[str, Any]]]) -> None:
    """The provider's prefix cache rests on it: only the last message may still grow."""
    name, view, steps = run
    wire = Wire(ENCODERS[name], view)
    for kind, value in steps:
        if kind != "extend":
            continue
        before = wire.body()
        wire.extend(value)
        after = wire.body()
        old = json.loads(b"[" + before + b"]")
        new = json.loads(b"[" + after + b"]")
        assert [json.dumps(x) for x in new[: max(len(old) - 1, 0)]] == [json.dumps(x) for x in old[:-1]]
        closed = ",".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in old[:-1]).encode()
        assert after.startswith(closed)


def turn(i: int) -> list[Item]:
    return [
        AssistantItem(text=f"step {i}", reply=f"r{i}"),
        ToolCallItem(call_id=f"c{i}", name="t", arguments="{}", reply=f"r{i}"),
        ToolResultItem(call_id=f"c{i}", name="t", status="ok", summary="done", content="x" * 50),
    ]


@pytest.mark.parametrize("name", ENCODERS)
def test_each_item_is_encoded_once_however_many_bodies_are_asked_for(name: str) -> None:
    wire = Wire(ENCODERS[name], [UserItem(text="go")])
    wire.body()
    for i in range(200):
        wire.extend(turn(i))
        wire.body()
        wire.body()
    assert wire.encoded == 1 + 200 * 3


@pytest.mark.parametrize("name", ENCODERS)
def test_replacing_a_result_encodes_its_message_only(name: str) -> None:
    view: list[Item] = [UserItem(text="go"), *(item for i in range(100) for item in turn(i))]
    wire = Wire(ENCODERS[name], view)
    wire.body()
    before = wire.encoded
    view[30 * 3] = ToolResultItem(call_id="c29", name="t", status="ok", summary="done", pruned=True)
    wire.replace(30 * 3, view[30 * 3])
    assert wire.body() == Wire(ENCODERS[name], view).body()
    assert wire.encoded - before <= 3


def test_pieces_without_a_change_are_the_same_object() -> None:
    wire = Wire(ENCODERS["chat"], [UserItem(text="go")])
    assert wire.pieces() is wire.pieces()
    assert Wire(ENCODERS["chat"]).body() == b""


@pytest.mark.parametrize("name", ENCODERS)
def test_a_history_that_grows_stays_a_few_pieces_of_which_most_are_kept(name: str) -> None:
    wire = Wire(ENCODERS[name], [UserItem(text="go")])
    made = 0
    before: set[int] = set()
    kept: list[bytes] = []
    for i in range(500):
        wire.extend(turn(i))
        pieces = [piece for piece in wire.pieces() if piece != b","]
        made += sum(len(piece) for piece in pieces if id(piece) not in before)
        before, kept = {id(piece) for piece in pieces}, pieces
        assert len(pieces) <= 24
    assert made <= 12 * len(wire.body()), "each byte is copied about as often as the history doubles"
    assert kept


def test_a_message_that_became_empty_lets_its_neighbours_join() -> None:
    wire = Wire(ENCODERS["anthropic"], [UserItem(text="a"), AssistantItem(text="b"), UserItem(text="c")])
    wire.replace(1, AssistantItem(text=""))
    messages = json.loads(b"[" + wire.body() + b"]")
    assert [m["role"] for m in messages] == ["user"]
    wire.replace(1, AssistantItem(text="b"))
    assert len(json.loads(b"[" + wire.body() + b"]")) == 3


def test_replacing_what_is_not_there_is_an_error() -> None:
    wire = Wire(ENCODERS["chat"], [UserItem(text="a")])
    for index in (1, -1):
        with pytest.raises(IndexError):
            wire.replace(index, UserItem(text="b"))


def test_reset_begins_again() -> None:
    wire = Wire(ENCODERS["chat"], [UserItem(text="a")])
    wire.reset([UserItem(text="b")])
    assert json.loads(wire.body()) == {"role": "user", "content": "b"}
    assert len(wire) == 1
