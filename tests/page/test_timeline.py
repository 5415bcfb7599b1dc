"""The timeline: what a log is told as, and what each request held, from one linear replay."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interceptors.ceiling import Overhead, budget_table
from pod.log import entries as e
from pod.timeline import CATEGORIES, Filling, scaled
from tests.page.page_story import Story, ask, begin, read, reply
from worker import records as w
from worker.admission import waiting
from worker.budget import Budget
from worker.history import History
from worker.items import AssistantItem, ContextItem, ToolResultItem, UserItem, make_call
from worker.records import Record

BUDGET = Budget(window=10_000, window_source="table", output=1_000, buffer=1_000)


@given(st.lists(st.sampled_from(("ask", "withdraw", "context", "call", "result", "say", "prune", "edit")), max_size=40))
def test_categories_kept_up_are_those_of_the_budget_whatever_happens(story: list[str]) -> None:
    history, filling, overhead = History(family="o200k"), Filling(), Overhead(100, 50)
    for number, what in enumerate(story):
        for record in _records(history, what, f"{what} {number} " * (number + 1)):
            history.apply(record)
            filling.follow(history)
            table = {line.category: line.tokens for line in budget_table(history, overhead, BUDGET)}
            assert filling.categories(overhead, history.unanswered) == {name: table[name] for name in CATEGORIES}


def _records(history: History, what: str, text: str) -> list[Record]:
    match what:
        case "ask":
            return list(ask(text))
        case "withdraw" if places := waiting(history):
            return [w.Withdrawn(ids=(history.view[places[0]].id,))]
        case "withdraw" if isinstance(last := history.last(), UserItem):
            return [w.Withdrawn(ids=(last.id,))]
        case "context":
            return [w.ContextAdded(items=(ContextItem(kind="notice", text=text),))]
        case "call" if history.view:
            return [reply(None, make_call(text, "t", "{}"), make_call(text + "2", "t", "{}"))]
        case "result" if history.unresolved:
            call = history.unresolved[0].item
            return [w.ToolResult(item=ToolResultItem(call_id=call.call_id, name="t", status="ok", summary=text))]
        case "say" if history.view:
            return [reply(None, AssistantItem(text=text))]
        case "prune":
            items = [i.model_copy(update={"summary": "x"}) for i in history.view if isinstance(i, ToolResultItem)]
            return [w.Pruned(items=tuple(items))]
        case "edit" if history.view:
            item: Any = history.view[0]
            key = "summary" if isinstance(item, ToolResultItem) else "text"
            return [w.Edited(items=(item.model_copy(update={key: text}),))] if hasattr(item, key) else []
        case _:
            return []


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(0, 10**6))
def test_scaled_parts_sum_up_to_the_whole(parts: list[int], total: int) -> None:
    found = scaled(dict(zip("abcdef", parts, strict=False)), total)
    assert min(found.values()) >= 0
    assert sum(found.values()) == (total if sum(parts) else 0)


def test_each_request_has_its_parts_its_bounds_and_the_cost_so_far() -> None:
    story = Story()
    story.tell(begin(), e.RunStarted(run="r"), *ask("Read it. " * 50), *read("c1", "a line of text\n" * 400))
    story.tell(w.WindowLearned(model="offline:x", window=8_000, source="stated"))
    worker = {"requests": 2, "cost_usd": 2.0, "prompt_tokens": 10}
    story.tell(e.CompactionRung(compaction="c", rung="compact", state="done", figures=worker))
    story.tell(reply(None, AssistantItem(text="done"), estimate=4_000))
    first, second = story.requests
    assert (first["input"], first["reported"], first["available"]) == (2_000, True, 9_000)
    assert (second["input"], second["reported"], second["available"]) == (4_000, False, 7_000)
    assert [sum(step["categories"].values()) for step in (first, second)] == [2_000, 4_000]
    assert first["categories"]["tool results"] == 0 < second["categories"]["tool results"]
    assert first["categories"]["current request"] > first["categories"]["instructions"] > 0
    assert (first["cost_so_far"], second["cost_so_far"]) == (0.5, 3.0)
    assert second["triggers"] == {"request_threshold": 6_000}


def test_a_log_whose_first_entries_are_lost_is_still_told() -> None:
    story = Story()
    story.tell(reply(100, AssistantItem(text="hello")), e.RunEndedEntry(run="r", status="finished"))
    assert [step["type"] for step in story.steps] == ["request.completed", "run.ended"]
    assert (story.requests[0]["categories"], story.requests[0]["available"]) == ({}, None)
    assert story.html()
