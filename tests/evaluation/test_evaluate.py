"""The long sessions of `make eval`, in small: their gates hold, and they fail where the summary loses something."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.eval_fixtures import long_recall, overflow_retry, schema_pressure, verification_freshness
from benchmarks.evaluate import Cell, Trial, evaluate, gates, share, table
from compact_worker.sections import ORDER
from worker.estimate import estimate_text
from worker.items import AssistantItem, ToolResultItem, make_call
from worker.models.base import Reply, Request
from worker.testing import make_reply

pytestmark = pytest.mark.anyio


def says_nothing(request: Request) -> Reply:
    """A compact worker that writes the same summary whatever happened."""
    if any(isinstance(item, ToolResultItem) and item.name == "write_summary" for item in request.items):
        return make_reply(AssistantItem(text="written"))
    text = "\n\n".join(f"## {name}\n- the work went on as planned" for name in ORDER)
    return make_reply(make_call("call_1", "write_summary", json.dumps({"text": text})))


async def test_two_long_sessions_keep_task_and_recall_for_less_input(tmp_path: Path) -> None:
    cells = await evaluate(tmp_path, [long_recall(8), verification_freshness(8)])
    assert [gate for gate in gates(cells) if not gate.held] == []
    assert all(cell.passed for cell in cells)
    assert [cell.compactions > 1 for cell in cells] == [False, False, True] * 2


async def test_recall_fails_where_the_summary_says_nothing(tmp_path: Path) -> None:
    """The negative control: nothing but the summary carries the seeds over."""
    cell = await Trial(long_recall(12), "compact", tmp_path / "a", summary=says_nothing).play()
    assert cell.compactions and share([cell]) < 0.5 and not cell.passed


async def test_the_view_as_one_text_is_bounded_and_tells_an_engine_the_same(tmp_path: Path) -> None:
    """An engine that takes one prompt gets the view as one text: it is as bounded, and holds the same seeds."""
    prompts: dict[str, str] = {}
    for policy in ("warn", "compact"):
        trial = Trial(long_recall(8), policy, tmp_path / policy)
        await trial.play()
        assert trial.opening is not None
        prompts[policy] = "[" + trial.opening.messages.decode() + "]"
        for key, value in trial.fixture.seeds.items():
            assert set(re.findall(rf"\({key}\): ([\w-]+)", prompts[policy])) == {value}
    warn, compact = (estimate_text(prompts[policy], "o200k") for policy in ("warn", "compact"))
    assert compact < warn / 2 and compact < 16_000


async def test_a_catalogue_that_crowds_out_the_task_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    cell = await Trial(replace(schema_pressure(), window=6_000), "warn", tmp_path / "a").play()
    assert (cell.stopped, cell.requests, cell.above_budget) == ("over_budget", 0, 0)


async def test_an_overflow_is_recovered_once_without_doubled_input_or_effect(tmp_path: Path) -> None:
    fixture = overflow_retry()
    upto = next(n for n, turn in enumerate(fixture.turns) if turn.fault) + 1
    short = replace(fixture, turns=(*fixture.turns[:upto], fixture.turns[-1]))
    cells = {policy: await Trial(short, policy, tmp_path / policy).play() for policy in ("warn", "compact")}
    assert cells["warn"].stopped == "overflow" and cells["compact"].passed
    assert all(cell.transcript_intact and not cell.unsafe and not cell.bytes_lost for cell in cells.values())


def cells_of(**changes: object) -> list[Cell]:
    good = Cell("f", "compact", input_tokens=60, passed=True, recalled=20, seeds=20)
    return [replace(good, policy="warn", input_tokens=100), replace(good, **changes)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, []),
        ({"input_tokens": 50, "compact_tokens": 21}, ["median input of compact below warn"]),
        ({"passed": False}, ["pass rate of compact behind warn", "the same where warn passes"]),
        ({"recalled": 18}, ["recall of compact"]),
        ({"unsafe": ["x"]}, ["safety invariants broken"]),
        ({"above_budget": 1}, ["requests above budget"]),
        ({"bytes_lost": 1}, ["log bytes lost or altered"]),
        ({"transcript_intact": False}, ["transcripts not intact"]),
    ],
)
def test_each_gate_fails_alone(changes: dict[str, object], fails: list[str]) -> None:
    assert [gate.name for gate in gates(cells_of(**changes)) if not gate.held] == fails


def test_beside_pruning_the_saving_is_shown_and_all_else_is_asked() -> None:
    warn, compact = cells_of(input_tokens=80, recalled=18)
    cells = [replace(warn, policy="off"), warn, compact]
    assert [gate.name for gate in gates(cells, alone=False) if not gate.held] == ["recall of compact"]
    assert "below warn: 20.0%, of the agent itself 20.0% (30% is asked of the policy alone)" in table(
        cells, alone=False
    )
