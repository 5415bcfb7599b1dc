"""Calls and their results stay together through every boundary (cases B013 to B017, B020)."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    filler,
    manifest,
    results,
    summariser,
    texts,
    users,
    words,
)  # fmt: skip
from worker.errors import InvalidHistory
from worker.items import AssistantItem, ReasoningItem, ToolCallItem
from worker.models.base import Request
from worker.records import ToolResult
from worker.testing import call, calls, reply, say, think
from worker.testing.scripted import Step
from worker.tools import tool

pytestmark = pytest.mark.anyio


async def test_b013_the_tail_never_begins_with_a_result_wherever_the_cut_would_fall(rig: Rig) -> None:
    """B013, B014: for every place of the view, the tail that would begin there moves to the border of a reply.

    Then real compactions with cuts that would fall between a call and its result, and inside a batch.
    """

    def play(request: Request, n: int) -> Step:
        if n > 6:
            return say("done")
        return reply(say(f"text {n}"), *(call("fetch", n=n * 10 + k) for k in range(1 + n % 2)))

    for inside in range(4):
        name, agent = f"p{inside}", Agent(play)
        made = manifest(compaction=compacting(None))
        async with rig.open(agent, made, name, tools=[Counted(900).tool], compact_model=summariser()) as pod:
            (await pod.run("go")).raise_for_status()
            compactor, history = pod.running.compactor, pod.state.history
            places = [at for at, item in enumerate(history.view) if item.type == "tool_result"]
            for at in range(1, len(history.view)):
                compactor.parts.config = replace(compactor.parts.config, retained_tokens=sum(history.tokens[at:]))
                cut = compactor.plan("hand").cut.at
                assert cut >= at
                assert cut == len(history.view) or history.view[cut].type in ("user", "assistant"), (
                    "a reply begins there"
                )
            at = places[-2 - inside]
            compactor.parts.config = replace(compactor.parts.config, retained_tokens=sum(history.tokens[at:]))
            assert await pod.compact()
            agent.play = lambda r, n: say("again")
            (await pod.run("next")).raise_for_status()
        items = rig.starts(name)[1].items
        called = [i.call_id for i in items if isinstance(i, ToolCallItem)]
        assert called == [i.call_id for i in items if i.type == "tool_result"]


async def test_b014_a_parallel_batch_is_kept_or_summarised_whole_whatever_the_order_of_its_results(rig: Rig) -> None:
    """B014: c2 ends before c1, with a message between; after the compaction both stand there, or neither."""
    second = anyio.Event()

    @tool
    async def slow(n: int) -> str:
        """Waits for the other one."""
        if n == 1:
            await second.wait()
        else:
            second.set()
        return filler(700, f"slow {n}")

    def play(request: Request, n: int) -> Step:
        if n == 1:
            return calls([call("slow", n=1), call("slow", n=2)])
        return call("fetch", n=n) if n <= 9 else say("done")

    agent = Agent(play)
    for retained in (500, 3_000):
        name = f"p{retained}"
        settings = compacting(9_000, retained_tokens=retained)
        async with rig.open(
            agent, manifest(compaction=settings), name, tools=[slow, Counted(900).tool], compact_model=summariser()
        ) as pod:
            (await pod.run("go")).raise_for_status()
        order = [r.item.call_id for r in rig.of(ToolResult, name) if r.item.name == "slow"]
        asked = [
            i.call_id
            for r in rig.log(name)
            if r.kind == "reply"
            for i in r.items
            if i.type == "tool_call" and i.name == "slow"
        ]
        assert order == asked[::-1], "the log holds them in the order in which they ended"
        for start in rig.starts(name)[1:]:
            kept = [i.call_id for i in start.items if i.type == "tool_result" and i.name == "slow"]
            assert kept in ([], asked)
        second, agent.served = anyio.Event(), 0


async def test_b015_a_users_words_beside_a_result_survive_the_result(rig: Rig) -> None:
    """B015: words that arrive with the results of a batch are the user's; the result block goes with its call."""
    agent = Agent(caller(12))
    async with rig.open(
        agent, manifest(compaction=compacting(12_000)), tools=[Counted(1_400).tool], compact_model=summariser()
    ) as pod:

        async def steer(n: int) -> None:
            await pod.send("also keep the old API")

        fetch = pod.running.tools["fetch"]
        done = {"sent": False}

        async def with_words(values: dict[str, object], context: object) -> object:
            if not done["sent"]:
                done["sent"] = True
                await pod.send("also keep the old API")
            return await fetch.call(values, context)  # type: ignore[arg-type]

        pod.running.tools["fetch"] = replace(fetch, call=with_words)
        (await pod.run("go")).raise_for_status()
    last = agent.requests[-1]
    assert words(last).count("also keep the old API") == 1
    assert not [r for r in results(last) if "page 1 begins" in r.text()]


async def test_b016_no_call_of_the_old_segment_is_waited_for_in_the_new_one(rig: Rig) -> None:
    """B016: the first call after a rotation is answered once, and nothing is invented for older ones."""
    agent = Agent(
        lambda r, n: (
            calls(call("fetch", n=n * 10 + k) for k in range(3))
            if n <= 4
            else call("fetch", n=99)
            if n == 5
            else say("done")
        )
    )
    settings = compacting(12_000, retained_tokens=400, retained_floor_tokens=100)
    async with rig.open(
        agent, manifest(compaction=settings), tools=[Counted(900).tool], compact_model=summariser()
    ) as pod:
        (await pod.run("go")).raise_for_status()
    assert len(rig.segments()) >= 2
    last = agent.requests[-1]
    made = {i.call_id for i in last.items if isinstance(i, ToolCallItem)}
    assert [r.call_id in made for r in results(last)] == [True] * len(made)
    newest = [r for r in results(last) if "page 99 begins" in r.text()]
    assert len(newest) == 1


async def test_b017_a_call_that_waits_for_approval_outlives_everything_until_it_is_answered(rig: Rig) -> None:
    """B017: twelve more messages, a compaction asked for, a restart; then the approval runs the call, once."""
    ran: list[str] = []

    @tool(effect="process")
    async def deploy(command: str) -> str:
        """Deploys."""
        ran.append(command)
        return "deployed"

    made = manifest(permissions={"profile": "safe"}, compaction=compacting(None, threshold=3_000))
    agent = Agent(
        lambda r, n: call("fetch", n=n) if n <= 4 else call("deploy", command="prod") if n == 5 else say("done")
    )
    options = {"tools": [Counted(900).tool, deploy], "compact_model": summariser()}
    async with rig.open(agent, made, **options) as pod:
        result = await pod.run("deploy it")
        assert result.status == "paused" and result.exit_code == 3
        for n in range(12):
            await pod.send(f"message {n}")
        assert not await pod.compact(), "an open call keeps compaction away"
        assert (await pod.resume()).status == "paused", "a question stays a question"
    async with rig.open(agent, made, **options) as pod:
        assert [a.tool for a in pod.approvals] == ["deploy"]
        await pod.approve(pod.approvals[0].id, by="me")
        assert (await pod.resume()).status == "finished"
    assert ran == ["prod"]
    assert [w for w in users(agent.requests[-1]) if w.startswith("message")] == [f"message {n}" for n in range(12)]
    assert results(agent.requests[-1], "deploy")[0].status == "ok"


class Signed(Agent):
    """Signs reasoning with what stands before it and rejects it behind anything else."""

    rejected = 0

    async def send(self, request: Request, emit: object) -> object:  # type: ignore[override]
        before = ""
        for item in request.items:
            if isinstance(item, ReasoningItem) and item.payload != f'"{before}"':
                self.rejected += 1
                raise InvalidHistory("the reasoning was signed for another prefix", status=400)
            before = item.id
        return await super().send(request, emit)  # type: ignore[arg-type]


async def test_b020_signed_reasoning_never_stands_behind_another_prefix(rig: Rig) -> None:
    """B020: a tail with signed blocks crosses a boundary without them; its text and calls stay, nothing is rejected."""

    def play(request: Request, n: int) -> Step:
        if n > 12:
            return say("done")
        return reply(think(f'"{request.items[-1].id}"'), say(f"text {n}"), call("fetch", n=n))

    agent = Signed(play, capabilities=capabilities(history_binding="thinking_prefix"))
    made = manifest(compaction=compacting(8_000, retained_tokens=3_500))
    async with rig.open(agent, made, tools=[Counted(900).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
    assert agent.rejected == 0 and len(rig.segments()) >= 2
    for start in rig.starts()[1:]:
        assert not [i for i in start.items if isinstance(i, ReasoningItem)]
        assert [i for i in start.items if isinstance(i, AssistantItem)] and [
            i for i in start.items if i.type == "tool_call"
        ]


async def test_reasoning_that_is_bound_to_nothing_stays_in_the_tail(rig: Rig) -> None:
    """B020, the other way round: a model that does not bind its reasoning gets an open tool loop back with it."""
    agent = Agent(lambda r, n: reply(think('"free"'), call("fetch", n=n)) if n <= 12 else say("done"))
    made = manifest(compaction=compacting(8_000, retained_tokens=3_500))
    async with rig.open(agent, made, tools=[Counted(900).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
    assert all([i for i in start.items if isinstance(i, ReasoningItem)] for start in rig.starts()[1:])


async def test_b020_reasoning_goes_to_no_other_model_after_a_switch(rig: Rig) -> None:
    """B020: reopened with another model, the same session is accepted: foreign reasoning is not sent."""
    first = Agent(
        lambda r, n: reply(think('"sig"', "x"), say("a"), call("fetch", n=n)) if n <= 2 else say("done"),
        name="offline:one",
    )
    async with rig.open(first, tools=[Counted(100).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    assert b'\\"sig\\"' in first.requests[-1].messages
    other = Agent(lambda r, n: say("done"), name="offline:two")
    async with rig.open(other, tools=[Counted(100).tool]) as pod:
        (await pod.run("go on")).raise_for_status()
    assert b"sig" not in other.requests[-1].messages and "a" in texts(other.requests[-1])
