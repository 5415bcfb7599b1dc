"""The file of results: each line whole, none twice, whatever a kill left of the last one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pod.batch.grading import Grader
from pod.batch.results import Results, ResultsBusy, read_rows, row_of
from pod.batch.summary import summary_of
from pod.batch.tasks import Task
from pod.errors import UsageProblem
from pod.result import RunResult


def row(index: int, status: str = "finished", **more: object) -> dict[str, object]:
    result = RunResult(pod=f"b/{index}", session="s", segment="g", run="r", status=status, session_cost_usd=0.5)  # pyright: ignore[reportArgumentType]
    return {**row_of(Task(index, f"t{index}", "x", "f:1"), result), **more}


def test_a_file_that_was_cut_at_any_byte_keeps_its_whole_lines_and_takes_the_rest_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = Results(path, "b")
    for index in range(3):
        whole.add(row(index, text="naïve \u2028 text"))
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        results = Results.open(path, "b")
        assert set(results.rows) == set(range(data[:cut].count(b"\n")))
        for index in range(3):
            results.add(row(index, text="naïve \u2028 text"))
        assert path.read_bytes() == data


def test_a_task_has_one_line_however_often_it_is_added(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "b")
    results.add(row(0))
    results.add(row(0, "failed"))
    assert [json.loads(line)["status"] for line in results.path.read_text().splitlines()] == ["finished"]


def test_lines_that_are_taken_out_leave_the_others_as_they_were(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "b")
    for index in range(4):
        results.add(row(index))
    before = results.path.read_text().splitlines()
    results.drop({1, 3, 9})
    assert results.path.read_text().splitlines() == [before[0], before[2]]
    assert results.path.stat().st_mode & 0o777 == 0o600
    results.drop(set())
    results.add(row(1))
    assert [r["index"] for r in read_rows(results.path)[1].values()] == [0, 2, 1]


@pytest.mark.parametrize("text", ["not JSON\n", '{"some": "thing"}\n', '[1]\n{"x": 1}\n'])
def test_a_file_that_is_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UsageProblem, match=r"r\.jsonl:1: not the result of a task; name another file"):
        Results.open(path, "b")
    assert path.read_text() == text


def test_results_of_another_batch_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Results(path, "b").add(row(0))
    with pytest.raises(UsageProblem, match="a result of the batch 'b', not of 'c'"):
        Results.open(path, "c")


def _circle() -> dict[str, object]:
    made: dict[str, object] = {"score": 1}
    made["self"] = made
    return made


def _exits() -> object:
    raise SystemExit(0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "gives",
    [
        lambda: {"score": 1, "why": object()}, lambda: {"score": 1, "why": float("inf")}, lambda: {(1, 2): 3, "score": 1}, lambda: "good",
        lambda: float("nan"), lambda: 10**400, _circle, _exits,
    ],
)  # fmt: skip
async def test_a_grade_that_no_line_can_hold_is_an_error_of_the_grader_and_ends_nothing(
    tmp_path: Path, gives: Callable[[], object]
) -> None:
    result = RunResult(pod="b/0", session="s", segment="g", run="r", status="finished")
    task = Task(0, "0", "x", "f:1")

    def now(fields: object, result: object) -> object:
        return gives()

    async def later(fields: object, result: object) -> object:
        return gives()

    for function in (now, later):
        grade = await Grader("g:g", function).grade(task, result)
        assert grade["score"] is None and grade["error"]
        Results(tmp_path / "r.jsonl", "b").add(row_of(task, result, grade))


@pytest.mark.parametrize(
    ("statuses", "spent", "code"),
    [
        (["finished", "finished"], False, 0), (["finished", "failed", "limit", "paused"], False, 1), (["finished", "limit", "paused"], False, 4),
        (["finished", "paused"], False, 3), (["finished", "yielded"], False, 3), (["finished"], False, 1), (["finished"], True, 4),
    ],
)  # fmt: skip
def test_the_exit_code_says_the_worst_that_happened(statuses: list[str], spent: bool, code: int) -> None:
    rows = [row(index, status) for index, status in enumerate(statuses)]
    assert summary_of("b", 2 if len(rows) < 2 else len(rows), rows, spent=spent).exit_code == code


def test_an_unknown_price_makes_the_sum_unknown_and_a_task_that_asked_nothing_does_not() -> None:
    assert summary_of("b", 2, [row(0), row(1, cost_usd=None, requests=0)]).cost_usd == 0.5
    assert summary_of("b", 2, [row(0), row(1, cost_usd=None, requests=2)]).cost_usd is None


@pytest.mark.parametrize(
    "values",
    [
        {"cost_usd": "abc"}, {"cost_usd": float("nan")}, {"cost_usd": -1.0}, {"usage": [1]}, {"usage": {"input_tokens": "x"}}, {"requests": "x"},
        {"grade": [1]}, {"grade": {"score": "x"}}, {"grade": {"score": float("inf")}}, {"error_kind": {"a": 1}}, {"error": 7},
        {"index": -1}, {"index": True}, {"status": "done"}, {"duration_s": "q"},
    ],
)  # fmt: skip
def test_a_line_whose_values_are_none_of_a_result_is_refused(tmp_path: Path, values: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(row(0)) + "\n" + json.dumps({**row(1), **values}) + "\n")
    with pytest.raises(UsageProblem, match=r"r\.jsonl:2: not the result of a task"):
        read_rows(path)


def test_one_batch_writes_into_a_file_of_results_at_a_time_whatever_its_home(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Results.open(path, "b", alone=True)
    for _ in range(2):
        with pytest.raises(ResultsBusy, match=r"r\.jsonl: another process writes its results there"):
            Results.open(path, "c", alone=True)
        first.add(row(0))
        first.add(row(1))
        first.drop({0})  # another file stands there now
    first.close()
    with pytest.raises(UsageProblem, match="a result of the batch 'b', not of 'c'"):
        Results.open(path, "c", alone=True)
    Results.open(path, "b", alone=True).close()
