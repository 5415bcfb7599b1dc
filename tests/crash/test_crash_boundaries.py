"""A boundary between two segments under the policies `rollover` and `compact`, with every fault in it: never two boundaries of
one id, no call without its one result, no input lost or doubled.

The boundary begins with the entry that latches it (`yielded`) and ends with the new segment's lease. All of it happens in
this process: the disk after each operation is rebuilt from a record of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from crash.crash_shards import workplace

from pod import Pod, RunResult
from pod.errors import PodError
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.log.lines import Line
from pod.operations import clear, fork
from pod.session import Session
from pod.testing import Op, RecordingFiles
from pod.testing.recording import Lost
from tests.pod.pod_rig import Agent, Rig, compacting, filler, manifest, summariser, summary, words
from worker import records as w
from worker.items import ToolCallItem, UserItem
from worker.models.base import Request
from worker.testing import call, reply, say
from worker.testing.scripted import Step
from worker.tools import Tool, tool

STEPS, LAST = 7, 6
"""All steps, and the last one of the first window."""

TASK, STEER = "take all steps", "one more thing: be quick"
LATCH = b'"kind":"yielded"'
BACKENDS = {"rollover": "asyncio", "compact": "trio"}
policies = pytest.mark.parametrize("policy", BACKENDS)


def made(policy: str, **more: Any) -> Any:
    """A window that ends once in the job. The prompt differs from that of the first run, so the boundary writes a blob."""
    sections: dict[str, Any] = {"log": {"durability": "fsync"}, "worker": {"system_prompt": "Take the steps."}, **more}
    bounds = {"retained_tokens": 900, "retained_floor_tokens": 100}
    if policy == "rollover":
        window = {"at": 6_500, "warn": 6_000}
        return manifest(context={"policy": policy}, rollover=window, compaction=bounds, **sections)
    return manifest(compaction=compacting(6_500, **bounds), **sections)


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
        self.agent = Agent(self._play)
        self.rig = Rig(self.root)

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
            return filler(1_000, f"step {n}")

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
        texts = [r.item.text for r in log if isinstance(r, w.Input) and isinstance(r.item, UserItem)]
        assert Counter(texts) == Counter(["good morning", TASK, STEER])
        calls = [i.call_id for r in log if isinstance(r, w.ReplyRecord) for i in r.items if isinstance(i, ToolCallItem)]
        assert Counter(r.item.call_id for r in log if isinstance(r, w.ToolResult)) == Counter(calls)
        assert words(self.agent.requests[-1]).count(STEER) == 1


def drive(policy: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """On the backend of this policy."""
    return anyio.run(work, backend=BACKENDS[policy])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with workplace(tmp_path) as folder:
        yield folder


@pytest.fixture
def base(place: Path, policy: str) -> Path:
    """A pod that has had its first run."""
    (place / "base").mkdir()
    drive(policy, World(place / "base", policy).first_run)
    return place / "base"


def fresh(base: Path, policy: str, files: Files | None = None) -> World:
    """A world of its own, as the base stands."""
    root = base.with_name("world")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    return World(root, policy, files or Files())


# -- the process dies ----------------------------------------------------------------------------------------------


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
    shutil.rmtree(root, ignore_errors=True)
    (root / "home").mkdir(parents=True)
    disk.put(root / "home", lost=lost)
    done = [int(op.name.removeprefix("did:")) for op in ops if op.name.startswith("did:")]
    return World(root, policy, calls=done)


@policies
@pytest.mark.parametrize("lost", [False, True, "data"], ids=["killed", "power-cut", "names-kept"])
def test_a_boundary_that_died_at_any_operation_is_made_once_in_the_end(base: Path, policy: str, lost: Lost) -> None:
    """Before and after each write, sync, rename and pointer; an acknowledgement that nobody got is one of them."""
    files, within = record(base, policy)
    assert len(within) > 20
    for number in within:
        world = disk_after(files, files.ops[:number], base.with_name("world"), policy, lost)
        print("after", number, files.ops[number - 1].kind, files.ops[number - 1].path)
        world.check(drive(policy, world.finish))


@policies
def test_what_a_boundary_writes_torn_at_any_place_is_no_boundary(base: Path, policy: str) -> None:
    """The pod opens at the old segment or at the whole new one; from some of the cuts the job is run to its end."""
    files, within = record(base, policy)
    cuts = 0
    for number in within:
        op = files.ops[number]
        if op.kind != "write":
            continue
        for length in range(1, len(op.data), max(len(op.data) // 10, 9)):
            ops = [*files.ops[:number], replace(op, data=op.data[:length])]
            world = disk_after(files, ops, base.with_name("world"), policy, False)
            session = Session.open(world.rig.home, "p")
            assert session.state.compaction is None and len(world.boundaries()) <= 1
            session.close()
            cuts += 1
            if cuts % 6 == 0:
                world.check(drive(policy, world.finish))
    assert cuts > 70


# -- the files refuse ----------------------------------------------------------------------------------------------


class Faulty(Files):
    """Raises `OSError` once, at the `at`-th operation since the boundary was latched: in the middle of it, or with `done`
    after it, so that nobody is told of what was done."""

    def __init__(self, at: int, *, done: bool) -> None:
        self.at, self.done, self.count, self.latched = at, done, 0, False

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes, or half of them."""
        self.latched |= LATCH in data
        self._do(
            lambda: super(Faulty, self).write(fd, data), lambda: super(Faulty, self).write(fd, data[: len(data) // 2])
        )

    def open_append(self, path: Path, *, create: bool) -> int:
        """A descriptor that appends, or none."""
        if not self.done:
            self._do(lambda: None)
        return super().open_append(path, create=create)

    def sync(self, fd: int) -> None:
        """Makes the bytes of a file durable."""
        self._do(lambda: super(Faulty, self).sync(fd))

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source`."""
        self._do(lambda: super(Faulty, self).rename(source, target))

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable."""
        self._do(lambda: super(Faulty, self).sync_folder(path))

    def _do(self, operation: Callable[[], None], half: Callable[[], None] = lambda: None) -> None:
        self.count += self.latched
        if self.count != self.at or not self.latched:
            return operation()
        (operation if self.done else half)()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@policies
@pytest.mark.parametrize("done", [False, True], ids=["refused", "acknowledgement-lost"])
def test_a_boundary_whose_files_refuse_ends_with_a_store_error_and_is_made_once_when_they_work(
    base: Path, policy: str, done: bool
) -> None:
    reached = 0
    stride = 1 if policy == "rollover" else 2
    for at in range(1 + (done and stride == 2), 60, stride):
        files = Faulty(at, done=done)
        world = fresh(base, policy, files)
        with suppress(PodError):
            world.check(drive(policy, world.run_on))
        if files.count < at:
            break
        reached += 1
        world.files = Files()
        print("at", at, "done", done, world.rig.kinds()[-3:])
        if (found := world.rig.of(e.RunEndedEntry))[-1].status != "finished" or len(found) < 2:
            world.check(drive(policy, world.finish))
    assert reached > 14


# -- somebody else decides -----------------------------------------------------------------------------------------


async def cancelled(world: World, pod: Pod, at: int = 1) -> RunResult | None:
    """Runs the job until the `at`-th entry since a boundary was latched (0: until the compact worker's summary); there it
    is cancelled. The result where it ended before."""
    count = 0
    with anyio.CancelScope() as scope:

        def listen(line: Line, record: Any) -> None:
            nonlocal count
            count += bool(count) or isinstance(record, e.YieldedEntry)
            if count == at and at:
                scope.cancel()

        def in_the_worker() -> str:
            if not at:
                scope.cancel()
            return summary()

        pod.running.session.listeners.append(listen)
        world.summary = in_the_worker
        return await pod.run(TASK)
    return None


@pytest.mark.anyio
@policies
async def test_a_boundary_that_is_cancelled_at_any_entry_is_made_once_when_the_run_goes_on(
    tmp_path: Path, policy: str
) -> None:
    """In the same process; a boundary that was begun ends at once, interrupted, or stands for good."""
    interrupted = 0
    for at in range(7):
        (root := tmp_path / f"{at}").mkdir()
        world = World(root, policy)
        await world.first_run()
        async with world.open() as pod:
            result = await cancelled(world, pod, at)
            assert pod.state.compaction is None
            assert world.rig.of(e.RunEndedEntry)[-1].status == ("finished" if result else "cancelled")
            interrupted += len(world.rig.of(e.CompactionInterrupted))
            world.summary = summary
            world.check(result or await pod.resume())
    assert interrupted >= 2


@pytest.mark.anyio
@policies
@pytest.mark.parametrize("asks", ["compact", "interrupt", "agent"])
async def test_what_is_asked_for_at_the_moment_a_boundary_is_due_makes_no_second_one(
    tmp_path: Path, policy: str, asks: str
) -> None:
    """An order to compact and the agent's own `new_context` take its place; an interrupt comes first."""
    world = World(tmp_path, policy, asks=asks)
    await world.first_run()
    async with world.open(tools={"enable": ["new_context"]}) as pod:
        result = await pod.run(TASK)
        triggers = [r.trigger for r in world.rig.of(e.CompactionStarted)]
        if asks == "interrupt":
            assert (result.status, triggers) == ("cancelled", [])
            result = await pod.resume()
        else:
            assert triggers == ["hand" if asks == "compact" else "agent"]
        world.check(result)


@pytest.mark.anyio
@policies
@pytest.mark.parametrize("first", ["clear", "compact", "fork"])
async def test_a_boundary_that_was_due_when_its_run_was_cancelled_gives_way_to_what_comes_first(
    tmp_path: Path, policy: str, first: str
) -> None:
    world = World(tmp_path, policy)
    await world.first_run()
    async with world.open() as pod:
        assert await cancelled(world, pod) is None and not world.boundaries()
        if first == "compact":
            assert await pod.compact()
    if first == "clear":
        await clear(world.rig.home, "p")
        async with world.open() as pod:
            assert (await pod.run(TASK)).status == "finished"
        assert [s.lineage.kind_ for s in world.rig.starts()] == ["cleared_from"]
        return
    if first == "fork":
        fork(world.rig.home, "p", "q")
    world.check(await world.finish())
    if first == "fork":
        async with world.open(name="q") as pod:
            assert (await pod.resume()).status == "finished"
        assert world.rig.starts("q")[0].lineage.kind_ == "forked_from"
        [other] = [s.lineage.compaction for s in world.rig.starts("q") if s.lineage.compaction]
        assert other not in world.boundaries()
