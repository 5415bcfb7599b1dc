"""The type of a pod's answers as a type checker sees it: pyright reads this file in `make check`, the suite runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_type

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from pod import FinishedResult, Manifest, Pod, PodHost, RunHandle, RunResult
from worker.testing import ScriptedModel, say

pytestmark = pytest.mark.anyio


class Answer(BaseModel):
    count: int


@dataclass
class Point:
    x: int
    y: int


class Named(TypedDict):
    name: str


def test_the_type_of_a_pod_is_that_of_its_answers(tmp_path: Path) -> None:
    made = Manifest()
    assert_type(Pod.open(made), Pod[Any])
    assert_type(Pod.open(made, output_type=Answer), Pod[Answer])
    assert_type(Pod.open(made, output_type=Point), Pod[Point])
    assert_type(Pod.open(made, output_type=Named), Pod[Named])
    assert_type(Pod.open(made, output_type=list[Answer]), Pod[list[Answer]])
    assert_type(Pod.open(made, output_type=Answer | Point), Pod[Answer | Point])
    assert_type(Pod.open(made, output_type=Literal["yes", "no"]), Pod[Literal["yes", "no"]])
    assert_type(Pod.open(made, output_type=int), Pod[int])


async def test_a_result_has_the_type_and_one_that_finished_has_an_output(tmp_path: Path) -> None:
    model = ScriptedModel([say('{"count": 1}')] * 4)
    async with Pod.open(Manifest(), name="p", home=tmp_path, cwd=tmp_path, model=model, output_type=Answer) as pod:
        assert_type(pod, Pod[Answer])
        result = await pod.run("count")
        assert_type(result, RunResult[Answer])
        assert_type(result.output, Answer | None)
        finished = result.raise_for_status()
        assert_type(finished, FinishedResult[Answer])
        assert_type(finished.output, Answer)
        assert_type(finished.text, str)
        assert finished is result and finished.output.count == 1
        async with pod.start("count") as run:
            assert_type(run, RunHandle[Answer])
            assert_type(await run.wait(), RunResult[Answer])
    async with Pod.reopen("p", home=tmp_path, model=model, output_type=Answer) as again:
        assert_type(again, Pod[Answer])
        assert_type(await again.run("count"), RunResult[Answer])
    async with PodHost() as host:
        hosted = host.start(Manifest(), "count", name="q", home=tmp_path, cwd=tmp_path, model=model, output_type=Answer)
        assert_type(await hosted.wait(), RunResult[Answer])
    assert isinstance(hosted.result.output, Answer)


def test_a_script_gets_the_type_too(tmp_path: Path) -> None:
    model = ScriptedModel([say("[1, 2]")])
    result = Pod.run_sync(Manifest(), "count", home=tmp_path, cwd=tmp_path, model=model, output_type=list[int])
    assert_type(result, RunResult[list[int]])
    assert result.raise_for_status().output == [1, 2]
