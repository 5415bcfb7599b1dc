"""The background jobs of a pod: started, listed, read, stopped; known again after a restart."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from worker.builtin.job_files import JOB_LIMIT, JobOutput, exit_code, read_output
from worker.builtin.process_table import Target, call_environment, descendants, end, environment_of, in_group, look_at
from worker.builtin.tool_state import utc_now
from worker.masking import Masker
from worker.tools import ToolFault

JobStatus: TypeAlias = Literal["running", "exited", "gone"]


class Job(BaseModel):
    """A background job. `pid` leads the group `pgid`; `start_ticks` tells the process from a later one with the same
    id.

    `gone` means: it runs no longer, and nothing recorded its exit code.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    pid: int
    pgid: int
    command: str
    started_at: datetime
    call_id: str
    start_ticks: int = 0
    status: JobStatus = "running"
    exit_code: int | None = None


class Processes:
    """The table of background jobs: p1, p2, ...; each in a process group of its own.

    `folder` holds what they write, at most `limit` bytes each; `owner` (the session's id) tells the children of this
    pod from those of others in `POD_OWNER`. Secrets that `masker` knows are replaced in what is kept of their output. The jobs
    outlast the runtime until `end_all`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        owner: str = "",
        limit: int = JOB_LIMIT,
        now: Callable[[], datetime] = utc_now,
        masker: Masker | None = None,
    ) -> None:
        self.owner = owner
        # By its standard input: neither a command line nor an environment may hold a secret.
        self._masks = json.dumps({"secrets": dict(masker.secrets), "shapes": masker.shapes} if masker else {}).encode()
        self._folder = Path(folder).absolute()
        self._limit = limit
        self._now = now
        self._jobs: dict[str, Job] = {}

    def environment(self, call_id: str) -> dict[str, str]:
        """What marks the children of a call."""
        return call_environment(call_id, self.owner)

    async def start(
        self, argv: Sequence[str], *, command: str, cwd: Path, environment: Mapping[str, str], call_id: str
    ) -> Job:
        """Starts a job. Raises `ToolFault` where it cannot be started.

        Not cancellable, so that no job runs that nobody knows: it takes some ten milliseconds.
        """
        name, folder = await anyio.to_thread.run_sync(self._new_folder)
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervise.py")), str(folder)]
        environment = {**environment, **self.environment(call_id)}
        with anyio.CancelScope(shield=True):
            pid = await _launch([*program, str(self._limit), *argv], cwd, environment, self._masks)
            found = await anyio.to_thread.run_sync(look_at, pid)
            self._jobs[name] = Job(
                id=name,
                pid=pid,
                pgid=pid,
                command=command,
                started_at=self._now().astimezone(UTC),
                call_id=call_id,
                start_ticks=found.started if found else 0,
            )
        return self._jobs[name]

    def _new_folder(self) -> tuple[str, Path]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((int(name[1:]) for name in self._jobs), default=0)
        while True:
            number += 1
            folder = self._folder / f"p{number}"
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return f"p{number}", folder

    def list(self) -> list[Job]:
        """All jobs, as they are now. Blocks for some milliseconds where jobs run."""
        for job in list(self._jobs.values()):
            self._jobs[job.id] = self._refreshed(job)
        return sorted(self._jobs.values(), key=lambda job: int(job.id[1:]))

    def _refreshed(self, job: Job) -> Job:
        if job.status != "running" or self._members(job):
            return job
        code = exit_code(self._folder / job.id)
        return job.model_copy(update={"status": "gone" if code is None else "exited", "exit_code": code})

    def _members(self, job: Job) -> list[int]:
        """The living processes of the job. An id that now belongs to another process is not one of them."""
        leader = look_at(job.pid)
        if leader is not None and leader.started == job.start_ticks and leader.pgid == job.pgid:
            return sorted({*in_group(job.pgid), *descendants(job.pid)})
        if leader is not None and leader.started:
            return []
        marks = self.environment(job.call_id).items()
        members = [(pid, environment_of(pid)) for pid in in_group(job.pgid)]
        return [pid for pid, found in members if found is not None and marks <= found.items()]

    def get(self, name: str) -> Job:
        """One job, as it is now. Raises `ToolFault` for an unknown id, with the known ones."""
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            near = difflib.get_close_matches(name, self._jobs, 1, 0.5)
            raise ToolFault(f"no such job: {name}.{f' Did you mean {near[0]}?' if near else ''} Known jobs: {known}.")
        self._jobs[name] = self._refreshed(self._jobs[name])
        return self._jobs[name]

    def read(self, name: str, since: int | None, limit: int) -> JobOutput:
        """A part of a job's output: from the byte position `since` on, or the last `limit` bytes. Blocks."""
        return read_output(self._folder / self.get(name).id, since, limit)

    async def wait(self, name: str, seconds: float) -> Job:
        """Waits until the job has ended, at most so many seconds. Cancelled, it changes nothing."""
        pause = 0.01
        with anyio.move_on_after(seconds):
            while (await anyio.to_thread.run_sync(self.get, name)).status == "running":
                await anyio.sleep(pause)
                pause = min(pause * 1.5, 0.5)
        return self._jobs[name]

    async def stop(self, name: str, *, grace: float = 3.0) -> list[int]:
        """Ends the job's whole group and returns when it is gone; gives the ids of processes that could not be ended.

        Not cancellable, bounded by `grace` plus five seconds (case B087).
        """
        left: list[int] = []
        with anyio.CancelScope(shield=True):
            job = await anyio.to_thread.run_sync(self.get, name)
            if job.status == "running" and await anyio.to_thread.run_sync(self._members, job):
                # A process that left the group still carries the call, which only an owner makes unique.
                marks = self.environment(job.call_id) if self.owner else None
                left = await end(Target(job.pgid, marks, job.pid), grace=grace)
            await anyio.to_thread.run_sync(self.get, name)
        return left

    async def end_all(self, *, grace: float = 3.0) -> dict[str, list[int]]:
        """Ends all running jobs at once; gives the survivors by job, where there are any."""
        left: dict[str, list[int]] = {}

        async def one(name: str) -> None:
            if survivors := await self.stop(name, grace=grace):
                left[name] = survivors

        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for name in list(self._jobs):
                    tasks.start_soon(one, name)
        return left

    def state(self) -> list[dict[str, Any]]:
        """All jobs as JSON values, for `state["processes"]`."""
        return [job.model_dump(mode="json") for job in self.list()]

    def adopt(self, state: Sequence[Mapping[str, Any]] | None) -> list[Job]:
        """Takes over the jobs of an earlier runtime; gives those that have ended since.

        An id that now belongs to another process counts as ended: the start time and the environment tell. Entries
        that are not jobs are left out. Blocks.
        """
        before: dict[str, Job] = {}
        for entry in state or ():
            try:
                job = Job.model_validate(entry)
            except ValidationError:
                continue
            if job.id[:1] == "p" and job.id[1:].isdigit():
                before[job.id] = job
        self._jobs = before | self._jobs
        ended = [job.id for job in self.list() if job.id in before and job.status != before[job.id].status]
        return [self._jobs[name] for name in ended]


async def _launch(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], masks: bytes) -> int:
    """Starts a supervisor, tells it what to mask, and gives its process id."""
    try:
        launched = await anyio.run_process(
            argv, input=masks, stderr=subprocess.STDOUT, cwd=cwd, env=environment, check=False
        )
    except OSError as e:
        raise ToolFault(f"the job could not be started: {e.strerror or e}") from e
    answer = launched.stdout.decode(errors="replace").strip()
    if not answer.isdigit():
        raise ToolFault(f"the job could not be started: {answer.removeprefix('error ')[-300:] or 'no answer'}")
    return int(answer)
