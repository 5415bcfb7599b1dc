"""Three experiments that were run against other libraries, held here as promises (facts, python-libraries 3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import (
    Agent,
    Rig,
    capabilities,
    is_order,
    manifest,
    results,
    size,
    summariser,
    summary,
    words,
    wrote,
)  # fmt: skip
from tests.pod.test_pod_resume import PRELUDE
from worker.errors import ContextOverflow
from worker.models.base import Emit, Reply, Request
from worker.records import WindowLearned
from worker.testing import call, say
from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest
from worker.testing.scripted import Step
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio

TASK = "Add the numbers one to five, one call each. TASK-MARK"

DYING = (
    PRELUDE
    + """
batch, ledger = sys.argv[4] == "batch", Path(sys.argv[5])

@tool(effect="write")
async def add(n: int) -> str:
    "Adds n."
    with ledger.open("a") as file:
        file.write(f"{n}\\n")
    if n == 3:
        os._exit(9)
    return f"added {n}"

def play(request, number):
    if batch:
        return calls(call("add", n=n) for n in range(1, 6))
    return call("add", n=len(results(request)) + 1)

async def main():
    async with rig.open(Agent(play), tools=[add]) as pod:
        await pod.run(sys.argv[6])

anyio.run(main, backend=backend)
"""
)


def adding(ledger: Path) -> Tool:
    @tool(effect="write")
    async def add(n: int) -> str:
        """Adds n."""
        with ledger.open("a") as file:
            file.write(f"{n}\n")
        return f"added {n}"

    return add


@pytest.mark.parametrize("kind", ["steps", "batch"])
async def test_3a_a_process_that_dies_in_the_third_of_five_calls_repeats_at_most_one(
    rig: Rig, kind: str, anyio_backend_name: str
) -> None:
    """Finished results are kept, the open call is reported as unknown, and the resume needs no input."""
    ledger = rig.cwd / "ledger"
    rig.run_in_process(DYING, anyio_backend_name, kind, str(ledger), TASK, check=9)
    assert ledger.read_text().split() == ["1", "2", "3"]

    def play(request: Request, number: int) -> Step:
        got = {n for n in range(1, 6) for r in results(request) if r.status == "ok" and r.text() == f"added {n}"}
        missing = sorted({1, 2, 3, 4, 5} - got)
        return call("add", n=missing[0]) if missing else say("15")

    agent = Agent(play)
    async with rig.open(agent, tools=[adding(ledger)]) as pod:
        result = (await pod.resume()).raise_for_status()
    assert result.text == "15"
    assert ledger.read_text().split() == ["1", "2", "3", "3", "4", "5"], "six executions, one repeat"
    first = results(agent.requests[0])
    assert [r.status for r in first[:3]] == ["ok", "ok", "interrupted"] and "outcome unknown" in first[2].summary
    if kind == "batch":
        assert [r.status for r in first[3:]] == ["interrupted"] * 2 and all("not run" in r.summary for r in first[3:])
    assert all(words(r) == [TASK] for r in agent.requests)
    assert len(rig.of(e.RunStarted)) == 1


def page_tool(done: list[int]) -> Tool:
    @tool
    async def page(n: int) -> str:
        """Gives page n: four kilobytes."""
        done.append(n)
        return f"page {n}\n" + f"line of page {n} with some words in it\n" * 105

    return page


def paging(done: list[int], total: int = 60) -> Any:
    """Asks for the pages in order; answers an order to compact as well."""

    def play(request: Request, number: int) -> Step:
        at = next((i for i in range(len(request.items) - 1, -1, -1) if is_order(request.items[i])), None)
        if at is not None:
            return say("written") if wrote(request.items) else call("write_summary", text=summary())
        return call("page", n=len(done) + 1) if len(done) < total else say("done")

    return play


@pytest.mark.parametrize("source", ["prefix", "overview", "prune only"])
async def test_3b_sixty_calls_of_four_kilobytes_stay_under_a_budget_of_20k(rig: Rig, source: str) -> None:
    """The peak is at most the budget and one result; the task text stands in every request."""
    done: list[int] = []
    agent = Agent(paging(done))
    section = {"request_threshold": 20_000, "source": "prefix" if source == "prefix" else "overview"}
    prune = {"enabled": source == "prune only", "min_savings": "auto"}
    made = manifest(compaction=section, prune=prune)
    worker = None if source == "prefix" else summariser()
    async with rig.open(agent, made, tools=[page_tool(done)], compact_model=worker) as pod:
        result = (await pod.run(TASK)).raise_for_status()
    assert result.text == "done" and done == list(range(1, 61))
    main = [r for r in agent.requests if not any(is_order(i) for i in r.items)]
    assert max(size(r) for r in main) <= 20_000
    assert all(words(r).count(TASK) == 1 for r in main)
    assert (result.prunes > 0) == (source == "prune only")
    assert result.compactions > 0 or source == "prune only"


class Refusing(Agent):
    """A provider that refuses above 20,000 tokens and says so, whatever was declared."""

    refused = 0

    async def send(self, request: Request, emit: Emit) -> Reply:
        if (tokens := size(request)) > 20_000:
            self.refused += 1
            raise ContextOverflow("maximum context length is 20000 tokens", limit=20_000, requested=tokens, status=400)
        return await super().send(request, emit)


async def test_3c_a_provider_that_takes_20k_while_200k_were_declared_refuses_at_most_twice(rig: Rig) -> None:
    """Sixty of sixty; the limit that the refusal named is kept, through the restart in the middle too."""
    done: list[int] = []
    agent = Refusing(paging(done), capabilities=capabilities(200_000))
    made = manifest(compaction={"request_threshold": 150_000, "source": "overview"})
    options = {"tools": [page_tool(done)], "compact_model": None}
    async with rig.open(agent, made, **options) as pod:
        agent.play = paging(done, 30)
        (await pod.run(TASK)).raise_for_status()
        assert pod.running.worker.sender.budget(agent).window == 20_000
    async with rig.open(agent, made, **options) as pod:
        assert pod.running.worker.sender.budget(agent).window_source == "learned"
        agent.play = paging(done, 60)
        (await pod.run("go on")).raise_for_status()
    assert done == list(range(1, 61)) and agent.refused <= 2
    assert [w.window for w in rig.of(WindowLearned)] == [20_000] * agent.refused
    assert all(any(TASK in w for w in words(r)) for r in agent.requests if not any(is_order(i) for i in r.items))


async def test_3c_the_same_over_real_http(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted provider server refuses above 20,000 tokens (bytes by four) in its wire's own words."""
    done: list[int] = []
    served = {"n": 0}

    def respond(request: RecordedRequest) -> Answer:
        served["n"] += 1
        body = json.dumps(request.json["messages"])
        if (
            "write_summary" in body and "order of the runtime" in body
        ) or "Text that you write outside the tool" in body:
            written = [
                m for m in request.json["messages"] if m["role"] == "tool" and "summary recorded" in str(m["content"])
            ]
            return Answer("written") if written else Answer(calls=[Call("write_summary", {"text": summary()})])
        return Answer(calls=[Call("page", {"n": len(done) + 1})]) if len(done) < 60 else Answer("done")

    monkeypatch.setenv("TEST_KEY", "k")
    with ProviderServer(respond, wire="openai-chat", strict=True, max_input_tokens=20_000) as server:
        made = manifest(
            model={"name": "openai-chat:some-model", "base_url": server.url, "api_key_env": "TEST_KEY", "context_window": 200_000,
                   "max_output_tokens": 1_000},
            compaction={"request_threshold": 150_000, "source": "overview"},
        )  # fmt: skip
        async with rig.open(None, made, tools=[page_tool(done)]) as pod:
            result = (await pod.run(TASK)).raise_for_status()
            learned = {known.limit for known in pod.state.history.windows.values()}
        assert not server.rejected
        refused = len(server.requests) - served["n"]
    assert result.text == "done" and done == list(range(1, 61))
    assert 1 <= refused <= 2 and learned == {20_000}
    assert all(
        TASK in texts_
        for texts_ in [r.body.decode() for r in server.requests]
        if '"page"' in texts_ and "You write the memory" not in texts_
    )
