"""What a batch says of tasks and graders, where a terminal is narrow or a name is not found."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pod.batch.grading import Grader
from pod.batch.tasks import Task
from pod.cli.batching import Drawn, Tally
from pod.cli.text import shortened
from pod.errors import UsageProblem


def test_a_grader_beside_the_command_is_told_how_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grading_of_mine.py").write_text("def good(task, result):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageProblem, match=r"a file is named with its path: --grade \./grading_of_mine\.py:good"):
        Grader.load("grading_of_mine:good")
    assert Grader.load("./grading_of_mine.py:good").file == tmp_path / "grading_of_mine.py"


def test_a_grader_with_classes_of_its_own_loads_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "with_classes.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Found:\n    many: int = 2\n\n"
        "def grade(task, result):\n    return Found().many\n"
    )
    assert Grader.load(f"{file}:grade").function({}, None) == 2  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("width", [8, 9, 20, 30])
def test_long_names_that_begin_alike_are_told_apart(width: int) -> None:
    first, second = (shortened(f"survey of the whole project number {n}", width) for n in (1, 2))
    assert len(first) == len(second) == width and first != second
    assert shortened("short", width) == "short"


def test_a_narrow_terminal_is_told_the_whole_of_what_is_said_and_of_why_a_task_failed() -> None:
    drawn, told = Drawn(Tally()), io.StringIO()
    drawn.drawing.console = Console(file=told, width=40, force_terminal=False)
    drawn.say("no node serves the queue 'batch': this command does, until it ends")
    row: dict[str, Any] = {
        "status": "failed",
        "requests": 1,
        "cost_usd": 0.0,
        "error": "the provider refused: " + "x" * 90 + " end",
    }
    drawn.ended(Task(0, "first", "x", "f:1"), row)
    said = told.getvalue()
    assert max(map(len, said.splitlines())) <= 40 and "…" not in said
    assert "until it ends" in " ".join(said.split()) and said.rstrip().endswith("end") and said.count("x") > 89
