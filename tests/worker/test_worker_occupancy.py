"""Occupancy: the number for the next request, where it comes from, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.loop_rig import Before, Counter, YieldAt, put_user, results, window, worker_of
from worker.calibration import Calibration
from worker.errors import ContextOverflow
from worker.estimate import IMAGE_TOKENS, estimate_item, estimate_items
from worker.history import History
from worker.interceptor import CONTINUE, Edit
from worker.items import (
    AssistantItem,
    ContextItem,
    Image,
    OpaqueItem,
    ReasoningItem,
    ToolOutput,
    ToolResultItem,
    UserItem,
)  # fmt: skip
from worker.models.base import Usage
from worker.occupancy import Occupancy
from worker.records import Admitted, ContextAdded, Edited, Input, ReplyRecord, ToolsChanged
from worker.results import Failed, Finished, Yielded
from worker.testing import FunctionModel, ScriptedModel, call, make_reply, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio
M = "test:m"


def reported(tokens: int | None, *items: Any, output: int = 0, cached: int = 0, model: str = M) -> ReplyRecord:
    usage = Usage(input_tokens=tokens, output_tokens=output, cached_tokens=cached)
    return ReplyRecord(items=items or (AssistantItem(text="ok"),), usage=usage, model=model)


def history_of(*records: Any) -> History:
    history = History(family="o200k")
    for record in records:
        history.apply(record)
    return history


def users(*items: UserItem) -> list[Any]:
    return [*(Input(item=i) for i in items), Admitted(ids=tuple(i.id for i in items))]


# -- the number -----------------------------------------------------------------------------------------------------


def test_without_a_report_everything_is_estimated_with_the_heuristic_factor() -> None:
    history = history_of(*users(UserItem(text="word " * 1_000)))
    got = history.occupancy(M, 500, 100)
    assert got.tokens == int((500 + history.total + 100) * 1.15)
    assert (got.provenance, got.overhead, got.pending) == ("heuristic", 575, 100)


def test_a_report_is_the_base_and_only_what_is_newer_is_estimated() -> None:
    history = history_of(*users(UserItem(text="go")), reported(10_000, output=200))
    assert history.occupancy(M, 999_999).tokens == 10_200
    assert history.occupancy(M, 999_999).overhead == 10_200, "a part is never more than what was reported of the whole"
    later = UserItem(text="word " * 3_000)
    for record in users(later):
        history.apply(record)
    got = history.occupancy(M, 999_999)
    assert got.tokens == 10_200 + estimate_item(later, "o200k")
    assert got.provenance == "usage"


def test_reasoning_tokens_that_were_not_sent_back_do_not_count_twice() -> None:
    payload = "x" * 4_000
    record = ReplyRecord(
        items=(ReasoningItem(provider="p", model="m", payload=payload), AssistantItem(text="ok")),
        usage=Usage(input_tokens=10_000, output_tokens=5_050, reasoning_tokens=5_000),
        model=M,
    )
    history = history_of(*users(UserItem(text="go")), record)
    assert history.occupancy(M, 0).tokens == 10_000 + 50 + estimate_item(record.items[0], "o200k")


def test_a_report_by_another_model_is_no_base() -> None:
    history = history_of(*users(UserItem(text="go")), reported(10_000))
    assert history.occupancy("other:model", 0).provenance == "heuristic"


def test_changed_schemas_are_no_base() -> None:
    history = history_of(*users(UserItem(text="go")), reported(10_000), ToolsChanged(system="s", tools="t"))
    assert history.occupancy(M, 0).provenance == "heuristic"


@pytest.mark.parametrize("nothing", [None, 0])
def test_a_reply_without_a_report_leaves_the_base_before_it(nothing: int | None) -> None:
    """B115: some servers report zeros; that is no report."""
    text = AssistantItem(text="word " * 100)
    history = history_of(*users(UserItem(text="go")), reported(10_000), reported(nothing, text))
    assert history.occupancy(M, 0).tokens == 10_000 + estimate_item(text, "o200k")
    first = history_of(*users(UserItem(text="go")), reported(nothing))
    assert first.occupancy(M, 0).provenance == "heuristic"


@pytest.mark.parametrize(("total", "cached"), [(184_704, 183_936), (184_704, 0)])
async def test_cached_tokens_count_once(total: int, cached: int) -> None:
    """B048: `input_tokens` is the whole input in every dialect, so what was cached is inside."""
    usage = Usage(input_tokens=total, cached_tokens=cached, output_tokens=1)
    with ScriptedModel([reply(say("a"), usage=usage), say("b")], capabilities=window(400_000)) as model:
        worker = worker_of(model, interceptors=[YieldAt(250_000)])
        assert await worker.ask("word " * 130_000) == Finished("a")
        assert worker.sender.occupancy().tokens == 184_705
        assert await worker.ask("go") == Finished("b")


async def test_queued_input_counts_before_it_is_admitted() -> None:
    with ScriptedModel([say("ok")]) as model:
        worker = worker_of(model)
        await worker.ask("go")
        before = worker.sender.occupancy()
        item = put_user(worker, "word " * 2_000)
        queued = worker.sender.occupancy()
        await worker.admit()
        admitted = worker.sender.occupancy()
    assert queued.pending == estimate_item(item, "o200k")
    assert queued.tokens - before.tokens == queued.pending
    assert admitted.tokens == queued.tokens


async def test_system_prompt_and_schemas_count_from_the_first_request() -> None:
    """B049: 40,000 of messages and 30,000 of schemas do not pass for 40,000; the parts are in the report."""

    def big(n: int) -> str:
        """Does."""
        return str(n)

    tools = [tool(name=f"t{n}", description="word " * 3_000)(big) for n in range(10)]
    model = ScriptedModel([], capabilities=window(64_000))
    worker = worker_of(model, tools, [YieldAt(60_000)])
    outcome = await worker.ask("word " * 40_000)
    assert isinstance(outcome, Yielded)
    assert outcome.detail["tokens"] >= 70_000
    assert worker.sender.occupancy().overhead >= 30_000
    assert model.requests == []


async def test_east_asian_text_is_not_taken_for_a_quarter_of_its_size() -> None:
    """B047: 60,000 characters, about a token each; action is taken before the request, not after its refusal."""
    act = Counter(
        body=lambda n: ToolOutput(summary="page", content="日本語の文章です。" * 6_667), policy={"max_output": 10**6}
    )
    capabilities = replace(window(64_000, output=4_000), family="unknown")
    with ScriptedModel([call("act", n=1)], capabilities=capabilities) as model:
        outcome = await worker_of(model, [act.tool], [YieldAt(50_000)]).ask("go")
    assert isinstance(outcome, Yielded)
    assert outcome.detail["tokens"] >= 50_000


async def test_what_the_next_request_adds_is_in_the_number() -> None:
    """B051: 100,000 reported and a result of about 40,000 are above 120,000."""
    act = Counter(body=lambda n: ToolOutput(summary="s", content="word " * 40_000), policy={"max_output": 10**7})
    step = reply(call("act", n=1), usage=Usage(input_tokens=100_000, output_tokens=20))
    with ScriptedModel([step], capabilities=window(128_000)) as model:
        worker = worker_of(model, [act.tool], [YieldAt(120_000)])
        outcome = await worker.ask("word " * 70_000)
    assert isinstance(outcome, Yielded)
    assert outcome.detail["tokens"] == 100_020 + estimate_item(results(worker)[0], "o200k")
    assert outcome.detail["tokens"] >= 140_000
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("provenance", "margin"),
    [("usage", 10), ("usage-adjusted", 20), ("provider count", 20), ("tokenizer", 50), ("heuristic", 0)],
)
def test_only_strictly_above_the_ceiling_with_its_margin_does_not_fit(provenance: Any, margin: int) -> None:
    """B051, the border. The heuristic has its margin of 15 % in it already."""
    occupancy = Occupancy(tokens=1_000, provenance=provenance, overhead=0)
    assert (occupancy.margin, occupancy.upper) == (margin, 1_000 + margin)
    assert occupancy.fits(1_000 + margin)
    assert not occupancy.fits(999 + margin)


# -- images and opaque items ----------------------------------------------------------------------------------------


def test_an_image_costs_tokens_whatever_the_length_of_its_data() -> None:
    """B045."""
    large = UserItem(text="look", images=(Image(media_type="image/png", data="A" * 4_000_000),))
    history = history_of(*users(large))
    assert IMAGE_TOKENS <= history.occupancy(M, 0).tokens <= 2 * IMAGE_TOKENS


async def test_images_that_cost_more_than_assumed_are_corrected_by_the_first_reports() -> None:
    """B046: the provider counts twice our constant; the yield comes before any overflow."""
    each = 2 * IMAGE_TOKENS
    act = Counter(body=lambda n: ToolOutput(summary="shot", images=(Image(media_type="image/png", data="AAAA"),)))
    sent: list[int] = []

    def answer(request: Any) -> Any:
        count = 200 + sum(50 + each * len(i.images) for i in request.items if isinstance(i, ToolResultItem))
        sent.append(count)
        if count > 64_000:
            raise ContextOverflow("too long", limit=64_000)
        (made,) = call("act", n=len(sent)).items
        item = made.model_copy(update={"id": f"i{len(sent)}", "call_id": f"c{len(sent)}"})
        return make_reply(item, usage=Usage(input_tokens=count, output_tokens=10))

    model = FunctionModel("offline:f", answer, capabilities=window(64_000, output=4_000), enforce_window=False)
    worker = worker_of(model, [act.tool], [YieldAt(54_000)])
    outcome = await worker.ask("go")
    assert isinstance(outcome, Yielded)
    assert max(sent) <= 64_000
    assert worker.history.calibration.factor("offline:f") == pytest.approx(2.0, abs=0.1)
    following = sent[-1] + 50 + each
    assert outcome.detail["tokens"] == pytest.approx(following, rel=0.05), "the number is the truth by then"


async def test_opaque_items_that_reports_leave_out_are_counted_from_their_size() -> None:
    """B050: 2,000 tokens of reasoning a turn, sixty turns, never in the usage but in the real limit of 200,000."""
    payload = '{"d":"' + "x" * 8_000 + '"}'
    act = Counter()
    real: list[int] = []

    def answer(request: Any) -> Any:
        n = len(real) + 1
        visible = 500 + 15 * len(request.items)
        hidden = 2_000 * sum(isinstance(i, ReasoningItem) for i in request.items)
        real.append(visible + hidden)
        assert real[-1] <= 200_000, "the provider's real limit"
        thought = ReasoningItem(provider="offline", model="f", payload=payload)
        (made,) = call("act", n=n).items
        return make_reply(thought, made.model_copy(update={"id": f"i{n}", "call_id": f"c{n}"}),
                          usage=Usage(input_tokens=visible, output_tokens=30, reasoning_tokens=0))  # fmt: skip

    model = FunctionModel("offline:f", answer, capabilities=window(200_000), enforce_window=False)
    outcome = await worker_of(model, [act.tool], [YieldAt(150_000)]).ask("go")
    assert isinstance(outcome, Yielded)
    assert 150_000 <= max(real) <= 200_000


# -- edits ----------------------------------------------------------------------------------------------------------


def test_an_edit_lowers_the_number_at_once_and_says_so() -> None:
    long = UserItem(text="word " * 5_000)
    history = history_of(*users(long), reported(10_000, output=10))
    before = history.occupancy(M, 0).tokens
    history.apply(Edited(items=(long.model_copy(update={"text": "short"}),)))
    after = history.occupancy(M, 0)
    assert before - after.tokens == estimate_item(long, "o200k") - estimate_item(history.view[0], "o200k") > 5_000
    assert after.provenance == "usage-adjusted"
    history.apply(reported(5_000, output=10))
    assert history.occupancy(M, 0).provenance == "usage"


def test_an_edit_of_the_last_reply_itself_counts_too() -> None:
    text = AssistantItem(text="word " * 2_000)
    history = history_of(*users(UserItem(text="go")), reported(1_000, text, output=2_000))
    history.apply(Edited(items=(text.model_copy(update={"text": "short"}),)))
    assert history.occupancy(M, 0).tokens < 1_100


def test_an_edit_that_makes_an_item_larger_raises_the_number() -> None:
    small = UserItem(text="short")
    history = history_of(*users(small), reported(1_000, output=10))
    history.apply(Edited(items=(small.model_copy(update={"text": "word " * 2_000}),)))
    assert history.occupancy(M, 0).tokens > 2_900


def test_what_edits_take_out_is_never_counted_for_more_than_it_was_estimated() -> None:
    """A model that counts high must not make a prune look better than it is."""
    long = UserItem(text="word " * 5_000)
    history = history_of(*users(long), reported(20_000, output=10))
    history.calibration = Calibration(factors={M: 2.0})
    history.apply(Edited(items=(long.model_copy(update={"text": ""}),)))
    assert history.occupancy(M, 0).tokens >= 20_010 - estimate_item(long, "o200k")


def test_an_edit_of_opaque_items_keeps_their_sum() -> None:
    opaque = OpaqueItem(provider="p", model="m", payload="x" * 40_000)
    history = history_of(*users(UserItem(text="go")), reported(100, opaque, AssistantItem(text="a")))
    assert history.opaque > 9_000
    history.apply(Edited(items=(ContextItem(id=opaque.id, kind="notice", text="gone"),)))
    assert history.opaque == 0


async def test_an_edit_in_a_run_is_in_the_number_of_the_very_next_request() -> None:
    act = Counter(body=lambda n: ToolOutput(summary="s", content="word " * 5_000))

    def drop(ctx: Any) -> Any:
        found = [i for i in results(ctx.history) if i.content]
        return Edit({i.id: i.model_copy(update={"content": None}) for i in found}) if found else CONTINUE

    seen: list[Occupancy] = []
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        worker = worker_of(model, [act.tool], [Before(drop), Before(lambda ctx: seen.append(ctx.occupancy))])
        await worker.ask("go")
    assert seen[1].tokens < 1_000
    assert seen[1].tokens == worker.ledger.journal.records[-1].estimate  # type: ignore[attr-defined]


# -- calibration ----------------------------------------------------------------------------------------------------


def grown(words: int, first: Any, second: Any, *between: Any) -> Calibration:
    """What was learned from two reports between which a text of so many words came."""
    text = users(UserItem(text="word " * words))
    return history_of(*users(UserItem(text="go")), first, *text, *between, second).calibration


def test_calibration_learns_reported_growth_over_estimated_growth() -> None:
    estimated = estimate_item(UserItem(text="word " * 1_000), "o200k")
    assert grown(1_000, reported(1_000), reported(1_000 + 2 * estimated)).factor(M) == pytest.approx(2, abs=0.001)
    learned = Calibration().learn(M, 1_000, 1_500)
    again = learned.learn(M, 1_000, 1_000)
    assert again.factor(M) == pytest.approx(0.7 * 1.5 + 0.3 * 1.0)
    assert again.factor("other:model") == 1.0


@pytest.mark.parametrize(
    ("words", "first", "second", "between"),
    [
        (9_000, reported(None), reported(9_000), ()),
        (9_000, reported(1_000), reported(None), ()),
        (400, reported(1_000), reported(5_000), ()),
        (9_000, reported(1_000), reported(900), ()),
        (9_000, reported(1_000, model="other"), reported(9_000), ()),
        (9_000, reported(1_000), reported(9_000), (ToolsChanged(system="s", tools="t"),)),
    ],
    ids=["no-base", "no-report", "small-growth", "shrunk", "other-model", "other-schemas"],
)
def test_calibration_does_not_learn_from_what_it_cannot_compare(
    words: int, first: Any, second: Any, between: Any
) -> None:
    assert grown(words, first, second, *between).factors == {}


def test_calibration_does_not_learn_across_an_edit() -> None:
    early, late = UserItem(text="word " * 5_000), UserItem(text="word " * 5_000)
    cut = Edited(items=(early.model_copy(update={"text": "short"}),))
    history = history_of(*users(early), reported(9_000), cut, *users(late), reported(9_000))
    assert history.calibration.factors == {}


# -- switching to a smaller window ----------------------------------------------------------------------------------


async def test_a_session_that_grew_under_a_large_model_sends_nothing_too_large_to_a_smaller_one() -> None:
    """B056, B057, seen from the worker: the switch is refused before the request, with the figures."""
    large = ScriptedModel([say("ok")], name="offline:large")
    first = worker_of(large)
    await first.ask("word " * 100_000)
    small = ScriptedModel([], name="offline:small", capabilities=window(64_000))
    second = worker_of(small)
    second.history.extend(first.history.view)
    second.history.baseline = first.history.baseline
    outcome = await second.ask("next")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "over_budget"
    assert small.requests == []


def test_another_models_tokenizer_estimates_the_view_anew() -> None:
    history = history_of(*users(UserItem(text="word " * 1_000)), reported(1_000))
    history.set_family("claude")
    assert history.tokens == [estimate_item(i, "claude") for i in history.view]
    assert history.total == estimate_items(history.view, "claude")
    assert history.baseline is None
    history.apply(ContextAdded(items=(ContextItem(kind="notice", text="x"),)))
    assert history.tokens[-1] == estimate_item(history.view[-1], "claude")
