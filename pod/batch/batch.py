"""A batch under way: which tasks are due, the host that runs them, one result for each that ends."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from interceptors.purse import TOGETHER, Purse
from pod.batch.grading import Grader
from pod.batch.record import BatchFolder
from pod.batch.results import FOR_GOOD, Results, Row, grade_of, row_of
from pod.batch.setting_aside import AsideRecord
from pod.batch.summary import Summary, summary_of
from pod.batch.tasks import Task
from pod.batch.workspaces import Workspaces
from pod.errors import PodBusy, PodError, StoreError
from pod.events import Event
from pod.host import DRAINED, Hosted, PodHost
from pod.log.folder import PodFolder
from pod.manifest import Loaded
from pod.result import RunResult, result_without_run
from pod.standing import ALONE_FROM, Standing, poisoned, standing_of
from pod.stored import moved

KEY = "batch-task"
"""The idempotency key of a task's message in its pod."""


class Watcher(Protocol):
    """Who is told how a batch goes. `event` is None where events are not wanted: then none are made."""

    @property
    def event(self) -> Callable[[Task, Event], None] | None:
        """Takes each event of the pods under way."""
        ...

    def began(self, task: Task, hosted: Hosted | None) -> None:
        """A task's pod has a place; None where that is in another process."""
        ...

    def ended(self, task: Task, row: Row) -> None:
        """A task came to an end in this run of the batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a batch is to do. `chosen` are indexes of tasks, in the order in which they begin; `attempts` is how often a task may be
    begun with nothing coming of it; `max_cost_usd` bounds all of its pods together, earlier runs of the batch included. With a `grader`,
    what finished before without a score is graded too, with `regrade` all that finished. `options` are further ones of `Pod.open`.
    """

    manifest: Loaded
    tasks: Sequence[Task]
    chosen: Sequence[int]
    folder: BatchFolder
    workspaces: Workspaces
    source: Path
    out: Path
    concurrency: int = 10
    max_cost_usd: float | None = None
    attempts: int = 3
    retry_failed: bool = False
    grader: Grader | None = None
    regrade: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def choose(
    count: int, *, limit: int | None = None, sample: int | None = None, shuffle: bool = False, seed: int = 0
) -> list[int]:
    """The indexes to run, in order: the first `limit`, or a `sample` at random, shuffled or not; the same for the same seed."""
    chance = random.Random(seed)
    chosen = list(range(count))
    if sample is not None and sample < count:
        chosen = sorted(chance.sample(chosen, sample))
    if shuffle:
        chance.shuffle(chosen)
    return chosen if limit is None else chosen[:limit]


@dataclass
class Batch:
    """One run of a batch. `run` it once, inside of `settings.folder.alone()`."""

    settings: Settings
    watcher: Watcher
    results: Results
    purse: Purse | None = None
    aside: AsideRecord | None = None
    _host: PodHost = field(init=False)
    _due: deque[Task] = field(default_factory=deque[Task])
    _suspects: deque[Task] = field(default_factory=deque[Task])
    _standing: dict[int, Standing] = field(default_factory=dict[int, Standing])
    _touched: set[int] = field(default_factory=set[int])
    _halting: bool = False
    _spent: bool = False
    _failed: BaseException | None = None

    @classmethod
    def prepare(cls, settings: Settings, watcher: Watcher) -> Batch:
        """Reads what stands in the results and in the logs, and puts on record what the batch consists of. Blocks.

        Nobody else writes into its results until `run` is over. Raises `UsageProblem`, `ResultsBusy`, `StoreError`.
        """
        s = settings
        s.folder.check(s.tasks)
        results = Results.open(s.out, s.folder.name, alone=True)
        try:
            batch = cls(s, watcher, results)
            s.folder.keep(s.tasks, s.source, s.out)
            batch._look()
        except BaseException:
            results.close()
            raise
        return batch

    def _look(self) -> None:
        """Finds out what is due. What ended and lacks its line gets it."""
        s = self.settings
        costs: dict[str, float] = {}
        chosen, again = frozenset(s.chosen), set[int]()
        for task in s.tasks:
            row, name = self.results.rows.get(task.index), s.folder.pod(task.index)
            goes_on = row is None or (task.index in chosen and self._goes_on(row["status"]))
            looks = goes_on or (task.index in chosen and self._ungraded(row))
            standing = standing_of(PodFolder(s.folder.home, name)) if looks else None
            if row is not None and not goes_on and not _is_finished(standing):
                costs[name] = float(row.get("cost_usd") or 0.0)
                continue
            if row is not None:
                again.add(task.index)
            if standing is not None:
                self._standing[task.index] = standing
                costs[name] = standing.cost_usd
        self.results.drop(again)
        if s.max_cost_usd is not None:
            self.aside = AsideRecord(s.folder.documents, s.folder.name)
            self.aside.take_up(costs)
            self.purse = Purse(s.max_cost_usd, known={**costs, "": self.aside.lost_usd}, keep=self.aside.keep)
        for index in s.chosen:
            if index in self.results.rows:
                continue
            task, standing = s.tasks[index], self._standing.get(index)
            starts = 0 if standing is None else standing.starts
            (self._suspects if starts >= ALONE_FROM else self._due).append(task)

    def _goes_on(self, status: str) -> bool:
        """Whether a task that ended so is gone on with."""
        return status not in FOR_GOOD or (status == "failed" and self.settings.retry_failed)

    def _ungraded(self, row: Row | None) -> bool:
        """Whether a task that finished is to be graded, as it was not or with an error, or as all are to be graded anew."""
        return (
            self.settings.grader is not None
            and row is not None
            and row["status"] == "finished"
            and (self.settings.regrade or grade_of(row).get("score") is None)
        )

    @property
    def due(self) -> int:
        """How many tasks are still to begin."""
        return len(self._due) + len(self._suspects)

    # -- running ----------------------------------------------------------------------------------------------

    async def run(self) -> Summary:
        """Runs what is due to its end. Cancelled, all pods end now, resumable. Raises `StoreError` where results can't be written."""
        try:
            return await self._run()
        finally:
            self.results.close()

    async def _run(self) -> Summary:
        began = anyio.current_time()
        for tasks, width in ((self._due, self.settings.concurrency), (self._suspects, 1)):
            self._host = PodHost(concurrency=width)
            async with self._host, anyio.create_task_group() as group:
                for _ in range(min(width, len(tasks))):
                    group.start_soon(self._work, tasks)
        if self._failed is not None:
            raise self._failed
        if self.aside is not None:
            await self.aside.close()
        return self.summary(anyio.current_time() - began)

    @property
    def bound(self) -> str:
        """How many run at once, in words."""
        return f"at most {self.settings.concurrency} at once"

    @property
    def halting(self) -> str:
        """What a signal does, in words."""
        return "each run ends before its next request; the same command goes on."

    async def halt(self, within: float) -> None:
        """Begins nothing more, and lets each run end before its next request, within so many seconds; then they are ended now."""
        self._halting = True
        self._suspects.clear()
        await self._host.drain(within)

    def summary(self, seconds: float) -> Summary:
        """How the chosen tasks stand."""
        s = self.settings
        rows = [row for index in s.chosen if (row := self.results.rows.get(index)) is not None]
        return summary_of(s.folder.name, len(s.chosen), rows, self._touched, seconds, spent=self._spent)

    async def _work(self, tasks: deque[Task]) -> None:
        while tasks and not self._halting and not self._spent:
            task = tasks.popleft()
            try:
                result = await self._one(task)
                if result is not None:
                    await self._told(task, result)
            except (PodError, OSError) as error:
                # Nothing can be kept any more, of a result or of a pod: what runs is brought to its end, and the logs hold it.
                self._failed = self._failed or error
                self._halting = True
                tasks.clear()
                self._suspects.clear()

    async def _one(self, task: Task) -> RunResult | None:
        """The result of a task, as its log has it already or as its pod gives it now; None where it did not come to an end."""
        s = self.settings
        if (known := await anyio.to_thread.run_sync(self._known, task)) is not None:
            return known
        name = s.folder.pod(task.index)
        try:
            cwd = await anyio.to_thread.run_sync(s.workspaces.make, task.index)
        except PodError as error:
            return result_without_run(name, "failed", type(error).__name__, error=str(error))
        hosted = self._start(task, name, cwd)
        self.watcher.began(task, hosted)
        result = await hosted.wait()
        if isinstance(hosted.error, PodBusy):
            return None
        if isinstance(hosted.error, StoreError) and hosted.error.meets_all:
            raise hosted.error  # it would be the end of each task after this one: the batch ends, and none of them failed
        if result.status == "cancelled" and (self._halting or result.why_runtime_stopped == DRAINED):
            return None
        if result.error_kind == TOGETHER:
            self._spent = True
        return result

    def _known(self, task: Task) -> RunResult | None:
        """The result of a task that is not begun: its log has it, or it was begun too often. Blocks."""
        s, standing = self.settings, self._standing.get(task.index)
        if standing is None:
            return None
        if standing.ended is not None and not self._goes_on(standing.ended.status):
            return standing.ended
        if standing.starts >= s.attempts and not s.retry_failed and not standing.waits:
            return poisoned(PodFolder(s.folder.home, s.folder.pod(task.index)), standing.starts)
        return None

    def _start(self, task: Task, name: str, cwd: Path) -> Hosted:
        s = self.settings
        manifest = s.manifest
        if cwd != s.workspaces.base:
            made = moved(manifest.manifest, str(s.workspaces.base), cwd)
            manifest = replace(manifest, manifest=made, digest=made.digest)
        options: dict[str, Any] = {**s.options, "cwd": cwd, "home": s.folder.home, "purse": self.purse}
        if (tell := self.watcher.event) is not None:
            options["observers"] = (partial(tell, task),)
        return self._host.start(manifest, task.text, name=name, key=KEY, **options)

    async def _told(self, task: Task, result: RunResult) -> None:
        """Puts a task's result into the file, graded, and says so. Shielded: what ended is kept."""
        grade = None
        if self.settings.grader is not None and result.status == "finished":
            grade = await self.settings.grader.grade(task, result)
        row = row_of(task, result, grade)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.results.add, row)
        self._touched.add(task.index)
        self.watcher.ended(task, row)


def _is_finished(standing: Standing | None) -> bool:
    """Whether the log still holds the end: without it, grading again would be doing the task again."""
    return standing is not None and standing.ended is not None and standing.ended.status == "finished"
