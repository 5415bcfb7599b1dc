"""When a cron text is due: fields, seconds, zones, and the days on which clocks change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.engine.cron import NAMED, cron_of, local
from pod.errors import UsageProblem

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def due(text: str, zone: str, after: str, many: int) -> list[str]:
    """The next times as the zone's clocks show them, with their distance from UTC."""
    times = itertools.islice(cron_of(text, zone).times(at(after)), many)
    return [local(each, zone).isoformat(timespec="seconds") for each in times]


def test_five_fields_are_minutes_and_six_begin_with_seconds() -> None:
    after = "2026-03-02T10:00:00+00:00"
    assert due("*/20 9-10 * * MON-FRI", "UTC", after, 3) == [
        "2026-03-02T10:20:00+00:00", "2026-03-02T10:40:00+00:00", "2026-03-03T09:00:00+00:00",
    ]  # fmt: skip
    assert due("10,40 0 * * * *", "UTC", after, 3) == [
        "2026-03-02T10:00:10+00:00", "2026-03-02T10:00:40+00:00", "2026-03-02T11:00:10+00:00",
    ]  # fmt: skip
    assert due("*/30 * * * * *", "UTC", "2026-03-02T10:00:29.500+00:00", 2) == [
        "2026-03-02T10:00:30+00:00", "2026-03-02T10:01:00+00:00",
    ]  # fmt: skip
    assert due("@daily", "UTC", after, 1) == ["2026-03-03T00:00:00+00:00"]
    for word in NAMED:
        assert cron_of(word, "UTC").after(at(after))


def test_a_time_is_never_due_twice_and_never_before_the_moment() -> None:
    cron = cron_of("0 2 * * *", BERLIN)
    first = cron.after(at("2026-06-01T00:00:00+02:00"))
    assert first is not None
    following = cron.after(first)
    assert following is not None and following - first == 86400


def test_a_fixed_time_that_clocks_leap_over_comes_as_soon_as_they_have() -> None:
    """Berlin goes from 02:00 to 03:00 on 29 March 2026, New York on 8 March."""
    assert due("30 2 * * *", BERLIN, "2026-03-28T12:00:00+01:00", 2) == [
        "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
    ]  # fmt: skip
    assert due("15 30 2 * * *", NEW_YORK, "2026-03-07T12:00:00-05:00", 2) == [
        "2026-03-08T03:00:15-04:00", "2026-03-09T02:30:15-04:00",
    ]  # fmt: skip


def test_a_fixed_time_that_clocks_go_through_twice_comes_once() -> None:
    """Berlin goes from 03:00 back to 02:00 on 25 October 2026."""
    assert due("30 2 * * *", BERLIN, "2026-10-24T12:00:00+02:00", 2) == [
        "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00",
    ]  # fmt: skip
    # Looked at within the hour that comes again: what was due in its first passage is not due once more.
    assert due("30 2 * * *", BERLIN, "2026-10-25T02:10:00+01:00", 1) == ["2026-10-26T02:30:00+01:00"]


def test_what_comes_every_so_often_goes_by_the_time_that_passes() -> None:
    assert due("*/30 * * * *", BERLIN, "2026-03-29T01:10:00+01:00", 3) == [
        "2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00",
    ]  # fmt: skip
    assert due("0 * * * *", BERLIN, "2026-10-25T01:30:00+02:00", 3) == [
        "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("*/7 * * * *", "UTC"),
        ("30 2 * * *", BERLIN),
        ("15 0,30 1-3 * * *", BERLIN),
        ("0 * * * *", NEW_YORK),
        ("5,35 */10 * * * *", "UTC"),
    ],
)
@given(data=st.data())
def test_the_newest_time_is_the_last_of_all_that_came(text: str, zone: str, data: st.DataObject) -> None:
    start = at("2026-03-27T00:00:00+00:00") if data.draw(st.booleans()) else at("2026-10-23T00:00:00+00:00")
    after = start + data.draw(st.floats(0, 3 * 86400))
    until = after + data.draw(st.floats(0, 6 * 3600))
    cron = cron_of(text, zone)
    came = list(itertools.takewhile(lambda each: each <= until, cron.times(after)))
    assert came == sorted(set(came)) and all(each > after for each in came)
    assert cron.newest(after, until) == (came[-1] if came else None)


def test_years_of_seconds_are_dealt_with_at_once() -> None:
    after, until = at("2016-01-01T00:00:00+00:00"), at("2026-01-01T00:00:00.700+00:00")
    assert cron_of("* * * * * *", BERLIN).newest(after, until) == int(until)


REFUSED = [
    ("61 * * * *", "UTC", "(bad minute)"),
    ("61 * * * * *", "UTC", "(bad second)"),
    ("* 25 * * *", "UTC", "(bad hour)"),
    ("* * * *", "UTC", "five fields"),
    ("* * * * * * *", "UTC", "five fields"),
    ("", "UTC", "five fields"),
    ("@sometimes", "UTC", "five fields"),
    ("every day", "UTC", "five fields"),
    ("0 0 30 2 *", "UTC", "30 2"),
    ("0 0 * * *", "Europe/Bertin", "no time zone 'Europe/Bertin'"),
    ("0 0 * * *", "../etc/passwd", "no time zone"),
    ("0 0 * * *", "Europe", "no time zone"),
    ("0 0 * * *", "/etc/passwd", "no time zone"),
    ("0 0 * * *", "", "no time zone"),
    ("0 0 * * *", "a\0b", "no time zone"),
]


@pytest.mark.parametrize(("text", "zone", "said"), REFUSED)
def test_what_is_no_cron_text_or_no_zone_is_refused_with_the_way_out(text: str, zone: str, said: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        cron_of(text, zone)
    assert said in str(refused.value)


FIELD = st.text("0123456789*/,-#L¹ WMONJA", max_size=8)


@given(fields=st.lists(FIELD, min_size=1, max_size=7))
def test_whatever_is_no_cron_text_is_refused_and_whatever_is_one_has_a_next_time(fields: list[str]) -> None:
    try:
        cron = cron_of(" ".join(fields), BERLIN)
    except UsageProblem:
        return
    moment = cron.after(at("2026-01-01T00:00:00+00:00"))
    assert moment is not None and cron.newest(moment - 1, moment) == moment


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(UsageProblem, match="five fields"):
        cron_of("0 0 " + "1," * 5000 + "1 * *", "UTC")


def test_times_are_those_of_the_zone() -> None:
    assert local(at("2026-07-01T00:00:00+00:00"), NEW_YORK).isoformat() == "2026-06-30T20:00:00-04:00"
    assert (
        datetime.fromtimestamp(cron_of("0 0 * * *", NEW_YORK).after(at("2026-07-01T12:00:00+00:00")) or 0, UTC).hour
        == 4
    )
