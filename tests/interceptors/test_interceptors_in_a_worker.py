"""Interceptors in a real loop, with real tools and a scripted model that rejects what a strict provider rejects."""

from __future__ import annotations

from typing import Any

import pytest

from interceptors import (
    ApprovalAnswered,
    Ceiling,
    CompactSettings,
    CompactTrigger,
    Limits,
    LimitSettings,
    Permissions,
    Prune,
    PruneSettings,
    RepeatGuard,
    Trigger,
    default_chain,
)
from worker.errors import ContextOverflow
from worker.items import OrderItem, ToolResultItem, UserItem
from worker.models.base import Capabilities
from worker.records import Input, Pruned
from worker.results import Failed, Finished, LimitReached, Paused, Yielded
from worker.testing import ScriptedModel, call, fail, say
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio

PAGE = "some words of a page\n" * 500


class Runs:
    """Counts how often a tool ran."""

    def __init__(self) -> None:
        self.count = 0

    def page(self) -> Tool:
        @tool(name="page")
        def page(n: int = 0) -> str:
            """Gives a page."""
            self.count += 1
            return f"page {n}\n{PAGE}"

        return page

    def command(self) -> Tool:
        @tool(name="shell", effect="process")
        def shell(command: str) -> str:
            """Runs a command."""
            self.count += 1
            return "ran"

        return shell


async def test_a_limit_of_two_requests_lets_exactly_two_through(make_worker: Any) -> None:
    """B128: the third is not sent, results are kept, and the end is a limit."""
    runs = Runs()
    model = ScriptedModel([call("page", n=1), call("page", n=2)])
    worker = make_worker(model, default_chain(limits=Limits(LimitSettings(max_requests=2))), [runs.page()])
    outcome = await worker.ask("go")
    assert isinstance(outcome, LimitReached)
    assert outcome.limit == "max_requests"
    assert len(model.requests) == runs.count == 2
    assert isinstance(worker.history.view[-1], ToolResultItem)
    model.assert_consumed()


async def test_a_limit_of_tool_calls_is_exact(make_worker: Any) -> None:
    runs = Runs()
    model = ScriptedModel([call("page", n=n) for n in range(4)])
    worker = make_worker(model, default_chain(limits=Limits(LimitSettings(max_tool_calls=3))), [runs.page()])
    outcome = await worker.ask("go")
    assert isinstance(outcome, LimitReached)
    assert outcome.limit == "max_tool_calls"
    assert runs.count == 3
    assert worker.history.view[-1].status == "denied"


async def test_an_endless_repetition_is_bounded(make_worker: Any) -> None:
    """B118: reminders stand in the requests as orders; the run ends after twelve equal calls."""
    runs = Runs()
    model = ScriptedModel([call("page", n=1)] * 12)
    worker = make_worker(model, default_chain(), [runs.page()])
    outcome = await worker.ask("go")
    assert isinstance(outcome, LimitReached)
    assert outcome.limit == "repeat_call"
    assert len(model.requests) == 12
    assert sum(isinstance(item, OrderItem) for item in model.requests[-1].items) == 3


async def test_denied_calls_that_repeat_are_bounded(make_worker: Any) -> None:
    """B122: headless, a gated tool, and a model that repeats the call after each denial."""
    runs = Runs()
    model = ScriptedModel([call("shell", command="x")] * 12)
    chain = default_chain(permissions=Permissions(headless=True, when_headless="deny"))
    worker = make_worker(model, chain, [runs.command()])
    outcome = await worker.ask("go")
    assert isinstance(outcome, LimitReached)
    assert outcome.limit == "repeat_call"
    assert runs.count == 0
    assert worker.history.counters.denied == 12


async def test_an_approved_call_runs_exactly_once(make_worker: Any) -> None:
    """B041: paused, answered, run; an identical call of the model pauses again."""
    runs = Runs()
    model = ScriptedModel([call("shell", command="x"), call("shell", command="x")])
    worker = make_worker(model, default_chain(permissions=Permissions()), [runs.command()])
    first = await worker.ask("go")
    assert isinstance(first, Paused)
    assert runs.count == 0
    assert await worker.run() == first, "nothing moves before the answer"
    worker.ledger.put(ApprovalAnswered(id=first.approvals[0], approved=True))
    second = await worker.run()
    assert isinstance(second, Paused)
    assert second.approvals != first.approvals
    assert runs.count == 1


async def test_a_long_run_prunes_rarely_and_stays_valid(make_worker: Any) -> None:
    """B161 in a loop: each request but those behind a prune begins with the bytes of the one before."""
    runs = Runs()
    settings = PruneSettings(min_savings=20_000)
    with ScriptedModel([*(call("page", n=n) for n in range(40)), say("done")]) as model:
        worker = make_worker(model, default_chain(prune=Prune(settings)), [runs.page()])
        assert isinstance(await worker.ask("go"), Finished)
    prunes = [record for record in worker.ledger.journal.records if isinstance(record, Pruned)]
    broken = sum(
        not b.messages.startswith(a.messages) for a, b in zip(model.requests, model.requests[1:], strict=False)
    )
    assert broken == len(prunes) > 0
    assert broken <= sum(p.tokens_saved for p in prunes) / 20_000 + 1
    stubs = [i for i in model.requests[-1].items if isinstance(i, ToolResultItem) and i.pruned]
    assert stubs
    assert all(f"session_history item {stub.id}" in stub.summary for stub in stubs)


async def test_a_worker_yields_inside_a_turn_before_the_request_that_is_too_large(make_worker: Any) -> None:
    """B003: forty calls in one turn; no request above the threshold is sent."""
    runs = Runs()
    model = ScriptedModel([call("page", n=n) for n in range(40)], strict=False)
    trigger = CompactTrigger(CompactSettings(request_threshold=Trigger.parse(30_000)))
    worker = make_worker(model, default_chain(trigger=trigger), [runs.page()])
    outcome = await worker.ask("go")
    assert isinstance(outcome, Yielded)
    assert outcome.reason == "compact"
    assert outcome.detail["tokens"] > 30_000
    assert 5 < len(model.requests) < 20
    assert sum(isinstance(item, UserItem) for item in worker.history.view) == 1


async def test_an_overflow_of_the_provider_becomes_a_yield(make_worker: Any) -> None:
    model = ScriptedModel([fail(ContextOverflow("too long", limit=50_000, requested=60_000))])
    trigger = CompactTrigger(CompactSettings(overflow_recovery=True))
    outcome = await make_worker(model, default_chain(trigger=trigger)).ask("go")
    assert isinstance(outcome, Yielded)
    assert outcome.detail["trigger"] == "overflow"
    assert outcome.detail["limit"] == 50_000


async def test_a_request_above_the_ceiling_is_never_sent(make_worker: Any) -> None:
    """Invariant 9, B001 without a policy: no request at all, and a named failure with the figures."""
    model = ScriptedModel([], capabilities=Capabilities(window=16_000, window_source="table", max_output=4_096))
    worker = make_worker(model, default_chain(ceiling=Ceiling()))
    outcome = await worker.ask("words " * 20_000)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "over_budget"
    assert model.requests == []


async def test_a_reminder_reaches_the_model_before_its_next_request(make_worker: Any) -> None:
    model = ScriptedModel([call("page", n=1)] * 3 + [say("I stop.")])
    worker = make_worker(model, (RepeatGuard(), Ceiling()), [Runs().page()])
    worker.ledger.put(Input(item=UserItem(text="go")))
    assert isinstance(await worker.run(), Finished)
    assert isinstance(model.requests[-1].items[-1], OrderItem)
    model.assert_consumed()
