"""A hook as a program: JSON on its standard input, its answer by exit code and output, gone when it returns."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from pod.hooks.answers import Answer, Broken, of_program
from worker.builtin.output import OutputCollector
from worker.builtin.process_table import call_environment
from worker.builtin.run_command import run_command
from worker.builtin.shell_environment import shell_environment, trace_environment
from worker.ids import uuid7

MOST = 65_536
"""Bytes of a hook's output, and of its standard error, that are kept."""

LABEL = "hook"
"""What stands in `POD_CALL_ID` of a hook's processes, by which a later runtime finds those of one that was killed."""


async def run_program(command: Sequence[str], data: bytes, *, cwd: Path, owner: str, timeout: float) -> Answer | Broken:
    """Runs a program in the working folder, in a process group of its own and with the environment of the tool `shell`.

    After `timeout` seconds, and where this is cancelled, all that it started is ended before this returns.
    """
    output, errors = OutputCollector(MOST), OutputCollector(MOST)
    given = await anyio.to_thread.run_sync(_file, data)
    try:
        ended = await run_command(
            command,
            cwd=cwd,
            environment={**shell_environment(), **trace_environment(), **call_environment(LABEL, owner)},
            mark={"POD_COMMAND_ID": uuid7()},
            collector=output,
            timeout=timeout,
            read_from=given,
            errors=errors,
        )
    except OSError as error:
        return Broken(f"{command[0]} can't be started in {cwd}: {error.strerror or error}{_way_out(error, command[0])}")
    except ValueError as error:
        return Broken(f"{command[0]!r} can't be started: {error}")
    finally:
        os.close(given)
    if ended.survivors:
        return Broken(f"processes {', '.join(map(str, ended.survivors))} of it could not be ended")
    if ended.timed_out:
        return Broken(f"no answer within {timeout:g} s; it was ended")
    said = output.finish()
    if ended.code == 0 and said.size > MOST:
        return Broken(f"its output has {said.size:,} bytes; {MOST:,} are read")
    return of_program(ended.code, said.text, errors.finish().text)


def _file(data: bytes) -> int:
    """A descriptor of a file without a name that holds the data: a program that reads nothing blocks nobody."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        return os.dup(file.fileno())


def _way_out(error: OSError, program: str) -> str:
    if error.errno == errno.ENOEXEC:
        return " (a script begins with a line such as #!/bin/sh)"
    return f" (chmod +x {program})" if error.errno == errno.EACCES else ""
