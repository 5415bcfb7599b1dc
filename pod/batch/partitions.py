"""The partition of each task: the same key for all, or one made of the task's fields."""

from __future__ import annotations

from collections.abc import Sequence

from pod.batch.tasks import Fields, Task
from pod.errors import UsageProblem

LONGEST = 128
"""Characters of a partition's key."""


def partitions_of(tasks: Sequence[Task], given: str | None) -> list[str]:
    """The keys, by the tasks' indexes; empty where none is wanted. `$field`, `$id` and `$index` stand for what the task has.

    Raises `UsageProblem` with the place of a task that makes none.
    """
    if given is None:
        return []
    form = Fields(given)
    if not form.is_valid():
        raise UsageProblem("--partition has a dollar that begins no field: write $field, and $$ for a dollar itself")
    return [_key(task, form) for task in tasks]


def _key(task: Task, form: Fields) -> str:
    known = {"index": task.index, "id": task.id, **task.fields}
    for name in form.get_identifiers():
        if not isinstance(known.get(name), str | int | float):
            raise UsageProblem(
                f"{task.place}: --partition wants the field {name!r} as text or a number; the fields here are {', '.join(task.fields) or 'none'}"
            )
    key = form.substitute(known).strip()
    if not key or len(key) > LONGEST or not key.isprintable():
        raise UsageProblem(
            f"{task.place}: {key[:80]!r} can't be a partition's key: 1 to {LONGEST} characters that can be shown"
        )
    return key
