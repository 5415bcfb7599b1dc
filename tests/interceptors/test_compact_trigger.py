"""When a worker leaves its loop for a compaction."""

from __future__ import annotations

from typing import Any

import pytest

from interceptors.triggers import CompactSettings, CompactTrigger, Trigger, lowest_trigger
from worker.budget import Budget
from worker.errors import ConfigError, ContextOverflow, Overloaded
from worker.interceptor import Continue, Stop, Yield
from worker.records import Record, WindowLearned
from worker.results import Failed

pytestmark = pytest.mark.anyio

BUDGET = Budget(window=110_000, window_source="table", output=10_000, buffer=8_192)


class Yielded(Record):
    kind = "yielded"
    reason: str
    detail: dict[str, Any]


class Lease(Record):
    kind = "lease"


def trigger(threshold: int | str = 50_000, **more: Any) -> CompactTrigger:
    return CompactTrigger(CompactSettings(request_threshold=Trigger.parse(threshold), **more))


async def test_triggers_are_tokens_or_a_share_of_what_is_available() -> None:
    assert Trigger.parse(80_000).tokens(BUDGET) == 80_000
    assert Trigger.parse("60%").tokens(BUDGET) == 60_000
    assert Trigger.parse("12.5 %").tokens(BUDGET) == 12_500
    assert str(Trigger.parse("60%")) == "60%"


async def test_a_trigger_never_lies_above_the_ceiling() -> None:
    assert Trigger.parse(500_000).tokens(BUDGET) == 100_000
    assert lowest_trigger([None, Trigger.parse(90_000), Trigger.parse("80%")], BUDGET) == 80_000
    assert lowest_trigger([None], BUDGET) is None


@pytest.mark.parametrize("value", [0, -1, "0%", "101%", "60", "sixty%", "", True])
async def test_a_trigger_that_could_never_act_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigError, match="trigger"):
        Trigger.parse(value)


async def test_it_yields_above_the_threshold_and_not_at_it(rig: Any) -> None:
    """B003: inside a turn, before the first request whose size passes the threshold."""
    r = rig()
    r.user()
    r.turn("t", None)
    assert isinstance(await trigger().before_request(r.ctx(tokens=50_000)), Continue)
    decision = await trigger().before_request(r.ctx(tokens=50_001))
    assert decision == Yield(
        "compact",
        {
            "trigger": "request_threshold",
            "tokens": 50_001,
            "threshold": 50_000,
            "provenance": "usage",
            "overhead": 0,
            "thrash": False,
        },
    )


async def test_without_a_threshold_nothing_is_triggered(rig: Any) -> None:
    """B006: no trigger is set, so no size leads to a compaction."""
    r = rig()
    r.user()
    assert isinstance(await CompactTrigger().before_request(r.ctx(tokens=190_000)), Continue)


async def test_it_does_not_yield_again_without_progress_in_the_segment(rig: Any) -> None:
    t = trigger()
    r = rig([t])
    r.user()
    r.turn("t", None)
    assert isinstance(await r.ask(t, tokens=60_000), Yield)
    assert isinstance(await r.ask(t, tokens=60_000), Continue), "the compaction came to nothing: go on"
    r.turn("t", None)
    assert isinstance(await r.ask(t, tokens=60_000), Yield), "a reply is progress"
    assert isinstance(await r.ask(t, tokens=60_000), Continue)
    r.user()
    assert isinstance(await r.ask(t, tokens=60_000), Yield), "a user input is progress"


async def test_a_new_segment_above_the_threshold_at_once_is_thrash(rig: Any) -> None:
    """B001, B004: without a reply or an input since the segment began, the pod must take another rung."""
    t = trigger()
    r = rig([t])
    r.user()
    r.turn("t", None)
    first = await r.ask(t, tokens=60_000)
    assert isinstance(first, Yield)
    assert not first.detail["thrash"]
    r.new_segment()
    second = await r.ask(t, tokens=60_000)
    assert isinstance(second, Yield)
    assert second.detail["thrash"]
    r.new_segment()
    r.user()
    third = await r.ask(t, tokens=60_000)
    assert isinstance(third, Yield)
    assert not third.detail["thrash"], "a user input in the segment is progress"


async def test_a_new_segment_below_the_threshold_goes_on(rig: Any) -> None:
    """B002: the size of the old segment says nothing about the new one."""
    t = trigger(90_000)
    r = rig([t])
    r.user()
    r.turn("t", None)
    assert isinstance(await r.ask(t, tokens=95_000), Yield)
    r.new_segment()
    assert isinstance(await r.ask(t, tokens=12_000), Continue)
    r.turn("t", None)
    assert isinstance(await r.ask(t, tokens=12_500), Continue)


async def test_fresh_interceptors_of_the_same_segment_know_that_the_loop_was_left(rig: Any) -> None:
    r = rig()
    r.user()
    r.turn("t", None)
    r.ledger.put(Yielded(reason="compact", detail={"trigger": "request_threshold"}))
    again = trigger()
    for record in r.records:
        again.observe(record)
    assert isinstance(await r.ask(again, tokens=60_000), Continue)
    again.observe(Lease())
    assert isinstance(await r.ask(again, tokens=60_000), Yield), "another process may try once more"


async def test_a_compaction_by_hand_does_not_count_as_a_try(rig: Any) -> None:
    t = trigger()
    r = rig([t])
    r.user()
    r.ledger.put(Yielded(reason="compact", detail={"trigger": "hand"}))
    assert isinstance(await r.ask(t, tokens=60_000), Yield)


async def test_an_overflow_is_recovered_once_for_a_request(rig: Any) -> None:
    """B061: at most two sends, the original and a smaller one; then the provider's error, with the bound."""
    t = trigger(overflow_recovery=True)
    r = rig([t])
    r.user()
    error = ContextOverflow("too long", limit=32_000, requested=40_000, status=400)
    r.ledger.put(WindowLearned(model="test:model", window=32_000, source="stated"))
    first = await t.after_error(r.ctx(), error)
    assert isinstance(first, Yield)
    assert (first.reason, first.detail["trigger"], first.detail["requested"]) == ("compact", "overflow", 40_000)
    r.new_segment()
    r.ledger.put(WindowLearned(model="test:model", window=32_000, source="stated"))
    second = await t.after_error(r.ctx(), error)
    assert isinstance(second, Stop)
    assert isinstance(second.outcome, Failed)
    assert second.outcome.kind == "overflow"
    assert "too long" in second.outcome.message
    assert "after 1 recovery" in second.outcome.message
    assert second.outcome.details["limit"] == 32_000


async def test_a_reply_allows_another_recovery(rig: Any) -> None:
    t = trigger(overflow_recovery=True)
    r = rig([t])
    r.user()
    for _ in range(2):
        r.ledger.put(WindowLearned(model="test:model", window=32_000, source="guessed"))
        assert isinstance(await t.after_error(r.ctx(), ContextOverflow("too long")), Yield)
        r.turn("t", None)


async def test_an_overflow_with_recovery_off_fails_and_says_so(rig: Any) -> None:
    """B006: no compaction where none is configured; the overflow error comes with a hint."""
    t = CompactTrigger(CompactSettings(policy="warn"))
    r = rig([t])
    r.user()
    r.ledger.put(WindowLearned(model="test:model", window=32_000, source="guessed"))
    decision = await t.after_error(r.ctx(), ContextOverflow("prompt is too long"))
    assert isinstance(decision, Stop)
    assert isinstance(decision.outcome, Failed)
    assert decision.outcome.kind == "overflow"
    assert "prompt is too long" in decision.outcome.message
    assert "'warn'" in decision.outcome.message
    assert "overflow_recovery" in decision.outcome.message


@pytest.mark.parametrize("said", ["prompt is too long", "prompt is too long.", "prompt is too long. "])
@pytest.mark.parametrize("policy", ["warn", "compact"])
async def test_a_providers_words_end_with_one_full_stop(rig: Any, said: str, policy: str) -> None:
    t = CompactTrigger(CompactSettings(policy=policy, overflow_recovery=policy == "compact"))
    r = rig([t])
    r.user()
    for _ in range(2):
        r.ledger.put(WindowLearned(model="test:model", window=32_000, source="guessed"))
    decision = await t.after_error(r.ctx(), ContextOverflow(said))
    assert isinstance(decision, Stop) and isinstance(decision.outcome, Failed)
    assert "prompt is too long. " in decision.outcome.message and ".." not in decision.outcome.message


async def test_other_errors_are_left_alone(rig: Any) -> None:
    t = trigger(overflow_recovery=True)
    r = rig([t])
    assert isinstance(await t.after_error(r.ctx(), Overloaded("busy")), Continue)
