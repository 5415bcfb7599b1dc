"""What a user says is never lost: queued messages go in parts, and only one that is too large by itself is rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    filler,
    manifest,
    size,
    summariser,
    texts,
    users,
)
from worker.errors import ContextOverflow
from worker.models.base import Request
from worker.records import Admitted, TokensCounted, Warned
from worker.testing import fail, say

pytestmark = pytest.mark.anyio

CEILING = 19_000
ACTING = ["compact", "checkpoint", "rollover"]


def acting(policy: str, at: int = 12_000) -> Any:
    """A manifest of a policy that acts at so many tokens."""
    sections: dict[str, Any] = {"context": {"policy": policy}, "compaction": compacting(at)}
    if policy == "rollover":
        sections = {**sections, "compaction": compacting(None), "rollover": {"at": at, "warn": at * 3 // 4}}
    return manifest(**sections)


def answering(**more: Any) -> Agent:
    return Agent(lambda request, n: say(f"answer {n}"), window=20_000, **more)


@pytest.mark.parametrize("policy", ACTING)
@pytest.mark.parametrize("before", [0, 10])
async def test_many_queued_messages_reach_the_model_in_parts_and_in_order(rig: Rig, policy: str, before: int) -> None:
    """Sixty of them are twice as large as the window: none is rejected, none is sent twice, nothing thrashes."""
    agent = answering()
    async with rig.open(agent, acting(policy), compact_model=summariser()) as pod:
        for n in range(before):
            (await pod.run(f"EARLIER{n} " + filler(600))).raise_for_status()
        for n in range(60):
            await pod.send(f"MSG{n:02} " + filler(400))
        (await pod.run("LAST of all")).raise_for_status()
        assert (await pod.run("after")).status == "finished"
    wanted = [*(f"MSG{n:02}" for n in range(60)), "LAST"]
    seen = [next(text for request in agent.requests for text in users(request) if word in text) for word in wanted]
    first = [next(n for n, r in enumerate(agent.requests) if any(word in text for text in users(r))) for word in wanted]
    assert len(set(seen)) == 61 and first == sorted(first) and len(set(first)) > 3
    admitted = [label for record in rig.of(Admitted) for label in record.ids]
    assert len(admitted) == len(set(admitted)) == before + 62
    assert not rig.of(e.InputRejected) and not rig.of(e.CompactionFailed)
    assert all(size(request) <= CEILING for request in agent.requests)


@pytest.mark.parametrize("policy", ACTING)
@pytest.mark.parametrize(("first", "others"), [(5_000, [4_500] * 3), (5_000, [4_500] * 2), (4_000, [4_500] * 5)])
async def test_messages_that_fit_alone_are_all_answered_though_they_do_not_fit_together(
    rig: Rig, policy: str, first: int, others: list[int]
) -> None:
    """What the run has answered already gives way to what waits; nothing is rejected, and the session goes on."""
    agent = answering()
    async with rig.open(agent, acting(policy), compact_model=summariser()) as pod:
        (await pod.run("FIRST " + filler(first))).raise_for_status()
        for n, tokens in enumerate(others[:-1]):
            await pod.send(f"MSG{n} " + filler(tokens))
        (await pod.run("LAST " + filler(others[-1]))).raise_for_status()
        (await pod.run("after")).raise_for_status()
    assert not rig.of(e.InputRejected)
    for word in ("FIRST", *(f"MSG{n}" for n in range(len(others) - 1)), "LAST", "after"):
        assert any(text.startswith(word) for request in agent.requests for text in users(request))
    assert all(size(request) <= CEILING for request in agent.requests)


async def test_queued_messages_go_one_by_one_where_two_are_too_much(rig: Rig) -> None:
    agent = answering()
    async with rig.open(agent, acting("rollover")) as pod:
        for n in range(3):
            await pod.send(f"MSG{n} " + filler(5_500))
        (await pod.run("last")).raise_for_status()
    assert [len(record.ids) for record in rig.of(Admitted)][:2] == [1, 1]
    assert not rig.of(e.InputRejected) and "MSG2" in "".join(map(texts, agent.requests))


@pytest.mark.parametrize("policy", [*ACTING, "warn"])
async def test_beside_a_message_that_is_too_large_the_others_are_kept(rig: Rig, policy: str) -> None:
    """What stands before it is answered, what stands behind it waits for the next run."""
    agent = answering()
    made = manifest() if policy == "warn" else acting(policy)
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        (await pod.run("hello")).raise_for_status()
        await pod.send("IMPORTANT: before")
        huge = await pod.send(filler(30_000, "huge"))
        failed = await pod.run("SMALL: behind")
        assert failed.status == "failed" and failed.resumable
        assert [r.id for r in rig.of(e.InputRejected)] == [huge]
        assert users(agent.requests[-1]) == ["hello", "IMPORTANT: before"]
        (await pod.resume()).raise_for_status()
    assert users(agent.requests[-1]) == ["hello", "IMPORTANT: before", "SMALL: behind"]
    assert not any("huge" in texts(request) for request in agent.requests)


@pytest.mark.parametrize("policy", [*ACTING, "warn"])
async def test_b055_an_input_whose_refusal_taught_the_window_is_rejected_and_the_session_goes_on(
    rig: Rig, policy: str
) -> None:
    """B055: the window was declared too large; what it can't hold is never sent again, what it can hold is."""

    def real(request: Request, n: int) -> Any:
        refusal = ContextOverflow("prompt is too long: 9000 tokens > 6000 maximum", limit=6_000, requested=9_000)
        return fail(refusal) if size(request) > 5_500 else say("ok")

    made = manifest() if policy == "warn" else acting(policy, at=20_000)
    async with rig.open(Agent(real, window=32_768), made, compact_model=summariser()) as pod:
        (await pod.run("hello")).raise_for_status()
        failed = await pod.run("BIG " + filler(6_000))
        assert failed.status == "failed" and "9000 tokens > 6000 maximum" in (failed.error or "")
        assert (await pod.run("small")).text == "ok"
    agent = Agent(real, window=32_768)
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        assert (await pod.run("after reopening")).text == "ok"
    assert len(rig.of(e.InputRejected)) == 1 and not any("BIG" in texts(r) for r in agent.requests)


@pytest.mark.parametrize("policy", ACTING)
async def test_a_large_first_message_never_ends_a_session_whose_requests_fit(rig: Rig, policy: str) -> None:
    """No segment under the trigger can be made: a warning, and the run goes on until the ceiling, where one is made that fits."""
    tool, agent = Counted(800), Agent(caller(24), window=20_000)
    async with rig.open(agent, acting(policy), tools=[tool.tool], compact_model=summariser()) as pod:
        (await pod.run("START " + filler(8_000))).raise_for_status()
        agent.play = lambda request, n: say("hello")
        for _ in range(2):
            assert (await pod.run("hi")).text == "hello"
    assert tool.calls == list(range(1, 25)) and len(rig.starts()) > 1
    failed = rig.of(e.CompactionFailed)
    assert failed and all(record.held for record in failed)
    warned = [w for w in rig.of(Warned) if w.code == "compaction.failed"]
    assert 1 <= len(warned) <= len(rig.starts()) and f"{CEILING:,}" in warned[0].message
    assert all(size(request) <= CEILING for request in agent.requests)


async def test_what_could_not_be_made_smaller_is_held_also_after_a_restart_and_let_go_with_another_manifest(
    rig: Rig,
) -> None:
    tool, agent = Counted(800), Agent(caller(4), window=20_000)
    async with rig.open(agent, acting("rollover"), tools=[tool.tool]) as pod:
        (await pod.run("START " + filler(8_000))).raise_for_status()
        held = pod.running.session.state.held_tokens
        assert held > 12_000
    agent.play = lambda request, n: say("hello")
    async with rig.open(agent, acting("rollover"), tools=[tool.tool]) as pod:
        assert pod.running.session.state.held_tokens == held
        (await pod.run("hi")).raise_for_status()
        assert len(rig.of(e.CompactionStarted)) == 1
        pod.running.session.put(e.ManifestChanged(digest=pod.running.session.state.manifest))
        assert pod.running.session.state.held_tokens == 0


async def test_a_count_of_a_rejected_input_is_no_part_of_what_comes_next(rig: Rig) -> None:
    class Counts(Agent):
        async def count(self, request: Request) -> int:
            return int(size(request) * 1.05)

    made = replace(capabilities(20_000), counting="provider")
    agent = Counts(lambda request, n: say("ok"), capabilities=made)
    async with rig.open(agent, manifest()) as pod:
        failed = await pod.run(filler(16_400))
        assert failed.error_kind == "over_budget" and rig.of(TokensCounted) and len(rig.of(e.InputRejected)) == 1
        assert (await pod.run("small")).text == "ok"
