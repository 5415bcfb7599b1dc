"""The same call again and again: reminders, then a hard stop."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interceptors.repeat import RepeatGuard, Streak, signature, step_of, streak
from worker.interceptor import Append, Continue, Stop
from worker.items import OrderItem, make_call
from worker.results import LimitReached

pytestmark = pytest.mark.anyio


async def drive(r: Any, guard: RepeatGuard, calls: Any, limit: int = 60) -> tuple[list[int], int | None, str]:
    """Plays calls until the guard stops: after which replies it reminded, at which it stopped, and its last words."""
    reminded: list[int] = []
    words = ""
    r.user()
    for number, (name, arguments, content) in enumerate(itertools.islice(calls, limit), start=1):
        r.turn(name, content, arguments)
        decision = await r.ask(guard)
        if isinstance(decision, Append):
            reminded.append(number)
            words = decision.items[0].text
            assert isinstance(await r.ask(guard), Continue), "one reminder for each count"
        elif isinstance(decision, Stop):
            assert isinstance(decision.outcome, LimitReached)
            assert decision.outcome.limit == "repeat_call"
            return reminded, number, decision.outcome.message
    return reminded, None, words


SAME = {
    "key order changing": itertools.cycle(['{"q":"x","n":1}', '{"n": 1, "q": "x"}']),
    "no arguments": itertools.cycle(["{}", ""]),
    "invalid JSON each time": itertools.cycle(['{"q": "x']),
}


@pytest.mark.parametrize("variant", list(SAME))
async def test_the_same_call_is_reminded_of_and_then_stopped(rig: Any, variant: str) -> None:
    """B118: identical successful calls, in all variants of writing the arguments."""
    guard = RepeatGuard()
    calls = (("search", arguments, None) for arguments in SAME[variant])
    reminded, stopped, message = await drive(rig([guard]), guard, calls)
    assert (reminded, stopped) == ([3, 5, 8], 12)
    assert "12 times in a row" in message
    assert "search" in message
    assert "repeat_call.stop is 12" in message


@pytest.mark.parametrize(("names", "period"), [("AB", 2), ("ABC", 3)])
async def test_alternating_calls_are_noticed_within_three_periods(rig: Any, names: str, period: int) -> None:
    """B119: A, B, A, B and A, B, C, A, B, C."""
    guard = RepeatGuard()
    calls = ((name, "{}", None) for name in itertools.cycle(names))
    reminded, stopped, message = await drive(rig([guard]), guard, calls)
    assert reminded[0] == 3 * period
    assert stopped == 12 * period
    assert f"the same {period} steps" in message


async def test_reminders_come_again_and_a_hard_cap_ends_the_run(rig: Any) -> None:
    """B120: nothing switches the guard off; 100 repeats are never reached."""
    guard = RepeatGuard()
    reminded, stopped, _ = await drive(rig([guard]), guard, itertools.repeat(("t", "{}", "same"), 100), limit=100)
    assert len(reminded) == 3
    assert stopped == 12


async def test_repeated_denied_calls_are_bounded(rig: Any) -> None:
    """B122: a call that is denied each time counts like any other."""
    guard = RepeatGuard()
    r = rig([guard])
    r.user()
    for _ in range(12):
        r.turn("shell", None, '{"command": "x"}', status="denied", summary="denied")
        decision = await r.ask(guard)
    assert isinstance(decision, Stop)


async def test_work_that_moves_on_is_left_alone(rig: Any) -> None:
    guard = RepeatGuard()
    steps = itertools.chain.from_iterable(
        (("pytest", "{}", f"failed {n}"), ("edit", json.dumps({"n": n}), None)) for n in itertools.count()
    )
    assert (await drive(rig([guard]), guard, steps, limit=80))[:2] == ([], None)


async def test_polling_counts_and_the_reminder_says_that_results_differ(rig: Any) -> None:
    guard = RepeatGuard()
    polls = (("status", "{}", f"{n} % done") for n in itertools.count())
    _, _, words = await drive(rig([guard]), guard, polls, limit=5)
    assert "different each time" in words
    same = RepeatGuard()
    _, _, words = await drive(rig([same]), same, itertools.repeat(("status", "{}", "0 % done")), limit=5)
    assert "different each time" not in words


async def test_a_reminder_is_an_order_with_the_tag_of_the_session(rig: Any) -> None:
    guard = RepeatGuard()
    r = rig([guard])
    r.user()
    for _ in range(3):
        r.turn("t", None)
    decision = await r.ask(guard)
    assert isinstance(decision, Append)
    item = decision.items[0]
    assert isinstance(item, OrderItem)
    assert item.tag == "tag123"
    assert "3 times" in item.text
    assert "At 12" in item.text


async def test_another_call_starts_the_count_anew(rig: Any) -> None:
    guard = RepeatGuard()
    r = rig([guard])
    calls = [("a", "{}", None)] * 4 + [("b", "{}", None)] + [("a", "{}", None)] * 3
    assert (await drive(r, guard, calls))[:2] == ([3, 8], None)


async def test_the_count_goes_on_after_a_restart_and_in_a_new_segment(rig: Any) -> None:
    guard = RepeatGuard()
    r = rig([guard])
    await drive(r, guard, itertools.repeat(("t", "{}", None)), limit=7)
    restarted, carried = RepeatGuard(), RepeatGuard()
    for record in r.records:
        restarted.observe(record)
    carried.restore(json.loads(json.dumps(guard.carry())))
    for each in (restarted, carried):
        again = rig([each])
        assert isinstance(await again.ask(each), Continue), "the reminder at 5 was given"
        assert (await drive(again, each, itertools.repeat(("t", "{}", None))))[:2] == ([1], 5)


async def test_a_new_run_starts_the_count_anew(rig: Any) -> None:
    guard = RepeatGuard()
    r = rig([guard])
    await drive(r, guard, itertools.repeat(("t", "{}", None)), limit=11)
    guard.begin_run()
    assert (await drive(r, guard, itertools.repeat(("t", "{}", None))))[1] == 12


async def test_a_reply_with_one_call_many_times_counts_once(rig: Any) -> None:
    guard = RepeatGuard()
    r = rig([guard])
    r.user()
    batch = [make_call(f"c{n}", "t", "{}") for n in range(20)]
    r.reply(*batch)
    for call in batch:
        r.result(call)
    assert isinstance(await r.ask(guard), Continue)


def test_damaged_arguments_count_by_their_text() -> None:
    assert signature(make_call("1", "t", '{"a": 1')) != signature(make_call("2", "t", '{"a": 2'))
    assert step_of([signature(make_call("1", "t", '{"a": 1'))]) == step_of([signature(make_call("2", "t", '{"a": 1'))])
    assert signature(make_call("1", "t", "{}")) != signature(make_call("2", "u", "{}"))


@given(st.lists(st.sampled_from("xyz"), max_size=6), st.sampled_from(["A", "AB", "ABC"]), st.integers(2, 13))
def test_any_repetition_of_up_to_three_steps_is_counted(before: list[str], block: str, times: int) -> None:
    assert streak([*before, *(block * times)]) == Streak(times, len(block))


@given(st.lists(st.sampled_from("ab"), max_size=40))
def test_a_streak_is_really_there(steps: list[str]) -> None:
    found = streak(steps)
    assert found.times * found.period <= max(len(steps), 0)
    if found.times > 1:
        block = steps[-found.period :]
        assert steps[-found.period * found.times :] == block * found.times
