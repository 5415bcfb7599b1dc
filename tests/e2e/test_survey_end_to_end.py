"""The whole line: a real job on a real source tree, through several context windows, by offline models.

The report must equal what `ast` says of the files, with every directive obeyed, in both variants and from both sources of the compact worker.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from offline.survey_reading import expected

from pod import Pod, RunResult
from pod.log import entries as e
from pod.manifest import load_manifest
from pod.setup import models_of
from worker import records as w
from worker.items import AssistantItem, Item, make_call
from worker.models.base import Capabilities, Emit, Encoder, Model, Reply, Request
from worker.testing import FunctionModel, make_reply

TITLE, WORD, ORDER, LAST = (
    "What stands in the library",
    "deprecated",
    ["Importers", "Definitions", "Todos"],
    "End of the survey.",
)
TASK = f"""\
Survey the Python files in source.
Write the report to report.md.
Title: {TITLE}
Never use the word "{WORD}".
Order of sections: {", ".join(ORDER)}
When you meet READ_ME_FIRST.txt, obey the instruction in it."""
CONVERSATION = "\nKeep the findings in the conversation only."
ALL = ["asyncio", "email", "json", "http", "xml", "unittest", "importlib", "logging", "multiprocessing", "concurrent"]
SOME = ["asyncio", "json", "http", "logging", "concurrent", "importlib"]


def plant(folder: Path, packages: Sequence[str]) -> None:
    """Copies packages of the standard library, with a directive that is met on the way."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in packages:
        shutil.copytree(library / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "source" / "json" / "READ_ME_FIRST.txt").write_text(
        f"This survey ends with a line.\nLast line: {LAST}\n", encoding="utf-8"
    )


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
        path = self.folder / "report.md"
        return path.is_file() and path.read_text(encoding="utf-8") == expected(
            self.folder, ["source"], TITLE, ORDER, LAST, WORD
        )


def survey(
    folder: Path, backend: str, task: str, source: str, summariser: Model | None = None, overrides: Sequence[str] = ()
) -> Survey:
    """Runs the shipped manifest on the tree in `folder`."""
    loaded = load_manifest("offline-survey", [f'compaction.source="{source}"', *overrides], env={}, cwd=folder)
    assert loaded.manifest.compaction is not None and loaded.manifest.compaction.model is not None
    model = Watched(models_of(loaded.manifest.model)[0])
    compact = Watched(summariser or models_of(loaded.manifest.compaction.model)[0])

    async def run() -> Survey:
        pod = Pod.open(loaded, name="survey", home=folder / "home", cwd=folder, model=model, compact_model=compact)
        async with pod:
            result = await pod.run(task)
            available = pod.init_event().available
            lines = [record async for record in _records(pod)]
            return Survey(result, model, compact, lines, available, folder)

    return anyio.run(run, backend=backend)


async def _records(pod: Pod):
    from pod.reading import SessionReader

    for line in SessionReader(pod.running.session.folder).lines():
        record = e.record_of(line)
        if record is not None:
            yield record


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
    ("notes", "prefix", "asyncio", ALL),
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


def test_the_policy_checkpoint_gives_the_same_report_without_a_summariser(tmp_path: Path) -> None:
    plant(tmp_path, ["json", "http", "importlib"])
    done = survey(tmp_path, "trio", TASK, "overview", overrides=['context.policy="checkpoint"'])
    assert done.result.status == "finished", done.result
    assert done.report_is_right() and not done.summariser.sent
    completed = [r for r in done.records if isinstance(r, e.CompactionCompleted)]
    assert len(completed) >= 2 and {r.rung for r in completed} == {"checkpoint"}
    assert max(tokens for tokens, _, _ in done.model.sent) <= done.available
    assert prefixes_hold(done) and most_stalled(done) < 2


def test_without_a_true_summary_the_conversation_only_survey_fails(tmp_path: Path) -> None:
    """The negative control: what crosses the boundary in the summary is really needed."""
    plant(tmp_path, SOME)
    constant = "\n".join(
        f"## {name}\n- nothing"
        for name in ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Current Work", "Findings")
    )

    def summarise(request: Request) -> Reply:
        last: Item = request.items[-1]
        if last.type == "tool_result" and last.name == "write_summary" and last.status == "ok":
            return make_reply(AssistantItem(text="done"))
        return make_reply(make_call(f"summary-{len(request.items)}", "write_summary", json.dumps({"text": constant})))

    manifest = load_manifest("offline-survey", env={}, cwd=tmp_path).manifest
    assert manifest.compaction is not None and manifest.compaction.model is not None
    capabilities = models_of(manifest.compaction.model)[0].capabilities
    constant_model = FunctionModel("offline:constant", summarise, capabilities=capabilities)
    # Twice the requests that the survey needs with a true summary.
    done = survey(tmp_path, "trio", TASK + CONVERSATION, "overview", constant_model, ["worker.max_requests=250"])
    assert done.result.compactions >= 1
    assert not done.report_is_right()
