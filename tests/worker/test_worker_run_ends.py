"""How a run ends: well, empty, cut, refused, and each of them said as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.loop_rig import Before, Counter, journal_of, put_user, replies, results, worker_of
from worker.errors import AuthFailed, BadRequest, Refused
from worker.interceptor import Append
from worker.items import AssistantItem, ContextItem, OpaqueItem, ReasoningItem
from worker.loop import EMPTY_REPLIES, PAUSES
from worker.models.base import Usage
from worker.results import Failed, Finished
from worker.testing import FunctionModel, ScriptedModel, Step, call, check_items, fail, make_reply, reply, say, think

pytestmark = pytest.mark.anyio
ZERO = Usage(input_tokens=0, output_tokens=0)
SOME = Usage(input_tokens=50, output_tokens=3)


async def test_a_reply_of_text_ends_the_run_with_all_its_text() -> None:
    with ScriptedModel([reply(say("one "), say("two"))]) as model:
        assert await worker_of(model).ask("go") == Finished("one two")


async def test_one_question_after_another_is_one_conversation() -> None:
    with ScriptedModel([say("a"), say("b")]) as model:
        worker = worker_of(model)
        assert await worker.ask("1") == Finished("a")
        assert await worker.ask("2") == Finished("b")
    assert [i.type for i in model.requests[1].items] == ["user", "assistant", "user"]


async def test_a_text_without_a_finish_reason_is_accepted() -> None:
    """B109."""
    with ScriptedModel([reply(say("whole"), stop="unknown")]) as model:
        worker = worker_of(model)
        assert await worker.ask("go") == Finished("whole")
    assert replies(worker)[0].stop == "unknown"


# -- empty replies --------------------------------------------------------------------------------------------------


async def test_an_empty_end_after_a_tool_is_legal_flagged_and_leaves_a_valid_history() -> None:
    """B116."""
    act = Counter()
    with ScriptedModel([call("act", n=1), reply(usage=SOME), say("still here")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("", empty=True)
        assert await worker.ask("more") == Finished("still here")
    check_items(model.requests[2].items)


async def test_an_empty_end_after_a_tool_is_legal_also_with_a_notice_behind_the_result() -> None:
    """B116: what the runtime put there does not make it another case."""
    act = Counter()
    late = Before(
        lambda ctx: Append((ContextItem(kind="notice", text="80 % used"),)) if results(ctx.history) else None
    )  # fmt: skip
    with ScriptedModel([call("act", n=1), reply(usage=SOME)]) as model:
        assert await worker_of(model, [act.tool], [late]).ask("go") == Finished("", empty=True)


@pytest.mark.parametrize(
    "empty",
    [
        reply(usage=ZERO),
        reply(say(" \n"), usage=ZERO),
        reply(think('{"type":"thinking"}'), usage=SOME),
        reply(usage=SOME),
    ],
    ids=["nothing", "blank", "reasoning-alone", "with-usage"],
)
async def test_endless_empty_replies_are_bounded_and_the_bound_is_in_the_error(empty: Step) -> None:
    """B115: whatever kind of empty, strictly checked at each request."""
    model = ScriptedModel([empty] * (EMPTY_REPLIES + 1))
    with model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "empty_replies"
    assert f"{EMPTY_REPLIES + 1} empty replies" in outcome.message
    assert len(model.requests) == EMPTY_REPLIES + 1
    assert [i.type for i in worker.history.view] == ["user"], "no empty item is sent back"


async def test_an_empty_reply_without_usage_after_a_tool_is_asked_again() -> None:
    """B115 against B116: only a reply that cost output is a legal empty end."""
    act = Counter()
    with ScriptedModel([call("act", n=1), reply(usage=ZERO), say("here")]) as model:
        assert await worker_of(model, [act.tool]).ask("go") == Finished("here")


async def test_empty_replies_count_in_a_row_so_that_a_long_run_survives_single_ones() -> None:
    act = Counter()
    script = [reply(usage=ZERO), call("act", n=1), reply(usage=ZERO), call("act", n=2), reply(usage=ZERO), say("done")]
    with ScriptedModel(script) as model:
        assert await worker_of(model, [act.tool]).ask("go") == Finished("done")


async def test_an_empty_reply_leaves_the_message_unanswered() -> None:
    model = ScriptedModel([reply(usage=ZERO)] * 2)
    with model:
        worker = worker_of(model)
        await worker.ask("go")
    assert worker.history.unanswered == 1


async def test_an_unknown_item_of_the_provider_without_text_is_bounded_too() -> None:
    opaque = Step(items=(OpaqueItem(provider="offline", model="scripted", payload='{"x":1}'),))
    model = ScriptedModel([opaque] * (EMPTY_REPLIES + 1), strict=False)
    outcome = await worker_of(model).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "empty_replies"


async def test_blank_text_beside_a_call_is_not_sent_back() -> None:
    act = Counter()
    with ScriptedModel([reply(say("\n\n"), call("act", n=1)), say("ok")]) as model:
        worker = worker_of(model, [act.tool])
        assert await worker.ask("go") == Finished("ok")
    assert [i.type for i in model.requests[1].items] == ["user", "tool_call", "tool_result"]
    assert len(replies(worker)[0].items) == 2, "the log keeps the reply as it came"


# -- cut, refused, paused -------------------------------------------------------------------------------------------


async def test_a_reply_cut_at_the_output_limit_is_a_failure_that_keeps_its_text() -> None:
    """B108."""
    with ScriptedModel([reply(say("half an ans"), stop="length")]) as model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.text) == ("output_limit", "half an ans")
    assert replies(worker)[0].stop == "length"


async def test_reasoning_that_ate_the_whole_output_limit_leaves_a_valid_history() -> None:
    """B108, without text: the next message is accepted by a strict provider."""
    with ScriptedModel([reply(think("{}"), stop="length", usage=SOME), say("ok")]) as model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
        assert isinstance(outcome, Failed)
        assert outcome.kind == "output_limit"
        assert await worker.ask("shorter") == Finished("ok")


@pytest.mark.parametrize("text", ["", "I can't help with that."])
async def test_a_refusal_is_a_kind_of_its_own_is_not_repeated_and_keeps_partial_text(text: str) -> None:
    """B117."""
    parts = [say(text)] if text else []
    with ScriptedModel([reply(*parts, stop="refusal")]) as model:
        worker = worker_of(model)
        outcome = await worker.ask("go")
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.text) == ("refused", text)
    assert len(model.requests) == 1
    assert replies(worker)[0].stop == "refusal"


async def test_a_refusal_that_comes_as_an_error_keeps_its_partial_text() -> None:
    """B117."""
    with ScriptedModel([fail(Refused("filtered", partial="The first step"))]) as model:
        outcome = await worker_of(model).ask("go")
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.text) == ("refused", "The first step")


async def test_a_paused_turn_is_asked_to_go_on() -> None:
    with ScriptedModel([reply(say("searching"), stop="pause"), say("found")], strict=False) as model:
        assert await worker_of(model).ask("go") == Finished("found")
    assert [i.type for i in model.requests[1].items] == ["user", "assistant"]


async def test_paused_turns_are_bounded_and_never_pass_for_an_answer() -> None:
    model = ScriptedModel([reply(say("searching"), stop="pause")], strict=False)
    outcome = await worker_of(model).ask("go")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "pauses"
    assert str(PAUSES) in outcome.message
    assert len(model.requests) == PAUSES + 1


async def test_what_a_paused_turn_sent_goes_back_whole() -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append([i.type for i in request.items])
        if len(seen) == 1:
            return make_reply(ReasoningItem(provider="offline", model="f", payload="{}"), stop="pause")
        return make_reply(AssistantItem(text="done"))

    assert await worker_of(FunctionModel("offline:f", answer)).ask("go") == Finished("done")
    assert seen[1] == ["user", "reasoning"]


# -- errors ---------------------------------------------------------------------------------------------------------


async def test_an_error_of_the_model_is_a_failure_with_its_kind_status_code_and_request() -> None:
    """B105."""
    error = AuthFailed("bad key", status=401, code="invalid_api_key", request_id="req_1")
    with ScriptedModel([fail(error)]) as model:
        outcome = await worker_of(model).ask("go")
    assert outcome == Failed(
        "auth",
        "bad key",
        details={
            "status": 401, "code": "invalid_api_key", "request_id": "req_1", "model": "offline:scripted",
            "retryable": False,
        },
    )  # fmt: skip


async def test_after_a_failure_the_conversation_goes_on_with_the_message_once() -> None:
    with ScriptedModel([fail(BadRequest("no")), say("ok")]) as model:
        worker = worker_of(model)
        assert isinstance(await worker.ask("go"), Failed)
        assert await worker.run() == Finished("ok")
    assert [i.type for i in model.requests[1].items] == ["user"]


async def test_no_outcome_leaves_queued_input_behind_unrecorded() -> None:
    with ScriptedModel([fail(BadRequest("no")), say("ok")]) as model:
        worker = worker_of(model)
        put_user(worker, "one")
        assert isinstance(await worker.run(), Failed)
        put_user(worker, "two")
        assert await worker.run() == Finished("ok")
    assert journal_of(worker).kinds == ["input", "admitted", "input", "admitted", "reply"]
