"""What interceptors decide before and after a request, and what becomes of one that raises."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.worker.loop_rig import (
    TAG,
    Before,
    Counter,
    journal_of,
    put_user,
    replies,
    results,
    worker_of,
)  # fmt: skip
from worker.errors import Overloaded
from worker.history import History
from worker.interceptor import (
    CONTINUE,
    Append,
    Decision,
    Edit,
    Interceptor,
    Note,
    RequestContext,
    Stop,
    Yield,
    overrides,
)  # fmt: skip
from worker.items import ContextItem, OrderItem, ToolOutput, ToolResultItem, UserItem
from worker.records import Admitted, ContextAdded, Edited, Record, Retry, Warned
from worker.results import Failed, Finished, LimitReached, Yielded
from worker.retry import RetryPolicy
from worker.testing import ScriptedModel, call, fail, reply, say

pytestmark = pytest.mark.anyio


def notice(text: str) -> ContextItem:
    return ContextItem(kind="notice", text=text)


# -- decisions ------------------------------------------------------------------------------------------------------


async def test_interceptors_are_asked_in_order() -> None:
    order: list[str] = []
    chain = [Before(lambda ctx, n=name: order.append(n), name) for name in ("a", "b", "c")]
    with ScriptedModel([say("ok")]) as model:
        await worker_of(model, interceptors=chain).ask("go")
    assert order == ["a", "b", "c"]


async def test_an_append_is_on_record_and_the_chain_starts_again_on_the_new_view() -> None:
    order: list[tuple[str, int]] = []
    added = notice("mind the gap")

    def first(ctx: RequestContext) -> None:
        order.append(("first", len(ctx.history.view)))

    def second(ctx: RequestContext) -> Decision:
        order.append(("second", len(ctx.history.view)))
        return Append((added,)) if len(ctx.history.view) == 1 else CONTINUE

    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model, interceptors=[Before(first), Before(second, "Second")])
        await worker.ask("go")
    assert order == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
    assert journal_of(worker).of(ContextAdded) == [ContextAdded(items=(added,), by="Second")]
    assert [i.type for i in model.requests[0].items] == ["user", "context"]


async def test_an_interceptor_appends_at_most_once_for_each_request() -> None:
    """Every automatic loop has a bound: one that always appends does not hold the request up."""
    always = Before(lambda ctx: Append((notice("again"),)))
    act = Counter()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [always])
        assert await worker.ask("go") == Finished("ok")
    assert len(journal_of(worker).of(ContextAdded)) == 2
    assert always.asked == 4


async def test_two_interceptors_that_append_each_get_their_turn() -> None:
    a = Before(lambda ctx: Append((notice("a"),)) if ctx.first and a.asked == 1 else None, "A")
    b = Before(lambda ctx: Append((notice("b"),)) if b.asked == 1 else None, "B")
    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model, interceptors=[a, b])
        await worker.ask("go")
    assert [r.by for r in journal_of(worker).of(ContextAdded)] == ["A", "B"]
    assert (a.asked, b.asked) == (3, 2)


async def test_an_edit_is_a_projection_on_record_and_the_log_keeps_the_original() -> None:
    act = Counter(body=lambda n: "long " * 500)

    def shorten(ctx: RequestContext) -> Decision:
        found = [i for i in results(ctx.history) if i.content]
        return Edit({i.id: i.model_copy(update={"content": None}) for i in found}, reason="test") if found else CONTINUE

    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Before(shorten, "Shorten")])
        await worker.ask("go")
    assert results(model.requests[1].items)[0].content is None
    (edit,) = journal_of(worker).of(Edited)
    assert (edit.by, edit.reason) == ("Shorten", "test")
    assert any(r.kind == "tool_result" and r.item.content for r in journal_of(worker).records)


async def test_an_edit_shows_to_the_interceptors_behind_it_and_in_the_number() -> None:
    act = Counter(body=lambda n: "word " * 5_000)
    sizes: list[int] = []
    edit = Before(lambda ctx: Edit({i.id: i.model_copy(update={"content": None}) for i in results(ctx.history)}))
    chain = [Before(lambda ctx: sizes.append(ctx.occupancy.tokens)), edit]
    chain.append(Before(lambda ctx: sizes.append(ctx.occupancy.tokens)))
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        await worker_of(model, [act.tool], chain).ask("go")
    assert sizes[2] - sizes[3] > 4_000


async def test_a_replacement_takes_the_id_of_what_it_replaces() -> None:
    def swap(ctx: RequestContext) -> Decision:
        old = ctx.history.view[0]
        return Edit({old.id: ContextItem(kind="notice", text="other words")}) if old.type == "user" else CONTINUE

    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model, interceptors=[Before(swap)])
        item = put_user(worker, "words")
        await worker.run()
    assert [(i.id, i.type) for i in model.requests[0].items] == [(item.id, "context")]


async def test_an_edit_that_would_tear_a_call_from_its_result_ends_the_run_before_it_is_sent() -> None:
    def tear(ctx: RequestContext) -> Decision | None:
        found = results(ctx.history)
        return Edit({found[0].id: notice("gone")}) if found else None

    act = Counter()
    with ScriptedModel([call("act", n=1)]) as model:
        worker = worker_of(model, [act.tool], [Before(tear, "Tear")])
        outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "interceptor"
    assert "Tear" in outcome.message
    assert journal_of(worker).of(Edited) == []


async def test_a_note_is_on_record_and_the_chain_goes_on() -> None:
    warned = Warned(code="mind", message="the gap")
    last = Before(lambda ctx: None)
    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model, interceptors=[Before(lambda ctx: Note(warned)), last])
        assert await worker.ask("go") == Finished("ok")
    assert journal_of(worker).of(Warned) == [warned]
    assert last.asked == 1


async def test_a_yield_or_a_stop_ends_the_stretch_before_the_request() -> None:
    limit = LimitReached("max_requests", "enough")
    later = Before(lambda ctx: None)
    for decision, outcome in ((Yield("r", {"n": 1}), Yielded("r", {"n": 1})), (Stop(limit), limit)):
        model = ScriptedModel([])
        worker = worker_of(model, interceptors=[Before(lambda ctx, d=decision: d), later])
        assert await worker.ask("go") == outcome
        assert model.requests == []
    assert later.asked == 0


async def test_interceptors_without_methods_of_their_own_are_passed_over() -> None:
    class Idle(Interceptor):
        pass

    assert not any(
        overrides(Idle(), m)
        for m in ("before_request", "after_request", "after_error", "before_tool", "after_tool", "observe")
    )
    act = Counter()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        assert await worker_of(model, [act.tool], [Idle(), Idle()]).ask("go") == Finished("ok")


async def test_the_context_says_what_the_next_request_is() -> None:
    seen: list[RequestContext] = []
    act = Counter()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Before(seen.append)])
        await worker.ask("go")
    assert [ctx.first for ctx in seen] == [True, False]
    assert {ctx.tag for ctx in seen} == {TAG}
    assert {ctx.model for ctx in seen} == {"offline:scripted"}
    assert [ctx.occupancy.provenance for ctx in seen] == ["heuristic", "usage"]
    assert seen[0].budget.available == 200_000 - 16_384


async def test_an_order_is_appended_as_one_and_results_cannot_carry_its_tag() -> None:
    """B044: the session's tag is broken up wherever data holds it."""
    order = OrderItem(text="be brief", tag=TAG)
    once = iter([Append((order,))])
    act = Counter(body=lambda n: ToolOutput(summary=f"s {TAG}", content=f"<order tag={TAG}>{TAG}"))
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Before(lambda ctx: next(once, None))])
        await worker.ask("go")
    (result,) = results(worker)
    assert TAG not in result.text()
    assert model.requests[1].messages.count(TAG.encode()) == 1


# -- one that raises ------------------------------------------------------------------------------------------------


class Raises(Interceptor):
    """Raises in one of its methods."""

    def __init__(self, method: str, error: Exception | None = None) -> None:
        self.method, self.error = method, error or KeyError("oops")

    async def _maybe(self, method: str, value: Any) -> Any:
        if method == self.method:
            raise self.error
        return value

    async def before_request(self, ctx: Any) -> Any:
        return await self._maybe("before_request", CONTINUE)

    async def after_request(self, ctx: Any, reply: Any) -> None:
        await self._maybe("after_request", None)

    async def after_error(self, ctx: Any, error: Any) -> Any:
        return await self._maybe("after_error", CONTINUE)

    async def before_tool(self, ctx: Any) -> Any:
        from worker.interceptor import ALLOW

        return await self._maybe("before_tool", ALLOW)

    async def after_tool(self, ctx: Any, output: Any) -> Any:
        return await self._maybe("after_tool", output)


def failed_by_name(outcome: Any) -> Failed:
    assert isinstance(outcome, Failed)
    assert outcome.kind == "interceptor"
    assert outcome.message.startswith("interceptor Raises: KeyError: 'oops'")
    assert outcome.details["interceptor"] == "Raises"
    return outcome


async def test_an_exception_before_a_request_fails_the_run_by_name_and_nothing_is_sent() -> None:
    """B164."""
    model = ScriptedModel([])
    failed_by_name(await worker_of(model, interceptors=[Raises("before_request")]).ask("go"))
    assert model.requests == []


async def test_an_exception_after_a_request_fails_the_run_by_name_before_its_calls() -> None:
    """B164: the reply stays on record."""
    act = Counter()
    with ScriptedModel([call("act", n=1)]) as model:
        worker = worker_of(model, [act.tool], [Raises("after_request")])
        failed_by_name(await worker.ask("go"))
    assert act.runs == 0
    assert len(replies(worker)) == 1


async def test_an_exception_before_a_tool_fails_the_run_by_name_and_no_call_runs() -> None:
    """B164: also those before it in the reply, which were allowed."""
    act = Counter()

    class Second(Raises):
        async def before_tool(self, ctx: Any) -> Any:
            self.method = "before_tool" if ctx.arguments["n"] == 2 else ""
            return await super().before_tool(ctx)

    Second.name = "Raises"
    with ScriptedModel([reply(call("act", n=1), call("act", n=2))]) as model:
        failed_by_name(await worker_of(model, [act.tool], [Second("")]).ask("go"))
    assert act.runs == 0


async def test_an_exception_after_a_tool_fails_the_run_by_name_and_the_call_has_a_result() -> None:
    """B164: the tool has run, so it must not look open; what it said is withheld, it may have been there to redact."""
    act = Counter(body=lambda n: ToolOutput(summary="the password", content="is secret", state={"tasks": 1}))
    with ScriptedModel([call("act", n=1)]) as model:
        worker = worker_of(model, [act.tool], [Raises("after_tool")])
        failed_by_name(await worker.ask("go"))
    (result,) = results(worker)
    assert result.status == "error"
    assert "act ran" in result.summary
    assert "secret" not in result.text()
    assert "password" not in result.text()
    assert result.state == {"tasks": 1}, "the log is where tool state lives"
    assert not worker.history.open


async def test_an_exception_after_one_of_several_reads_leaves_the_siblings_results() -> None:
    """B018 and B164 together: no group error, no lost sibling."""

    class Picky(Raises):
        async def after_tool(self, ctx: Any, output: Any) -> Any:
            self.method = "after_tool" if ctx.arguments["n"] == 2 else ""
            return await super().after_tool(ctx, output)

    Picky.name = "Raises"
    look = Counter("look", policy={"effect": "read"})
    with ScriptedModel([reply(*(call("look", n=n) for n in (1, 2, 3)))]) as model:
        worker = worker_of(model, [look.tool], [Picky("")])
        failed_by_name(await worker.ask("go"))
    assert [(r.status, r.summary[:5]) for r in results(worker)] == [
        ("ok", "did 1"), ("error", "look "), ("ok", "did 3")
    ]  # fmt: skip


async def test_after_a_failing_interceptor_no_later_call_of_the_reply_runs() -> None:
    act = Counter()
    with ScriptedModel([reply(call("act", n=1), call("act", n=2))]) as model:
        worker = worker_of(model, [act.tool], [Raises("after_tool")])
        failed_by_name(await worker.ask("go"))
    assert act.seen == [1]
    assert [c.started for c in worker.history.unresolved] == [False]


async def test_an_exception_after_an_error_fails_the_run_by_name_and_keeps_the_first_error() -> None:
    """B164: the interceptor's failure does not hide why it was asked."""
    model = ScriptedModel([fail(Overloaded("busy"))])
    worker = worker_of(model, interceptors=[Raises("after_error")], retry=RetryPolicy(max_attempts=1))
    outcome = failed_by_name(await worker.ask("go"))
    assert "overloaded: busy" in outcome.message


async def test_an_exception_while_observing_fails_the_run_by_name_and_the_record_stands() -> None:
    """B164: a fold that failed is not trusted, and the journal and the history still agree."""

    class Watch(Interceptor):
        name = "Raises"

        def observe(self, record: Record) -> None:
            if isinstance(record, Admitted):
                raise KeyError("oops")

    model = ScriptedModel([])
    worker = worker_of(model, interceptors=[Watch()])
    failed_by_name(await worker.ask("go"))
    assert model.requests == []
    assert [item.type for item in worker.history.view] == ["user"]


async def test_an_exception_while_observing_a_reply_comes_before_its_calls() -> None:
    class Watch(Interceptor):
        name = "Raises"

        def observe(self, record: Record) -> None:
            if record.kind == "reply":
                raise KeyError("oops")

    act = Counter()
    with ScriptedModel([call("act", n=1)]) as model:
        failed_by_name(await worker_of(model, [act.tool], [Watch()]).ask("go"))
    assert act.runs == 0


@pytest.mark.parametrize("method", ["before_request", "before_tool", "after_tool"])
async def test_an_interceptor_that_forgets_its_answer_fails_the_run_by_name(method: str) -> None:
    """A permission check without a `return` must not let a call through."""

    async def forgets(self: Any, *_: Any) -> None:
        return None

    forgetful = type("Forgetful", (Interceptor,), {method: forgets})()
    act = Counter()
    worker = worker_of(ScriptedModel([call("act", n=1)]), [act.tool], [forgetful])
    outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert "interceptor Forgetful" in outcome.message
    assert act.runs == (1 if method == "after_tool" else 0)


async def test_a_display_that_raises_is_logged_with_one_traceback_and_the_run_is_unaffected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B164."""

    class Broken:
        def request_started(self, ctx: Any) -> None:
            raise RuntimeError("no screen")

        def delta(self, delta: Any) -> None:
            raise RuntimeError("no paint")

    with caplog.at_level(logging.DEBUG, "worker"), ScriptedModel([say("ok")]) as model:
        assert await worker_of(model, observer=Broken()).ask("go") == Finished("ok")
    said = [record for record in caplog.records if record.name.startswith("worker")]
    assert [(record.levelname, record.exc_info is not None) for record in said] == [("ERROR", True), ("DEBUG", False)]


# -- after an error -------------------------------------------------------------------------------------------------


async def test_a_yield_or_stop_after_an_error_replaces_the_failure() -> None:
    class Mend(Interceptor):
        def __init__(self, decision: Decision) -> None:
            self.decision = decision

        async def after_error(self, ctx: Any, error: Any) -> Decision:
            assert error.kind == "overloaded"
            return self.decision

    once = RetryPolicy(max_attempts=1)
    for decision, outcome in ((Yield("compact"), Yielded("compact")), (Stop(Failed("x", "y")), Failed("x", "y"))):
        model = ScriptedModel([fail(Overloaded("busy"))])
        assert await worker_of(model, interceptors=[Mend(CONTINUE), Mend(decision)], retry=once).ask("go") == outcome


async def test_observers_see_each_record_in_order_after_it_is_in_the_history() -> None:
    seen: list[tuple[str, int]] = []

    class Watch(Interceptor):
        history: History

        def observe(self, record: Record) -> None:
            seen.append((record.kind, len(self.history.view)))

    watch = Watch()
    act = Counter()
    with ScriptedModel([call("act", n=1), fail(Overloaded("busy")), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [watch])
        watch.history = worker.history
        await worker.ask("go")
    assert seen == [
        ("input", 0), ("admitted", 1), ("reply", 2), ("tool_started", 2), ("tool_result", 3), ("retry", 3), ("reply", 4)
    ]  # fmt: skip
    assert [r.kind for r in journal_of(worker).of(Retry)] == ["retry"]


async def test_context_that_is_added_while_calls_are_open_stands_behind_their_results() -> None:
    """B013, B015: nothing comes between a call and its result."""
    act = Counter()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        act.body = lambda n: worker.ledger.put(ContextAdded(items=(notice("meanwhile"),), by="tool")) or "x"
        await worker.ask("go")
    assert [i.type for i in model.requests[1].items] == ["user", "tool_call", "tool_result", "context"]
    assert isinstance(model.requests[1].items[0], UserItem)
    assert isinstance(model.requests[1].items[2], ToolResultItem)
