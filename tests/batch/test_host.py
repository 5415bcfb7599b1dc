"""A host: many pods at once, one failure never another's, restarts as the policy says, an orderly halt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod import PodHost, UsageProblem
from pod.host import Hosted, RestartPolicy
from pod.log import entries as e
from pod.result import RunResult
from pod.state import PodState
from tests.pod.pod_rig import Agent, Rig, caller, manifest
from worker.errors import Overloaded
from worker.items import ToolCallItem, ToolResultItem
from worker.records import ReplyRecord, ToolResult, ToolStarted
from worker.testing import call, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def start(host: PodHost, rig: Rig, model: Any, name: str, task: str | None = "go", **more: Any) -> Hosted:
    options = {"home": rig.home, "cwd": rig.cwd, "model": model, **more}
    return host.start(manifest(), task, name=name, **options)


class Gate:
    """A tool that waits until it is let go; how many wait at once is remembered."""

    def __init__(self) -> None:
        self.go, self.entered, self.inside, self.most = anyio.Event(), anyio.Event(), 0, 0

    @property
    def tool(self) -> Any:
        @tool(effect="read")
        async def wait() -> str:
            """Waits."""
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.entered.set()
            try:
                await self.go.wait()
            finally:
                self.inside -= 1
            return "went"

        return wait


def waiting() -> Agent:
    return Agent(lambda request, n: call("wait") if n == 1 else say("done"))


async def test_at_most_so_many_pods_run_at_once_and_all_come_to_their_end(rig: Rig) -> None:
    gate = Gate()
    async with PodHost(concurrency=3) as host:
        hosted = [start(host, rig, waiting(), f"p{n}", tools=[gate.tool]) for n in range(8)]
        while gate.inside < 3:
            await gate.entered.wait()
            await anyio.lowlevel.checkpoint()
        assert [each.phase for each in hosted].count("running") == 3 and len(host.hosted) == 8
        gate.go.set()
        results = [await each.wait() for each in hosted]
    assert gate.most == 3
    assert [result.status for result in results] == ["finished"] * 8 and not host.hosted


class Fatal(BaseException):
    """Nothing that `except Exception` sees."""


@pytest.mark.parametrize(
    "error", [ValueError("x"), Fatal("x"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
async def test_whatever_a_pod_raises_is_its_result_and_its_siblings_go_on(rig: Rig, error: BaseException) -> None:
    gate = Gate()

    def breaks(n: int) -> Any:
        raise error

    async def all_of_them() -> list[RunResult]:
        async with PodHost(concurrency=3) as host:
            good = [start(host, rig, waiting(), f"good{n}", tools=[gate.tool]) for n in range(2)]
            while gate.inside < 2:
                await gate.entered.wait()
                await anyio.lowlevel.checkpoint()
            bad = start(host, rig, Agent(lambda request, n: breaks(n)), "bad")
            results.append(await bad.wait())
            assert type(bad.error) is type(error)
            gate.go.set()
            results.extend([await each.wait() for each in good])
        return results

    results: list[RunResult] = []
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            await all_of_them()
    else:
        await all_of_them()
    assert [result.status for result in results] == ["failed", "finished", "finished"]
    assert results[0].error_kind == type(error).__name__


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_a_model_raises_of_itself_is_a_failure_of_its_pod_alone(rig: Rig) -> None:
    gate = Gate()

    def breaks(n: int) -> Any:
        raise anyio.get_cancelled_exc_class()

    async with PodHost(concurrency=2) as host:
        good = start(host, rig, waiting(), "good", tools=[gate.tool])
        await gate.entered.wait()
        bad = await start(host, rig, Agent(lambda request, n: breaks(n)), "bad").wait()
        gate.go.set()
        results = [bad, await good.wait(), await start(host, rig, Agent(lambda request, n: say("ok")), "next").wait()]
    assert [result.status for result in results] == ["failed", "finished", "finished"]
    assert results[0].error_kind == "CancelledError"


async def test_what_opening_raises_is_the_result_too(rig: Rig) -> None:
    async with PodHost() as host:
        hosted = start(host, rig, waiting(), "p", cwd=rig.cwd / "nowhere")
        result = await hosted.wait()
    assert (result.status, result.exit_code, result.error_kind) == ("failed", 2, "UsageProblem")
    assert "nowhere" in (result.error or "") and hosted.starts == 1, "a user's mistake is not tried again"


async def test_a_pod_is_restarted_after_a_failure_and_says_its_task_once(rig: Rig) -> None:
    agent = Agent(lambda request, n: Overloaded("busy", status=529) if n < 3 else say("done"))
    policy = RestartPolicy("on_failure", rest=0.0)
    async with PodHost(restart=policy) as host:
        hosted = start(host, rig, agent, "p", task="say it once")
        result = await hosted.wait()
    assert (result.status, result.text, hosted.starts) == ("finished", "done", 3)
    assert sum(item.type == "user" and item.text == "say it once" for item in agent.requests[-1].items) == 1


async def test_restarts_are_bounded_within_their_time(rig: Rig) -> None:
    agent = Agent(lambda request, n: Overloaded("busy", status=529))
    async with PodHost(restart=RestartPolicy("on_failure", at_most=2, rest=0.0)) as host:
        hosted = start(host, rig, agent, "p")
        result = await hosted.wait()
    assert (result.status, hosted.starts) == ("failed", 3)


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 100), st.floats(0, 1000))
def test_a_rest_grows_to_its_bound_and_never_beyond(starts: int, chance: float, rest: float, most: float) -> None:
    policy = RestartPolicy("always", rest=rest, rest_most=most)
    pause = policy.pause(starts, chance)
    assert 0 <= pause <= most * 1.2 + 1e-9
    assert policy.pause(starts + 1, chance) >= pause


async def test_a_drain_lets_each_run_end_before_its_next_request_and_all_can_be_resumed(rig: Rig) -> None:
    gate = Gate()
    agents = [waiting() for _ in range(3)]
    async with PodHost(concurrency=2) as host:
        hosted = [start(host, rig, agent, f"p{n}", tools=[gate.tool]) for n, agent in enumerate(agents)]
        while gate.inside < 2:
            await gate.entered.wait()
            await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as group:
            group.start_soon(host.drain, 30.0)
            await anyio.lowlevel.checkpoint()
            gate.go.set()
        with pytest.raises(UsageProblem, match="comes to a halt"):
            start(host, rig, waiting(), "late")
    assert [(each.result.status, each.result.why_runtime_stopped) for each in hosted] == [
        ("cancelled", "drained"), ("cancelled", "drained"), ("cancelled", "it did not begin")
    ]  # fmt: skip
    yields = [record for record in rig.log("p0") if isinstance(record, e.YieldedEntry)]
    assert yields[-1].reason == "stop" and yields[-1].detail == {"reason": "drained"}
    assert agents[0].served == 1, "the call ended, and no request followed"
    async with rig.open(agents[0], name="p0", tools=[gate.tool]) as pod:
        assert (await pod.resume()).text == "done"


async def test_a_drain_ends_now_what_takes_too_long(rig: Rig) -> None:
    gate = Gate()
    async with PodHost() as host:
        hosted = start(host, rig, waiting(), "p", tools=[gate.tool])
        await gate.entered.wait()
        await host.drain(0.0)
        assert hosted.phase == "ended"
    assert hosted.result.status == "cancelled" and hosted.result.resumable
    assert gate.inside == 0


async def test_a_host_that_is_cancelled_ends_all_resumable(rig: Rig) -> None:
    gate = Gate()
    with anyio.CancelScope() as scope:
        async with PodHost() as host:
            hosted = start(host, rig, waiting(), "p", tools=[gate.tool])
            await gate.entered.wait()
            scope.cancel()
    assert hosted.result.status == "cancelled"
    assert rig.of(e.RunEndedEntry)[-1].status == "cancelled"


async def test_a_message_with_a_key_is_taken_once_and_its_result_given_again(rig: Rig) -> None:
    agent = Agent(caller(0))
    async with rig.open(agent) as pod:
        first = await pod.run("go", key="k")
        again = await pod.run("go", key="k")
        assert again == first and agent.served == 1
        with pytest.raises(UsageProblem, match="'k' was used for something else"):
            await pod.run("another", key="k")
    async with rig.open(agent) as pod:
        assert (await pod.run("go", key="k")).text == first.text and agent.served == 1


async def test_a_keyed_run_that_was_cancelled_keeps_its_message_and_goes_on(rig: Rig) -> None:
    gate = Gate()
    agent = waiting()
    async with rig.open(agent, tools=[gate.tool]) as pod, anyio.create_task_group() as group:

        async def run() -> None:
            await pod.run("go", key="k")

        group.start_soon(run)
        await gate.entered.wait()
        group.cancel_scope.cancel()
    gate.go.set()
    async with rig.open(agent, tools=[gate.tool]) as pod:
        assert (await pod.run("go", key="k")).text == "done"
    assert sum(item.type == "user" for item in agent.requests[-1].items) == 1


AT = "2026-01-01T00:00:00+00:00"


def told(*records: Any) -> int:
    """How many starts came to nothing, after these records."""
    state = PodState.begin(e.SegmentStarted(session="s", segment="g", lineage=e.Lineage(), tag="t", blobs={}))
    for seq, record in enumerate(records, 1):
        state.apply(record, AT, seq)
        state.history.apply(record)
    return state.fruitless_starts


def opened(generation: int) -> e.Lease:
    return e.Lease(generation=generation, pid=1, host="h")


def called(label: str) -> Any:
    return ReplyRecord(items=(ToolCallItem(call_id=label, name="t", arguments="{}"),))


def answered(label: str, status: Any = "ok") -> Any:
    return ToolResult(item=ToolResultItem(call_id=label, name="t", summary="t: x", status=status))


def test_starts_that_came_to_nothing_are_counted_and_forgotten_with_the_first_fruit() -> None:
    assert told(opened(1), opened(2), opened(3)) == 3
    assert told(opened(1), opened(2), e.RunEndedEntry(run="r", status="failed"), opened(3)) == 1
    assert told(opened(1), called("a"), ToolStarted(call_id="a"), answered("a"), opened(2)) == 1


def test_a_start_that_died_inside_of_a_call_came_to_nothing_whatever_it_did_before() -> None:
    first = (opened(1), called("a"), ToolStarted(call_id="a"), answered("a"), called("b"), ToolStarted(call_id="b"))
    assert told(*first, opened(2)) == 2
    second = (*first, opened(2), answered("b", "interrupted"), called("c"), ToolStarted(call_id="c"))
    assert told(*second, opened(3)) == 3
    assert told(*second, answered("c"), opened(3)) == 1
