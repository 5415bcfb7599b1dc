"""Promises of the strict checks: what a strict provider rejects is rejected, what it takes is taken."""

from __future__ import annotations

import pytest

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
    make_call,
)
from worker.models.base import Request, ToolSpec
from worker.testing import InvalidItems, PlainEncoder, check_items, check_request, encode_items


def user(text: str = "go") -> UserItem:
    return UserItem(text=text)


def said(text: str = "ok", reply: str = "r1") -> AssistantItem:
    return AssistantItem(text=text, reply=reply)


def called(call_id: str, reply: str = "r1", name: str = "look") -> ToolCallItem:
    return make_call(call_id, name, "{}").model_copy(update={"reply": reply})


def result(call_id: str, text: str = "seen") -> ToolResultItem:
    return ToolResultItem(call_id=call_id, name="look", status="ok", summary=text)


def thought(reply: str = "r1", provider: str = "p", model: str = "m") -> ReasoningItem:
    return ReasoningItem(provider=provider, model=model, payload="{}", reply=reply)


TWICE = user("twice")

GOOD: dict[str, list[Item]] = {
    "a question": [user()],
    "a context item first": [ContextItem(kind="summary", text="x"), user()],
    "a round": [user(), said(), called("1"), result("1")],
    "several calls, results in any order": [user(), called("1"), called("2"), result("2"), result("1"), user()],
    "text behind a call of the same reply": [user(), called("1"), said(), result("1")],
    "two rounds": [user(), called("1"), result("1"), called("2", "r2"), result("2"), said("done", "r3"), user("more")],
    "reasoning with its reply": [user(), thought(), called("1"), result("1")],
    "a picture without words": [UserItem(text="", images=(Image(media_type="image/png", data="AA"),))],
    "damaged arguments": [user(), make_call("1", "look", '{"a'), result("1")],
    "an order at the end": [user(), said(), OrderItem(text="go on", tag="t")],
    "no arguments at all": [user(), make_call("1", "look", ""), result("1")],
    "an opaque item": [user(), OpaqueItem(provider="p", model="m", payload="{}"), user("x")],
}

BAD: dict[str, tuple[list[Item], str]] = {
    "nothing": ([], "no items"),
    "a reply first": ([said(), user()], "begins with a reply"),
    "a result first": ([result("1")], "was not made before"),
    "a reply last": ([user(), said()], "ends with a reply"),
    "a call without result": ([user(), called("1")], r"\['1'\] have no result"),
    "a user between": ([user(), called("1"), user(), result("1")], "before the results"),
    "a context item between": ([user(), called("1"), ContextItem(kind="notice", text="x"), result("1")], "before the"),
    "another reply between": ([user(), called("1"), said("x", "r2"), result("1")], "before the results"),
    "another call between": ([user(), called("1"), called("2", "r2"), result("1"), result("2")], "before the results"),
    "a user among results": ([user(), called("1"), called("2"), result("1"), user(), result("2")], "before the"),
    "two results": ([user(), called("1"), result("1"), result("1")], "has a result already"),
    "a call id twice": ([user(), called("1"), result("1"), called("1", "r2"), result("1")], "occurs twice"),
    "an item twice": ([TWICE, TWICE], "the id occurs twice"),
    "an empty reply": ([user(), said(""), user()], "the text is empty"),
    "a blank reply": ([user(), said(" \n"), user()], "the text is empty"),
    "an empty question": ([user("")], "the text is empty"),
    "half a surrogate": ([UserItem(text="a\ud800")], "surrogate"),
    "half a surrogate in a result": ([user(), called("1"), result("1", "\udfff")], "surrogate"),
    "a bad tool name": ([user(), called("1", name="a b"), result("1")], "no name of a tool"),
    "lone reasoning": ([user(), thought(), user()], "nothing of its reply"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_valid_history_is_taken(kind: str) -> None:
    check_items(GOOD[kind])


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_history_is_rejected_with_the_rule(kind: str) -> None:
    items, rule = BAD[kind]
    with pytest.raises(InvalidItems, match=rule):
        check_items(items)


def test_reasoning_of_another_model_is_rejected_where_the_model_is_named() -> None:
    items = [user(), thought(), called("1"), result("1")]
    check_items(items, model="p:m")
    with pytest.raises(InvalidItems, match="made by p:m, sent to p:other"):
        check_items(items, model="p:other")


def test_a_memory_is_for_every_model() -> None:
    memory = OpaqueItem(provider="p", model="m", payload="{}", source_hash="h", readable="What happened.")
    check_items([memory, user()], model="p:other")
    with pytest.raises(InvalidItems, match="surrogate"):
        check_items([memory.model_copy(update={"readable": "\ud800"}), user()])


@pytest.mark.parametrize("kind", GOOD)
def test_a_request_is_taken_with_the_messages_of_its_items(kind: str) -> None:
    encoder = PlainEncoder("p", "m")
    items = GOOD[kind]
    check_request(Request("", (), items, encode_items(encoder, items), 100), encoder)
    with pytest.raises(InvalidItems, match="differ at byte"):
        check_request(Request("", (), items, encode_items(encoder, items)[:-1], 100), encoder)


def test_a_tool_that_is_declared_twice_is_rejected() -> None:
    spec = ToolSpec("look", "", {})
    encoder = PlainEncoder()
    items = [user()]
    with pytest.raises(InvalidItems, match="occurs twice"):
        check_request(Request("", (spec, spec), items, encode_items(encoder, items), 100), encoder)


def test_the_encoder_joins_what_belongs_together() -> None:
    encoder = PlainEncoder("p", "m")
    items: list[Item] = [
        user("a"), ContextItem(kind="notice", text="b", source="s"), thought(), said("c"), called("1"), called("2"),
        result("1"), result("2"), said("d", "r2"), said("e", "r3"), user("f"),
    ]  # fmt: skip
    import json

    messages = json.loads(b"[" + encode_items(encoder, items) + b"]")
    assert [message["role"] for message in messages] == [
        "user", "assistant", "tool", "tool", "assistant", "assistant", "user",
    ]  # fmt: skip
    assert messages[0]["content"].startswith("a\n\n<context")
    assert messages[1]["reasoning"] == ["{}"]
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["1", "2"]


def test_what_no_provider_takes_is_left_out_by_the_encoder() -> None:
    encoder = PlainEncoder("p", "m")
    items = [user("a"), said(""), thought(provider="other"), user("b")]
    assert encode_items(encoder, items) == b'{"role":"user","content":"a\\n\\nb"}'
    assert encoder.encode([said("")]) == b""
