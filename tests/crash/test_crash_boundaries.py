"""A boundary between two segments under the policies `rollover`, `compact` and `checkpoint`, with every fault in it: never two boundaries of
one id, no call without its one result, no input lost or doubled.

The boundary begins with the entry that latches it (`yielded`) and ends with the new segment's lease. All of it happens in
this process: the disk after each operation is rebuilt from a record of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from crash.crash_boundary import LATCH, TASK, World, disk_after, drive, fresh, policies, record
from crash.crash_shards import digest
from crash.crash_share import WHOLE, share

from pod import Pod, RunResult
from pod.errors import PodError
from pod.log import entries as e
from pod.log.files import Files
from pod.log.lines import Line
from pod.operations import clear, fork
from pod.testing.recording import Lost
from tests.pod.pod_rig import summary

pytestmark = pytest.mark.slow

# -- the process dies ----------------------------------------------------------------------------------------------


@policies
@pytest.mark.parametrize("lost", [False, True, "data"], ids=["killed", "power-cut", "names-kept"])
def test_a_boundary_that_died_at_any_operation_is_made_once_in_the_end(base: Path, policy: str, lost: Lost) -> None:
    """Before and after each write, sync, rename and pointer; an acknowledgement that nobody got is one of them."""
    files, within = record(base, policy)
    assert len(within) > 20
    met = set[bytes]()
    for number in within:
        world = disk_after(files, files.ops[:number], base.with_name("world"), policy, lost)
        if (found := digest(world.rig.home, world.calls)) in met:
            continue  # the same files as before: a sync
        met.add(found)
        print("after", number, files.ops[number - 1].kind, files.ops[number - 1].path)
        world.check(drive(policy, world.finish))
    print(len(met), "of", len(within))
    assert len(met) > 5


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
    # The suite refuses one operation and loses the acknowledgement of the next.
    for at in share(range(1, 60), 2, first=done):
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
    assert reached > (14 if WHOLE else 7)


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
