"""The tool `jobs`: what became of background commands."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import anyio.to_thread
from pydantic import Field

from worker.builtin.job_files import JobOutput
from worker.builtin.processes import Job, Processes
from worker.builtin.tool_state import PROCESSES_KEY, utc_now
from worker.items import ToolOutput
from worker.text import byte_prefix
from worker.tool_output import serialised_prefix, serialised_suffix
from worker.tools import MAX_OUTPUT, Tool, ToolContext, ToolFault, tool

LONGEST_WAIT = 600.0
"""Seconds that one call may wait for a job."""


def make_jobs(*, max_output: int = MAX_OUTPUT) -> Tool:
    """The tool; one answer holds at most `max_output` bytes of a job's output."""

    @tool(effect="process", max_output=max_output)
    async def jobs(
        context: ToolContext,
        action: Literal["list", "read", "stop"] = "list",
        id: str | None = None,
        since: Annotated[int, Field(ge=0)] | None = None,
        wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = 0.0,
    ) -> ToolOutput:
        """Lists background jobs, reads what one has written, or stops one with all its processes.

        Args:
            action: list all jobs, read the output of one, or stop one
            id: the job (p1, p2, ...), for read and stop
            since: the byte position from which on to read; the last answer names it. Without it, the newest output is
                read
            wait: seconds to wait for the job to end before reading
        """
        processes = context.get(Processes)
        if action == "list":
            found = await anyio.to_thread.run_sync(processes.list)
            return _listed(found)
        if id is None:
            raise ToolFault(f"jobs(action={action!r}) needs the id of a job; jobs() lists them")
        if action == "stop":
            return await _stopped(processes, id)
        job = await processes.wait(id, wait) if wait else await anyio.to_thread.run_sync(processes.get, id)
        output = await anyio.to_thread.run_sync(partial(processes.read, id, since, max_output))
        read = _read(job, output, since is not None, max_output)
        return read.model_copy(update={"state": await job_state(processes)})

    return jobs


def job_line(job: Job, now: datetime) -> str:
    """One job in one line."""
    minutes, seconds = divmod(max(int((now - job.started_at).total_seconds()), 0), 60)
    started = f"started {minutes} min {seconds} s ago" if minutes else f"started {seconds} s ago"
    command = " ".join(job.command.split())
    return f"{job.id}  {_status(job)}, pid {job.pid}, {started}: {byte_prefix(command, 200)}"


def _status(job: Job) -> str:
    if job.status == "exited" and job.exit_code is not None:
        return f"ended by signal {-job.exit_code}" if job.exit_code < 0 else f"exit code {job.exit_code}"
    return "ended, exit code unknown" if job.status == "gone" else job.status


async def job_state(processes: Processes) -> dict[str, Any]:
    """The jobs as they are now, as a result's `state`."""
    return {PROCESSES_KEY: await anyio.to_thread.run_sync(processes.state)}


def _listed(found: list[Job]) -> ToolOutput:
    if not found:
        return ToolOutput(summary="no background jobs")
    running = sum(job.status == "running" for job in found)
    text = "\n".join(job_line(job, utc_now()) for job in found)
    summary = f"{len(found)} background job{'' if len(found) == 1 else 's'}, {running} running"
    state = {PROCESSES_KEY: [job.model_dump(mode="json") for job in found]}
    return ToolOutput(summary=summary, content=text, state=state)


async def _stopped(processes: Processes, name: str) -> ToolOutput:
    before = await anyio.to_thread.run_sync(processes.get, name)
    if before.status != "running":
        summary = f"job {name} had already ended: {_status(before)}"
        return ToolOutput(summary=summary, state=await job_state(processes))
    left = await processes.stop(name)
    state = await job_state(processes)
    if left:
        summary = f"job {name} is NOT stopped: pids {', '.join(map(str, left))} still run after the kill signal"
        return ToolOutput(summary=summary, is_error=True, state=state)
    return ToolOutput(summary=f"job {name} stopped, all its processes are gone", state=state)


def _read(job: Job, output: JobOutput, from_position: bool, limit: int) -> ToolOutput:
    # From a position on, the start is what was asked for; else the newest output is.
    text = serialised_prefix(output.text, limit) if from_position else serialised_suffix(output.text, limit)
    used = len(text.encode())
    start, end = (
        (output.start, output.end)
        if used == len(output.text.encode())
        else ((output.start, output.start + used) if from_position else (output.end - used, output.end))
    )
    summary = f"job {job.id}: {_status(job)}; "
    summary += (
        f"output bytes {start}-{end} of {output.total}" if used else f"no new output, {output.total} bytes in all"
    )
    if output.first:
        summary += f"; the first {output.first} bytes were dropped"
    summary += f"; go on with since={end}" if end < output.total or job.status == "running" else ""
    return ToolOutput(summary=summary, content=text or None)
