"""Promises of the models for tests: scripts are strict, usage is plausible, and nothing is known but the request."""

from __future__ import annotations

import anyio
import pytest

from worker.errors import ContextOverflow, RateLimited
from worker.estimate import estimate_items, estimate_spec, estimate_text
from worker.items import AssistantItem, Image, Item, ReasoningItem, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Capabilities, Delta, Reply, Request, ToolSpec, Usage
from worker.testing import (
    FunctionModel,
    InvalidItems,
    PlainEncoder,
    ScriptedModel,
    ScriptError,
    call,
    calls,
    encode_items,
    fail,
    hang,
    make_reply,
    raw_call,
    reply,
    say,
    think,
)
from worker.testing.function_model import common_prefix, count_messages

pytestmark = pytest.mark.anyio

SPEC = ToolSpec("look", "Looks at a thing.", {"type": "object", "properties": {"path": {"type": "string"}}})


def request(*items: Item, system: str = "You are a test.", key: str = "k") -> Request:
    encoder = PlainEncoder("offline", "scripted")
    return Request(system, (SPEC,), items, encode_items(encoder, items), 1_000, key)


async def send(model: FunctionModel, *items: Item) -> Reply:
    return await model.send(request(*items), lambda _: None)


def echo(asked: Request) -> Reply:
    return make_reply(AssistantItem(text=f"{len(asked.items)} items"))


def test_what_is_no_step_is_refused_where_the_script_is_made() -> None:
    with pytest.raises(TypeError, match=r"steps\[1\] is ValueError\('x'\), and no step: say, call"):
        ScriptedModel([say("ok"), ValueError("x")])  # pyright: ignore[reportArgumentType]


async def test_a_script_is_played_step_by_step() -> None:
    first, second = UserItem(text="one"), UserItem(text="two")
    with ScriptedModel([call("look", path="a"), reply(say("ok"), usage=Usage(input_tokens=7))]) as model:
        answer = await send(model, first)
        assert answer.stop == "tool_calls"
        made = answer.items[0]
        assert isinstance(made, ToolCallItem)
        assert (made.name, made.parsed) == ("look", {"path": "a"})
        result = ToolResultItem(call_id=made.call_id, name="look", status="ok", summary="seen")
        answer = await send(model, first, made, result, second)
        assert answer.usage == Usage(input_tokens=7)
        assert answer.stop == "end"
    assert [len(each.items) for each in model.requests] == [1, 4]
    assert model.requests[0].tools == (SPEC,)
    assert model.requests[0].messages == b'{"role":"user","content":"one"}'


async def test_a_reply_of_several_parts_is_one_reply() -> None:
    with ScriptedModel([reply(think("{}"), say("Looking."), call("look", path="a"), call("look", path="b"))]) as model:
        answer = await send(model, UserItem(text="x"))
    assert [item.type for item in answer.items] == ["reasoning", "assistant", "tool_call", "tool_call"]
    assert len({item.reply for item in answer.items}) == 1
    ids = [item.call_id for item in answer.items if isinstance(item, ToolCallItem)]
    assert len(set(ids)) == 2
    assert isinstance(answer.items[0], ReasoningItem)
    assert (answer.items[0].provider, answer.items[0].model) == ("offline", "scripted")


async def test_calls_of_two_scripts_never_share_an_id() -> None:
    ids: list[str] = []
    for _ in range(2):
        with ScriptedModel([calls([call("look"), call("look")])]) as model:
            answer = await send(model, UserItem(text="x"))
        ids += [item.call_id for item in answer.items if isinstance(item, ToolCallItem)]
    assert len(set(ids)) == 4


async def test_raw_arguments_are_kept_as_they_are() -> None:
    with ScriptedModel([raw_call("look", '{"path": "a', cut=True)]) as model:
        answer = await send(model, UserItem(text="x"))
    made = answer.items[0]
    assert isinstance(made, ToolCallItem)
    assert made.arguments == '{"path": "a'
    assert made.error is not None
    assert answer.stop == "length"


async def test_a_fault_is_raised_and_the_script_goes_on() -> None:
    with ScriptedModel([fail(RateLimited("slow down", retry_after=2.0)), say("ok")]) as model:
        with pytest.raises(RateLimited, match="slow down"):
            await send(model, UserItem(text="x"))
        assert (await send(model, UserItem(text="x"))).items[0].type == "assistant"


async def test_a_step_may_be_a_function_of_the_request() -> None:
    with ScriptedModel([lambda asked: say(f"{len(asked.items)} items")]) as model:
        answer = await send(model, UserItem(text="x"))
    assert isinstance(answer.items[0], AssistantItem)
    assert answer.items[0].text == "1 items"


async def test_a_hanging_request_ends_when_it_is_cancelled() -> None:
    model = ScriptedModel([hang()])
    with anyio.move_on_after(0.01) as scope:
        await send(model, UserItem(text="x"))
    assert scope.cancelled_caught
    model.assert_consumed()


async def test_an_unexpected_request_fails_at_once_and_at_the_end() -> None:
    model = ScriptedModel([say("ok")])
    await send(model, UserItem(text="x"))
    with pytest.raises(ScriptError, match="after the last of 1 steps"):
        await send(model, UserItem(text="x"))
    with pytest.raises(ScriptError, match="after the last of 1 steps"):
        model.assert_consumed()


async def test_unconsumed_steps_fail() -> None:
    with pytest.raises(ScriptError, match="1 of 1 steps were not asked for"), ScriptedModel([say("ok")]):
        pass


async def test_an_error_in_the_block_is_not_hidden_by_unconsumed_steps() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedModel([say("ok")]):
        raise ZeroDivisionError


async def test_an_invalid_history_fails_at_once_and_at_the_end() -> None:
    model = ScriptedModel([say("ok")])
    lone = ToolResultItem(call_id="none", name="look", status="ok", summary="seen")
    with pytest.raises(InvalidItems, match="was not made before"):
        await send(model, UserItem(text="x"), lone)
    with pytest.raises(InvalidItems):
        model.assert_consumed()


async def test_messages_that_are_not_those_of_the_items_fail() -> None:
    model = ScriptedModel([say("ok")])
    item = UserItem(text="x")
    wrong = Request("", (), (item,), b'{"role":"user","content":"y"}', 100)
    with pytest.raises(InvalidItems, match="differ at byte 26"):
        await model.send(wrong, lambda _: None)


async def test_without_strictness_the_last_step_is_repeated() -> None:
    model = ScriptedModel([say("a"), say("b")], strict=False)
    texts = [(await send(model, UserItem(text="x"))).items[0] for _ in range(4)]
    assert [item.text for item in texts if isinstance(item, AssistantItem)] == ["a", "b", "b", "b"]
    assert len({item.id for item in texts}) == 4
    model.assert_consumed()


async def test_a_function_is_a_model_sync_or_async() -> None:
    async def later(asked: Request) -> Reply:
        await anyio.lowlevel.checkpoint()
        return echo(asked)

    for function in (echo, later):
        answer = await send(FunctionModel("offline:test", function), UserItem(text="x"))
        assert isinstance(answer.items[0], AssistantItem)
        assert answer.items[0].text == "1 items"
        assert answer.items[0].reply
        assert answer.model == "test"


async def test_a_model_shows_what_it_says_while_it_says_it() -> None:
    shown: list[Delta] = []
    model = ScriptedModel([reply(say("Hi."), call("look"))])
    await model.send(request(UserItem(text="x")), shown.append)
    assert shown == [Delta("text", "Hi."), Delta("call", "look")]


async def test_reported_usage_is_its_own_count_of_what_was_sent() -> None:
    items = (UserItem(text="word " * 500), UserItem(text="日本語" * 100))
    answer = await send(FunctionModel("offline:test", echo), *items)
    own = estimate_text("You are a test.", "o200k") + estimate_spec(SPEC, "o200k") + estimate_items(items, "o200k")
    assert answer.usage.input_tokens == pytest.approx(own, rel=0.02)
    assert answer.usage.cached_tokens == 0
    assert answer.usage.output_tokens > 0


async def test_a_common_prefix_is_reported_as_cached() -> None:
    model = FunctionModel("offline:test", echo)
    first = UserItem(text="word " * 500)
    said = AssistantItem(text="ok", reply="r")
    cold = (await send(model, first)).usage
    warm = (await send(model, first, said, UserItem(text="more"))).usage
    assert warm.cached_tokens == cold.input_tokens
    assert warm.input_tokens is not None
    assert cold.input_tokens is not None
    assert warm.input_tokens > cold.input_tokens
    edited = (await send(model, UserItem(text="other " * 500), said)).usage
    assert 0 < edited.cached_tokens < cold.input_tokens / 2


async def test_the_count_is_the_same_with_and_without_a_warm_cache() -> None:
    model = FunctionModel("offline:test", echo)
    items: list[Item] = []
    for n in range(6):
        items += [UserItem(text=f"question {n} " * 40), AssistantItem(text=f"answer {n}", reply=f"r{n}")]
        warm = (await send(model, *items)).usage
        cold = (await send(FunctionModel("offline:test", echo), *items)).usage
        assert warm.input_tokens == cold.input_tokens


async def test_another_system_prompt_or_cache_key_is_cold() -> None:
    model = FunctionModel("offline:test", echo)
    item = UserItem(text="word " * 500)
    await model.send(request(item), lambda _: None)
    other = await model.send(request(item, system="Other."), lambda _: None)
    assert other.usage.cached_tokens == 0
    other = await model.send(request(item, system="Other.", key="another"), lambda _: None)
    assert other.usage.cached_tokens == 0


async def test_an_image_costs_a_fixed_number_of_tokens() -> None:
    item = UserItem(text="look", images=(Image(media_type="image/png", data="A" * 100_000),))
    usage = (await send(FunctionModel("offline:test", echo), item)).usage
    assert usage.input_tokens is not None
    assert 1_600 < usage.input_tokens < 1_700


async def test_an_input_above_the_window_overflows_as_at_a_provider() -> None:
    capabilities = Capabilities(window=300)
    model = FunctionModel("offline:test", echo, capabilities=capabilities)
    with pytest.raises(ContextOverflow) as caught:
        await send(model, UserItem(text="word " * 500))
    assert caught.value.limit == 300
    assert caught.value.requested is not None
    assert caught.value.requested > 300
    lenient = FunctionModel("offline:test", echo, capabilities=capabilities, enforce_window=False)
    await send(lenient, UserItem(text="word " * 500))


async def test_nothing_reported_stays_nothing() -> None:
    with ScriptedModel([reply(say("ok"), usage=Usage())]) as model:
        assert (await send(model, UserItem(text="x"))).usage.input_tokens is None


def test_a_common_prefix_is_counted_in_bytes() -> None:
    assert common_prefix(b"abcdef", b"abcxyz") == 3
    assert common_prefix(b"", b"a") == 0
    assert common_prefix(b"same", b"same") == 4


def test_encoded_messages_are_counted_by_their_texts() -> None:
    one = b'{"role":"user","content":"' + b"word " * 100 + b'"}'
    assert count_messages(one + b"," + one) == 2 * count_messages(one)
