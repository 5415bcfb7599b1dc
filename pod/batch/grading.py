"""A user's function that judges what came of a task."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from pod.batch.tasks import Task
from pod.errors import UsageProblem
from pod.loading import NotLoaded, beside, load_from_file, load_object, top_of
from pod.result import RunResult
from worker.errors import told


@dataclass(frozen=True, slots=True)
class Grader:
    """A function, called with a task's fields and its result; it may be async. It gives true or false, a number, or an object with
    `score` and whatever else is to stand in the results. `file` is the file that it was taken from, where it was named so.
    """

    name: str
    function: Callable[[Mapping[str, Any], RunResult], Any]
    file: Path | None = None

    @classmethod
    def load(cls, name: str) -> Grader:
        """`package.module:function`, or `folder/file.py:function`. Raises `UsageProblem` where there is no such function."""
        path, _, _ = name.rpartition(":")
        file = Path(path).absolute() if path.endswith(".py") else None
        try:
            function = load_object(name, "--grade") if file is None else load_from_file(name, "--grade")
        except NotLoaded as error:
            raise UsageProblem(f"{error}{_way_out(name, error.__cause__)}") from error
        if not callable(function):
            raise UsageProblem(f"--grade {name}: not a function")
        return cls(name, function, file)

    async def grade(self, task: Task, result: RunResult) -> dict[str, Any]:
        """What it says of a task: `score` (0 to 1 for true and false), or `error` where it raised, or ended the process, or gave what is no
        JSON. Never raises but for cancellation.
        """
        fields = {"index": task.index, "id": task.id, **task.fields}
        try:
            if inspect.iscoroutinefunction(self.function):
                value = await self.function(fields, result)
            else:
                value = await anyio.to_thread.run_sync(self.function, fields, result)
                if inspect.isawaitable(value):
                    value = await value
            return _graded(value)
        except (Exception, SystemExit) as error:
            return {"score": None, "error": f"{type(error).__name__}: {told(error)}"}


def _way_out(name: str, cause: BaseException | None) -> str:
    """What to write where the module is not one that Python finds."""
    if not isinstance(cause, ModuleNotFoundError) or cause.name != top_of(name):
        return ""
    if beside(name, cause, Path.cwd()) is not None:
        module, _, function = name.partition(":")
        return f"; a file is named with its path: --grade ./{module.replace('.', '/')}.py:{function or 'FUNCTION'}"
    return "; name an installed module, or a file with its path: --grade folder/graders.py:FUNCTION"


def _graded(value: Any) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if isinstance(value, Mapping):
        more = dict(cast("Mapping[str, Any]", value))
        value = more.get("score")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(
            f"a grade is true, false, a number, or an object with a number as its score, not {type(value).__name__}"
        )
    grade = {**more, "score": float(value)}
    try:
        json.dumps(grade, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise TypeError(f"a grade holds what JSON can hold ({error})") from None
    return grade
