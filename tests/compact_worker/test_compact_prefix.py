"""The compact worker that continues the pod's own prefix: byte for byte, with its tools, and bounded by growth."""

from __future__ import annotations

from typing import Any

import pytest

from compact_worker import PREFIX_TURNS, CompactSettings, Mark, Reference, declared_write_summary
from worker.builtin.tool_state import ToolState
from worker.estimate import estimate_item
from worker.interceptor import ALLOW, CallContext, Deny, Interceptor, Pause, ToolDecision
from worker.items import ContextItem, OrderItem, ReasoningItem
from worker.models.openai_chat import ChatEncoder
from worker.models.wire import Wire
from worker.occupancy import Baseline
from worker.testing import ScriptedModel, call, calls, reply, say
from worker.tools import Tool, ToolContext, ToolFault, tool

pytestmark = pytest.mark.anyio


def written(kit: Any, **rest: Any) -> Any:
    return call("write_summary", text=kit.summary(), **rest)


async def test_the_request_begins_with_the_bytes_of_the_pods_own_view(kit: Any) -> None:
    """The openai-chat encoding of view plus order begins with the pod's own; same prompt, schemas and cache key."""
    items = [
        ContextItem(kind="summary", text="Earlier work.", source="compaction"),
        kit.user("use tabs"),
        ReasoningItem(provider="openai-chat", model="m", payload='{"reasoning_content":"hidden"}', reply="r1"),
        kit.said("Yes.").model_copy(update={"reply": "r1"}),
        kit.user("go on with the parser — 日本語"),
        *kit.called("peek", "peeked at .", "a\nb\n" * 200, arguments='{ "path" : "." }'),
    ]
    for view in (items, [*items, kit.said("Done.")]):
        pod = Wire(ChatEncoder("m"), view).body()
        with ScriptedModel([written(kit), say("done")], strict=False, encoder=ChatEncoder("m")) as model:
            material = kit.material(items, view=tuple(view), cut=5, cache_key="session-1")
            run = await kit.run(model, material, source="prefix")
        assert run.ok.summary
        for request in model.requests:
            assert request.messages.startswith(pod) and len(request.messages) > len(pod)
            assert request.system == material.system and request.cache_key == "session-1"
            assert request.tools == tuple(t.spec for t in material.tools)
        assert model.requests[0].items[: len(view)] == tuple(view)
        order = model.requests[0].items[len(view) :]
        assert len(order) == 1 and isinstance(order[0], OrderItem) and order[0].tag == kit.tag


async def test_one_call_brings_summary_rereads_and_references(kit: Any) -> None:
    kit.file("a.py", "x = 1\n" * 40)
    kit.file("b.py", "y = 2\n")
    step = written(
        kit,
        reread=[{"path": "a.py", "offset": 3, "limit": 5}, {"path": "gone.py"}],
        references=[{"path": "b.py", "reason": "the other half"}, {"path": "gone.py"}],
    )
    with ScriptedModel([step, say("done")]) as model:
        run = await kit.run(model, source="prefix")
    assert run.ok.marks == (Mark("a.py", 3, 5),) and run.ok.references == (Reference("b.py", "the other half"),)
    text = run.results()[0].text()
    assert text.count("no such file: gone.py") == 2 and "summary recorded" in text


async def test_a_second_call_replaces_the_choice_of_files(kit: Any) -> None:
    kit.file("a.py", "x = 1\n")
    kit.file("b.py", "y = 2\n")
    steps = [written(kit, reread=[{"path": "a.py"}]), written(kit, reread=[{"path": "b.py"}]), say("done")]
    with ScriptedModel(steps) as model:
        run = await kit.run(model, source="prefix")
    assert run.ok.marks == (Mark("b.py", 1, None),)


async def test_a_refused_summary_leaves_the_choice_of_files_as_it_was(kit: Any) -> None:
    kit.file("a.py", "x = 1\n")
    steps = [written(kit, reread=[{"path": "a.py"}]), call("write_summary", text="short", reread=[]), say("done")]
    with ScriptedModel(steps) as model:
        run = await kit.run(model, source="prefix")
    assert run.ok.marks == (Mark("a.py", 1, None),) and run.ok.figures.summaries_refused == 1


async def test_rereads_above_the_budget_are_refused_and_the_others_kept(kit: Any) -> None:
    kit.file("small.py", "x = 1\n")
    kit.file("large.py", "some_name = other_name\n" * 2_000)
    step = written(kit, reread=[{"path": "large.py"}, {"path": "small.py"}])
    with ScriptedModel([step, say("done")]) as model:
        run = await kit.run(model, settings=CompactSettings(auto_read_budget_tokens=500), source="prefix")
    assert run.ok.marks == (Mark("small.py", 1, None),) and "500" in run.results()[0].text()


async def test_only_reading_tools_and_write_summary_run(kit: Any) -> None:
    """`poke` raises when it runs at all."""
    steps = [calls([call("poke", path="a"), call("peek", path="b")]), written(kit), say("done")]
    with ScriptedModel(steps) as model:
        run = await kit.run(model, source="prefix")
    denied, read, _ = run.results()
    assert denied.status == "denied" and "tools that read" in denied.text()
    assert (read.status, read.text()) == ("ok", "peeked at b")


async def test_at_most_four_turns(kit: Any) -> None:
    with ScriptedModel([call("peek")], strict=False) as model:
        run = await kit.run(model, source="prefix")
    assert run.failed.reason == "worker_max_turns" and len(model.requests) == PREFIX_TURNS == 4


async def test_guards_count_growth_over_the_prefix(kit: Any) -> None:
    """The limit is the prefix plus worker_context_max_tokens: a prefix above that number alone is no reason to stop."""
    items = [kit.user("use tabs"), *[kit.said("word " * 400) for _ in range(30)]]
    settings = CompactSettings(worker_context_max_tokens=9_000, finish_warning_remaining_tokens=5_000)
    with ScriptedModel([written(kit), say("done")]) as model:
        run = await kit.run(model, kit.material(items), settings, source="prefix")
    assert run.ok.figures.first_input_tokens > 12_000 and run.codes() == []


async def test_growth_above_the_limit_is_a_hard_stop(kit: Any) -> None:
    settings = CompactSettings(worker_context_max_tokens=9_000)
    step = reply(say("word " * 9_500), call("peek"))
    with ScriptedModel([step]) as model:
        run = await kit.run(model, settings=settings, source="prefix")
    assert run.failed.reason == "worker_context_max_tokens"


async def test_a_prefix_too_near_the_ceiling_is_refused_unsent(kit: Any) -> None:
    """B007, COVF: no request above the ceiling is sent."""
    items = [kit.user("use tabs"), *[kit.said("word " * 400) for _ in range(30)]]
    with ScriptedModel([], strict=False) as model:
        run = await kit.run(model, kit.material(items), source="prefix", ceiling=16_000)
    assert run.failed.reason == "no_room" and model.requests == [] and "16,000" in run.failed.message


async def test_what_the_provider_reported_of_the_prefix_is_the_measure(kit: Any) -> None:
    """One estimator: with the pod's last report the same prefix fits under the ceiling."""
    items = [kit.user("use tabs"), *[kit.said("word " * 400) for _ in range(30)]]
    material = kit.material(items)
    n = len(material.view)
    raw = sum(estimate_item(item, ScriptedModel([]).capabilities.family) for item in material.view)
    baseline = Baseline(model="offline:scripted", reported=9_000, echoed=10, covers=n, newer=n, raw=raw)
    with ScriptedModel([written(kit), say("done")]) as model:
        run = await kit.run(
            model, kit.material(items, view=material.view, baseline=baseline), source="prefix", ceiling=16_000
        )
    assert 9_000 < run.ok.figures.first_input_tokens < 11_000


async def test_without_the_declared_tool_a_prefix_cannot_be_continued(kit: Any) -> None:
    kit.tools = kit.tools[:2]
    with ScriptedModel([], strict=False) as model:
        run = await kit.run(model, source="prefix")
    assert run.failed.reason == "not_declared" and model.requests == []


async def test_outside_a_compaction_the_declared_tool_records_nothing(kit: Any) -> None:
    declared = declared_write_summary()
    assert declared.effect == "read" and set(declared.parameters["properties"]) == {"text", "reread", "references"}
    with pytest.raises(ToolFault, match="only to an order of the runtime"):
        await declared.run({"text": kit.summary()}, ToolContext("c", "write_summary", kit.folder))


class Rules(Interceptor):
    """Permissions that ask about everything, and deny one file."""

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        if "secret" in str(ctx.arguments.get("path")):
            return Deny("a rule denies this file")
        return ALLOW if ctx.arguments.get("path") == "allowed" else Pause("approval-1")


@tool(effect="read")
def elsewhere(query: str) -> str:
    """Reads something that is not a file."""
    raise AssertionError("a question to a human was taken as consent")


async def test_a_question_to_a_human_counts_as_a_denial_except_for_reads_in_scope(kit: Any) -> None:
    kit.tools = (*kit.tools, elsewhere)
    steps = [
        calls(
            [
                call("peek", path="in/scope"),
                call("peek", path="/etc/passwd"),
                call("elsewhere", query="x"),
                call("poke", path="a"),
            ]
        ),
        calls([call("peek", path="secret"), written(kit, reread=[{"path": "secret"}])]),
        say("done"),
    ]
    kit.file("secret", "x\n")
    with ScriptedModel(steps) as model:
        run = await kit.run(model, source="prefix", permissions=Rules())
    results = [item for item in model.requests[-1].items if item.type == "tool_result"]
    assert [item.status for item in results] == ["ok", "denied", "denied", "denied", "denied", "ok"]
    assert run.ok.marks == () and "a rule denies this file" in results[-1].text()


async def test_the_pods_rules_hold_for_the_worker_with_an_overview_too(kit: Any) -> None:
    kit.file("secret", "x\n")
    kit.file("open", "y\n")
    steps = [
        calls(
            [
                call("read_file", path="secret"),
                call("mark_read_required", path="secret"),
                call("add_reference", path="secret"),
            ]
        ),
        calls([call("read_file", path="open"), call("write_summary", text=kit.summary())]),
        say("done"),
    ]
    with ScriptedModel(steps) as model:
        run = await kit.run(model, permissions=Rules())
    assert ["a rule denies" in item.text() for item in run.results()] == [True, True, True, False, False]


async def test_what_tools_stage_in_a_compaction_does_not_show_in_the_pod(kit: Any) -> None:
    @tool(name="plan", effect="read")
    def plan(context: ToolContext) -> str:
        """Stages a plan."""
        context.get(ToolState).stage({"tasks": ["changed"]})
        return "planned"

    kit.tools = (*kit.tools, plan)
    state = ToolState({"tasks": ["kept"]})
    with ScriptedModel([call("plan"), written(kit), say("done")]) as model:
        run = await kit.run(model, source="prefix", services={ToolState: state})
    assert run.results()[0].text() == "planned" and state.get("tasks") == ["kept"]


async def test_two_declarations_have_the_same_schema() -> None:
    one, other = declared_write_summary(), declared_write_summary.__wrapped__()
    assert isinstance(one, Tool) and one is not other and one.spec == other.spec
