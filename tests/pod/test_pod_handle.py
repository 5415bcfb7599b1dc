"""The run handle, events, approvals, limits and embedding (cases B164, B165 and the embedding promises)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from pod import Pod, RunFailed, UsageProblem
from pod import bus as bus_module
from pod.log import entries as e
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    manifest,
    results,
    summariser,
    texts,
    types,
    until,
    users,
)  # fmt: skip
from worker.errors import ProviderDown
from worker.interceptor import CONTINUE, Append, CallContext, Decision, Interceptor, RequestContext, Yield
from worker.items import ContextItem, ToolOutput
from worker.models.base import Price, Request, Usage
from worker.records import Input, ToolResult, Warned
from worker.testing import call, calls, fail, hang, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


# -- the handle ----------------------------------------------------------------------------------------------------


async def test_a_handle_gives_the_runs_events_in_order_and_ends_with_the_run(rig: Rig) -> None:
    async with rig.open(Agent(caller(2)), tools=[Counted(50).tool]) as pod, pod.start("go") as run:
        seen = [event async for event in run]
        assert run.result.text == "done"
    order = [t for t in types(seen) if t not in {"text.delta", "request.started"}]
    assert order == [
        "init", "input.received", "run.started", "request.completed", "tool.started", "tool.completed",
        "request.completed", "tool.started", "tool.completed", "request.completed", "run.ended", "result",
    ]  # fmt: skip
    numbers = [event.seq for event in seen]
    assert numbers == sorted(numbers)
    assert list(types(seen)).count("request.started") == 3
    assert "".join(event.text for event in seen if event.type == "text.delta") == "done"


async def test_the_log_tells_the_same_events_again(rig: Rig) -> None:
    """`pod.events` gives the same objects as the stream, but for those that pass; `after` cuts exactly."""
    made = manifest(compaction=compacting(8_000))
    async with rig.open(Agent(caller(9)), made, tools=[Counted(1_500).tool], compact_model=summariser()) as pod:
        async with pod.start("go") as run:
            live = [event async for event in run if event.type not in bus_module.PASSING]
        told = [event async for event in pod.events()]
        assert told[-len(live) :] == live or [e for e in told if e.seq >= live[0].seq] == live
        middle = live[len(live) // 2].seq
        assert [event.seq async for event in pod.events(middle)] == [e.seq for e in told if e.seq > middle]


async def test_leaving_a_handle_early_interrupts_and_the_run_is_resumable(rig: Rig) -> None:
    agent = Agent(lambda r, n: call("fetch", n=n) if n == 1 else hang() if n == 2 else say("done"))
    async with rig.open(agent, tools=[Counted(10).tool]) as pod:
        async with pod.start("go") as run:
            async for event in run:
                if event.type == "tool.completed":
                    break
        assert run.result.status == "cancelled" and run.result.resumable and run.result.exit_code == 130
        assert rig.of(e.RunEndedEntry)[-1].status == "cancelled"
        agent.play = lambda r, n: say("done")
        assert (await pod.resume()).text == "done"
    assert users(agent.requests[-1]) == ["go"]


async def test_steering_joins_at_the_next_request_and_is_durable_when_it_returns(rig: Rig) -> None:
    gate = anyio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await gate.wait()
        return "waited"

    agent = Agent(lambda r, n: call("wait") if n == 1 else say("done"))
    async with rig.open(agent, tools=[wait]) as pod, pod.start("go") as run:
        await until(lambda: agent.requests)
        label = await run.steer("keep it short")
        assert label in rig.segments()[0].read_text()
        gate.set()
        await run.wait()
    assert users(agent.requests[0]) == ["go"] and users(agent.requests[1]) == ["go", "keep it short"]


async def test_a_message_that_comes_with_the_last_reply_is_answered_in_the_same_run(rig: Rig) -> None:
    pod_: list[Pod] = []

    class Steering(Interceptor):
        async def after_request(self, ctx: RequestContext, reply: Any) -> None:
            if ctx.history.counters.requests == 1:
                await pod_[0].send("one more thing")

    agent = Agent(lambda r, n: say(f"answer {n}"))
    async with rig.open(agent, interceptors=[Steering()]) as pod:
        pod_.append(pod)
        assert (await pod.run("go")).text == "answer 2"
    assert len(rig.of(e.RunStarted)) == 1 and users(agent.requests[-1]) == ["go", "one more thing"]


async def test_interrupt_modes_end_now_after_the_calls_or_at_the_next_segment(rig: Rig) -> None:
    entered, gate = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        entered.set()
        await gate.wait()
        return "waited"

    agent = Agent(lambda r, n: call("wait") if n == 1 else say("done"))
    async with rig.open(agent, name="tools", tools=[wait]) as pod, pod.start("go") as run:
        await entered.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.interrupt, "after_tools")
            await until(lambda: pod.running.orders.stop)
            gate.set()
        assert run.result.status == "cancelled"
    assert [r.item.status for r in rig.of(ToolResult, "tools")] == ["ok"], "the call under way has its result"
    assert len(agent.requests) == 1

    agent = Agent(lambda r, n: say("never asked"))
    async with rig.open(agent, name="early", tools=[wait]) as pod:
        async with pod.start("go") as run:
            await run.interrupt("after_tools")
        assert run.result.status == "cancelled" and not agent.requests, "asked for before the run's first step"
        assert (await pod.run("again")).text == "never asked", "the order was for that run alone"

    agent = Agent(caller(30))
    async with rig.open(
        agent,
        manifest(compaction=compacting(8_000)),
        "segment",
        tools=[Counted(1_500).tool],
        compact_model=summariser(),
    ) as pod:
        async with pod.start("go") as run:
            await until(lambda: agent.requests)
            result = await run.interrupt("after_segment")
        assert result.status == "cancelled" and len(rig.segments("segment")) == 2
        agent.play = lambda r, n: say("done")
        assert (await pod.resume()).text == "done"


async def test_an_interrupt_that_was_asked_for_does_not_reach_into_the_next_run(rig: Rig) -> None:
    agent = Agent(caller(2))
    async with rig.open(
        agent, manifest(compaction=compacting(8_000)), tools=[Counted(10).tool], compact_model=summariser()
    ) as pod:
        async with pod.start("go") as run:
            pod.running.orders.after_segment = True
            assert (await run.wait()).text == "done"
        agent.play = lambda r, n: call("fetch", n=n) if n < 15 else say("done")
        pod.running.tools["fetch"] = Counted(1_500).tool
        assert (await pod.run("more")).status == "finished"


async def test_a_slow_reader_never_blocks_the_run_and_misses_nothing_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is full long before the reader reads: what passed is lost, what is durable is read from the log."""
    monkeypatch.setattr(bus_module, "BUFFER", 10)
    async with rig.open(Agent(caller(40)), tools=[Counted(10).tool]) as pod, pod.start("go") as run:
        assert (await run.wait()).text == "done"
        seen = [event async for event in run]
        durable = [event.seq for event in seen if event.type not in bus_module.PASSING]
        first = durable[0]
        told = [event.seq async for event in pod.events() if event.seq >= first]
    assert durable == told and len(durable) > 120


async def test_a_reader_that_lags_while_the_run_goes_on_gets_each_durable_event_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "BUFFER", 4)
    async with rig.open(Agent(caller(30)), tools=[Counted(10).tool]) as pod, pod.start("go") as run:
        durable: list[int] = []
        async for event in run:
            if event.type not in bus_module.PASSING:
                durable.append(event.seq)
            for _ in range(25):
                await anyio.lowlevel.checkpoint()
        told = [event.seq async for event in pod.events() if event.seq >= durable[0]]
    assert durable == told and len(set(durable)) == len(durable)


async def test_wait_can_be_cancelled_and_the_run_goes_on(rig: Rig) -> None:
    gate = anyio.Event()

    class Waiting(Agent):
        async def send(self, request: Request, emit: Any) -> Any:
            await gate.wait()
            return await super().send(request, emit)

    async with rig.open(Waiting(lambda r, n: say("done"))) as pod, pod.start("go") as run:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run.wait()
        gate.set()
        assert (await run.wait()).text == "done"


async def test_a_second_run_beside_the_first_is_refused_and_stores_nothing(rig: Rig) -> None:
    agent = Agent(lambda r, n: hang())
    async with rig.open(agent) as pod, pod.start("first") as run:
        await until(lambda: agent.requests)
        with pytest.raises(UsageProblem, match="under way"):
            await pod.run("second")
        with pytest.raises(UsageProblem, match="under way"):
            _ = run.result
    assert [r.item.text for r in rig.of(Input)] == ["first"]


async def test_what_the_block_raises_comes_out_as_it_is(rig: Rig) -> None:
    """`except RunFailed` around a pod works: no exception group around what the block itself raised."""
    with pytest.raises(RunFailed, match="provider_down"):
        async with rig.open(Agent(lambda r, n: fail(ProviderDown("down")))) as pod:
            (await pod.run("go")).raise_for_status()
    async with rig.open(Agent(lambda r, n: say("ok"))) as pod:
        assert (await pod.run("the lock is free again")).text == "ok"


async def test_another_mode_of_interrupting_is_refused_with_those_that_there_are_and_the_run_goes_on(rig: Rig) -> None:
    async with rig.open(Agent(caller(0))) as pod, pod.start("go") as run:
        with pytest.raises(UsageProblem, match="'banana': there are 'now', 'after_tools', 'after_segment'"):
            await run.interrupt("banana")  # pyright: ignore[reportArgumentType]  # the mistake itself
        assert (await run.wait()).text == "done"


async def test_a_handle_that_was_not_entered_says_so_and_one_is_entered_once(rig: Rig) -> None:
    async with rig.open(Agent(caller(0))) as pod:
        run = pod.start("go")
        for use in (run.__anext__, run.wait, run.interrupt, lambda: run.steer("more")):
            with pytest.raises(UsageProblem, match="the run has not begun: use it inside"):
                await use()
        async with run:
            await run.wait()
        with pytest.raises(UsageProblem, match="has begun already"):
            await run.__aenter__()
        left = pod.start("later")
    with pytest.raises(UsageProblem, match="is closed"):
        await left.__aenter__()
    with pytest.raises(UsageProblem, match="is closed"):
        await run.steer("more")
    assert [i.item.text for i in rig.of(Input)] == ["go"]


@pytest.mark.parametrize("message", [None, 5, b"x", ["a"]])
async def test_what_is_no_text_is_no_message_and_nothing_is_sent(rig: Rig, message: Any) -> None:
    agent = Agent(caller(0))
    async with rig.open(agent) as pod:
        for use in (pod.run, pod.send):
            with pytest.raises(UsageProblem, match=f"a message is text, not {type(message).__name__}"):
                await use(message)
        async with pod.start(None) as run:
            with pytest.raises(UsageProblem, match="nothing to go on with: it has had no run yet"):
                await run.wait()
    assert not agent.requests and not rig.of(e.RunStarted)


@pytest.mark.parametrize("way", ["an open handle", "a run in another task"])
@pytest.mark.parametrize("replies", [0, 1])
async def test_leaving_the_pod_ends_the_run_on_record_and_it_can_be_resumed(rig: Rig, way: str, replies: int) -> None:
    """Not on the end of the run, which hangs, and not by an error of the closed log."""
    agent = Agent(lambda r, n: call("fetch", n=n) if n <= replies else hang())
    told: list[Any] = []

    async def run_in(pod: Pod) -> None:
        told.append(await pod.run("go"))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            async with rig.open(agent, tools=[Counted(5).tool]) as pod:
                if way == "an open handle":
                    run = await pod.start("go").__aenter__()
                else:
                    group.start_soon(run_in, pod)
                await until(lambda: len(agent.requests) > replies)
            told += [run.result] if way == "an open handle" else []
    (result,) = told
    assert (result.status, result.why_runtime_stopped) == ("cancelled", "the pod was closed") and result.resumable
    assert rig.log()[-1].kind == "run_ended" and rig.of(e.RunEndedEntry)[0].status == "cancelled"
    async with rig.open(Agent(lambda r, n: say("done")), tools=[Counted(5).tool]) as pod:
        assert (await pod.resume()).text == "done"
    with pytest.raises(UsageProblem, match="is closed"):
        await pod.run("more")


async def test_leaving_the_pod_ends_a_compaction_that_another_task_asked_for(rig: Rig) -> None:
    waiting = Agent(lambda r, n: hang())
    made: list[bool] = []

    async def compact(pod: Pod) -> None:
        made.append(await pod.compact())

    made_of = manifest(compaction=compacting(None))
    pages, agent = Counted(1_500).tool, Agent(caller(9))
    with anyio.fail_after(10):
        async with (
            anyio.create_task_group() as group,
            rig.open(agent, made_of, tools=[pages], compact_model=waiting) as pod,
        ):
            await pod.run("go")
            group.start_soon(compact, pod)
            await until(lambda: waiting.requests)
    assert made == [False] and len(rig.segments()) == 1


# -- approvals -----------------------------------------------------------------------------------------------------


def deploying(ran: list[str]) -> Any:
    @tool(effect="process")
    async def deploy(command: str) -> str:
        """Deploys."""
        ran.append(command)
        return f"deployed {command}"

    return deploy


async def test_an_approval_pauses_durably_survives_a_reopen_and_runs_the_call_exactly_once(rig: Rig) -> None:
    ran: list[str] = []
    made = manifest(permissions={"profile": "safe"})
    agent = Agent(lambda r, n: call("deploy", command="prod") if n == 1 else say("done"))
    async with rig.open(agent, made, tools=[deploying(ran)]) as pod:
        result = await pod.run("deploy")
        assert result.status == "paused" and result.exit_code == 3 and len(result.approvals) == 1
    async with rig.open(agent, made, tools=[deploying(ran)]) as pod:
        (asked,) = pod.approvals
        assert asked.id == result.approvals[0] and asked.tool == "deploy" and not ran
        assert (await pod.resume()).status == "paused"
        with pytest.raises(UsageProblem, match="no approval 'nosuch'"):
            await pod.approve("nosuch")
        await pod.approve(asked.id, by="ann")
        with pytest.raises(UsageProblem, match="nothing is asked"):
            await pod.approve(asked.id)
    async with rig.open(agent, made, tools=[deploying(ran)]) as pod:
        assert (await pod.resume()).text == "done"
    assert ran == ["prod"] and len(rig.of(e.RunStarted)) == 1
    assert results(agent.requests[-1])[0].text() == "deployed prod"


async def test_a_denial_reaches_the_model_with_its_message_and_is_counted(rig: Rig) -> None:
    ran: list[str] = []
    agent = Agent(lambda r, n: call("deploy", command="prod") if n == 1 else say("understood"))
    async with rig.open(agent, manifest(permissions={"profile": "safe"}), tools=[deploying(ran)]) as pod:
        result = await pod.run("deploy")
        await pod.deny(result.approvals[0], message="not on a Friday", by="ann")
        result = await pod.resume()
    assert not ran and result.text == "understood" and result.exit_code == 0
    (answer,) = results(agent.requests[-1])
    assert answer.status == "denied" and "not on a Friday" in answer.text()
    assert result.denials == 1


async def test_allowed_calls_of_a_batch_run_before_the_pause_and_not_again(rig: Rig) -> None:
    ran: list[str] = []
    fetch = Counted(10)
    agent = Agent(
        lambda r, n: (
            calls([call("fetch", n=1), call("deploy", command="x"), call("fetch", n=2)]) if n == 1 else say("done")
        )
    )
    async with rig.open(agent, manifest(permissions={"profile": "safe"}), tools=[fetch.tool, deploying(ran)]) as pod:
        result = await pod.run("go")
        assert result.status == "paused" and sorted(fetch.calls) == [1, 2] and not ran
        await pod.approve(result.approvals[0])
        (await pod.resume()).raise_for_status()
    assert sorted(fetch.calls) == [1, 2] and ran == ["x"]
    assert [r.name for r in results(agent.requests[-1])] == ["fetch", "deploy", "fetch"]


async def test_a_new_message_to_a_paused_run_waits_for_the_answer(rig: Rig) -> None:
    ran: list[str] = []
    agent = Agent(lambda r, n: call("deploy", command="x") if n == 1 else say("done"))
    async with rig.open(agent, manifest(permissions={"profile": "safe"}), tools=[deploying(ran)]) as pod:
        first = await pod.run("go")
        again = await pod.run("and be quick")
        assert again.status == "paused" and again.approvals == first.approvals
        await pod.approve(first.approvals[0])
        (await pod.resume()).raise_for_status()
    assert ran == ["x"] and users(agent.requests[-1]) == ["go", "and be quick"]


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "limit"),
    [
        ({"worker": {"max_requests": 3}}, "max_requests"),
        ({"limits": {"max_tool_calls": 2}}, "max_tool_calls"),
        ({"limits": {"max_total_tokens": 3_000}}, "max_total_tokens"),
        ({"limits": {"max_cost_usd": 0.02}}, "max_cost_usd"),
        ({"limits": {"repeat_call": {"remind": [2], "stop": 3}}}, "repeat_call"),
    ],
)
async def test_a_limit_ends_the_run_resumable_with_its_figures(rig: Rig, sections: dict[str, Any], limit: str) -> None:
    same = limit == "repeat_call"
    price = Price(input=3.0, output=3.0, cache_read=3.0, cache_write=3.0, source="test")
    agent = Agent(
        lambda r, n: call("fetch", n=0 if same else n) if n <= 20 else say("done"),
        capabilities=capabilities(price=price),
    )
    async with rig.open(agent, manifest(**sections), tools=[Counted(300).tool]) as pod:
        result = await pod.run("go")
    assert result.status == "limit" and result.exit_code == 4 and result.resumable
    assert limit in (result.error_kind or "") and limit.split("_")[0] in (result.error or "")
    agent.play = lambda r, n: say("done")
    async with rig.open(agent, manifest(), tools=[Counted(300).tool]) as pod:
        assert (await pod.resume()).text == "done"
    assert users(agent.requests[-1]) == ["go"]


async def test_counters_go_on_through_segments_and_begin_anew_with_each_run(rig: Rig) -> None:
    made = manifest(worker={"max_requests": 12}, compaction=compacting(8_000))
    agent = Agent(lambda r, n: call("fetch", n=n) if n % 11 else say("done"))
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=summariser()) as pod:
        first = (await pod.run("one")).raise_for_status()
        second = (await pod.run("two")).raise_for_status()
    assert first.requests == second.requests == 11 and len(rig.segments()) >= 3


# -- embedding -----------------------------------------------------------------------------------------------------


async def test_deps_reach_tools_and_never_the_schema(rig: Rig) -> None:
    found: list[Any] = []

    async def lookup(name: str, deps: Any) -> str:
        """Looks a name up.

        Args:
            name: whose
        """
        found.append(deps)
        return deps[name]

    agent = Agent(lambda r, n: call("lookup", name="ann") if n == 1 else say("done"))
    book = {"ann": "4711"}
    async with rig.open(agent, tools=[lookup], deps=book) as pod:
        await pod.run("go")
    (spec,) = agent.requests[0].tools
    assert spec.name == "lookup" and list(spec.parameters["properties"]) == ["name"]
    assert found[0] is book and results(agent.requests[-1])[0].text() == "4711"


async def test_tools_and_interceptors_named_in_the_manifest_are_loaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_agent_package")

    @tool
    async def hello() -> str:
        """Says hello."""
        return "hello from the package"

    class Noting(Interceptor):
        seen: list[int] = []  # noqa: RUF012

        async def before_request(self, ctx: RequestContext) -> Decision:
            self.seen.append(ctx.occupancy.tokens)
            return CONTINUE

    module.hello, module.Noting = hello, Noting  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_agent_package", module)
    agent = Agent(lambda r, n: call("hello") if n == 1 else say("done"))
    made = manifest(tools={"python": ["my_agent_package:hello"]}, interceptors=[{"use": "my_agent_package:Noting"}])
    async with rig.open(agent, made) as pod:
        (await pod.run("go")).raise_for_status()
    assert results(agent.requests[-1])[0].text() == "hello from the package" and len(Noting.seen) == 2
    broken = manifest(tools={"python": ["my_agent_package:nothing"]})
    with pytest.raises(UsageProblem, match="my_agent_package:nothing"):
        async with rig.open(agent, broken, name="q"):
            pass
    assert not rig.folder("q").exists()


async def test_two_tools_of_one_name_are_refused_before_anything_is_made(rig: Rig) -> None:
    with pytest.raises(UsageProblem, match="two tools are named 'fetch'"):
        async with rig.open(Agent(caller(1)), tools=[Counted(1).tool, Counted(1).tool]):
            pass
    assert not rig.folder().exists()


async def test_a_users_interceptor_can_add_deny_and_change_and_what_it_added_is_logged(rig: Rig) -> None:
    class Mine(Interceptor):
        async def before_request(self, ctx: RequestContext) -> Decision:
            if any(i.type == "context" for i in ctx.history.view):
                return CONTINUE
            return Append((ContextItem(kind="notice", text="mind the gap", source="mine"),))

        async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
            return output.model_copy(update={"summary": output.summary.replace("secret", "***")})

    @tool
    async def leak() -> str:
        """Leaks."""
        return "the secret is out"

    agent = Agent(lambda r, n: call("leak") if n == 1 else say("done"))
    async with rig.open(agent, tools=[leak], interceptors=[Mine()]) as pod:
        (await pod.run("go")).raise_for_status()
    assert "mind the gap" in texts(agent.requests[0]) and "mind the gap" in rig.segments()[0].read_text()
    assert results(agent.requests[-1])[0].text() == "the *** is out"
    assert "the secret is out" not in rig.segments()[0].read_text()


async def test_another_yield_goes_to_its_handler_and_without_one_ends_resumable(rig: Rig) -> None:
    class Asks(Interceptor):
        asked = False

        async def before_request(self, ctx: RequestContext) -> Decision:
            if ctx.history.counters.requests == 1 and not self.asked:
                self.asked = True
                return Yield("mine", {"why": "because"})
            return CONTINUE

    handled: list[Any] = []
    for name, handler in (("with", lambda y: handled.append(y) or True), ("without", None)):
        agent = Agent(caller(1))
        async with rig.open(agent, name=name, tools=[Counted(5).tool], interceptors=[Asks()], on_yield=handler) as pod:
            result = await pod.run("go")
            if handler is None:
                assert result.status == "yielded" and result.details == {"why": "because"} and result.resumable
                result = await pod.resume()
            assert result.text == "done"
    assert [y.reason for y in handled] == ["mine"]
    assert [y.reason for y in rig.of(e.YieldedEntry, "without")] == ["mine"]


async def test_b164_an_observer_that_raises_at_each_event_changes_nothing(rig: Rig) -> None:
    """B164: it is called for every event and raises every time; run, log and the other readers are the same."""
    told: list[str] = []

    def bad(event: Any) -> None:
        told.append(event.type)
        raise RuntimeError(f"no {event.type}")

    made = manifest(compaction=compacting(8_000))
    seen: list[Any] = []
    async with rig.open(
        Agent(caller(9)), made, tools=[Counted(1_500).tool], compact_model=summariser(), observers=[bad, seen.append]
    ) as pod, pod.start("go") as run:  # fmt: skip
        streamed = [event async for event in run]
        assert run.result.text == "done"
    assert told == types(seen) and types(streamed)[-2:] == ["run.ended", "result"]
    assert {"compaction.started", "segment.started", "tool.completed"} <= set(told)


async def test_b164_observers_that_raise_at_each_event_leave_one_traceback_each(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(event: Any) -> None:
        raise RuntimeError(f"no {event.type}")

    def worse(event: Any) -> None:
        raise RuntimeError("never")

    caplog.set_level("DEBUG", "pod.events")
    async with rig.open(Agent(lambda r, n: say("done")), observers=[bad, worse]) as pod:
        await pod.run("go")
        await pod.run("go on")
    said = [record for record in caplog.records if record.name == "pod.events"]
    first = [record for record in said if record.exc_info]
    assert [record.levelname for record in first] == ["ERROR", "ERROR"]
    assert "bad failed on" in first[0].getMessage() and "worse failed on" in first[1].getMessage()
    assert len(said) > 4 and all(record.levelname == "DEBUG" for record in said if record not in first)


async def test_b164_an_interceptor_that_raises_ends_the_run_with_its_name_and_the_stream_ends(rig: Rig) -> None:
    class Bad(Interceptor):
        async def before_request(self, ctx: RequestContext) -> Decision:
            raise KeyError("broken rule")

    async with rig.open(Agent(caller(1)), interceptors=[Bad()]) as pod, pod.start("go") as run:
        streamed = [event async for event in run]
    assert run.result.status == "failed" and run.result.error_kind == "interceptor"
    assert "Bad" in (run.result.error or "") and "broken rule" in (run.result.error or "")
    assert types(streamed)[-2:] == ["run.ended", "result"]
    assert streamed[-1].result["error_kind"] == "interceptor"


async def test_b164_an_error_inside_the_model_code_ends_the_stream_and_is_raised(rig: Rig) -> None:
    class Bad(Agent):
        async def send(self, request: Request, emit: Any) -> Any:
            raise ZeroDivisionError("a bug of the adapter")

    async with rig.open(Bad(caller(1))) as pod, pod.start("go") as run:
        streamed = [event async for event in run]
        with pytest.raises(ZeroDivisionError):
            await run.wait()
        assert not pod.running.busy
    assert types(streamed)[-2:] == ["run.ended", "result"] and rig.of(e.RunEndedEntry)[-1].status == "failed"


# -- event loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_b165_run_sync_works_twice_and_one_pod_object_in_two_loops_one_after_the_other(
    tmp_path: Path, anyio_backend: str
) -> None:
    """B165: each use has its own loop; the compaction in the second one works."""
    rig = Rig(tmp_path)
    for backend in ("asyncio", "trio"):
        for n in range(2):
            result = Pod.run_sync(
                manifest(), f"task {n}", backend=backend, name=f"{backend}{n}", home=rig.home, cwd=rig.cwd,
                model=Agent(caller(1)), tools=[Counted(5).tool],
            )  # fmt: skip
            assert result.text == "done"
    agent = Agent(caller(6))
    pod = rig.open(
        agent, manifest(compaction=compacting(None)), tools=[Counted(1_500).tool], compact_model=summariser()
    )

    async def first() -> str | None:
        async with pod:
            return (await pod.run("go")).text

    async def second() -> tuple[bool, str | None]:
        async with pod:
            done = await pod.compact()
            agent.play = lambda r, n: say("again")
            return done, (await pod.run("more")).text

    assert anyio.run(first, backend="asyncio") == "done"
    assert anyio.run(second, backend="trio") == (True, "again")
    assert len(rig.segments()) == 2


async def test_run_sync_raises_what_the_run_raises_not_a_group(rig: Rig) -> None:
    def work() -> None:
        with pytest.raises(UsageProblem, match="two tools"):
            Pod.run_sync(
                manifest(), "x", name="s", home=rig.home, cwd=rig.cwd, model=Agent(caller(1)),
                tools=[Counted(1).tool, Counted(1).tool],
            )  # fmt: skip

    await anyio.to_thread.run_sync(work)


async def test_run_sync_inside_of_a_loop_says_what_to_write_instead(rig: Rig) -> None:
    with pytest.raises(UsageProblem, match=r"without an event loop.*await pod\.run"):
        Pod.run_sync(manifest(), "x", name="s", home=rig.home, cwd=rig.cwd)
    assert not rig.home.exists() or not list(rig.home.iterdir())


async def test_the_result_says_why_and_counts_what_was_done(rig: Rig) -> None:
    agent = Agent(
        lambda r, n: reply(
            call("fetch", n=n) if n <= 2 else say("done"), usage=Usage(input_tokens=100 * n, output_tokens=7)
        )
    )
    async with rig.open(agent, tools=[Counted(5).tool]) as pod:
        result = await pod.run("go")
    assert (result.requests, result.tool_calls, result.input_tokens, result.output_tokens) == (3, 2, 600, 21)
    assert result.why_model_stopped == "end" and result.cost_usd is None and result.segments == 1
    assert result.pod == "p" and result.session == rig.starts()[0].session
    assert not rig.of(Warned)
