"""Wall time of a run counts while a process drives it: through resumes and segments, and never while it waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from interceptors.approvals import ApprovalAnswered
from pod.carry import OpenRun
from pod.log import entries as e
from pod.questions import answer
from pod.session import Session
from pod.state import PodState
from tests.pod.pod_rig import Agent, Rig, caller, compacting, manifest, summariser
from worker.items import UserItem
from worker.records import Input, Record, Warned
from worker.testing import call, say
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio
START = 1_800_000_000.0
MADE = manifest(limits={"max_wall_seconds": 100}, permissions={"profile": "safe"})


class Clock:
    """The time of day of a test: it stands still until a tool or a test moves it."""

    def __init__(self) -> None:
        self.at = START

    def text(self) -> str:
        return _text(self.at)

    def tools(self) -> list[Tool]:
        @tool
        async def fetch(n: int) -> str:
            """Takes 40 s."""
            self.at += 40
            return f"{n} " + "word " * 1_500

        @tool(effect="process")
        async def ask(what: str) -> str:
            """Needs an answer of a human."""
            return what

        return [fetch, ask]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("time.time", lambda: found.at)
    for module in ("pod.log.segment", "pod.session"):
        monkeypatch.setattr(f"{module}.now", found.text)
    return found


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("reopened", [False, True])
async def test_waiting_for_an_answer_takes_no_wall_time_and_what_was_spent_counts_on(
    reopened: bool, rig: Rig, clock: Clock
) -> None:
    steps = [call("fetch", n=1), call("ask", what="x"), call("fetch", n=2), call("ask", what="y"), call("fetch", n=3)]
    agent = Agent(lambda r, n: steps[n - 1] if n <= len(steps) else say("done"))
    async with rig.open(agent, MADE, tools=clock.tools()) as pod:
        result = await pod.run("go")
        for spent in (40, 80):
            assert (result.status, result.duration_s) == ("paused", spent)
            clock.at += 5_000
            if reopened:
                break
            await pod.approve(pod.approvals[0].id)
            clock.at += 5_000
            result = await pod.resume()
    while reopened and result.status == "paused":
        with_answer(rig)
        clock.at += 5_000
        async with rig.open(agent, MADE, tools=clock.tools()) as pod:
            result = await pod.resume()
    assert (result.status, result.error_kind, result.duration_s) == ("limit", "max_wall_seconds", 120)
    assert "has taken 120 s" in str(result.error)


def with_answer(rig: Rig) -> None:
    session = Session.open(rig.home, "p")
    try:
        answer(session, next(iter(session.state.approvals)), approved=True, by="ann")
    finally:
        session.close()


async def test_wall_time_goes_on_in_a_new_segment(rig: Rig, clock: Clock) -> None:
    made = manifest(limits={"max_wall_seconds": 250}, compaction=compacting(8_000))
    agent = Agent(caller(20))
    async with rig.open(agent, made, tools=clock.tools(), compact_model=summariser()) as pod:
        result = await pod.run("go")
    assert len(rig.segments()) > 1
    assert (result.error_kind, result.duration_s) == ("max_wall_seconds", 280)


@pytest.mark.parametrize(("worked", "status"), [(50, "finished"), (150, "limit")])
async def test_a_killed_run_has_spent_what_it_worked_and_not_what_it_lay(
    worked: int, status: str, rig: Rig, clock: Clock
) -> None:
    """B160: the time of work is apart from the time that passed."""
    async with rig.open(Agent(caller(0)), MADE) as pod:
        session = pod.running.session
        session.put(Input(item=UserItem(text="go")))
        session.put(e.RunStarted(run="r1"))
        clock.at += worked
        session.put(Warned(code="x", message="at work"))
    for _ in range(2):
        clock.at += 5_000
        Session.open(rig.home, "p").close()
    clock.at += 5_000
    async with rig.open(Agent(caller(0)), MADE) as pod:
        result = await pod.resume()
    assert (result.status, result.duration_s) == (status, worked)


WORK = Warned(code="x", message="at work")
WAITS = e.YieldedEntry(run="r", reason="approval")
GOES_ON = e.RunContinued(run="r")


def lease(generation: int) -> e.Lease:
    return e.Lease(generation=generation, pid=1, host="h")


@pytest.mark.parametrize(
    ("entries", "driven"),
    [
        ([(0, e.RunStarted(run="r")), (10, WORK)], 30),
        ([(0, e.RunStarted(run="r")), (10, WAITS)], 10),
        ([(0, e.RunStarted(run="r")), (10, WAITS), (15, ApprovalAnswered(id="a", approved=True))], 10),
        ([(0, e.RunStarted(run="r")), (10, WAITS), (20, GOES_ON)], 20),
        ([(0, e.RunStarted(run="r")), (10, e.YieldedEntry(run="r", reason="compact"))], 30),
        ([(0, lease(1)), (0, e.RunStarted(run="r")), (7, WORK), (20, lease(2)), (21, WORK), (25, GOES_ON)], 12),
        ([(0, e.RunStarted(run="r")), (7, WORK), (25, GOES_ON)], 12),
        ([(0, e.RunStarted(run="r")), (7, e.RunEndedEntry(run="r", status="finished"))], 7),
        ([(0, e.RunStarted(run="r")), (7, WAITS), (9, e.RunStarted(run="r2")), (10, WORK)], 21),
    ],
)  # fmt: skip
def test_the_log_tells_how_long_a_run_was_driven(entries: list[tuple[float, Record]], driven: float) -> None:
    state = PodState.begin(started())
    for seq, (at, record) in enumerate(entries):
        state.apply(record, _text(START + at), seq)
    assert state.driven.seconds(START + 30) == driven


@pytest.mark.parametrize(
    ("run", "driven"),
    [
        ({"driven": 5.0, "since": START - 10, "generation": 1}, 5 + 10 + 8),
        ({"driven": 5.0, "generation": 1}, 5),
        ({}, 100 + 8),
    ],
)
def test_a_segment_takes_over_what_was_spent_and_one_of_an_older_log_counts_from_the_start(
    run: dict[str, Any], driven: float
) -> None:
    state = PodState.begin(started(OpenRun.model_validate({"run": "r", "started": START - 100, **run})))
    for seq, (at, record) in enumerate([(1, lease(1)), (8, WORK), (20, lease(2)), (21, WORK)]):
        state.apply(record, _text(START + at), seq)
    assert state.driven.seconds(START + 30) == driven


def started(run: OpenRun | None = None) -> e.SegmentStarted:
    return e.SegmentStarted(session="s", segment="g", lineage=e.Lineage(), open_run=run)
