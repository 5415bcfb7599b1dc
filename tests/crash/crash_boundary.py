"""One job whose window ends once, and the disk after any part of what the boundary between its two segments does: what the tests
of such a boundary share. All of it happens in this process; the disk is rebuilt from a record of operations.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod import Pod, RunResult
from pod.errors import PodError
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.testing import Op, RecordingFiles
from pod.testing.recording import Disk, Lost
from tests.pod.native_rig import NativeAgent, compacted
from tests.pod.pod_rig import Agent, Rig, compacting, filler, manifest, summariser, summary, words
from worker import records as w
from worker.items import ToolCallItem, UserItem
from worker.models.base import Compacted, Request
from worker.testing import call, reply, say
from worker.testing.scripted import Step
from worker.tools import Tool, tool

STEPS, LAST = 4, 3
"""All steps, and the last one of the first window."""

TASK, STEER = "take all steps", "one more thing: be quick"
LATCH = b'"kind":"yielded"'
BACKENDS = {"rollover": "asyncio", "compact": "trio", "checkpoint": "trio", "native": "asyncio"}
policies = pytest.mark.parametrize("policy", BACKENDS)


def made(policy: str, **more: Any) -> Any:
    """A window that ends once in the job. The prompt differs from that of the first run, so the boundary writes a blob."""
    sections: dict[str, Any] = {"log": {"durability": "fsync"}, "worker": {"system_prompt": "Take the steps."}, **more}
    bounds = {"retained_tokens": 900, "retained_floor_tokens": 100}
    if policy == "rollover":
        window = {"at": 6_500, "warn": 6_000}
        return manifest(context={"policy": policy}, rollover=window, compaction=bounds, **sections)
    return manifest(context={"policy": policy}, compaction=compacting(6_500, **bounds), **sections)


@dataclass
class World:
    """The folder of a job, its file layer, and what its calls did outside."""

    root: Path
    policy: str
    files: Files = field(default_factory=Files)
    calls: list[int] = field(default_factory=list[int])
    agent: Agent = field(init=False)
    summary: Callable[[], str] = summary
    asks: str = ""

    def __post_init__(self) -> None:
        self.agent = NativeAgent(self._play, answer=self._answer) if self.policy == "native" else Agent(self._play)
        self.rig = Rig(self.root)

    def _answer(self, request: Request, number: int) -> Compacted:
        """The provider's own memory: what its text says is not looked at."""
        return compacted(self.agent.name, number, readable=self.summary())

    def _play(self, request: Request, number: int) -> Step:
        if TASK not in words(request):
            return say("hello")
        assert words(request).count(TASK) == 1 and words(request).count(STEER) <= 1
        if len(self.calls) == STEPS:
            return say("all steps are taken")
        step = call("step", n=len(self.calls) + 1)
        return reply(step, call("new_context")) if self.asks == "agent" and len(self.calls) + 1 == LAST else step

    @property
    def tool(self) -> Tool:
        @tool(effect="write")
        async def step(n: int) -> str:
            """Takes step n."""
            self.calls.append(n)
            self.files.point(f"did:{n}")
            if n == LAST and self.asks in ("compact", "interrupt"):
                post(PodFolder(self.rig.home, "p", self.files), Command(kind=self.asks))
            return filler(2_000, f"step {n}")

        return step

    def open(self, name: str = "p", **sections: Any) -> Pod:
        def send(event: Any) -> None:
            """A message that arrives while the boundary is made: sent again where nobody said that it is on record."""
            if event.type == "compaction.started" and "steer-1" not in pod.state.inbox:
                pod.running.session.put(w.Input(item=UserItem(text=STEER), inbox="steer-1"))

        worker = summariser(lambda _: self.summary())
        options: dict[str, Any] = {"tools": [self.tool], "files": self.files, "compact_model": worker}
        pod = self.rig.open(self.agent, made(self.policy, **sections), name, observers=[send], **options)
        return pod

    async def first_run(self) -> None:
        async with self.open(worker={"system_prompt": "Say hello."}) as pod:
            (await pod.run("good morning")).raise_for_status()

    async def run(self) -> RunResult:
        async with self.open() as pod:
            return await pod.run(TASK)

    async def run_on(self) -> RunResult:
        """The same, and where the store refuses it is asked once more to go on, by the same process."""
        async with self.open() as pod:
            with suppress(PodError):
                return await pod.run(TASK)
            return await pod.resume()

    async def finish(self) -> RunResult:
        """Goes on from what stands there, with the task where that was never taken."""
        async with self.open() as pod:
            return await (pod.resume() if pod.state.unanswered else pod.run(TASK))

    def boundaries(self) -> list[str]:
        return [s.lineage.compaction for s in self.rig.starts() if s.lineage.compaction]

    def check(self, result: RunResult, boundaries: int = 1) -> None:
        """The job is done and right, and the log says that everything happened once."""
        assert (result.status, result.text) == ("finished", "all steps are taken"), result
        assert self.calls == list(range(1, STEPS + 1)), "a step was taken twice or left out"
        log = self.rig.log()
        made = self.boundaries()
        assert len(made) == len(set(made)) == boundaries, made
        begun = Counter(r.compaction for r in log if isinstance(r, e.CompactionStarted))
        ends = (e.CompactionCompleted, e.CompactionFailed, e.CompactionInterrupted)
        assert begun == Counter(r.compaction for r in log if isinstance(r, ends)), "each was begun once and ended once"
        texts = [r.item.text for r in log if isinstance(r, w.Input)]
        assert Counter(texts) == Counter(["good morning", TASK, STEER])
        calls = [i.call_id for r in log if isinstance(r, w.ReplyRecord) for i in r.items if isinstance(i, ToolCallItem)]
        assert Counter(r.item.call_id for r in log if isinstance(r, w.ToolResult)) == Counter(calls)
        assert words(self.agent.requests[-1]).count(STEER) == 1


def drive(policy: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """On the backend of this policy."""
    return anyio.run(work, backend=BACKENDS[policy])


def first(folder: Path, policy: str) -> Path:
    """A pod in `folder` that has had its first run."""
    folder.mkdir()
    drive(policy, World(folder, policy).first_run)
    return folder


def fresh(base: Path, policy: str, files: Files | None = None) -> World:
    """A world of its own, as the base stands."""
    root = base.with_name("world")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    return World(root, policy, files or Files())


def record(base: Path, policy: str) -> tuple[RecordingFiles, range]:
    """A whole job, and the prefixes of its operations that end in the boundary."""
    world = fresh(base, policy)
    files = world.files = RecordingFiles(world.rig.home)
    world.check(drive(policy, world.run))
    first = next(n for n, op in enumerate(files.ops) if op.kind == "write" and LATCH in op.data)
    pointer = next(n for n, op in enumerate(files.ops) if op.kind == "rename" and op.target.endswith("pod.json"))
    return files, range(first, pointer + 6)


def disk_after(files: RecordingFiles, ops: list[Op], root: Path, policy: str, lost: Lost) -> World:
    """The world after these operations."""
    disk = files.start.copy()
    for op in ops:
        disk.do(op)
    return put(disk, ops, root, policy, lost)


def put(disk: Disk, ops: list[Op], root: Path, policy: str, lost: Lost = False) -> World:
    """A world with this disk; what its calls did is read from the operations."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "home").mkdir(parents=True)
    disk.put(root / "home", lost=lost)
    done = [int(op.name.removeprefix("did:")) for op in ops if op.name.startswith("did:")]
    return World(root, policy, calls=done)
