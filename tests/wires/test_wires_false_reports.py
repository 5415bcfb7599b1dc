"""Providers whose usage reports can't be true, or are those of another tokenizer: the work goes on through its segments,
whatever they say. The truth is the server's own count, a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wires.wires_rig import Agent, Ran, is_compaction, manifest, run_pod
from wires.wires_task import MODULES, prepare

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest, Step, Tokens
from worker.testing.provider_wires import WireName

pytestmark = pytest.mark.anyio

READS = 16
WINDOW = 24_000
OUTPUT = 2_000
TRIGGER = 13_000

Report = Callable[[int, int], Tokens]
"""From the true size of a request and its number (from 1) to what is reported."""


def times(factor: float) -> Report:
    return lambda true, number: Tokens(int(true * factor), 20)


def once(report: Report, at: int) -> Report:
    return lambda true, number: report(true, number) if number == at else Tokens(true, 20)


def without_cached(true: int, number: int) -> Tokens:
    """What is new alone: the rest was read from the cache, and is left out without a word."""
    return Tokens(true if number == 1 else min(true, 600), 20)


def beside(true: int, number: int) -> Tokens:
    """More from the cache than there was input, more reasoning than output, and more output than was asked for."""
    return Tokens(true, 900_000, cached=true + 50_000, reasoning=950_000)


REPORTS: dict[str, Report] = {
    "a tenth": times(0.1),
    "a third": times(0.33),
    "without what was cached": without_cached,
    "x1.6 always": times(1.6),
    "x3 once": once(times(3.0), 5),
    "x3 at first": once(times(3.0), 1),
    "19,900 once": once(lambda true, number: Tokens(19_900, 20), 2),
    "contradictory": beside,
    "contradictory at times": lambda true, number: beside(true, number) if number % 3 == 0 else Tokens(true, 20),
}


def steps() -> list[Answer]:
    reads = [Answer(f"Step {k}.", calls=[Call("read_file", {"path": f"mods/m{k % MODULES}.py"})]) for k in range(READS)]
    return [*reads, Answer("All modules are looked through.")]


async def run(
    wire: WireName,
    report: Report,
    folder: Path,
    *,
    most: int = WINDOW - OUTPUT,
    declared: int = WINDOW,
    **compaction: Any,
) -> Ran:
    """The task on a server that takes `most` tokens, whatever is declared, and reports what `report` says."""
    prepare(folder)
    agent = Agent(wire, steps(), reread="mods/m1.py")
    served = 0

    def answer(request: RecordedRequest) -> Step:
        nonlocal served
        step = agent(request)
        served += not is_compaction(request)
        return replace(step, usage=report(len(request.body) // 4, served)) if isinstance(step, Answer) else step

    with ProviderServer(answer, wire=wire, strict=True, max_input_tokens=most) as server:
        made = manifest(
            server,
            model={"context_window": declared, "max_output_tokens": OUTPUT},
            compaction={
                "source": "overview",
                "retained_tokens": 2_000,
                "retained_floor_tokens": 500,
                "summary_target_tokens": 500,
                "summary_max_tokens": 800,
                "auto_read_budget_tokens": 800,
                "worker_context_max_tokens": 10_000,
                "final_reserve_tokens": 1_000,
                "finish_warning_remaining_tokens": 1_500,
                **compaction,
            },
            prune={"enabled": False},
        )
        return await run_pod(server, agent, made, folder, "Look through the modules of this project.")


def refused(ran: Ran) -> int:
    """Requests that the server found too large."""
    return len(ran.server.requests) - len(ran.agent.turns)


def holds(ran: Ran, most: int, refusals: int) -> None:
    assert ran.result.status == "finished", ran.result
    assert len(ran.told("segment.started")) >= 2, "it went through several segments"
    assert not [r for r in ran.flat("run_ended") if "compact_thrash" in str(r)]
    assert refused(ran) <= refusals
    assert all(len(turn.sent.body) // 4 <= most for turn in ran.agent.turns)


@pytest.mark.parametrize("report", REPORTS.values(), ids=list(REPORTS))
async def test_b048_b051_a_task_goes_through_its_segments_whatever_is_reported(report: Report, tmp_path: Path) -> None:
    ran = await run("openai-chat", report, tmp_path, request_threshold=TRIGGER)
    holds(ran, WINDOW - OUTPUT, 0)
    assert len(ran.told("segment.started")) <= 8, "and not through one for each request"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("name", ["a third", "contradictory"])
async def test_the_same_on_the_other_wires(wire: WireName, name: str, tmp_path: Path) -> None:
    holds(await run(wire, REPORTS[name], tmp_path, request_threshold=TRIGGER), WINDOW - OUTPUT, 0)


@pytest.mark.parametrize("name", ["a third", "without what was cached", "x1.6 always"])
@pytest.mark.parametrize("wire", ["openai-chat", "openai", "anthropic"])
async def test_b055_a_smaller_window_than_declared_is_found_out_in_two_refusals(
    wire: WireName, name: str, tmp_path: Path
) -> None:
    """Two wires name the size that was refused and the limit, `openai` names nothing."""
    ran = await run(wire, REPORTS[name], tmp_path, most=13_000, declared=48_000, request_threshold="95%")
    holds(ran, 13_000, 2)
    assert refused(ran) >= 1


async def test_a_report_that_is_not_believed_is_told_once_and_teaches_nothing(tmp_path: Path) -> None:
    ran = await run("openai-chat", REPORTS["a third"], tmp_path, request_threshold=TRIGGER)
    told = [event for event in ran.told("warning") if event.code == "usage_doubted"]
    assert 1 <= len(told) <= len(ran.records), "once in a segment"
    replies = ran.flat("reply")
    large = [r for r in replies if r["estimate"] > 3_000]
    assert large and all(r["usage"].get("input_tokens") is None and r["doubted"] for r in large)
    assert all(r["booked"]["input_tokens"] >= r["doubted"]["input_tokens"] for r in large)
    booked = sum(part["prompt_tokens"] for key, part in ran.result.usage.items() if key.startswith("worker"))
    assert booked >= sum(len(turn.sent.body) // 4 for turn in ran.agent.of("main")) * 0.8
    events = [event for event in ran.told("request.completed") if event.doubt]
    assert len(events) == sum("doubted" in r for r in replies)


async def test_a_tokenizer_that_gives_more_tokens_is_learned_from_its_reports(tmp_path: Path) -> None:
    ran = await run("openai-chat", REPORTS["x1.6 always"], tmp_path, request_threshold=TRIGGER)
    assert not [event for event in ran.told("warning") if event.code == "usage_doubted"]
    errors = [abs(r["estimate"] / r["usage"]["input_tokens"] - 1) for r in ran.flat("reply")[-3:]]
    assert max(errors) < 0.25
