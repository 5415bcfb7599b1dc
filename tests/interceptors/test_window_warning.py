"""The warning before a window ends rests on the number that ends the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interceptors.triggers import Lowest, Trigger
from interceptors.window import WindowWarning
from worker.budget import Budget
from worker.interceptor import Append, Continue
from worker.occupancy import Occupancy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("known", "expected"), [(7_000, Continue), (9_500, Append)])
async def test_a_barred_model_is_warned_by_what_was_reported(rig: Any, known: int, expected: type) -> None:
    warning = WindowWarning(Trigger.parse(9_000), Trigger.parse(12_000), lambda used, end: f"{used} of {end}")
    r = rig([warning])
    r.user()
    occupancy = Occupancy(tokens=13_000, provenance="usage", overhead=0, known=known, barred=True)
    decision = await warning.before_request(replace(r.ctx(), occupancy=occupancy))
    assert isinstance(decision, expected), "its window ends by what was reported too"


@pytest.mark.parametrize(
    ("warn", "at", "begins"),
    [("60%", "75%", 60_000), ("60%", 50_000, 40_000), (90_000, "50%", 40_000), (49_999, 50_000, 49_999)],
)
async def test_a_window_is_warned_below_its_end_whatever_was_written(warn: Any, at: Any, begins: int) -> None:
    budget = Budget(window=110_000, window_source="table", output=10_000, buffer=8_192)
    warning = WindowWarning(Trigger.parse(warn), Trigger.parse(at), lambda used, end: f"{used} of {end}")
    assert warning.begins(budget) == begins


async def test_of_several_ends_the_lowest_is_warned_of_by_the_budget_of_the_moment(rig: Any) -> None:
    ends = Lowest((Trigger.parse("75%"), Trigger.parse(50_000)))
    large, small = (Budget(window=w, window_source="table", output=10_000, buffer=8_192) for w in (110_000, 50_000))
    assert (ends.tokens(large), ends.tokens(small)) == (50_000, 30_000)
    assert ends.passed(50_001, large) and not ends.passed(50_000, large)
    assert Lowest(()).tokens(large) == large.available
