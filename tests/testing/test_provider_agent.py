"""A function behind the wire of a provider: what it is shown, and a whole survey with compactions by the provider."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offline.survey_drive import Drive, above
from offline.survey_reading import expected
from offline.survey_tree import grow

from worker.errors import BadRequest
from worker.items import (
    AssistantItem,
    ContextItem,
    Item,
    OpaqueItem,
    OrderItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
    make_call,
)
from worker.models.anthropic import MessagesModel
from worker.models.base import ModelSettings, NativeWay, Reply, Request, ToolSpec, Usage
from worker.models.openai_chat import ChatModel
from worker.models.openai_responses import ResponsesModel
from worker.models.registry import create_model
from worker.models.wire import Wire
from worker.offline.survey_view import FINDING
from worker.offline.surveyor import survey
from worker.testing import check_items, make_reply
from worker.testing.provider_agent import ProviderAgent
from worker.testing.provider_http import RecordedRequest
from worker.testing.provider_server import Answer, ProviderServer

WIRES: dict[str, Any] = {"openai": ResponsesModel, "anthropic": MessagesModel, "openai-chat": ChatModel}
NAMES = {"openai": "openai:gpt-6-sol", "anthropic": "anthropic:claude-opus-5-5"}
WAYS: list[tuple[str, NativeWay]] = [
    ("openai", "responses.compact"), ("openai", "compaction_trigger"), ("anthropic", "summarize")
]  # fmt: skip
SPEC = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


def shown(wire: Any, items: Sequence[Item]) -> Request:
    """What the function behind a wire is shown of these items."""
    model = WIRES[wire]("m")
    request = Request("Be brief.", (SPEC,), items, Wire(model.encoder, items).body(), 100, "key")
    agent = ProviderAgent(wire, lambda _: make_reply())
    return agent.request(RecordedRequest("POST", "/", {}, model.body(request)))


def bare(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items without what no wire carries."""
    gone = {"id", "reply", "native_id", "path", "sha256", "pruned", "prunable", "provider", "model", "payload", "trust"}
    return [item.model_dump(exclude=gone) for item in items]


words = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())
plain = words.filter(lambda text: "<" not in text and "＜" not in text and "‹" not in text)
line = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(lambda x: x.strip())


@st.composite
def histories(draw: Any) -> list[Item]:
    items: list[Item] = [
        OrderItem(text=draw(plain), tag="T"),
        ContextItem(kind="summary", text=draw(plain), source='a "b" <c> & d'),
        ContextItem(kind="user_words", text=draw(plain)),
        UserItem(text=draw(words)),
    ]
    for n in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            items.append(AssistantItem(text=draw(words), reply=f"r{n}"))
        calls = [
            make_call(f"c{n}{i}", "look", json.dumps({"x": draw(words)}, ensure_ascii=False))
            for i in range(draw(st.integers(1, 2)))
        ]
        items += [call.model_copy(update={"reply": f"r{n}"}) for call in calls]
        items += [
            ToolResultItem(
                call_id=c.call_id, name="look", status="ok", summary=draw(line), content=draw(st.none() | words)
            )
            for c in calls
        ]
    return items


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from(sorted(WIRES)))
def test_a_function_is_shown_the_items_that_were_sent(items: list[Item], wire: str) -> None:
    found = shown(wire, items)
    assert bare(found.items) == bare(items)
    check_items(found.items)
    assert [item.id for item in found.items] == [item.id for item in shown(wire, items).items]
    assert (found.system, found.tools, found.max_output_tokens) == ("Be brief.", (SPEC,), 100)
    assert all(item.trust == "user" for item in found.items if item.type == "context" and item.kind == "user_words")


def test_calls_of_one_reply_are_one_reply_again() -> None:
    rounds: list[Item] = [UserItem(text="x")]
    for n in (1, 2):
        rounds.append(AssistantItem(text="a", reply=f"r{n}"))
        rounds += [make_call(f"c{n}{i}", "look", "{}").model_copy(update={"reply": f"r{n}"}) for i in (1, 2)]
        rounds += [ToolResultItem(call_id=f"c{n}{i}", name="look", status="ok", summary="s") for i in (1, 2)]
    for wire in WIRES:
        replies = [item.reply for item in shown(wire, rounds).items if isinstance(item, AssistantItem | ToolCallItem)]
        assert len(set(replies[:3])) == 1 and len(set(replies[3:])) == 1 and len(set(replies)) == 2


def test_an_error_is_told_where_the_wire_says_it() -> None:
    items = [
        UserItem(text="x"), make_call("c", "look", "{}"),
        ToolResultItem(call_id="c", name="look", status="denied", summary="no"),
    ]  # fmt: skip
    told = {wire: next(x.status for x in shown(wire, items).items if x.type == "tool_result") for wire in WIRES}
    assert told == {"openai": "ok", "openai-chat": "ok", "anthropic": "error"}
    agent = ProviderAgent("openai", lambda _: make_reply(), status_of=lambda text: "denied" if text == "no" else "ok")
    body = ResponsesModel("m").body(Request("", (), items, Wire(ResponsesModel("m").encoder, items).body(), 1))
    assert agent.request(RecordedRequest("POST", "/", {}, body)).items[-1].status == "denied"  # type: ignore[union-attr]


def test_a_reply_becomes_an_answer() -> None:
    reply = make_reply(
        ReasoningItem(provider="", model="", payload="", text="why"),
        AssistantItem(text="said"),
        make_call("c", "look", '{"a": 1}'),
        usage=Usage(input_tokens=10, output_tokens=2, cached_tokens=4, cache_write_tokens=1),
    )
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}).encode()
    answer = ProviderAgent("anthropic", lambda _: reply)(RecordedRequest("POST", "/", {}, body))
    assert (answer.text, answer.reasoning, [c.text() for c in answer.calls]) == ("said", "why", ['{"a": 1}'])
    assert answer.calls[0].id == "c" and answer.usage == (10, 2, 4, 1, 0) and answer.stop is None
    cut = ProviderAgent("anthropic", lambda _: make_reply(AssistantItem(text="x"), stop="length"))
    assert cut(RecordedRequest("POST", "/", {}, body)) == Answer("x", calls=[], stop="length")


# -- a whole agent


def facts(request: Request) -> str:
    """A summary of a survey: every finding that the model said or had in an earlier summary."""
    texts = [x.text for x in request.items if x.type == "assistant" or (x.type == "context" and x.kind == "summary")]
    found = (line for text in texts for line in text.split("\n") if line.startswith(FINDING))
    return "\n".join(["Files were read.", *dict.fromkeys(found)])


def thinking(request: Request) -> Reply:
    """The surveyor, with reasoning that its provider binds to what stands before it."""
    reply = survey(request)
    return make_reply(ReasoningItem(provider="", model="", payload="", text="I go on."), *reply.items)


@dataclass
class Sending:
    """A model over HTTP as a drive wants it: each reply has a name. `dropped` is what the provider did to the input."""

    http: Any
    replies: int = 0
    dropped: list[Any] = field(default_factory=list)

    async def send(self, request: Request, emit: Any) -> Reply:
        reply = await self.http.send(request, emit)
        self.replies += 1
        self.dropped += reply.transformations
        items = tuple(item.model_copy(update={"reply": f"r{self.replies}"}) for item in reply.items)
        return replace(reply, items=items)


@dataclass
class NativeDrive(Drive):
    """A drive over a wire, whose context is compacted by the provider; the last two replies are kept."""

    way: NativeWay = "summarize"

    def request(self, items: Sequence[Item]) -> Request:
        check_items(items)
        specs = tuple(tool.spec for tool in self.tools.values())
        encoder = cast("Sending", self.model).http.encoder
        return Request("You survey files.", specs, tuple(items), Wire(encoder, items).body(), 4_096, "k")

    async def compact(self) -> None:
        begun = {reply: at for at, item in reversed([*enumerate(self.items)]) if (reply := getattr(item, "reply", ""))}
        if len(begun) < 3:
            return
        self.losses += 1
        at = sorted(begun.values())[-2]
        source, tail = self.items[:at], self.items[at:]
        made = await cast("Sending", self.model).http.compact_by(self.way, self.request(source))
        said = [x for x in source if isinstance(x, UserItem) or (isinstance(x, ContextItem) and x.kind == "user_words")]
        again = [ContextItem(kind="user_words", text=item.text, trust="user") for item in said]
        self.items = [made.item.model_copy(update={"readable": made.item.readable or "extract"}), *tail, *again]


@pytest.mark.anyio
@pytest.mark.parametrize("notes", ["notes/log.md", None])
@pytest.mark.parametrize(("wire", "way"), WAYS)
async def test_a_whole_survey_runs_behind_the_wire_with_compactions_by_the_provider(
    wire: Any, way: NativeWay, notes: str | None, tmp_path: Path
) -> None:
    """Strict, with bound reasoning: nothing is rejected, and no reasoning of a kept turn is dropped."""
    root = tmp_path / "work"
    root.mkdir()
    tree = grow(root, 3, notes=notes)
    failed = re.compile(r"^no such file|has \d+ lines?: offset|^not ")
    agent = ProviderAgent(
        wire, thinking, summarize=facts, status_of=lambda text: "error" if failed.search(text[:200]) else "ok"
    )
    with ProviderServer(
        agent, wire=wire, strict=True, bind_reasoning=True, compacts=agent.compact, ways=(way,)
    ) as server:
        model = create_model(NAMES[wire], ModelSettings(base_url=server.url))
        sending = Sending(model)
        drive = NativeDrive(root, cast("Any", sending), lose=above(6_000), way=way)
        try:
            await drive.run(tree.task)
        finally:
            await model.aclose()
    assert (root / "report.md").read_text() == expected(
        root, tree.folders, tree.title, tree.order, tree.last_line, tree.forbidden
    )
    assert drive.losses >= 2 and len(server.compacted) == drive.losses
    assert server.rejected == [] and sending.dropped == []
    assert isinstance(drive.items[0], OpaqueItem)


def test_on_chat_completions_the_users_own_messages_between_two_replies_are_one() -> None:
    wrapped = ContextItem(kind="notice", text="a\n\nb", source="clock")
    items = [UserItem(text="one"), UserItem(text="two"), wrapped, UserItem(text="three")]
    assert bare(shown("openai-chat", items).items) == bare(
        [UserItem(text="one\n\ntwo"), wrapped, UserItem(text="three")]
    )


@pytest.mark.anyio
@pytest.mark.parametrize("wire", sorted(WIRES))
async def test_a_function_that_raises_is_told_as_a_refusal_that_is_not_tried_again(wire: Any) -> None:
    def broken(_: Request) -> Reply:
        raise KeyError("no_such_key")

    with ProviderServer(ProviderAgent(wire, broken), wire=wire, strict=True) as server:
        names = {**NAMES, "openai-chat": "openai-chat:local"}
        model = create_model(names[wire], ModelSettings(base_url=server.url))
        items = [UserItem(text="x")]
        try:
            with pytest.raises(BadRequest, match=r"raised KeyError: 'no_such_key' \(test_provider_agent\.py:\d+\)"):
                await model.send(Request("", (), items, Wire(model.encoder, items).body(), 10), lambda _: None)
        finally:
            await model.aclose()
        assert len(server.requests) == 1
