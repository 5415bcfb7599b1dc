"""What headers say of limits, and that nonsense says nothing."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.rates import KINDS, MOST, Reading, readings

WALL = 1_700_000_000.0


def openai(remaining: str = "5", limit: str = "10", reset: str = "1s", word: str = "requests") -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{word}": limit,
        f"x-ratelimit-remaining-{word}": remaining,
        f"x-ratelimit-reset-{word}": reset,
    }


def anthropic(remaining: str = "5", limit: str = "10", reset: str = "", word: str = "input-tokens") -> dict[str, str]:
    return {
        f"anthropic-ratelimit-{word}-limit": limit,
        f"anthropic-ratelimit-{word}-remaining": remaining,
        f"anthropic-ratelimit-{word}-reset": reset,
    }


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0), ("6m0s", 360.0), ("20ms", 0.02), ("1h2m3.5s", 3_723.5), ("1d", 86_400.0), ("2m59.56s", 179.56),
        ("7", 7.0), ("0.25", 0.25), ("500us", 0.0005), (" 1s ", 1.0), (stamp(WALL + 30), 30.0), (stamp(WALL - 30), 0.0),
        ("2023-11-14T22:13:50+00:00", 30.0), ("2023-11-14T22:13:50", 30.0),
    ],
)  # fmt: skip
def test_each_form_of_a_reset_is_read(text: str, seconds: float) -> None:
    (found,) = readings(openai(reset=text), wall=WALL)
    assert found == Reading("requests", 5, 10, pytest.approx(seconds))


def test_both_vendors_headers_are_read() -> None:
    told = {**openai(), **openai("90", "100", "2s", "tokens")}
    assert readings(told, wall=WALL) == (Reading("requests", 5, 10, 1.0), Reading("tokens", 90, 100, 2.0))
    told = {
        **anthropic("1", "2", stamp(WALL + 9), "requests"),
        **anthropic("3", "4", stamp(WALL + 8)),
        **anthropic("5", "6", stamp(WALL + 7), "output-tokens"),
        **anthropic("7", "8", stamp(WALL + 6), "tokens"),
    }
    assert readings(told, wall=WALL) == (
        Reading("requests", 1, 2, 9.0), Reading("input_tokens", 3, 4, 8.0), Reading("output_tokens", 5, 6, 7.0)
    )  # fmt: skip


def test_a_reset_is_measured_by_the_clock_of_the_server_where_it_tells_the_time() -> None:
    """A clock that is an hour off here makes nobody wait an hour."""
    date = format_datetime(datetime.fromtimestamp(WALL + 3_600, UTC), usegmt=True)
    (found,) = readings({**anthropic(reset=stamp(WALL + 3_605)), "date": date}, wall=WALL)
    assert found.reset == 5.0


@pytest.mark.parametrize(
    "text",
    ["", "-1", "NaN", "inf", "1e3", "ten", "5, 5", "0x5", "٥", "9" * 40, "5.5", "+5", str(MOST + 1), "5" * 100_000],
)
def test_what_is_no_whole_number_is_no_figure(text: str) -> None:
    assert readings(openai(remaining=text), wall=WALL) == ()
    (found,) = readings(openai(limit=text), wall=WALL)
    assert found.limit is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1s",
        "NaN",
        "inf",
        "soon",
        "1s2",
        "1x",
        "s",
        "1e9s",
        "9999-99-99T00:00:00Z",
        "١s",
        "1 s",
        "5" * 100_000 + "s",
    ],
)
def test_what_is_no_time_is_no_reset(text: str) -> None:
    (found,) = readings(openai(reset=text), wall=WALL)
    assert found.reset is None


def test_a_limit_of_nothing_is_none_and_no_more_remains_than_there_is() -> None:
    assert readings(openai(limit="0"), wall=WALL)[0].limit is None
    assert readings(openai(remaining="50"), wall=WALL)[0].remaining == 10


TEXT = st.text(max_size=70) | st.from_regex(r"-?\d{0,20}(\.\d{0,9})?(ms|s|m|h)?", fullmatch=True)


@given(st.fixed_dictionaries({"date": TEXT, **dict.fromkeys([*openai(), *anthropic()], TEXT)}))
def test_whatever_stands_in_the_headers_what_is_read_is_within_its_bounds(headers: dict[str, str]) -> None:
    for found in readings(headers, wall=WALL):
        assert found.kind in KINDS and 0 <= found.remaining <= MOST
        assert found.limit is None or found.remaining <= found.limit <= MOST
        assert found.reset is None or (found.reset >= 0 and not math.isnan(found.reset))
