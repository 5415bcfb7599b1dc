"""The warning before a window ends rests on the number that ends the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interceptors.triggers import Trigger
from interceptors.window import WindowWarning
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
