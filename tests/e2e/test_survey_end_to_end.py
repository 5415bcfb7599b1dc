"""The whole line: a real job on a real source tree, through several context windows, by offline models.

The report must equal what `ast` says of the files, with every directive obeyed, in both variants and from both sources of the compact worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from e2e.survey_task import ALL, CONVERSATION, FEW, SOME, TASK, plant, records_of, right

from pod import Pod, RunResult
from pod.log import entries as e
from pod.manifest import load_manifest
from pod.setup import models_of
from worker import records as w
from worker.errors import BadRequest
from worker.items import AssistantItem, Item, make_call
from worker.models.base import Capabilities, Emit, Encoder, Model, Reply, Request
from worker.testing import FunctionModel, make_reply

pytestmark = pytest.mark.slow


@dataclass
class Watched:
    """A model that hands everything on, and keeps what was asked of it."""

    inner: Model
    sent: list[tuple[int, bytes, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def encoder(self) -> Encoder:
        return self.inner.encoder

    async def send(self, request: Request, emit: Emit) -> Reply:
        reply = await self.inner.send(request, emit)
        self.sent.append((reply.usage.input_tokens or 0, request.messages, request.system))
        return reply

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class Survey:
    """What a finished survey left behind."""

    result: RunResult
    model: Watched
    summariser: Watched
    records: list[w.Record]
    available: int
    folder: Path

    def report_is_right(self) -> bool:
        return right(self.folder)


def survey(
    folder: Path,
    backend: str,
    task: str | None,
    source: str,
    summariser: Model | None = None,
    overrides: Sequence[str] = (),
) -> Survey:
    """Runs the shipped manifest on the tree in `folder`; without a task, goes on with what stands there."""
    loaded = load_manifest("offline-survey", [f'compaction.source="{source}"', *overrides], env={}, cwd=folder)
    assert loaded.manifest.compaction is not None and loaded.manifest.compaction.model is not None
    model = Watched(models_of(loaded.manifest.model)[0])
    compact = Watched(summariser or models_of(loaded.manifest.compaction.model)[0])

    async def run() -> Survey:
        pod = Pod.open(loaded, name="survey", home=folder / "home", cwd=folder, model=model, compact_model=compact)
        async with pod:
            result = await (pod.resume() if task is None else pod.run(task))
            available = pod.init_event().available
            lines = [record async for record in records_of(pod)]
            return Survey(result, model, compact, lines, available, folder)

    return anyio.run(run, backend=backend)


def summariser_of(folder: Path, function: Callable[[Request], Reply]) -> FunctionModel:
    """A summariser of one's own, with the window of the shipped one."""
    manifest = load_manifest("offline-survey", env={}, cwd=folder).manifest
    assert manifest.compaction is not None and manifest.compaction.model is not None
    capabilities = models_of(manifest.compaction.model)[0].capabilities
    return FunctionModel("offline:own", function, capabilities=capabilities)


def prefixes_hold(done: Survey) -> bool:
    """Whether each request's messages begin with those of the one before, but for recorded prunes and segment starts."""
    breaks = sum(isinstance(r, w.Pruned | w.Edited | e.SegmentStarted) for r in done.records)
    broken = sum(not after.startswith(before) for (_, before, _), (_, after, _) in pairwise(done.model.sent))
    return broken <= breaks - 1


def most_stalled(done: Survey) -> int:
    """The longest streak of segments without progress that the guard counted."""
    starts = [r for r in done.records if isinstance(r, e.SegmentStarted)]
    runs = [start.open_run for start in starts if start.open_run is not None]
    assert len(runs) == len(starts) - 1
    return max(run.guards["StallGuard"]["streak"] for run in runs)


CASES = [
    ("notes", "overview", "trio", ALL),
    ("notes", "prefix", "asyncio", SOME),
    ("conversation", "overview", "asyncio", SOME),
    ("conversation", "prefix", "trio", SOME),
]


@pytest.mark.parametrize(("variant", "source", "backend", "packages"), CASES, ids=[f"{v}-{s}" for v, s, _, _ in CASES])
def test_the_report_equals_what_ast_says_through_several_windows(
    variant: str, source: str, backend: str, packages: list[str], tmp_path: Path
) -> None:
    plant(tmp_path, packages)
    done = survey(tmp_path, backend, TASK + (CONVERSATION if variant == "conversation" else ""), source)
    assert done.result.status == "finished", done.result
    assert done.report_is_right()
    assert done.result.compactions >= 3
    assert done.result.prunes >= 5
    assert done.result.segments >= 4
    assert max(tokens for tokens, _, _ in done.model.sent) <= done.available
    assert prefixes_hold(done)
    assert most_stalled(done) < 2, "real work is not taken for a stall"
    completed = [r for r in done.records if isinstance(r, e.CompactionCompleted)]
    assert any(r.rung == "compact" and r.figures["source"] == source for r in completed)


CODE_ALONE = [
    ("rollover", "asyncio", ["rollover.at=16000", "rollover.warn=13000"]),
    ("checkpoint", "trio", []),
]


@pytest.mark.parametrize(("policy", "backend", "more"), CODE_ALONE, ids=[policy for policy, _, _ in CODE_ALONE])
def test_a_policy_that_needs_no_summariser_gives_the_same_report(
    policy: str, backend: str, more: list[str], tmp_path: Path
) -> None:
    plant(tmp_path, FEW)
    done = survey(tmp_path, backend, TASK, "overview", overrides=[f'context.policy="{policy}"', *more])
    assert done.result.status == "finished", done.result
    assert done.report_is_right() and not done.summariser.sent
    completed = [r for r in done.records if isinstance(r, e.CompactionCompleted)]
    assert len(completed) >= 3 and {r.rung for r in completed} == {policy}
    assert max(tokens for tokens, _, _ in done.model.sent) <= done.available
    assert prefixes_hold(done) and most_stalled(done) < 2


def never(request: Request) -> Reply:
    raise BadRequest("no summary today", status=400)


def nonsense(request: Request) -> Reply:
    return make_reply(make_call(f"summary-{len(request.items)}", "write_summary", json.dumps({"text": "{}"})))


@pytest.mark.parametrize(
    ("summarise", "left", "backend"),
    [(never, "checkpoint", "trio"), (nonsense, "rollover", "asyncio")],
    ids=["raises-checkpoint", "nonsense-rollover"],
)
def test_the_ladder_goes_on_below_rungs_that_fail_and_the_report_is_the_same(
    summarise: Callable[[Request], Reply], left: str, backend: str, tmp_path: Path
) -> None:
    """The breaker ends the tries after three failures; what needs no model carries the survey to its end."""
    plant(tmp_path, FEW)
    ladder = f'context.ladder=["compact", "coarse", "{left}"]'
    done = survey(tmp_path, backend, TASK, "overview", summariser_of(tmp_path, summarise), [ladder])
    assert done.result.status == "finished", done.result
    assert done.report_is_right() and done.result.compactions >= 4
    rungs = [r for r in done.records if isinstance(r, e.CompactionRung)]
    assert [r.rung for r in rungs if r.state == "failed"] == ["compact", "coarse"] * 2 + ["compact"]
    assert {r.rung for r in rungs if r.state == "skipped"} == {"compact", "coarse"}
    completed = [r for r in done.records if isinstance(r, e.CompactionCompleted)]
    assert {r.rung for r in completed} == {left}, "no model's rung ever made a segment"
    assert max(tokens for tokens, _, _ in done.model.sent) <= done.available
    assert prefixes_hold(done) and most_stalled(done) < 2


def test_the_policy_warn_warns_once_stops_at_the_ceiling_and_a_raised_window_goes_on(tmp_path: Path) -> None:
    plant(tmp_path, FEW)
    warn = ['context.policy="warn"', "prune.enabled=false"]
    done = survey(tmp_path, "asyncio", TASK, "overview", overrides=warn)
    assert (done.result.status, done.result.error_kind, done.result.exit_code) == ("failed", "over_budget", 1)
    assert done.result.resumable and done.result.segments == 1 and not done.summariser.sent
    assert [r.code for r in done.records if isinstance(r, w.Warned)] == ["context_high"]
    assert 0.8 * done.available < max(tokens for tokens, _, _ in done.model.sent) <= done.available
    before = len(done.model.sent)
    raised = survey(tmp_path, "trio", None, "overview", overrides=[*warn, "model.context_window=400000"])
    assert raised.result.status == "finished", raised.result
    assert raised.report_is_right() and raised.result.segments == 1
    assert sum(isinstance(r, w.ReplyRecord) for r in raised.records) == before + len(raised.model.sent)


def test_without_a_true_summary_the_conversation_only_survey_fails(tmp_path: Path) -> None:
    """The negative control: what crosses the boundary in the summary is really needed."""
    plant(tmp_path, FEW)
    constant = "\n".join(
        f"## {name}\n- nothing"
        for name in ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Current Work", "Findings")
    )

    def summarise(request: Request) -> Reply:
        last: Item = request.items[-1]
        if last.type == "tool_result" and last.name == "write_summary" and last.status == "ok":
            return make_reply(AssistantItem(text="done"))
        return make_reply(make_call(f"summary-{len(request.items)}", "write_summary", json.dumps({"text": constant})))

    # Twice the requests that the survey needs with a true summary.
    done = survey(
        tmp_path,
        "trio",
        TASK + CONVERSATION,
        "overview",
        summariser_of(tmp_path, summarise),
        ["worker.max_requests=130"],
    )
    assert done.result.compactions >= 1
    assert not done.report_is_right()
