"""The tool `shell`: a command line, in the foreground or as a background job."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import anyio
from pydantic import Field

from worker.builtin.artifacts import Artifacts
from worker.builtin.jobs import job_state
from worker.builtin.output import Collected, OutputCollector
from worker.builtin.process_table import call_environment
from worker.builtin.processes import Processes
from worker.builtin.run_command import Ended, run_command
from worker.builtin.sandbox import lent
from worker.builtin.shell_environment import shell_environment, trace_environment
from worker.ids import uuid7
from worker.items import SUMMARY_CHARS, SUMMARY_LINES, ToolOutput
from worker.text import size
from worker.tools import MAX_OUTPUT, Tool, ToolContext, ToolFault, tool

TIMEOUT = 120.0
"""Seconds that a command may take where the call does not say."""

LONGEST = 3_600.0
"""The longest timeout that a call may ask for; what takes longer is a background job."""


def shell_argv(command: str) -> list[str]:
    """How a command line is run: by bash where there is one, else by sh; no start-up files."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def make_shell(*, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT, env: Sequence[str] = ()) -> Tool:
    """The tool, with the default timeout in seconds and further environment variables that may pass to commands."""

    @tool(effect="process", max_output=max_output)
    async def shell(
        command: Annotated[str, Field(min_length=1)],
        context: ToolContext,
        timeout: Annotated[float, Field(gt=0, le=LONGEST)] | None = None,
        background: bool = False,
    ) -> ToolOutput:
        """Runs a command line in the working folder and returns its exit code and output (stdout and stderr together).

        There is no input: commands that ask questions fail at once, so pass flags such as --yes. Processes that the
        command leaves running are ended with it; for a server or a long build set background, and follow it with the
        tool jobs.

        Args:
            command: the command line, run by bash (or sh)
            timeout: seconds after which the command and all its processes are ended
            background: start it as a background job and return its id at once
        """
        if "\0" in command:
            raise ToolFault("the command holds a NUL character")
        if background:
            return await _start_job(command, context, env)
        return await _run(command, context, timeout or default, max_output, env)

    default = timeout
    return shell


async def _start_job(command: str, context: ToolContext, env: Sequence[str]) -> ToolOutput:
    processes = context.get(Processes)
    outputs: list[ToolOutput] = []
    argv, environment = await _started_as(command, context, env)
    # Once the job runs, its entry has to reach the log: a cancellation waits for these some ten milliseconds.
    with anyio.CancelScope(shield=True):
        job = await processes.start(
            argv, command=command, cwd=context.cwd, environment=environment, call_id=context.call_id
        )
        summary = f"background job {job.id} started (pid {job.pid}): {_first_line(command)}"
        outputs.append(ToolOutput(summary=summary, state=await job_state(processes)))
    return outputs[0]


async def _started_as(command: str, context: ToolContext, env: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment with which a command line is started."""
    argv, environment = shell_argv(command), shell_environment(env) | trace_environment()
    if (sandbox := lent(context.services)) is None:
        return argv, environment
    return await anyio.to_thread.run_sync(sandbox.command, argv, context.cwd), sandbox.environment(environment)


async def _run(command: str, context: ToolContext, timeout: float, max_output: int, env: Sequence[str]) -> ToolOutput:
    artifacts = context.services.get(Artifacts)
    processes = context.services.get(Processes)
    owner = processes.owner if isinstance(processes, Processes) else ""
    spool = partial(artifacts.writer, context.call_id, "shell.txt") if isinstance(artifacts, Artifacts) else None
    collector = OutputCollector(max_output, spool)
    argv, environment = await _started_as(command, context, env)
    started = time.monotonic()
    try:
        ended = await run_command(
            argv,
            cwd=context.cwd,
            environment={**environment, **call_environment(context.call_id, owner)},
            # Unlike a call id, it is never used twice: what carries it belongs to this very command.
            mark={"POD_COMMAND_ID": uuid7()},
            collector=collector,
            timeout=timeout,
        )
    except OSError as e:
        raise ToolFault(f"the command could not be started in {context.cwd}: {e.strerror or e}") from e
    finally:
        collector.close()
    output = collector.finish()
    headline = _headline(command, ended, output, time.monotonic() - started, timeout)
    is_error = ended.code != 0 or ended.timed_out
    sandbox = lent(context.services)
    note = sandbox.told() if sandbox is not None and is_error else ""
    return _as_output(headline, output, note, is_error=is_error)


def _headline(command: str, ended: Ended, output: Collected, seconds: float, timeout: float) -> str:
    if ended.timed_out:
        how = f"timed out after {timeout:g} s, all its processes were ended"
    elif ended.code is None:
        how = "did not end"
    elif ended.code < 0:
        how = f"ended by signal {-ended.code}"
    else:
        how = f"exit code {ended.code}"
    if ended.survivors:
        how += f", NOT STOPPED: pids {', '.join(map(str, ended.survivors))} still run"
    elif ended.left and not ended.timed_out:
        how += f", {ended.left} left-over process{'es' if ended.left > 1 else ''} ended"
    how += f", {seconds:.1f} s"
    lines = f"{output.lines} line{'' if output.lines == 1 else 's'}"
    how += f", {lines}, {size(output.size)}" if output.size else ", no output"
    if output.not_text:
        how += f", {output.not_text} byte{'' if output.not_text == 1 else 's'} of binary data shown as \ufffd"
    return f"shell {_first_line(command)}: {how}"


def _first_line(command: str) -> str:
    line = command.strip().splitlines()[0] if command.strip() else ""
    return line if line == command.strip() and len(line) <= 100 else line[:97] + "..."


def _as_output(headline: str, output: Collected, note: str, *, is_error: bool) -> ToolOutput:
    """Short outputs stand in the summary, which outlasts a prune; others are content. `note` stands behind them."""
    text = output.text.rstrip("\n")
    if note:
        text = f"{text}\n{note}" if text else note
        output = output._replace(text=f"{text}\n")
    whole = f"{headline}\n{text}" if text else headline
    if output.artifact is None and len(whole) <= SUMMARY_CHARS and whole.count("\n") < SUMMARY_LINES:
        return ToolOutput(summary=whole, is_error=is_error)
    return ToolOutput(summary=headline, content=output.text, is_error=is_error, artifact=output.artifact)
