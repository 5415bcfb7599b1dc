"""Running calls: damaged ones, failing ones, permitted ones, parallel ones, cancelled ones."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from tests.worker.loop_rig import TAG, Counter, journal_of, put_user, results, worker_of
from worker.calling import CONCURRENT_READS
from worker.interceptor import ALLOW, Answer, Deny, Interceptor, Pause, Stop
from worker.items import ToolCallItem, ToolOutput, ToolResultItem, make_call
from worker.models.base import Usage
from worker.records import ToolResult, ToolStarted, Warned
from worker.results import Failed, Finished, LimitReached, Paused
from worker.testing import ScriptedModel, Step, call, check_items, raw_call, reply, say
from worker.tools import Tool, ToolContext, ToolFault, tool

pytestmark = pytest.mark.anyio


async def one(step: Step, tools: list[Tool], **more: Any) -> tuple[ToolResultItem, ScriptedModel]:
    """What became of the one call in `step`; the run went on and ended well."""
    with ScriptedModel([step, say("ok")]) as model:
        worker = worker_of(model, tools, **more)
        assert await worker.ask("go") == Finished("ok")
    (result,) = results(worker)
    assert result == results(model.requests[1].items)[0]
    return result, model


# -- calls that cannot run ------------------------------------------------------------------------------------------


async def test_a_call_of_an_unknown_tool_is_answered_with_the_nearest_and_all_names() -> None:
    """B113: the run goes on, pairing holds."""
    search, read = Counter("search_files"), Counter("read_file")
    with ScriptedModel([call("serch_files"), call("search_files", n=1), say("ok")]) as model:
        worker = worker_of(model, [search.tool, read.tool])
        assert await worker.ask("go") == Finished("ok")
    wrong, right = results(worker)
    assert wrong.status == "error"
    assert "'serch_files'" in wrong.summary
    assert "Did you mean 'search_files'?" in wrong.summary
    assert "read_file, search_files" in wrong.summary
    assert (right.status, search.runs) == ("ok", 1)


async def test_unknown_tools_alone_are_not_taken_for_empty_replies() -> None:
    """B114: each of three gets a result that names the tool, and neither they nor one silence after them end the run."""
    silence = reply(usage=Usage(input_tokens=9, output_tokens=0))
    with ScriptedModel([call("nope"), call("nope"), call("nope"), silence, say("sorry")]) as model:
        worker = worker_of(model, [Counter().tool])
        assert await worker.ask("go") == Finished("sorry")
    assert ["'nope'" in r.summary for r in results(worker)] == [True] * 3
    assert worker.history.counters.empty_replies == 0


async def test_a_call_cut_by_the_output_limit_never_runs_and_is_sent_back_as_valid_json() -> None:
    """B110, B111."""
    act = Counter()
    for step in (
        raw_call("act", '{"n":1,"text":"xxx', cut=True),
        reply(raw_call("act", '{"n":1,"text":"xxx'), stop="tool_calls"),
    ):
        result, model = await one(step, [act.tool])
        assert act.runs == 0
        assert result.status == "error"
        assert "cut" in result.summary
        message = json.loads(b"[" + model.requests[1].messages + b"]")[1]
        sent = json.loads(message["tool_calls"][0]["function"]["arguments"])
        assert sent == {"unparsed_arguments": '{"n":1,"text":"xxx'}
    cut, _ = await one(raw_call("act", '{"n":', cut=True), [act.tool])
    assert "smaller parts" in cut.summary


@pytest.mark.parametrize("arguments", ["null", "[1]", '"x"', "3", "true"])
async def test_arguments_that_are_json_but_no_object_are_refused(arguments: str) -> None:
    """B112."""
    act = Counter()
    result, _ = await one(raw_call("act", arguments), [act.tool])
    assert act.runs == 0
    assert "must be a JSON object" in result.summary


async def test_an_empty_argument_text_means_no_arguments() -> None:
    """B112: documented."""
    act = Counter()
    result, _ = await one(raw_call("act", ""), [act.tool])
    assert (result.status, act.runs) == ("ok", 1)


async def test_the_schemas_complaint_reaches_the_model() -> None:
    act = Counter()
    result, _ = await one(call("act", n="many", more=1), [act.tool])
    assert act.runs == 0
    assert result.status == "error"
    assert "- n: " in result.summary
    assert "- more: " in result.summary


async def test_a_check_of_arguments_that_raises_costs_one_call_and_not_the_run() -> None:
    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        raise RecursionError("too deep")

    strange = Tool("strange", "", {"type": "object", "properties": {}}, lambda a, c: "x", validate=check)
    result, _ = await one(call("strange"), [strange])
    assert "could not be checked: RecursionError" in result.summary


async def test_a_call_that_cannot_run_does_not_stop_its_siblings_and_results_keep_their_order() -> None:
    act = Counter()
    with ScriptedModel([reply(call("act", n=1), call("nope"), raw_call("act", "["), call("act", n=4)), say("ok")]) as m:
        worker = worker_of(m, [act.tool])
        await worker.ask("go")
    assert [r.status for r in results(worker)] == ["ok", "error", "error", "ok"]
    assert act.seen == [1, 4]
    assert {r.ran for r in journal_of(worker).of(ToolResult) if r.item.status == "error"} == {False}


# -- tools that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_one_failing_call_leaves_the_results_of_its_siblings(effect: str) -> None:
    """B018."""

    async def body(n: int) -> str:
        if n == 2:
            raise ValueError("broken")
        await anyio.lowlevel.checkpoint()
        return f"did {n}"

    act = Counter(body=body, policy={"effect": effect})
    with ScriptedModel([reply(*(call("act", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("ok")
    assert [(r.status, r.summary) for r in results(model.requests[1].items)] == [
        ("ok", "did 1"), ("error", "act failed: ValueError: broken"), ("ok", "did 3")
    ]  # fmt: skip


def backend_cancelled() -> BaseException:
    """The backend's cancellation error, made by hand."""
    kind: Any = anyio.get_cancelled_exc_class()
    if not kind.__module__.startswith("trio"):
        return kind()
    try:
        return kind._create(source="unknown")
    except TypeError:
        return kind._create()


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_tool_that_raises_the_backends_cancellation_error_itself_costs_only_its_call(effect: str) -> None:
    """B018, the variant."""

    async def body(n: int) -> str:
        if n == 2:
            raise backend_cancelled()
        return f"did {n}"

    act = Counter(body=body, policy={"effect": effect})
    with ScriptedModel([reply(*(call("act", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("ok")
    statuses = [(r.status, "Cancelled" in r.summary) for r in results(worker)]
    assert statuses == [("ok", False), ("error", True), ("ok", False)]


async def test_an_exception_without_text_is_reported_by_its_class_with_call_and_tool() -> None:
    """B019."""

    class Mute(Exception):
        pass

    def body(n: int) -> str:
        raise Mute

    result, _ = await one(call("act", n=1), [Counter(body=body).tool])
    assert result.summary == "act failed: Mute"
    assert result.name == "act"
    assert result.call_id.startswith("call_")


async def test_a_tool_fault_is_told_in_its_own_words_and_never_empty() -> None:
    def body(n: int) -> str:
        raise ToolFault("there is no such row" if n else "")

    assert (await one(call("act", n=1), [Counter(body=body).tool]))[0].summary == "there is no such row"
    assert (await one(call("act", n=0), [Counter(body=body).tool]))[0].summary == "act failed"


async def test_an_error_inside_a_tools_task_group_is_told_without_the_group() -> None:
    async def body(n: int) -> str:
        async with anyio.create_task_group():
            raise ValueError("the real reason")
        return "never"

    result, _ = await one(call("act", n=1), [Counter(body=body).tool])
    assert result.summary == "act failed: ValueError: the real reason"


async def test_a_tool_that_calls_exit_does_not_end_the_runtime() -> None:
    def body(n: int) -> str:
        raise SystemExit(3)

    result, _ = await one(call("act", n=1), [Counter(body=body).tool])
    assert result.summary == "act failed: SystemExit: 3"


async def test_a_plain_function_runs_in_a_thread_and_its_error_is_a_result() -> None:
    import threading

    places: list[bool] = []

    @tool
    def divide(a: int, b: int) -> float:
        """Divides."""
        places.append(threading.current_thread() is threading.main_thread())
        return a / b

    result, _ = await one(call("divide", a=1, b=0), [divide])
    assert "ZeroDivisionError" in result.summary
    assert places == [False]


async def test_a_tool_without_output_says_so() -> None:
    result, _ = await one(call("act", n=1), [Counter(body=lambda n: ToolOutput(summary="")).tool])
    assert result.summary == "act: no output"


async def test_what_a_tool_returns_is_json_where_it_is_no_text() -> None:
    class Row(BaseModel):
        id: int
        name: str

    result, _ = await one(call("act", n=1), [Counter(body=lambda n: Row(id=n, name="é")).tool])
    assert result.summary == '{"id":1,"name":"é"}'


async def test_a_large_output_is_cut_with_a_mark_and_so_is_an_answer_by_an_interceptor() -> None:
    class Cached(Interceptor):
        async def before_tool(self, ctx: Any) -> Any:
            return Answer(ToolOutput(summary="cached", content="c" * 50_000)) if ctx.arguments["n"] == 2 else ALLOW

    act = Counter(body=lambda n: "x" * 50_000, policy={"max_output": 1_000})
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Cached()])
        await worker.ask("go")
    for result in results(worker):
        assert len(result.content or "") <= 1_000
        assert "left out" in (result.content or "")
    assert act.runs == 1


# -- call ids -------------------------------------------------------------------------------------------------------


async def test_call_ids_that_repeat_in_one_reply_and_across_replies_are_made_unique() -> None:
    """Pairing holds whatever a provider names its calls."""
    act = Counter()
    twice = Step(items=(make_call("dup", "act", '{"n":1}'), make_call("dup", "act", '{"n":2}')))
    again = Step(items=(make_call("dup", "act", '{"n":3}'),))
    with ScriptedModel([twice, again, say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("ok")
    made = [i.call_id for i in worker.history.view if isinstance(i, ToolCallItem)]
    assert len(set(made)) == 3
    assert made[0] == "dup", "the first keeps its id"
    assert [r.call_id for r in results(worker)] == made
    assert [r.summary for r in results(worker)] == ["did 1", "did 2", "did 3"]


# -- permission -----------------------------------------------------------------------------------------------------


class Judge(Interceptor):
    """Decides by the call's `n`; `answers` may change between runs."""

    def __init__(self, **decisions: Any) -> None:
        self.decisions = decisions
        self.asked: list[int] = []

    async def before_tool(self, ctx: Any) -> Any:
        self.asked.append(ctx.arguments["n"])
        return self.decisions.get(f"n{ctx.arguments['n']}", ALLOW)


async def test_a_denied_call_does_not_run_and_its_reason_reaches_the_model() -> None:
    act = Counter()
    note = Warned(code="denied", message="rule 3")
    judge = Judge(n1=Deny(f"not allowed: {TAG}", record=note))
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [judge])
        await worker.ask("go")
    assert [(r.status, r.summary) for r in results(worker)] == [
        ("denied", f"not allowed: {TAG[:4]}-{TAG[4:]}"), ("ok", "did 2")
    ]  # fmt: skip
    assert act.seen == [2]
    assert worker.history.counters.denied == 1
    assert note in journal_of(worker).records


async def test_a_denied_call_has_no_start_on_record() -> None:
    act = Counter()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Judge(n1=Deny("no"))])
        await worker.ask("go")
    assert journal_of(worker).of(ToolStarted) == []
    assert [r.ran for r in journal_of(worker).of(ToolResult)] == [False]


async def test_an_answered_call_does_not_run() -> None:
    act = Counter()
    judge = Judge(n1=Answer(ToolOutput(summary="from a cache")), n2=Answer(ToolOutput(summary="bad", is_error=True)))
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [judge])
        await worker.ask("go")
    assert [(r.status, r.summary) for r in results(worker)] == [("ok", "from a cache"), ("error", "bad")]
    assert act.runs == 0


async def test_the_first_interceptor_that_does_not_allow_decides() -> None:
    act = Counter()
    first, second = Judge(n1=Deny("first")), Judge(n1=Answer(ToolOutput(summary="second")))
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [first, second])
        await worker.ask("go")
    assert results(worker)[0].summary == "first"
    assert second.asked == []


async def test_allowed_calls_run_before_the_run_pauses_and_the_paused_one_runs_exactly_once_after_its_answer() -> None:
    """B017, seen from the worker."""
    act = Counter()
    asked = Warned(code="asked", message="may it?")
    judge = Judge(n2=Pause("appr-1", record=asked))
    with ScriptedModel([reply(*(call("act", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [judge])
        assert await worker.ask("go") == Paused(("appr-1",))
        assert act.seen == [1, 3]
        assert journal_of(worker).unsynced == []
        assert asked in journal_of(worker).records
        assert results(worker) == [], "while a call is open its siblings wait"
        assert await worker.run() == Paused(("appr-1",)), "without an answer nothing moves"
        assert (act.seen, len(model.requests)) == ([1, 3], 1)
        judge.decisions.clear()
        assert await worker.run() == Finished("ok")
    assert act.seen == [1, 3, 2]
    assert [r.summary for r in results(worker)] == ["did 1", "did 2", "did 3"]


async def test_a_paused_call_that_is_refused_never_runs() -> None:
    act = Counter()
    judge = Judge(n1=Pause("appr-1"))
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [judge])
        assert await worker.ask("go") == Paused(("appr-1",))
        judge.decisions["n1"] = Deny("the human said no")
        assert await worker.run() == Finished("ok")
    assert act.runs == 0
    assert results(worker)[0].status == "denied"


async def test_a_stop_before_a_call_runs_none_of_the_reply() -> None:
    act = Counter()
    end = LimitReached("max_tool_calls", "enough")
    with ScriptedModel([reply(call("act", n=1), call("act", n=2))]) as model:
        worker = worker_of(model, [act.tool], [Judge(n2=Stop(end))])
        assert await worker.ask("go") == end
    assert act.runs == 0


async def test_after_tool_may_replace_an_output() -> None:
    class Redact(Interceptor):
        async def after_tool(self, ctx: Any, output: ToolOutput) -> ToolOutput:
            return output.model_copy(update={"summary": output.summary.replace("hunter2", "***")})

    result, _ = await one(
        call("act", n=1), [Counter(body=lambda n: "the password is hunter2").tool], interceptors=[Redact()]
    )
    assert result.summary == "the password is ***"


# -- side by side ---------------------------------------------------------------------------------------------------


async def test_reads_run_side_by_side_up_to_their_bound() -> None:
    running, most, gate = 0, 0, anyio.Event()

    async def body(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == CONCURRENT_READS:
            gate.set()
        await gate.wait()
        await anyio.lowlevel.checkpoint()
        running -= 1
        return "x"

    look = Counter("look", body=body, policy={"effect": "read"})
    with ScriptedModel([reply(*(call("look", n=n) for n in range(CONCURRENT_READS + 4))), say("ok")]) as model:
        await worker_of(model, [look.tool]).ask("go")
    assert most == CONCURRENT_READS


async def test_calls_that_act_run_one_by_one_in_order_and_reads_do_not_pass_them() -> None:
    running, trace = 0, list[Any]()

    async def body(n: int) -> str:
        nonlocal running
        running += 1
        trace.append((n, running))
        await anyio.lowlevel.checkpoint()
        running -= 1
        return "x"

    act, look = Counter(body=body), Counter("look", body=body, policy={"effect": "read"})
    names = ["act", "act", "look", "look", "act"]
    with ScriptedModel([reply(*(call(name, n=n) for n, name in enumerate(names))), say("ok")]) as model:
        await worker_of(model, [act.tool, look.tool]).ask("go")
    assert [t for t in trace if t[0] in (0, 1, 4)] == [(0, 1), (1, 1), (4, 1)]
    assert sorted(t[0] for t in trace[2:4]) == [2, 3]
    assert max(t[1] for t in trace[2:4]) == 2


async def test_a_tool_is_lent_its_call_its_folder_and_what_the_embedder_gave(tmp_path: Any) -> None:
    class Service:
        word = "lent"

    @tool
    def show(ctx: ToolContext, deps: Any) -> str:
        """Shows."""
        return f"{ctx.name} {ctx.cwd == tmp_path} {deps['key']} {ctx.get(Service).word} {ctx.call_id[:5]}"

    result, _ = await one(
        call("show"), [show], cwd=tmp_path, deps={"key": "value"}, services={Service: Service()}
    )  # fmt: skip
    assert result.summary == "show True value lent call_"


# -- cancellation ---------------------------------------------------------------------------------------------------


async def test_cancelled_while_a_tool_runs_the_call_stays_open_and_started() -> None:
    """B075: and the history takes a new prompt once the call is closed."""
    scope = anyio.CancelScope()

    async def body(n: int) -> str:
        if n == 2:
            scope.cancel()
            await anyio.sleep_forever()
        return f"did {n}"

    act = Counter(body=body)
    with ScriptedModel([reply(*(call("act", n=n) for n in (1, 2, 3))), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        with scope:
            await worker.ask("go")
        assert scope.cancelled_caught
        assert [(c.item.parsed, c.started) for c in worker.history.unresolved] == [({"n": 2}, True), ({"n": 3}, False)]
        for open_call in worker.history.unresolved:
            item = ToolResultItem(
                call_id=open_call.item.call_id, name="act", status="interrupted", summary="interrupted"
            )  # fmt: skip
            worker.ledger.put(ToolResult(item=item))
        check_items([*worker.history.view])
        assert await worker.ask("next") == Finished("ok")
    assert [r.status for r in results(worker)] == ["ok", "interrupted", "interrupted"]


async def test_a_started_call_without_result_is_never_run_again_by_itself() -> None:
    """B063: going on after a cancel says that the outcome is unknown; what had not begun is run."""
    scope = anyio.CancelScope()

    async def body(n: int) -> str:
        if n == 1 and not scope.cancel_called:
            scope.cancel()
            await anyio.sleep_forever()
        return f"did {n}"

    act = Counter(body=body)
    with ScriptedModel([reply(call("act", n=1), call("act", n=2)), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        with scope:
            await worker.ask("go")
        assert await worker.run() == Finished("ok")
    assert act.seen == [1, 2]
    unknown, done = results(worker)
    assert (unknown.status, done.status) == ("interrupted", "ok")
    assert "outcome is unknown" in unknown.summary


async def test_a_started_call_of_an_idempotent_tool_is_run_again() -> None:
    scope = anyio.CancelScope()

    async def body(n: int) -> str:
        if not scope.cancel_called:
            scope.cancel()
            await anyio.sleep_forever()
        return "fetched"

    fetch = Counter("fetch", body=body, policy={"effect": "network", "idempotent": True})
    with ScriptedModel([call("fetch", n=1), say("ok")]) as model:
        worker = worker_of(model, [fetch.tool])
        with scope:
            await worker.ask("go")
        assert await worker.run() == Finished("ok")
    assert fetch.runs == 2
    assert results(worker)[0].summary == "fetched"


async def test_cancelled_in_a_group_of_reads_the_finished_ones_keep_their_results() -> None:
    scope = anyio.CancelScope()
    others: list[int] = []

    async def body(n: int) -> str:
        if n == 3:
            while len(others) < 2:
                await anyio.lowlevel.checkpoint()
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
            await anyio.sleep_forever()
        others.append(n)
        return f"did {n}"

    look = Counter("look", body=body, policy={"effect": "read"})
    with ScriptedModel([reply(*(call("look", n=n) for n in (1, 2, 3)))]) as model:
        worker = worker_of(model, [look.tool])
        put_user(worker, "go")
        with scope:
            await worker.run()
    assert [c.item.parsed for c in worker.history.unresolved] == [{"n": 3}]
    assert sorted(r.item.summary for r in journal_of(worker).of(ToolResult)) == ["did 1", "did 2"]


async def test_calls_beside_a_refusal_are_answered_and_never_run() -> None:
    """B117: what a filter cut off is not acted on, and the history stays valid."""
    act = Counter()
    with ScriptedModel([reply(call("act", n=1), stop="refusal"), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        outcome = await worker.ask("go")
        assert isinstance(outcome, Failed)
        assert outcome.kind == "refused"
        assert act.runs == 0
        assert await worker.ask("then something else") == Finished("ok")
    assert [r.status for r in results(worker)] == ["error"]


async def test_the_usage_of_a_reply_with_calls_counts_and_so_do_its_calls() -> None:
    act = Counter()
    usage = Usage(input_tokens=100, cached_tokens=40, output_tokens=7)
    with ScriptedModel(
        [reply(call("act", n=1), call("act", n=2), usage=usage), reply(say("ok"), usage=usage)]
    ) as model:
        worker = worker_of(model, [act.tool])
        await worker.ask("go")
    counters = worker.history.counters
    assert (counters.requests, counters.tool_calls) == (2, 2)
    assert (counters.prompt_tokens, counters.cached_tokens, counters.output_tokens) == (200, 80, 14)
