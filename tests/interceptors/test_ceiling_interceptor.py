"""No request above the ceiling is sent."""

from __future__ import annotations

from typing import Any

import pytest

from interceptors.ceiling import Ceiling, Overhead, budget_table, overhead_of
from worker.history import pending_tokens
from worker.interceptor import Continue, Note, Stop, Yield
from worker.items import ContextItem, OrderItem, UserItem
from worker.models.base import ToolSpec
from worker.records import ContextAdded, Input, Warned
from worker.results import Failed

pytestmark = pytest.mark.anyio

CATEGORIES = [
    "instructions", "tool schemas", "current request", "history", "tool results", "context items", "reserve"
]  # fmt: skip


async def test_the_ceiling_itself_may_be_sent(rig: Any) -> None:
    r = rig()
    r.user()
    assert isinstance(await r.ask(Ceiling(), tokens=int(r.budget.available / 1.01)), Continue)


async def test_above_it_the_loop_is_left_while_a_rung_is_left(rig: Any) -> None:
    c = Ceiling(can_recover=True)
    r = rig([c])
    r.user()
    decision = await r.ask(c, tokens=r.budget.available + 1)
    assert isinstance(decision, Yield)
    assert decision.reason == "compact"
    assert decision.detail["trigger"] == "ceiling"
    assert decision.detail["threshold"] == r.budget.available
    again = await r.ask(c, tokens=r.budget.available + 1)
    assert isinstance(again, Stop), "nothing became smaller: the end, not a loop"


async def test_above_it_without_a_rung_the_run_fails_with_the_budget_by_category(rig: Any) -> None:
    """Invariant 8: nothing mandatory is dropped in silence; the sum is shown before the call."""
    c = Ceiling(overhead=Overhead(instructions=1_200, schemas=30_000))
    r = rig([c])
    r.user("the question")
    r.turn("t", "words of a result " * 200)
    decision = await r.ask(c, tokens=250_000)
    assert isinstance(decision, Stop)
    failed = decision.outcome
    assert isinstance(failed, Failed)
    assert failed.kind == "over_budget"
    assert "250,000" in failed.message
    assert f"{r.budget.available:,}" in failed.message
    assert list(failed.details["categories"]) == CATEGORIES
    for category in CATEGORIES:
        assert category in failed.message
    assert "30,000" in failed.message


async def test_the_table_counts_each_item_once(rig: Any) -> None:
    r = rig()
    r.user("first question " * 50)
    r.turn("t", "words of a result " * 200)
    r.ledger.put(ContextAdded(items=(ContextItem(kind="notice", text="note " * 100), OrderItem(text="hurry", tag="x"))))
    r.user("second question")
    r.ledger.put(Input(item=UserItem(text="queued words")))
    table = dict(
        budget_table(r.history, Overhead(10, 20), r.budget, pending_tokens(r.history, list(r.history.queue.values())))
    )
    assert list(table) == CATEGORIES
    queued = sum(table.values()) - 30 - table["reserve"] - r.history.total
    assert 0 < queued < 30
    assert table["reserve"] == 8_192
    assert table["current request"] < 60
    assert table["tool results"] > 500


async def test_overhead_counts_prompt_and_schemas() -> None:
    """B049, B053: both are part of each request."""
    spec = ToolSpec("t", "does something", {"type": "object", "properties": {"path": {"type": "string"}}})
    found = overhead_of("You are careful.", [spec, spec])
    assert found.instructions > 0
    assert found.schemas > 20
    assert overhead_of("", []) == Overhead(0, 0)


async def test_a_policy_that_does_not_act_warns_once_in_a_segment_at_eighty_percent(rig: Any) -> None:
    c = Ceiling(warn=True)
    r = rig([c])
    r.user()
    high = int(r.budget.available * 0.81)
    assert isinstance(await r.ask(c, tokens=int(r.budget.available * 0.8)), Continue)
    decision = await r.ask(c, tokens=high)
    assert isinstance(decision, Note)
    assert isinstance(decision.record, Warned)
    assert decision.record.figures["available"] == r.budget.available
    assert isinstance(await r.ask(c, tokens=high), Continue)
    again = Ceiling(warn=True)
    for record in r.records:
        again.observe(record)
    assert isinstance(await r.ask(again, tokens=high), Continue), "a restart does not warn again"
    r.new_segment()
    assert isinstance(await r.ask(c, tokens=high), Note)


async def test_an_acting_policy_does_not_warn(rig: Any) -> None:
    r = rig()
    assert isinstance(await r.ask(Ceiling(can_recover=True), tokens=int(r.budget.available * 0.9)), Continue)
