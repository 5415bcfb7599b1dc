"""The overview: bounded, in order, with what is left out counted, and never a tool's content."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compact_worker.overview import COARSE_CHARS, MESSAGE_CHARS, TOOL_CALLS, Extras, build_overview
from worker.estimate import estimate_text
from worker.items import (
    AssistantItem,
    ContextItem,
    Item,
    OrderItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)

NOTHING = Extras()


def result(number: int, summary: str = "", content: str | None = None) -> list[Item]:
    call = ToolCallItem(call_id=f"c{number}", name="read_file", arguments='{"path":"ARGUMENT"}')
    made = ToolResultItem(
        call_id=f"c{number}", name="read_file", status="ok", summary=summary or f"read {number}", content=content
    )
    return [call, made]


def test_messages_are_taken_newest_first_and_stand_in_their_order() -> None:
    items: list[Item] = [UserItem(text=f"message {n} " + "word " * 50) for n in range(1, 41)]
    made = build_overview(items, NOTHING, target_tokens=700)
    numbers = [int(n) for n in re.findall(r"\[item (\d+), user\]", made.text)]
    assert numbers == list(range(41 - len(numbers), 41)) and 5 <= len(numbers) < 20
    assert f"[items 1-{40 - len(numbers)} not shown: {40 - len(numbers)} user]" in made.text
    assert (made.shown, made.omitted) == (len(numbers), 40 - len(numbers))


def test_at_least_one_message_is_shown_however_small_the_target() -> None:
    items: list[Item] = [UserItem(text="first"), AssistantItem(text="word " * 300)]
    made = build_overview(items, NOTHING, target_tokens=1)
    assert made.shown == 1 and "[item 2, assistant]" in made.text and "[item 1 not shown: 1 user]" in made.text


def test_each_message_is_cut_to_its_characters() -> None:
    items: list[Item] = [UserItem(text="x" * 5_000)]
    made = build_overview(items, NOTHING, target_tokens=8_000)
    assert "x" * MESSAGE_CHARS + "… (3,000 more characters)" in made.text and "x" * (MESSAGE_CHARS + 1) not in made.text
    coarse = build_overview(items, NOTHING, target_tokens=8_000, coarse=True)
    assert "x" * COARSE_CHARS in coarse.text and "x" * (COARSE_CHARS + 1) not in coarse.text


def test_every_item_range_is_indexed() -> None:
    """B011: what is not shown is stated with its range."""
    items: list[Item] = [UserItem(text="a"), *result(1), *result(2), AssistantItem(text="b"), *result(3)]
    made = build_overview(items, NOTHING, target_tokens=8_000)
    assert "[items 2-5 not shown: 4 tool]" in made.text and "[items 7-8 not shown: 2 tool]" in made.text


def test_arguments_content_and_reasoning_are_never_shown() -> None:
    items: list[Item] = [
        UserItem(text="go"),
        ReasoningItem(provider="p", model="m", payload='"HIDDEN"', text="HIDDEN"),
        *result(1, content="CONTENT"),
        ContextItem(kind="auto_read", text="CONTENT of a file", path="a.py"),
        ContextItem(kind="pin", text="CONTENT of a pin"),
        OrderItem(text="ORDER", tag="t"),
        ContextItem(kind="notice", text="a notice"),
    ]
    text = build_overview(items, NOTHING, target_tokens=8_000).text
    assert "a notice" in text and "read 1" in text
    assert not [word for word in ("HIDDEN", "CONTENT", "ARGUMENT", "ORDER") if word in text]


def test_the_newest_tool_calls_are_listed_by_their_summaries() -> None:
    items: list[Item] = [UserItem(text="go")]
    for n in range(1, 41):
        items += result(n, summary=f"read number {n} " + "y" * 400)
    text = build_overview(items, NOTHING, target_tokens=8_000).text
    listed = re.findall(r"- \[item \d+\] read_file, ok: read number (\d+)", text)
    assert listed == [str(n) for n in range(17, 41)] and len(listed) == TOOL_CALLS
    assert "(16 earlier ones not listed)" in text and "y" * 241 not in text


def test_files_tasks_and_the_previous_summary_are_shown() -> None:
    extras = Extras(
        tasks=({"id": "t1", "status": "done", "title": "Parse"}, {"id": "t2", "status": "active", "text": "Write"}),
        recent_files=("a", "b", "c", "d", "e", "f", "a"),
        previous_summary="## Completed Tasks\nThe parser.",
    )
    text = build_overview([UserItem(text="go")], extras, target_tokens=8_000).text
    assert "- [done] t1: Parse\n- [active] t2: Write" in text and "outranks" in text
    assert "newest first:\n- a\n- f\n- e\n- d\n- c\n" in text and "- b\n" not in text
    assert text.endswith("## Completed Tasks\nThe parser.")


def test_a_previous_summary_is_not_shown_twice() -> None:
    items: list[Item] = [ContextItem(kind="summary", text="THE SUMMARY"), UserItem(text="go")]
    assert (
        build_overview(items, Extras(previous_summary="THE SUMMARY"), target_tokens=8_000).text.count("THE SUMMARY")
        == 1
    )
    assert build_overview(items, NOTHING, target_tokens=8_000).text.count("THE SUMMARY") == 1


def test_an_overview_is_deterministic() -> None:
    items: list[Item] = [UserItem(text="go"), *result(1), AssistantItem(text="done")]
    extras = Extras(tasks=({"id": "t"},), recent_files=("a",))
    assert len({build_overview(items, extras, target_tokens=100).text for _ in range(5)}) == 1


def test_dense_scripts_keep_the_target_by_the_estimator() -> None:
    """B052: the budget is in tokens of the estimator, not in characters of a Latin ratio."""
    items: list[Item] = [UserItem(text="上下文压缩必须保留用户的原话。" * 100) for _ in range(40)]
    made = build_overview(items, NOTHING, target_tokens=8_000)
    assert 6_000 < made.tokens <= 8_200 and made.tokens == estimate_text(made.text)


_TEXTS = st.text(st.sampled_from("ab \n上[]文é1"), min_size=1, max_size=600)
_ITEMS: Any = st.lists(
    st.one_of(_TEXTS.map(lambda t: UserItem(text=t)), _TEXTS.map(lambda t: AssistantItem(text=t))),
    min_size=1,
    max_size=40,
)


@given(_ITEMS, st.integers(300, 3_000), st.text(st.sampled_from("ab 文"), max_size=4_000))
def test_a_coarse_overview_keeps_its_limit(items: list[Item], limit: int, previous: str) -> None:
    """B007, B052: whatever the material, the text stays below the limit that one message and the rest allow."""
    floor = 300 + COARSE_CHARS * 2
    made = build_overview(
        items, Extras(previous_summary=previous), target_tokens=8_000, coarse=True, limit_tokens=max(limit, floor)
    )
    assert made.tokens <= max(limit, floor)
    assert made.shown + made.omitted == len(items)


def test_many_small_messages_keep_the_target_too() -> None:
    items: list[Item] = [UserItem(text=f"m{n}") for n in range(3_000)]
    made = build_overview(items, NOTHING, target_tokens=8_000)
    assert 7_000 < made.tokens <= 8_050 and made.shown < 3_000
