"""Sending: retries, fallback models, ceilings, and what an overflow teaches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.loop_rig import Counter, Journal, journal_of, put_user, replies, window, worker_of
from worker.budget import budget_of
from worker.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    InvalidHistory,
    ModelError,
    ModelNotFound,
    Overloaded,
    ProviderDown,
    QuotaExhausted,
    RateLimited,
    StreamBroken,
    StreamStalled,
    TooLargeForTier,
)  # fmt: skip
from worker.interceptor import Interceptor, Yield
from worker.items import AssistantItem, UserItem
from worker.models.base import Capabilities, Usage
from worker.records import Input, ModelSwitched, ReplyRecord, Retry, SizeRefused, WindowLearned
from worker.results import Failed, Finished, Yielded
from worker.retry import RetryPolicy
from worker.sending import GUESSED_SHARE, LEAST_GUESS, LEAST_GUESSED
from worker.testing import FunctionModel, ScriptedModel, call, fail, make_reply, reply, say

pytestmark = pytest.mark.anyio
LONG = "word " * 12_000


# -- retries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RateLimited, Overloaded, ProviderDown, StreamBroken, StreamStalled])
async def test_a_passing_error_is_tried_again_each_time_on_record(error: type[ModelError]) -> None:
    """B104, B107: nothing of the broken attempt is kept."""
    with ScriptedModel([fail(error("x", status=529)), fail(error("x", status=529)), say("ok")]) as model:
        worker = worker_of(model)
        assert await worker.ask("go") == Finished("ok")
    retries = journal_of(worker).of(Retry)
    assert [(r.attempt, r.max_attempts, r.error, r.status) for r in retries] == [
        (1, 6, error.kind, 529), (2, 6, error.kind, 529)
    ]  # fmt: skip
    assert replies(worker)[0].attempts == 3
    assert worker.history.counters.retries == 2


@pytest.mark.parametrize("error", [AuthFailed, BadRequest, QuotaExhausted, ModelNotFound, InvalidHistory])
async def test_a_lasting_error_is_not_tried_again(error: type[ModelError]) -> None:
    with ScriptedModel([fail(error("no"))]) as model:
        outcome = await worker_of(model).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == error.kind
    assert len(model.requests) == 1


async def test_a_retry_sends_the_same_bytes_and_never_adds_the_users_message_again() -> None:
    """B060."""
    with ScriptedModel([fail(StreamBroken("cut")), say("ok"), fail(StreamBroken("cut")), say("ok2")]) as model:
        worker = worker_of(model)
        await worker.ask("go")
        await worker.ask("again")
    assert model.requests[0].messages == model.requests[1].messages
    assert model.requests[2].messages == model.requests[3].messages
    assert [i.text for i in model.requests[3].items if isinstance(i, UserItem)] == ["go", "again"]
    assert len(journal_of(worker).of(Input)) == 2


async def test_retries_end_at_the_bound_of_tries_and_the_error_shows_it() -> None:
    """B104, the variant that never recovers."""
    model = ScriptedModel([fail(Overloaded("busy"))], strict=False)
    worker = worker_of(model, retry=RetryPolicy(max_attempts=4, chance=lambda: 0.0))
    outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "overloaded"
    assert "4 of at most 4 tries" in outcome.message
    assert outcome.details["retryable"] is True
    assert len(model.requests) == 4
    assert await worker_of(ScriptedModel([say("ok")])).ask("go") == Finished("ok")


async def test_retries_end_at_the_bound_of_seconds() -> None:
    now = [0.0]

    def answer(_: Any) -> Any:
        now[0] += 40.0
        raise Overloaded("busy")

    worker = worker_of(FunctionModel("offline:f", answer), retry=RetryPolicy(max_seconds=100.0, chance=lambda: 0.0))
    worker.sender.clock = lambda: now[0]
    outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert "of at most 100 s" in outcome.message
    assert len(journal_of(worker).of(Retry)) == 2


async def test_a_call_is_not_run_from_an_attempt_that_broke() -> None:
    """B107, the variant with a complete call before the end of the stream."""
    act = Counter()
    with ScriptedModel([fail(StreamBroken("no terminal event")), call("act", n=2), say("ok")]) as model:
        await worker_of(model, [act.tool]).ask("go")
    assert act.seen == [2]


async def test_a_sync_that_fails_before_a_retry_is_not_hidden_by_it() -> None:
    journal = Journal(fail_sync=1)
    model = ScriptedModel([fail(Overloaded("busy")), say("ok")])
    with pytest.raises(Exception, match="no space left"):
        await worker_of(model, journal=journal).ask("go")
    assert journal.of(ReplyRecord) == []


# -- the policy, pure -----------------------------------------------------------------------------------------------


def test_waits_grow_with_full_jitter_up_to_their_cap() -> None:
    """B104."""
    most = RetryPolicy(max_attempts=20, max_seconds=1e9, chance=lambda: 1.0)
    waits = [most.wait(Overloaded("x"), n, 0.0) for n in range(1, 10)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert (
        most.wait(Overloaded("x"), 19, 0.0)
        == RetryPolicy(10_000, 1e9, chance=lambda: 1.0).wait(Overloaded("x"), 9_000, 0.0)
        == 30
    )
    least = RetryPolicy(chance=lambda: 0.0)
    assert least.wait(Overloaded("x"), 1, 0.0) == 0.0
    assert RetryPolicy(chance=lambda: 0.5).wait(Overloaded("x"), 3, 0.0) == 1.0


def test_what_the_provider_asks_for_wins_over_the_back_off() -> None:
    """B103: 7 and 0.5 seconds, neither rounded nor capped by the back-off."""
    policy = RetryPolicy(chance=lambda: 1.0)
    assert policy.wait(RateLimited("x", retry_after=7.0), 1, 0.0) == 7.0
    assert policy.wait(RateLimited("x", retry_after=0.5), 5, 0.0) == 0.5
    assert policy.wait(RateLimited("x", retry_after=120.0), 1, 0.0) == 120.0
    assert policy.wait(RateLimited("x", retry_after=121.0), 1, 0.0) is None, "that long it is not waited for"
    assert policy.wait(RateLimited("x", retry_after=-3.0), 1, 0.0) == 0.0


@given(
    attempt=st.integers(1, 40),
    waited=st.floats(0, 1_000),
    chance=st.floats(0, 0.999),
    asked=st.none() | st.floats(0, 500),
)
def test_a_wait_never_passes_any_bound(attempt: int, waited: float, chance: float, asked: float | None) -> None:
    policy = RetryPolicy(chance=lambda: chance)
    pause = policy.wait(RateLimited("x", retry_after=asked), attempt, waited)
    if pause is not None:
        assert attempt < policy.max_attempts
        assert 0 <= pause <= policy.longest_wait
        assert waited + pause <= policy.max_seconds
    assert policy.wait(BadRequest("x"), attempt, waited) is None


# -- fallback models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Overloaded, QuotaExhausted, AuthFailed, ModelNotFound])
async def test_a_fallback_takes_over_where_the_first_model_cannot(error: type[ModelError]) -> None:
    first = ScriptedModel([fail(error("no"))], strict=False, name="offline:a")
    with ScriptedModel([say("from b")], name="offline:b") as second:
        worker = worker_of([first, second], retry=RetryPolicy(max_attempts=2, chance=lambda: 0.0))
        assert await worker.ask("go") == Finished("from b")
    assert len(first.requests) == (2 if error.retryable else 1)
    (switch,) = journal_of(worker).of(ModelSwitched)
    assert (switch.from_model, switch.to_model, switch.skipped) == ("offline:a", "offline:b", False)
    assert error.kind in switch.reason
    assert replies(worker)[0].model == "offline:b"


@pytest.mark.parametrize("error", [BadRequest, InvalidHistory])
async def test_a_request_that_is_wrong_is_not_passed_on_to_a_fallback(error: type[ModelError]) -> None:
    second = ScriptedModel([], name="offline:b")
    with ScriptedModel([fail(error("no"))], name="offline:a") as first:
        outcome = await worker_of([first, second]).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == error.kind
    assert second.requests == []


async def test_a_fallback_that_the_request_does_not_fit_is_skipped_with_an_event() -> None:
    first = ScriptedModel([fail(AuthFailed("no"))], name="offline:a")
    small = ScriptedModel([], name="offline:small", capabilities=window(8_000))
    with ScriptedModel([say("ok")], name="offline:c") as third:
        worker = worker_of([first, small, third])
        assert await worker.ask(LONG) == Finished("ok")
    switches = journal_of(worker).of(ModelSwitched)
    assert [(s.to_model, s.skipped) for s in switches] == [("offline:small", True), ("offline:c", False)]
    assert "above the ceiling" in switches[0].reason
    assert small.requests == []


async def test_a_first_model_that_is_too_small_gives_way_to_a_larger_one() -> None:
    small = ScriptedModel([], name="offline:small", capabilities=window(8_000))
    with ScriptedModel([say("ok")], name="offline:large") as large:
        worker = worker_of([small, large])
        assert await worker.ask(LONG) == Finished("ok")
    assert small.requests == []
    (switch,) = journal_of(worker).of(ModelSwitched)
    assert "over_budget" in switch.reason


async def test_where_no_model_holds_the_request_nothing_is_sent_and_the_error_has_the_figures() -> None:
    models = [ScriptedModel([], name=f"offline:{n}", capabilities=window(8_000 + n)) for n in range(3)]
    outcome = await worker_of(models).ask(LONG)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "over_budget"
    assert "6,000" in outcome.message
    assert [m.requests for m in models] == [[], [], []]


async def test_each_model_has_its_own_output_limit() -> None:
    first = ScriptedModel([fail(AuthFailed("no"))], name="offline:a", capabilities=window(100_000, output=9_000))
    with ScriptedModel([say("ok")], name="offline:b", capabilities=window(100_000, output=2_000)) as second:
        worker = worker_of([first, second], max_output_tokens=5_000)
        await worker.ask("go")
    assert first.requests[0].max_output_tokens == 5_000
    assert second.requests[0].max_output_tokens == 2_000


async def test_a_model_that_failed_rests_and_is_asked_first_again_afterwards() -> None:
    now = [0.0]
    act = Counter()
    act.body = lambda n: now.__setitem__(0, now[0] + 200.0) or "x"
    with (
        ScriptedModel([fail(QuotaExhausted("no")), say("back")], name="offline:a") as first,
        ScriptedModel([call("act", n=1), call("act", n=2)], name="offline:b") as second,
    ):
        worker = worker_of([first, second], [act.tool])
        worker.sender.clock = lambda: now[0]
        # At 0 s the first fails; at 200 s it still rests; at 400 s it is asked first again.
        assert await worker.ask("go") == Finished("back")


# -- the ceiling ----------------------------------------------------------------------------------------------------


async def test_a_request_at_the_ceiling_is_sent_and_one_token_above_it_is_not() -> None:
    """B058: strictly above counts."""
    probe = worker_of(ScriptedModel([], capabilities=window(100_000)))
    put_user(probe, "go")
    await probe.admit()
    tokens = probe.sender.occupancy().tokens
    for ceiling, sent in ((tokens, True), (tokens - 1, False)):
        model = ScriptedModel([say("ok")], strict=False, capabilities=window(100_000))
        worker = worker_of(model)
        worker.sender.ceiling = ceiling
        outcome = await worker.ask("go")
        assert bool(model.requests) is sent
        assert isinstance(outcome, Finished if sent else Failed)
        assert isinstance(outcome, Finished) or f"ceiling of {ceiling:,}" in outcome.message


def test_input_and_requested_output_together_never_exceed_the_window() -> None:
    """B058: 196,758 + 8,192 > 200,000."""
    budget = budget_of(Capabilities(window=200_000, max_output=8_192))
    assert budget.available == 191_808 < 196_758
    assert budget.available + budget.output <= budget.window


@given(
    size=st.integers(1, 2_000_000),
    most=st.integers(1, 300_000),
    asked=st.integers(0, 300_000),
    buffer=st.integers(0, 50_000),
)
def test_a_budget_always_leaves_room_for_the_output_it_asks_for(size: int, most: int, asked: int, buffer: int) -> None:
    """B058 for every window."""
    budget = budget_of(Capabilities(window=size, max_output=most), requested_output=asked, buffer=buffer)
    assert 0 <= budget.available <= size
    assert budget.available + budget.output <= size
    assert budget.output <= most
    assert budget.output <= (asked or most)


@given(
    words=st.lists(st.integers(1, 4_000), min_size=1, max_size=6),
    sizes=st.lists(st.integers(5_000, 30_000), min_size=1, max_size=3),
)
def test_no_request_above_its_ceiling_reaches_any_model(words: list[int], sizes: list[int]) -> None:
    """Invariant: for every model of a chain, by the number that was computed before it was sent."""
    import anyio

    sent: list[tuple[int, int]] = []

    async def main() -> None:
        models = [
            FunctionModel(f"offline:{n}", lambda r, n=n: _count(n), capabilities=window(size))
            for n, size in enumerate(sizes)
        ]
        worker = worker_of(models)

        def _count(n: int) -> Any:
            model = models[n]
            sent.append((worker.sender.occupancy(model).tokens, worker.sender.budget(model).available))
            if n == 0 and len(sent) % 2:
                raise AuthFailed("no")
            return make_reply(AssistantItem(text="ok"))

        for count in words:
            await worker.ask("word " * count)

    anyio.run(main)
    assert all(tokens <= available for tokens, available in sent)


# -- overflow -------------------------------------------------------------------------------------------------------


async def test_an_overflow_is_not_sent_again_unchanged() -> None:
    """B061."""
    model = ScriptedModel([fail(ContextOverflow("prompt is too long"))], strict=False)
    outcome = await worker_of(model, retry=RetryPolicy(max_attempts=10, chance=lambda: 0.0)).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "overflow"
    assert len(model.requests) == 1


async def test_an_overflow_that_states_its_limit_teaches_the_window() -> None:
    """B055: 32,000 where the table says more; the budget follows at once."""
    error = ContextOverflow("too long", limit=32_000, requested=40_000, status=400)
    with ScriptedModel([fail(error)]) as model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert (outcome.details["limit"], outcome.details["requested"]) == (32_000, 40_000)
    assert journal_of(worker).of(WindowLearned) == [
        WindowLearned(
            model="offline:scripted",
            window=32_000,
            source="stated",
            requested=40_000,
            counted=23_616,
            parts=(0, 9),
            whole=9,
            declared=200_000,
            message="too long",
        )
    ], "with an output of up to 16,384 the input has at least 23,616"
    assert worker.history.calibration.factors == {}, "nine estimated tokens teach nothing"
    budget = worker.sender.budget(model)
    assert (budget.window, budget.window_source) == (32_000, "learned")
    assert worker.history.counters.overflows == 1


async def test_an_overflow_without_a_number_teaches_a_share_of_what_was_refused() -> None:
    """B059."""
    script = [fail(ContextOverflow("context window exceeded", status=403))]
    with ScriptedModel(script, capabilities=window(40_000)) as model:
        worker = worker_of(model)
        put_user(worker, LONG)
        await worker.admit()
        size = worker.sender.occupancy().tokens
        assert isinstance(await worker.run(), Failed)
    (learned,) = journal_of(worker).of(WindowLearned)
    assert (learned.window, learned.source) == (int(size * GUESSED_SHARE), "guessed")


async def test_an_overflow_of_a_small_request_does_not_make_the_model_unusable() -> None:
    """B059, misread: each guess takes at most three quarters of the window that was believed."""
    with ScriptedModel([fail(ContextOverflow("?")), say("ok")]) as model:
        worker = worker_of(model)
        assert isinstance(await worker.ask("go"), Failed)
        assert worker.sender.budget(model).window == int(200_000 * LEAST_GUESS)
        assert await worker.run() == Finished("ok")


async def test_a_guess_never_widens_the_window_and_a_later_statement_outranks_it() -> None:
    errors = [ContextOverflow("a"), ContextOverflow("b", limit=90_000), ContextOverflow("c", limit=500_000)]
    with ScriptedModel([fail(e) for e in errors]) as model:
        worker = worker_of(model)
        for _ in errors:
            put_user(worker, "x")
            await worker.run()
    learned = journal_of(worker).of(WindowLearned)
    assert [w.source for w in learned] == ["guessed", "stated", "guessed"]
    assert learned[1].window == 90_000
    assert learned[2].window <= 90_000


async def test_what_is_too_large_for_the_tier_counts_as_an_overflow_and_teaches_no_window() -> None:
    with ScriptedModel(
        [fail(TooLargeForTier("tokens per minute", limit=30_000, requested=45_000)), say("ok")]
    ) as model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
        assert isinstance(outcome, Failed)
        assert outcome.kind == "too_large_for_tier"
        assert worker.sender.budget(model).window == 200_000
        assert worker.history.counters.overflows_since_reply == 1
        assert [r.limit for r in journal_of(worker).of(SizeRefused)] == [30_000]
        assert await worker.run() == Finished("ok")


@pytest.mark.parametrize("limit", [10, 600, 7_000])
async def test_a_stated_limit_below_what_the_model_accepted_teaches_nothing(limit: int) -> None:
    """However often it is stated: every later request reaches the provider, and its message is told."""
    accepted = reply(say("one"), usage=Usage(input_tokens=8_000, output_tokens=5))
    refusals = [fail(ContextOverflow(f"70 tokens > {limit} maximum", limit=limit))] * 6
    with ScriptedModel([accepted, *refusals, say("ok")]) as model:
        worker = worker_of(model)
        assert await worker.ask("word " * 6_000) == Finished("one")
        for _ in refusals:
            outcome = await worker.ask("x")
            assert isinstance(outcome, Failed) and outcome.kind == "overflow" and "70 tokens" in outcome.message
        assert [r.limit for r in journal_of(worker).of(SizeRefused)] == [limit] * 6
        assert await worker.ask("x") == Finished("ok")
    assert not journal_of(worker).of(WindowLearned)


@pytest.mark.parametrize("limit", [0, 10, None])
async def test_no_window_is_learned_that_would_hold_no_request(limit: int | None) -> None:
    """The floor where nothing was accepted yet, with a number that can't be the window and with none."""
    refusals = [fail(ContextOverflow("name is too long: 70 > 10 maximum", limit=limit)) for _ in range(9)]
    with ScriptedModel([*refusals, say("ok")]) as model:
        worker = worker_of(model)
        for _ in refusals:
            outcome = await worker.ask("x")
            assert isinstance(outcome, Failed) and outcome.kind == "overflow"
        assert worker.sender.budget(model).window == (LEAST_GUESSED if limit is None else 200_000)
        assert await worker.ask("x") == Finished("ok")


async def test_what_the_model_accepts_later_widens_what_was_learned() -> None:
    accepted = reply(say("one"), usage=Usage(input_tokens=5_000, output_tokens=5))
    with ScriptedModel([fail(ContextOverflow("?")), accepted], capabilities=window(8_000)) as model:
        worker = worker_of(model)
        assert isinstance(await worker.ask("word " * 2_000), Failed)
        assert worker.sender.budget(model).window == LEAST_GUESSED
        await worker.run()
        assert worker.sender.budget(model).window == 5_000


async def test_a_window_declared_anew_stands_in_the_place_of_what_was_learned() -> None:
    with ScriptedModel([fail(ContextOverflow("too long", limit=32_000))]) as model:
        worker = worker_of(model)
        await worker.ask("go")
    learned = worker.history.windows[model.name]
    assert budget_of(window(200_000), learned=learned).origin == 'learned when the provider said "too long"'
    for declared in (64_000, 20_000):
        budget = budget_of(window(declared), learned=learned)
        assert (budget.window, budget.window_source) == (declared, window(declared).window_source)


async def test_the_same_request_is_refused_before_it_is_sent_once_the_window_is_known() -> None:
    """B061: at most two sends, here one."""
    with ScriptedModel([fail(ContextOverflow("too long", limit=9_000))]) as model:
        worker = worker_of(model)
        put_user(worker, LONG)
        assert isinstance(await worker.run(), Failed)
        outcome = await worker.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "over_budget"
    assert len(model.requests) == 1


async def test_an_overflow_can_be_given_a_meaning_and_the_run_then_goes_on_without_a_trace_of_failure() -> None:
    """B062, B064: the tool does not run again, and no failure is reported before the recovery."""

    class Mend(Interceptor):
        async def after_error(self, ctx: Any, error: ModelError) -> Any:
            return Yield("compact", {"trigger": error.kind})

    act = Counter()
    with ScriptedModel([call("act", n=1), fail(ContextOverflow("too long")), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Mend()])
        assert await worker.ask("go") == Yielded("compact", {"trigger": "overflow"})
        assert await worker.run() == Finished("ok")
    assert act.runs == 1


async def test_overflows_since_the_last_reply_are_counted_apart() -> None:
    act = Counter()
    script = [fail(ContextOverflow("a")), call("act", n=1), fail(ContextOverflow("b")), say("ok")]
    with ScriptedModel(script) as model:
        worker = worker_of(model, [act.tool])
        await worker.ask("go")
        assert worker.history.counters.overflows_since_reply == 1
        await worker.run()
        assert (worker.history.counters.overflows, worker.history.counters.overflows_since_reply) == (2, 1)
        await worker.run()
    assert (worker.history.counters.overflows, worker.history.counters.overflows_since_reply) == (2, 0)
