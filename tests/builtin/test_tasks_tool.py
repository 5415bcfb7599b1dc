from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
from builtin.builtin_rig import Rig

from worker.builtin.registry import builtin_tool
from worker.builtin.tasks import MOST, add_tasks, dump_tasks
from worker.builtin.tool_state import ToolState
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio


async def test_tasks_are_added_changed_and_listed(rig: Rig) -> None:
    output = await rig.call("tasks", add=["read the code", "fix the bug"])
    assert output.summary == "tasks: 2 pending, 0 active, 0 done"
    rig.now += timedelta(minutes=5)
    output = await rig.call(
        "tasks", update=[{"id": "t1", "status": "done"}, {"id": "t2", "status": "active", "text": "fix it"}]
    )
    assert output.content == (
        "t1 [done] read the code (from the model, 5 min old, changed 0 s ago)\n"
        "t2 [active] fix it (from the model, 5 min old, changed 0 s ago)"
    )
    assert output.state is not None
    assert output.state["tasks"][1] == {
        "id": "t2", "text": "fix it", "status": "active", "origin": "model",
        "created": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:05:00Z",
    }  # fmt: skip
    output = await rig.call("tasks")
    assert output.state is None, "only looking changes nothing"
    assert output.summary == "tasks: 0 pending, 1 active, 1 done"


async def test_a_carried_task_shows_origin_age_and_status(rig: Rig) -> None:
    """B042."""
    rig.state.fold({"tasks": dump_tasks(add_tasks([], ["remove\nX"], origin="user", now=rig.now))})
    rig.now += timedelta(days=2, hours=3)
    rig.state = ToolState(rig.state.values(), now=rig.state.now)
    output = await rig.call("tasks")
    assert output.content == "t1 [pending] remove X (from the user, 2 d old)"


async def test_the_words_of_the_user_stay(rig: Rig) -> None:
    rig.state.fold({"tasks": dump_tasks(add_tasks([], ["never deploy"], origin="user", now=rig.now))})
    with pytest.raises(ToolFault, match="in the user's words"):
        await rig.call("tasks", update=[{"id": "t1", "text": "deploy"}])
    await rig.call("tasks", update=[{"id": "t1", "status": "done"}])
    assert rig.state.get("tasks")[0]["text"] == "never deploy"


async def test_two_calls_of_one_batch_do_not_lose_each_other(rig: Rig) -> None:
    made = builtin_tool("tasks")
    outputs: list[list[str]] = []

    async def one(text: str) -> None:
        output = await made.run({"add": [text]}, rig.context("tasks"))
        outputs.append([t["text"] for t in (output.state or {})["tasks"]])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, "a")
        tasks.start_soon(one, "b")
    assert sorted(outputs[-1]) == ["a", "b"]


async def test_mistakes_are_errors_that_change_nothing(rig: Rig) -> None:
    await rig.call("tasks", add=["a"])
    with pytest.raises(ToolFault, match=r"no such task: t9\. Known: t1"):
        await rig.call("tasks", add=["b"], update=[{"id": "t9", "status": "done"}])
    assert len(rig.state.get("tasks")) == 1
    rig.state.fold({"tasks": dump_tasks(add_tasks([], ["x"] * MOST, origin="model", now=rig.now))})
    with pytest.raises(ToolFault, match="at most 200 tasks"):
        await rig.call("tasks", add=["one more"])
    assert "update.0.status" in (builtin_tool("tasks").check({"update": [{"id": "t1", "status": "finished"}]}) or "")
    rig.state.fold({"tasks": [{"id": 1}]})
    with pytest.raises(ToolFault, match="damaged"):
        await rig.call("tasks")


def test_the_task_list_is_never_pruned() -> None:
    assert builtin_tool("tasks").prunable is False
