"""Promises for memories that a provider does not take back: the session goes on with their text, and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from pod.log import entries as e
from pod.stored import record_change
from tests.pod.native_rig import memories, native, rungs
from tests.pod.pod_rig import Counted, Rig, text_of
from worker.items import AssistantItem, ReasoningItem, make_call
from worker.models.base import ModelSettings, Reply, Request
from worker.models.registry import create_model
from worker.records import ProviderRefused, ReplyRecord, Warned
from worker.testing import make_reply
from worker.testing.provider_agent import ProviderAgent
from worker.testing.provider_server import Compaction, Http, ProviderServer, RecordedRequest, Tokens
from worker.testing.provider_wires import error_body

pytestmark = pytest.mark.anyio

NAMES = {"openai": "openai:gpt-6-sol", "anthropic": "anthropic:claude-opus-5-5"}
WAYS = {"openai": "compaction_trigger", "anthropic": "summarize"}
each_wire = pytest.mark.parametrize("wire", ["openai", "anthropic"])


def _pages(request: Request) -> int:
    return max((int(n) for i in request.items for n in re.findall(r"page (\d+) begins", text_of(i))), default=0)


def fetching(total: int) -> Callable[[Request], Reply]:
    def play(request: Request) -> Reply:
        last, thought = _pages(request), ReasoningItem(provider="", model="", payload="", text="I go on.")
        if last >= total:
            return make_reply(thought, AssistantItem(text="done"))
        return make_reply(thought, make_call(f"c{last + 1}", "fetch", json.dumps({"n": last + 1})))

    return play


def summary(request: Request) -> str:
    return f"page {_pages(request)} begins. " + "A fact. " * 30


class Server:
    """A provider that rejects every memory while `rejects` says so, by the number of the request with one."""

    def __init__(
        self,
        wire: Any,
        pages: int,
        rejects: Callable[[int], bool],
        compacts: Callable[[RecordedRequest], Any] | None = None,
    ) -> None:
        self.wire, self.rejects, self.carried = wire, rejects, list[bool]()
        self.agent = ProviderAgent(wire, fetching(pages), summarize=summary)
        self.server = ProviderServer(
            self._step, wire=wire, strict=True, bind_reasoning=True, compacts=compacts or self.agent.compact,
            ways=(WAYS[wire],),  # type: ignore[arg-type]
        )  # fmt: skip

    def _step(self, request: Any) -> Any:
        carries = b'"compaction"' in request.body
        self.carried.append(carries)
        if carries and self.rejects(sum(self.carried)):
            message = "The encrypted content for item cmp_1 could not be verified."
            return Http(400, error_body(self.wire, message, code="invalid_encrypted_content"))
        return self.agent(request)


def model_at(server: ProviderServer, **settings: Any) -> Any:
    return create_model(NAMES[server.wire], ModelSettings(base_url=server.url, **settings))


def always(_: int) -> bool:
    return True


def said(rig: Rig) -> list[Warned]:
    return [w for w in rig.of(Warned) if w.code == "context.memory_rebuilt"]


@each_wire
async def test_b013_a_session_goes_on_at_a_server_that_knows_no_memories(rig: Rig, wire: Any) -> None:
    """B013: another `base_url`, or a gateway, whose server has no compaction."""
    tool_ = Counted(1_500)
    first = Server(wire, 9, lambda _: False)
    with first.server as server:
        model = model_at(server)
        async with rig.open(model, native(), tools=[tool_.tool]) as pod:
            (await pod.run("fetch nine pages")).raise_for_status()
        await model.aclose()
    [memory] = memories(rig)
    with ProviderServer(ProviderAgent(wire, fetching(12), summarize=summary), wire=wire, strict=True) as server:
        model = model_at(server)
        async with rig.open(model, native(), tools=[tool_.tool]) as pod:
            (await pod.run("go on")).raise_for_status()
        assert model.encoder.reasoning
        await model.aclose()
        assert len(server.rejected) == 1 and memory.readable[:20].encode() in server.requests[-1].body
    assert tool_.calls == list(range(1, 13))
    [warning] = said(rig)
    assert warning.figures["from"] == warning.figures["to"] == NAMES[wire] and "rejected a request" in warning.message


@each_wire
async def test_a_rejected_memory_is_one_of_its_own_and_the_next_is_sent_as_it_is(rig: Rig, wire: Any) -> None:
    made = Server(wire, 30, lambda number: number == 1)
    with made.server as server:
        model = model_at(server)
        async with rig.open(model, native(), tools=[Counted(1_500).tool]) as pod:
            (await pod.run("fetch thirty pages")).raise_for_status()
        assert model.encoder.reasoning
        await model.aclose()
    first = made.carried.index(True)
    assert True in made.carried[first + 1 :] and not made.carried[first + 1], "first its text, then the next memory"
    assert len(said(rig)) == 1 and {r for r, _ in rungs(rig)} == {"native"}


@each_wire
async def test_where_memories_keep_being_rejected_no_more_are_paid_for(rig: Rig, wire: Any) -> None:
    made = Server(wire, 40, lambda _: True)
    with made.server as server:
        model = model_at(server)
        async with rig.open(model, native(ladder=["native", "checkpoint"]), tools=[Counted(1_500).tool]) as pod:
            (await pod.run("fetch forty pages")).raise_for_status()
        await model.aclose()
    assert len(rig.of(e.NativeMade)) == 2 == len(said(rig)) == sum(made.carried)
    skipped = [r.reason for r in rig.of(e.CompactionRung) if (r.rung, r.state) == ("native", "skipped")]
    assert skipped and all("its memories are not accepted" in reason for reason in skipped)


async def test_the_size_is_that_of_the_text_once_a_memory_is_rejected(rig: Rig) -> None:
    """A restart finds the old number of the memory in the log: it says nothing of the text."""
    text = "page 7 begins. " + "A fact of it. " * 400
    made = Server("anthropic", 9, lambda _: False, lambda _: Compaction(text, usage=Tokens(9_000, 100)))
    with made.server as server:
        for pages in (9, 10):
            made.agent = ProviderAgent("anthropic", fetching(pages), summarize=summary)
            model = model_at(server)
            async with rig.open(model, native(), tools=[Counted(1_500).tool]) as pod:
                (await pod.run("fetch the pages")).raise_for_status()
            await model.aclose()
            made.rejects = always
    replies = [r for r in rig.of(ReplyRecord) if r.usage.input_tokens]
    assert not made.carried[-1] and True in made.carried
    assert all(r.estimate >= 0.9 * (r.usage.input_tokens or 0) for r in replies[-2:])


async def test_a_memory_whose_text_would_be_above_the_ceiling_never_stands_in_a_request(rig: Rig) -> None:
    """Whatever its provider reports of its size: so no attempt is above the ceiling where a memory becomes its text."""
    text = "page 7 begins " + "fact word. " * 60_000
    made = Server("anthropic", 9, lambda _: True, lambda _: Compaction(text, usage=Tokens(9_000, 1_000)))
    with made.server as server:
        model = model_at(server, context_window=40_000)
        asked = native(ladder=["native", "checkpoint"])
        async with rig.open(model, asked, tools=[Counted(1_500).tool]) as pod:
            result = await pod.run("fetch nine pages")
        await model.aclose()
    assert result.status == "finished" and not any(made.carried)
    assert rungs(rig)[-1][0] == "checkpoint", "who could make it smaller was asked"


@each_wire
async def test_b158_a_compaction_that_came_to_nothing_is_counted_once(rig: Rig, wire: Any) -> None:
    """B158: it was billed."""
    made = Server(wire, 9, lambda _: False, lambda _: Compaction(None, usage=Tokens(9_000, 3_000)))
    with made.server as server:
        model = model_at(server)
        async with rig.open(model, native(ladder=["native", "checkpoint"]), tools=[Counted(1_500).tool]) as pod:
            (await pod.run("fetch nine pages")).raise_for_status()
            spent = pod.state.totals.by[f"compaction:{NAMES[wire]}"]
        await model.aclose()
    failed = [r for r in rig.of(e.CompactionRung) if r.state == "failed"]
    assert spent["prompt_tokens"] == 9_000 * len(failed) > 0 and spent["output_tokens"] == 3_000 * len(failed)


# -- a restart --------------------------------------------------------------------------------------------------------


@each_wire
async def test_b076_what_a_server_rejected_is_not_asked_of_it_again_after_a_restart(rig: Rig, wire: Any) -> None:
    """B076: neither is the memory sent to it again, nor is another one paid for; also in the segments after it."""
    made = Server(wire, 30, always)
    asked = native(ladder=["native", "checkpoint"])
    with made.server as server:
        for pages in (30, 40, 45):
            made.agent = ProviderAgent(wire, fetching(pages), summarize=summary)
            model = model_at(server)
            async with rig.open(model, asked, tools=[Counted(1_500).tool]) as pod:
                (await pod.run("fetch the pages")).raise_for_status()
            await model.aclose()
        assert len(rig.of(e.NativeMade)) == 2 == sum(made.carried) == len(said(rig))
        assert len([r for r in rig.of(ProviderRefused) if r.refusals.memories]) == 2, "once for each memory"
        skipped = [r for r in rig.of(e.CompactionRung) if (r.rung, r.state) == ("native", "skipped")]
        assert skipped and all("its memories are not accepted" in r.reason for r in skipped)
        made.rejects = lambda _: False
        model = model_at(server)
        async with rig.open(model, asked, tools=[Counted(1_500).tool]) as pod:
            made.agent = ProviderAgent(wire, fetching(49), summarize=summary)
            (await pod.run("fetch four more")).raise_for_status()
            assert await pod.compact(), [w.message for w in rig.of(Warned)][-2:]  # by hand it is tried all the same
            assert (await pod.run("go on")).status == "finished"
            assert pod.state.history.refusals[model.name].in_a_row == 0, "it took this one back"
        await model.aclose()


async def test_another_manifest_or_another_server_is_asked_anew(rig: Rig) -> None:
    made = Server("openai", 30, always)
    asked = native(ladder=["native", "checkpoint"])
    with made.server as server:
        model = model_at(server)
        async with rig.open(model, asked, tools=[Counted(1_500).tool]) as pod:
            (await pod.run("fetch the pages")).raise_for_status()
            known = pod.state.history.refusals[model.name]
        await model.aclose()
        assert known.in_a_row == 2 and len(known.memories) == 2
        elsewhere = create_model(NAMES["openai"], ModelSettings(base_url="http://127.0.0.1:9/v1"))
        elsewhere.recall(known)
        assert elsewhere.refusals.memories == () and not elsewhere.memories_rejected
        model = model_at(server)
        other = native(13_000, ladder=["native", "checkpoint"])
        async with rig.open(model, other, tools=[Counted(1_500).tool]) as pod:
            record_change(pod.running.session, other, ("compaction.request_threshold: 12000 -> 13000",))
            (await pod.run("go on")).raise_for_status()
            assert model.memories_rejected <= 1, "what was known of before is not held against it"
        await model.aclose()


async def test_a_way_that_a_server_does_not_know_is_not_tried_again_after_a_restart(rig: Rig) -> None:
    """OpenAI's own endpoint is missing: the next process knows, before it compacts anything."""
    made = Server("openai", 20, lambda _: False)
    with made.server as server:
        for _ in range(2):
            model = model_at(server)
            async with rig.open(model, native(), tools=[Counted(1_500).tool]) as pod:
                (await pod.run("fetch the pages")).raise_for_status()
                assert model.refusals.ways.keys() == {"responses.compact"}
            await model.aclose()
    assert len(rig.of(ProviderRefused)) == 1
