"""The state that crosses a segment boundary: the old log and the new segment give the same, for random jobs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from crash.crash_job import call_of
from crash.crash_share import share

from interceptors.limits import Limits, LimitSettings
from interceptors.permissions import Permissions
from interceptors.repeat import RepeatGuard
from interceptors.stall import StallGuard
from pod import Manifest, Pod
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.log.segment import entries
from pod.reading import SessionReader
from pod.session import load
from pod.state import PodState
from worker.errors import BadRequest, ContextOverflow, Overloaded
from worker.interceptor import Interceptor
from worker.items import AssistantItem, FileRange, OrderItem, ToolOutput, ToolResultItem
from worker.models.base import Capabilities, Reply, Request, Usage
from worker.retry import RetryPolicy
from worker.testing import FunctionModel, make_reply
from worker.tools import Tool, tool

pytestmark = pytest.mark.slow

RUNS = 5
FAMILY = "o200k"
REMIND, STOP, MOST_CALLS = (2, 3), 9, 60


def page(name: str, lines: int) -> str:
    return "\n".join(f"{name} line {n} says that nothing of note happened here" for n in range(lines))


def tools(rng: random.Random) -> list[Tool]:
    """Tools whose results carry every kind of state."""

    @tool(effect="read")
    async def read(name: str) -> ToolOutput:
        """Reads a page."""
        digest = f"{rng.getrandbits(32):08x}" * 8
        return ToolOutput(
            summary=f"page {name}", content=page(name, rng.randrange(60, 240)),
            reads=FileRange(path=f"/w/{name}", first=1, last=9, sha256=digest),
        )  # fmt: skip

    @tool(effect="write")
    async def write(name: str) -> ToolOutput:
        """Writes a page."""
        digest = f"{rng.getrandbits(32):08x}" * 8
        return ToolOutput(summary=f"wrote {name}", writes=FileRange(path=f"/w/{name}", first=1, last=9, sha256=digest))

    @tool(effect="network")
    async def fetch(name: str) -> str:
        """Fetches a page; it is asked about."""
        return page(name, 5)

    return [read, write, fetch]


@dataclass
class Chance:
    """A model that does something else at each request."""

    rng: random.Random
    left: int = 0
    last: tuple[str, dict[str, Any]] = ("read", {"name": "a"})

    def __call__(self, request: Request) -> Reply:
        rng = self.rng
        tokens = int(len(request.messages) / 4 * rng.uniform(0.8, 1.3)) + 300
        usage = Usage(input_tokens=tokens, cached_tokens=tokens // 2, output_tokens=rng.randrange(5, 60))
        if rng.random() < 0.06:
            raise Overloaded("busy", status=529)
        if rng.random() < 0.02:
            raise ContextOverflow("too long", limit=rng.choice([None, 50_000]), requested=55_000, status=400)
        if rng.random() < 0.02:
            raise BadRequest("the model did not like it", status=400)
        self.left -= 1
        if self.left <= 0:
            return make_reply(AssistantItem(text="That is all."), usage=usage)
        calls = [call_of(*self.choose(request)) for _ in range(rng.choice([1, 1, 1, 2]))]
        return make_reply(AssistantItem(text="Next."), *calls, usage=usage)

    def choose(self, request: Request) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        kind = rng.choice(
            [
                "again",
                "read",
                "read",
                "read",
                "read",
                "read",
                "read",
                "write",
                "fetch",
                "tasks",
                "pin",
                "unpin",
                "nothing",
            ]
        )
        name = rng.choice("abcdefgh")
        if kind == "again":
            return self.last
        self.last = ("read", {"name": name})
        if kind in {"write", "fetch"}:
            self.last = (kind, {"name": name})
        elif kind == "tasks":
            self.last = ("tasks", {"add": [f"task {rng.randrange(100)}"]})
        elif kind in {"pin", "unpin"}:
            results = [i.id for i in request.items if isinstance(i, ToolResultItem)]
            self.last = ("context", {"action": kind, "item": rng.choice(results or ["none"])})
        elif kind == "nothing":
            self.last = ("no_such_tool", {})
        return self.last


def summarise(rng: random.Random) -> Any:
    def function(request: Request) -> Reply:
        if rng.random() < 0.3:
            raise BadRequest("no summary today", status=400)
        order = max(n for n, i in enumerate(request.items) if isinstance(i, OrderItem))
        if any(isinstance(i, ToolResultItem) and i.status == "ok" for i in request.items[order:]):
            return make_reply(AssistantItem(text="written"))
        sections = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Findings", "Current Work")
        bodies = "- some pages were read, one after the other, and nothing of note stood in any of them"
        text = "\n\n".join(f"## {name}\n{'' if name == 'User Directives' else bodies}" for name in sections)
        return make_reply(call_of("write_summary", {"text": text}))

    return function


def manifest(rng: random.Random) -> Manifest:
    return Manifest.model_validate({
        "tools": {"enable": ["tasks", "context"]},
        "permissions": {"profile": "safe"},
        "prune": {"enabled": rng.random() < 0.7, "protected_tokens": 800, "min_savings": 1_500, "min_savings_floor": 500},
        "scope": {"read": ["."], "write": ["."]},
        "model": {"max_output_tokens": 1_000},
        "limits": {"repeat_call": {"remind": list(REMIND), "stop": STOP}, "max_tool_calls": MOST_CALLS},
        "context": {"buffer_tokens": 1_000},
        "log": {"durability": "os"},
        "compaction": {
            "source": rng.choice(["overview", "prefix"]), "request_threshold": rng.choice([10_000, 14_000]), "threshold": 9_000,
            "retained_tokens": rng.choice([500, 1_500]), "retained_floor_tokens": 100, "user_words_tokens": 60,
            "finish_warning_remaining_tokens": 2_000, "final_reserve_tokens": 1_000, "breaker_cooldown": 0.001,
        },
    })  # fmt: skip


async def live(folder: Path, rng: random.Random) -> None:
    """Some runs of a pod, reopened between them at random; whatever they end with."""
    chance, home = Chance(rng), folder / "home"
    made, own = manifest(rng), tools(rng)
    capabilities = Capabilities(
        window=60_000, window_source="table", max_output=2_000, max_output_source="table", family=FAMILY
    )
    runs = RUNS
    while runs:
        model = FunctionModel("offline:agent", chance, capabilities=capabilities)
        worker = FunctionModel("offline:summary", summarise(rng), capabilities=capabilities)
        async with Pod.open(made, name="p", home=home, cwd=folder, tools=own, model=model, compact_model=worker) as pod:
            pod.running.retry = RetryPolicy(max_attempts=3, base=0.0)
            pod.running.assemble()
            while runs:
                runs -= 1
                chance.left = rng.randrange(4, 24)
                if rng.random() < 0.4:
                    post(
                        pod.running.session.folder, Command(kind="send", args={"text": f"steer {rng.getrandbits(20)}"})
                    )
                result = await pod.run(f"run {runs}: " + page("word", rng.randrange(1, 12)))
                while pod.approvals:
                    for asked in pod.approvals:
                        await pod.approve(asked.id, scope=rng.choice([None, "once", "run"]))
                    result = await pod.resume()
                assert result.error_kind not in {"internal", "interceptor", "segments"}, result
                if rng.random() < 0.5:
                    await pod.compact(rng.choice([None, "the pages"]))
                if rng.random() < 0.3:
                    break


def guards(path: Path) -> dict[str, Any]:
    """What the interceptors with a state of their own carry when they are told a whole log, as at a restart."""
    chain: list[Interceptor] = [
        Limits(LimitSettings(max_tool_calls=MOST_CALLS)), RepeatGuard(remind=REMIND, stop=STOP), StallGuard(),
        Permissions(profile="safe", headless=True),
    ]  # fmt: skip
    for line in entries(path):
        record = e.record_of(line)
        assert record is not None
        for interceptor in chain:
            if isinstance(record, e.SegmentStarted) and record.open_run is not None:
                interceptor.restore(record.open_run.guards[interceptor.name])
            if isinstance(record, e.RunStarted):
                interceptor.begin_run()
            interceptor.observe(record)
    return {interceptor.name: interceptor.carry() for interceptor in chain}


def same(old: PodState, new: PodState) -> None:
    """Both states are one, but for what the boundary itself changes."""
    before, after = old.carry(), new.carry()
    changed = {"totals": after.totals, "omitted_words": after.omitted_words, "summary": after.summary}
    assert before.model_copy(update={**changed, "checkpoint": after.checkpoint}) == after
    assert after.checkpoint in (None, old.attempt, old.checkpoint)
    assert after.totals == before.totals.model_copy(update={"segments": before.totals.segments + 1})
    assert after.omitted_words >= before.omitted_words
    assert list(new.history.queue) == list(old.history.queue)
    assert (new.run, new.instructions, new.run_started) == (
        old.run,
        old.instructions,
        old.run_started if old.run else 0.0,
    )
    assert old.run is None or (new.driven.before, new.driven.since) == (old.driven.before, old.driven.since)
    assert not old.approvals and not old.history.unresolved, "a question or a call was open"
    assert bool(new.history.unanswered) == bool(old.history.unanswered), "whether an input waits for its answer"
    assert new.unanswered == old.unanswered, "whether there is something to go on with"
    assert new.last_run == old.last_run
    if old.run is not None:
        counters = old.history.counters
        assert new.history.counters == counters.model_copy(update={"segments": counters.segments + 1})


@pytest.mark.parametrize(("backend", "seeds"), [("asyncio", share(range(8), 2)), ("trio", share(range(8, 16), 2))])
def test_the_old_log_and_the_new_segment_give_the_same_carry(tmp_path: Path, backend: str, seeds: range) -> None:
    """Also the counters of the open run, the guards, the queue, and what waits for an answer."""
    boundaries = 0
    for seed in seeds:
        print("seed", seed)
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        anyio.run(live, folder, random.Random(seed), backend=backend)
        boundaries += check_boundaries(folder)
    assert boundaries >= len(seeds)


def check_boundaries(tmp_path: Path) -> int:
    folder = PodFolder(tmp_path / "home", "p")
    chain = list(reversed(SessionReader(folder).chain().segments))
    for older, newer in pairwise(chain):
        old = load(older.path, FAMILY)
        line = next(entries(newer.path))
        start = e.record_of(line)
        assert isinstance(start, e.SegmentStarted)
        same(old, PodState.begin(start, FAMILY))
        if start.open_run is not None:
            assert guards(older.path) == start.open_run.guards
    return len(chain) - 1
