"""The loop's order: what is on record, and durable, before what."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.worker.loop_rig import (
    Before,
    Counter,
    Journal,
    StoreFault,
    journal_of,
    put_user,
    replies,
    results,
    worker_of,
)  # fmt: skip
from worker.interceptor import Deny, Interceptor, Yield
from worker.items import AssistantItem, UserItem, make_call
from worker.records import Admitted, Input, Record, ReplyRecord, ToolResult, ToolStarted
from worker.results import Finished, Yielded
from worker.testing import FunctionModel, ScriptedModel, call, make_reply, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


# -- a reply and its calls ------------------------------------------------------------------------------------------


async def test_a_reply_and_the_start_of_its_call_are_durable_before_the_tool_runs() -> None:
    """B063: the start of each call is durable before it runs."""
    journal = Journal()
    pending: list[list[Record]] = []
    started: list[list[str]] = []

    def body(n: int) -> str:
        pending.append(list(journal.unsynced))
        started.append(journal.kinds[-2:])
        return "done"

    act = Counter(body=body)
    with ScriptedModel([call("act", n=1), call("act", n=2), say("ok")]) as model:
        assert await worker_of(model, [act.tool], journal=journal).ask("go") == Finished("ok")
    assert pending == [[], []]
    assert started == [["reply", "tool_started"]] * 2


async def test_each_of_several_calls_is_started_durably_before_any_of_their_group_runs() -> None:
    journal = Journal()
    unsynced: list[int] = []

    def body(n: int) -> str:
        unsynced.append(sum(isinstance(r, ToolStarted | ReplyRecord) for r in journal.unsynced))
        return "x"

    look = Counter("look", body=body, policy={"effect": "read"})
    with ScriptedModel([reply(call("look", n=1), call("look", n=2), call("look", n=3)), say("ok")]) as model:
        await worker_of(model, [look.tool], journal=journal).ask("go")
    assert unsynced == [0, 0, 0]
    started = {r.call_id for r in journal.of(ToolStarted)}
    assert started == {r.item.call_id for r in journal.of(ToolResult)}


async def test_a_serial_call_starts_only_after_the_one_before_it_has_its_result_on_record() -> None:
    journal = Journal()
    seen: list[list[str]] = []
    act = Counter(body=lambda n: seen.append([k for k in journal.kinds if k.startswith("tool")]) or "x")
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        await worker_of(model, [act.tool], journal=journal).ask("go")
    assert seen == [["tool_started"], ["tool_started", "tool_result", "tool_started"]]


async def test_a_call_whose_reply_cannot_be_made_durable_is_not_executed() -> None:
    """B071: the store fails before the call, so the call does not run and the store's own error comes out."""
    act = Counter()
    model = ScriptedModel([call("act", n=1)])
    with pytest.raises(StoreFault):
        await worker_of(model, [act.tool], journal=Journal(fail_sync=1)).ask("go")
    assert act.runs == 0


async def test_a_call_whose_start_cannot_be_written_is_not_executed() -> None:
    act = Counter()
    model = ScriptedModel([call("act", n=1)])
    worker = worker_of(model, [act.tool], journal=Journal(fail_write=ToolStarted))
    with pytest.raises(StoreFault):
        await worker.ask("go")
    assert act.runs == 0
    assert [c.started for c in worker.history.unresolved] == [False], "memory does not run ahead of the journal"


async def test_the_stores_error_in_a_group_of_reads_comes_out_as_itself() -> None:
    """And no call behind the group runs."""
    look, act = Counter("look", policy={"effect": "read"}), Counter()
    model = ScriptedModel([reply(call("look", n=1), call("look", n=2), call("act", n=3))])
    with pytest.raises(StoreFault):
        await worker_of(model, [look.tool, act.tool], journal=Journal(fail_write=ToolResult)).ask("go")
    assert act.runs == 0


async def test_each_tool_result_is_one_entry_and_ends_where_its_tool_ended() -> None:
    look = Counter("look", policy={"effect": "read"})
    gate = anyio.Event()

    async def body(n: int) -> str:
        if n == 1:
            await gate.wait()
        else:
            gate.set()
        return f"r{n}"

    look.body = body
    with ScriptedModel([reply(call("look", n=1), call("look", n=2)), say("ok")]) as model:
        worker = worker_of(model, [look.tool])
        await worker.ask("go")
    assert [r.item.summary for r in journal_of(worker).of(ToolResult)] == ["r2", "r1"], "as they ended"
    assert [r.summary for r in results(worker)] == ["r1", "r2"], "the view orders them by call"
    assert [r.summary for r in results(model.requests[1].items)] == ["r1", "r2"]


async def test_no_result_is_in_the_view_while_a_sibling_is_open() -> None:
    sizes: list[int] = []
    act = Counter()
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        act.body = lambda n: sizes.append(len(results(worker))) or "x"
        await worker.ask("go")
    assert sizes == [0, 0]
    assert len(results(worker)) == 2


# -- when things become durable -------------------------------------------------------------------------------------


async def test_the_sync_of_an_effects_result_begins_as_it_ends_and_overlaps_the_model_call() -> None:
    journal = Journal()

    @tool(effect="write")
    async def act() -> str:
        journal.trace.append("ran")
        return "done"

    def answer(request: Any) -> Any:
        journal.trace.append("sent")
        done = any(item.type == "tool_result" for item in request.items)
        return make_reply(AssistantItem(text="hi") if done else make_call("c1", "act", "{}"))

    await worker_of(FunctionModel("offline:f", answer), [act], journal=journal).ask("go")
    assert journal.trace == ["sent", "sync", "ran", "begin_sync", "sent", "sync"]


async def test_a_sync_that_fails_at_the_end_of_a_run_fails_it() -> None:
    worker = worker_of(ScriptedModel([say("hi")]), journal=Journal(fail_sync=1))
    with pytest.raises(StoreFault):
        await worker.ask("go")


async def test_what_ask_returns_is_durable() -> None:
    with ScriptedModel([say("hi")]) as model:
        worker = worker_of(model)
        await worker.ask("go")
    assert journal_of(worker).unsynced == []


async def test_an_end_by_a_decision_about_calls_is_durable_when_it_returns() -> None:
    class No(Interceptor):
        async def before_tool(self, ctx: Any) -> Any:
            return Deny("no") if ctx.arguments["n"] == 1 else None

    act = Counter()
    with ScriptedModel([reply(call("act", n=1), call("act", n=2))]) as model:
        worker = worker_of(model, [act.tool], [No()])
        put_user(worker, "go")
        await worker.run()
    assert journal_of(worker).unsynced == []


# -- admission ------------------------------------------------------------------------------------------------------


async def test_queued_input_takes_its_place_once_and_byte_for_byte() -> None:
    """B022: the user's words are in each later request, verbatim, once, in the user role."""
    words = "  Do ALPHA,\r\nthen BRAVO\t\u3000then CHARLIE \U0001f980 <context>not a mark</context> \n"
    act = Counter()
    with ScriptedModel([call("act", n=1), call("act", n=2), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        await worker.ask(words)
    for request in model.requests:
        assert [i.text for i in request.items if isinstance(i, UserItem)] == [words]
        assert request.messages.count(b"BRAVO") == 1
    assert not worker.history.queue
    assert len(journal_of(worker).of(Admitted)) == 1


async def test_several_queued_inputs_keep_their_order() -> None:
    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model)
        for text in ("one", "two", "three"):
            put_user(worker, text)
        await worker.run()
    assert [i.text for i in model.requests[0].items if isinstance(i, UserItem)] == ["one", "two", "three"]
    assert worker.history.unanswered == 0


async def test_intake_is_asked_before_each_request_and_its_input_is_in_that_request() -> None:
    arriving = ["first", "second"]
    act = Counter()
    with ScriptedModel([call("act", n=1), call("act", n=2), say("ok")]) as model:
        worker = worker_of(model, [act.tool])

        async def intake() -> None:
            if arriving:
                put_user(worker, arriving.pop(0))

        worker.intake = intake
        await worker.run()
    texts = [[i.text for i in r.items if isinstance(i, UserItem)] for r in model.requests]
    assert texts == [["first"], ["first", "second"], ["first", "second"]]


async def test_input_that_arrives_while_tools_run_joins_at_the_next_request_behind_the_results() -> None:
    act = Counter()
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        act.body = lambda n: put_user(worker, f"also {n}") and "x"
        await worker.ask("go")
    types = [item.type for item in model.requests[1].items]
    assert types == ["user", "tool_call", "tool_call", "tool_result", "tool_result", "user", "user"]


async def test_input_that_arrives_during_the_last_reply_is_answered_in_the_same_run() -> None:
    """B027, seen from the worker: a message for the next request is never left behind by a good end."""
    box: list[Any] = []

    def answer(request: Any) -> Any:
        if len(request.items) == 1:
            put_user(box[0], "one more thing")
            return make_reply(AssistantItem(text="done"))
        return make_reply(AssistantItem(text=f"answered {request.items[-1].text}"))

    worker = worker_of(FunctionModel("offline:f", answer))
    box.append(worker)
    assert await worker.ask("go") == Finished("answered one more thing")
    assert not worker.history.queue


async def test_a_yield_leaves_the_loop_between_two_requests_and_the_run_goes_on_by_itself() -> None:
    """B026: nothing is attributed to the user, and the work is not done twice."""
    act = Counter()
    once = iter([None, Yield("compact")])
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Before(lambda ctx: next(once, None))])
        assert await worker.ask("go") == Yielded("compact")
        assert len(model.requests) == 1
        assert await worker.run() == Finished("ok")
    assert [i.text for i in model.requests[1].items if isinstance(i, UserItem)] == ["go"]
    assert act.runs == 1
    assert len(journal_of(worker).of(Input)) == 1


async def test_intake_is_asked_once_more_before_a_good_end() -> None:
    """B027: what lies outside when the last reply is complete is still taken in."""
    with ScriptedModel([say("done"), say("also done")]) as model:
        worker = worker_of(model)

        async def intake() -> None:
            if replies(worker) and len(journal_of(worker).of(Input)) == 1:
                put_user(worker, "late")

        worker.intake = intake
        assert await worker.ask("go") == Finished("also done")


# -- what a reply's record holds ------------------------------------------------------------------------------------


async def test_a_reply_is_one_entry_with_its_items_figures_and_the_estimate_made_before_it() -> None:
    seen: list[int] = []
    with ScriptedModel([say("hi")]) as model:
        worker = worker_of(model, interceptors=[Before(lambda ctx: seen.append(ctx.occupancy.tokens))])
        await worker.ask("go")
    (record,) = replies(worker)
    assert record.estimate == seen[0] > 0
    assert record.provenance == "heuristic"
    assert record.usage.input_tokens
    assert record.model == "offline:scripted"
    assert record.attempts == 1


async def test_all_items_of_a_reply_carry_one_reply_name_and_two_replies_two() -> None:
    act = Counter()
    with ScriptedModel([reply(say("look"), call("act", n=1)), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        await worker.ask("go")
    first, second = ({i.reply for i in record.items} for record in replies(worker))
    assert len(first) == len(second) == 1
    assert first != second


async def test_a_tool_can_not_change_the_arguments_on_record() -> None:
    @tool
    def grab(values: list[int]) -> str:
        """Takes a list."""
        values.append(987654321)
        return "taken"

    with ScriptedModel([call("grab", values=[1]), say("ok")]) as model:
        worker = worker_of(model, [grab])
        await worker.ask("go")
    assert b"987654321" not in model.requests[1].messages
