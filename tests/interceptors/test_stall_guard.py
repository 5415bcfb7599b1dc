"""A run that begins anew after each compaction: reminders and warnings, then a stop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interceptors.repeat import digest
from interceptors.stall import LEAST_CALLS, StallGuard, judge
from worker.interceptor import Append, Continue, Note, Stop
from worker.items import OrderItem, ToolResultItem, make_call
from worker.records import Record, ReplyRecord, ToolResult, Warned
from worker.results import LimitReached

pytestmark = pytest.mark.anyio

Calls = Sequence[tuple[str, str]]
"""Arguments and outcome of each call of a segment."""

SAME: Calls = [(json.dumps({"path": f"{n}.py"}), f"text {n}") for n in range(6)]


class Segments:
    """A guard through segments as the pod makes them: what one carries is restored in a new one."""

    def __init__(self, make: Any, **settings: Any) -> None:
        self.make, self.settings = make, settings
        self.guard = StallGuard(**settings)
        self.rig = make([self.guard])
        self.rig.user()
        self.said: list[str] = []
        self.end: LimitReached | None = None

    async def play(self, calls: Calls) -> None:
        """The calls of one segment; before each request the guard is asked until it has nothing to say."""
        await self.ask()
        for arguments, content in calls:
            self.rig.turn("read_file", content, arguments)
            await self.ask()

    async def ask(self) -> None:
        while self.end is None:
            match await self.rig.ask(self.guard):
                case Append():
                    self.said.append("order")
                case Note():
                    self.said.append("warning")
                case Stop(outcome=outcome):
                    assert isinstance(outcome, LimitReached)
                    self.end = outcome
                case _:
                    return

    def boundary(self) -> None:
        """The old segment ends, the state crosses as JSON, a new guard takes it."""
        state = json.loads(json.dumps(self.guard.carry()))
        self.guard = StallGuard(**self.settings)
        self.guard.restore(state)
        self.rig = self.make([self.guard])

    async def run(self, segments: Iterable[Calls]) -> int:
        """Segments until the guard stops; gives how many were begun."""
        for number, calls in enumerate(segments, 1):
            await self.play(calls)
            if self.end is not None:
                return number
            self.boundary()
        return 0

    @property
    def streak(self) -> int:
        state = self.guard.carry()
        assert state is not None
        return state["streak"]


async def test_the_same_calls_after_each_compaction_are_reminded_of_and_then_stopped(rig: Any) -> None:
    seen = Segments(rig)
    # The first segment is followed by eight that are the same; the ninth boundary finds the eighth of them.
    assert await seen.run([SAME] * 50) == 10
    assert seen.said == ["order", "warning"] * 5
    assert seen.end is not None and seen.end.limit == "no_progress"
    assert seen.end.figures == {"used": 8, "limit": 8, "distinct": 6, "again": 6}
    assert "8 times in a row" in seen.end.message and "stall.stop is 8" in seen.end.message


async def test_reminder_and_warning_come_once_in_a_segment_and_say_what_was_seen(rig: Any) -> None:
    seen = Segments(rig, remind=1, stop=9)
    await seen.run([SAME] * 2)
    records: list[Record] = seen.rig.records
    await seen.play(SAME)
    order = next(item for r in records for item in getattr(r, "items", ()) if isinstance(item, OrderItem))
    warned = [r for r in records if isinstance(r, Warned)]
    assert order.tag == "tag123" and "6 of your last 6 distinct calls" in order.text and "At 9" in order.text
    assert [w.code for w in warned] == ["no_progress"]
    assert warned[0].figures == {"used": 1, "limit": 9, "distinct": 6, "again": 6}


async def test_a_restart_in_the_middle_of_a_segment_changes_nothing(rig: Any) -> None:
    seen = Segments(rig, remind=1, stop=4)
    await seen.run([SAME] * 2)
    start = seen.guard.carry()
    assert start is not None
    await seen.play(SAME[:3])
    again = StallGuard(remind=1, stop=4)
    again.restore(json.loads(json.dumps(start)))
    for record in seen.rig.records:
        again.observe(record)
    assert again.carry() == seen.guard.carry()
    assert isinstance(await rig([again]).ask(again), Continue), "what was said in this segment is not said again"


@pytest.mark.parametrize("new", [2, 3, 6])
async def test_new_work_in_each_segment_is_progress(rig: Any, new: int) -> None:
    """Two new calls of seven, or six, leave less than four fifths of what was known."""
    seen = Segments(rig, remind=1)
    segments = [[*SAME[: 7 - new], *((f'{{"n": {at}}}', f"{at} {n}") for n in range(new))] for at in range(30)]
    assert await seen.run(segments) == 0
    assert seen.said == []


async def test_the_same_calls_with_other_results_are_progress(rig: Any) -> None:
    seen = Segments(rig)
    assert await seen.run([(arguments, f"{at} {text}") for arguments, text in SAME] for at in range(30)) == 0


async def test_one_segment_of_new_work_starts_the_count_anew(rig: Any) -> None:
    seen = Segments(rig)
    other = [(f'{{"other": {n}}}', None) for n in range(6)]
    await seen.run([SAME] * 6)
    assert seen.streak == 5
    await seen.run([other])
    assert seen.streak == 0
    assert await seen.run([other] * 20) == 9


async def test_short_segments_are_judged_together(rig: Any) -> None:
    """Two large files fill a window: a stall shows over several segments, and still has its bound."""
    seen = Segments(rig)
    assert 0 < await seen.run([SAME[:2]] * 60) <= 3 * 10
    assert seen.end is not None


async def test_a_new_run_starts_the_count_anew(rig: Any) -> None:
    seen = Segments(rig)
    await seen.run([SAME] * 8)
    seen.guard.begin_run()
    assert seen.guard.carry() == StallGuard().carry()


async def test_failed_and_denied_calls_count_like_others(rig: Any) -> None:
    seen = Segments(rig, stop=3)
    for _ in range(4):
        for n in range(LEAST_CALLS):
            seen.rig.turn("shell", None, f'{{"command": "x{n}"}}', status="denied", summary="denied")
        seen.boundary()
    await seen.ask()
    assert seen.end is not None


def test_the_name_of_an_artifact_makes_no_result_another_one() -> None:
    def result(call: str) -> ToolResultItem:
        name = f"{call}-out.txt"
        return ToolResultItem(call_id=call, name="t", status="ok", summary=f"cut; artifact:{name}", artifact=name)

    assert digest(result("call_a")) == digest(result("call_b"))


async def test_what_is_remembered_of_a_long_segment_is_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interceptors.stall.MOST_PAIRS", 10)
    seen = Segments(rig)
    await seen.play([(f'{{"n": {n}}}', None) for n in range(25)])
    state = seen.guard.carry()
    assert state is not None and len(state["before"]) == 10


pairs = st.lists(st.sampled_from("abcdefghij"), max_size=30)


@given(pairs, pairs, st.randoms(use_true_random=False))
def test_order_and_repetition_make_no_difference(now: list[str], before: list[str], random: Any) -> None:
    shuffled = [*now, *now]
    random.shuffle(shuffled)
    assert judge(shuffled, [*before, *before]) == judge(now, before)


@given(pairs, pairs)
def test_a_stretch_is_the_same_exactly_where_four_fifths_came_again(now: list[str], before: list[str]) -> None:
    judged = judge(now, before)
    assert judged.same == (bool(now) and 5 * len(set(now) & set(before)) >= 4 * len(set(now)))
    assert judge(now, now).same == bool(now)


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=9), min_size=1, max_size=14))
def test_any_history_carries_the_same_live_and_through_a_restart(segments: list[list[str]]) -> None:
    """What is carried is a fold of what was restored and of the segment's records, and the count never runs ahead."""
    live = StallGuard()
    crossed = live.carry()
    for at, calls in enumerate(segments):
        records: list[Record] = []
        for n, name in enumerate(calls):
            records.append(ReplyRecord(items=(make_call(f"c{n}", name, "{}"),)))
            records.append(ToolResult(item=ToolResultItem(call_id=f"c{n}", name=name, status="ok", summary=name)))
        told = StallGuard()
        told.restore(json.loads(json.dumps(crossed)))
        for guard in (live, told):
            for record in records:
                guard.observe(record)
        crossed = live.carry()
        assert crossed is not None and told.carry() == crossed
        assert 0 <= crossed["streak"] <= at
        live.restore(json.loads(json.dumps(crossed)))
