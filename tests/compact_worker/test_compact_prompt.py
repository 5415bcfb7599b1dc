"""The runtime's own words to the compact worker: constant, neutral, complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compact_worker import CompactSettings, order_text, prompt, system_prompt
from compact_worker.sections import ORDER

GOLDEN = Path(__file__).parent / "golden_prompts.txt"


def whole() -> str:
    settings = CompactSettings()
    parts = {
        "system": system_prompt("TAG"),
        "order: overview": order_text("overview", settings),
        "order: prefix": order_text("prefix", settings, focus="FOCUS", retained=7, turns=4),
        "nudge: no summary": prompt.NUDGE_NO_SUMMARY,
        "nudge: nothing marked": prompt.NUDGE_NOTHING_MARKED,
        "nudge: cut": prompt.NUDGE_CUT,
        "finish": prompt.finish_order(7_900, 4_000),
        "closed": prompt.CLOSED,
        "outside": prompt.OUTSIDE,
        "read only": prompt.READ_ONLY,
    }
    return "\n\n".join(f"=== {name}\n{text}" for name, text in parts.items()) + "\n"


def test_the_texts_are_those_of_the_golden_file() -> None:
    """B035: a change of the runtime's words needs a change of this file, which someone reads."""
    assert whole() == GOLDEN.read_text()


@pytest.mark.parametrize("source", ["overview", "prefix"])
def test_an_order_names_sizes_sections_and_what_to_leave_out(source: str) -> None:
    settings = CompactSettings(summary_target_tokens=1_234, summary_max_tokens=2_345, auto_read_budget_tokens=777)
    text = order_text("prefix" if source == "prefix" else "overview", settings)
    assert "summary_target_tokens=1234" in text and "summary_max_tokens=2345" in text
    assert "auto_read_budget_tokens=777" in text
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(ORDER)
    for word in ("code, diffs", "secrets", "approvals", "tests or checks pass", "override", "guesses"):
        assert word in text, word


def test_no_text_tells_anyone_to_start_over() -> None:
    """B035: no start-up wording."""
    assert not re.search(
        r"\b(start(ing)? (over|again|fresh)|begin again|from scratch|introduce yourself)\b", whole(), re.IGNORECASE
    )


def test_a_blank_focus_is_left_out() -> None:
    settings = CompactSettings()
    assert order_text("overview", settings, focus="  ") == order_text("overview", settings)
    assert order_text("overview", settings, focus=" the port ").endswith("attention to this:\nthe port")
