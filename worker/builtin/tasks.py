"""The tool `tasks`: the list of what is to do, carried by code through restarts and compactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from worker.builtin.tool_state import ToolState
from worker.items import ToolOutput
from worker.tools import ToolContext, ToolFault, tool

TaskStatus: TypeAlias = Literal["pending", "active", "done"]
Origin: TypeAlias = Literal["user", "model"]
STATE_KEY = "tasks"
"""The key of the list in a result's `state`."""

MOST = 200
"""Tasks that a list may hold."""

_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]


class Task(BaseModel):
    """Something to do: who put it there, and when it was made and last changed (UTC)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    text: _Text
    status: TaskStatus = "pending"
    origin: Origin = "model"
    created: datetime
    updated: datetime


class TaskChange(BaseModel):
    """A change of one task; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(description="the task, such as t3")
    status: TaskStatus | None = None
    text: _Text | None = None


_tasks: TypeAdapter[list[Task]] = TypeAdapter(list[Task])


def load_tasks(value: object) -> list[Task]:
    """The tasks in a value of the folded state. Raises `ToolFault` where it is no task list."""
    try:
        return _tasks.validate_python(value or [])
    except ValidationError as e:
        raise ToolFault(f"the stored task list is damaged: {e.error_count()} entries cannot be read") from e


def dump_tasks(found: Sequence[Task]) -> list[dict[str, Any]]:
    """The tasks as JSON values, for `state["tasks"]`."""
    return [task.model_dump(mode="json") for task in found]


def add_tasks(found: Sequence[Task], texts: Sequence[str], *, origin: Origin, now: datetime) -> list[Task]:
    """The list with new tasks at its end. Raises `ToolFault` above 200 tasks."""
    if len(found) + len(texts) > MOST:
        raise ToolFault(
            f"a task list holds at most {MOST} tasks, and there are {len(found)}: put several steps into one task"
        )
    number = max((int(task.id[1:]) for task in found if task.id[1:].isdigit()), default=0)
    now = now.astimezone(UTC)
    new = [
        Task(id=f"t{number + i}", text=text, origin=origin, created=now, updated=now) for i, text in enumerate(texts, 1)
    ]
    return [*found, *new]


def update_tasks(found: Sequence[Task], changes: Sequence[TaskChange], *, now: datetime) -> list[Task]:
    """The list with changes made. Raises `ToolFault` for an unknown id, and for new words in a task that the user
    gave.
    """
    by_id = {task.id: task for task in found}
    for change in changes:
        task = by_id.get(change.id)
        if task is None:
            raise ToolFault(f"no such task: {change.id}. Known: {', '.join(by_id) or 'none'}")
        if change.text is not None and change.text != task.text and task.origin == "user":
            raise ToolFault(f"task {task.id} is in the user's words, which stay: add a task of your own beside it")
        values = change.model_dump(include={"status", "text"}, exclude_none=True)
        by_id[task.id] = task.model_copy(update={**values, "updated": now.astimezone(UTC)})
    return list(by_id.values())


def render_tasks(found: Sequence[Task], now: datetime) -> str:
    """One line a task: status, words, origin, age (case B042)."""
    return "\n".join(
        f"{task.id} [{task.status}] {' '.join(task.text.split())} "
        f"(from the {task.origin}, {_age(now - task.created)} old"
        f"{'' if task.updated == task.created else f', changed {_age(now - task.updated)} ago'})"
        for task in found
    )


def _age(span: Any) -> str:
    seconds = max(int(span.total_seconds()), 0)
    for length, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {word}"
    return f"{seconds} s"


@tool(effect="read", prunable=False)
async def tasks(
    context: ToolContext,
    add: Annotated[list[_Text], Field(max_length=50)] | None = None,
    update: Annotated[list[TaskChange], Field(max_length=50)] | None = None,
) -> ToolOutput:
    """Keeps the list of what is to do; without arguments, shows it. The list outlasts restarts and summaries.

    Use it for work of several steps: add the steps, set the one at hand to active, and set it to done once it is
    checked.

    Args:
        add: texts of new tasks
        update: changes of tasks by id, such as a status of pending, active or done
    """
    state = context.get(ToolState)
    now = state.now()
    found = load_tasks(state.get(STATE_KEY))
    changed = add_tasks(update_tasks(found, update or [], now=now), add or [], origin="model", now=now)
    counts = {status: sum(task.status == status for task in changed) for status in ("pending", "active", "done")}
    words = ", ".join(f"{n} {status}" for status, n in counts.items())
    summary = f"tasks: {words}" if changed else "tasks: the list is empty"
    new = None
    if changed != found:
        new = {STATE_KEY: dump_tasks(changed)}
        state.stage(new)
    return ToolOutput(summary=summary, content=render_tasks(changed, now) or None, state=new)
