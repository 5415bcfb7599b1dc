"""The tool `read_file`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from worker.builtin.artifacts import PREFIX, Artifacts
from worker.builtin.blocking import give_up_if_cancelled, in_thread
from worker.builtin.file_range import as_read, read_range
from worker.builtin.scope import Scope
from worker.items import ToolOutput
from worker.tools import MAX_OUTPUT, Tool, ToolContext, tool


def make_read_file(*, max_output: int = MAX_OUTPUT) -> Tool:
    """The tool; one answer holds at most `max_output` bytes of the file, measured as serialised."""

    @tool(effect="read", idempotent=True, max_output=max_output, reads_artifacts=True)
    async def read_file(
        path: str,
        context: ToolContext,
        offset: Annotated[int, Field(ge=1)] = 1,
        limit: Annotated[int, Field(ge=1)] | None = None,
        column: Annotated[int, Field(ge=1)] = 1,
    ) -> ToolOutput:
        """Reads lines of a text file, exactly as they stand there (without line numbers).

        The first line of the answer says which lines it shows, and how to go on where there is more. Whole outputs of
        earlier calls are read as artifact:NAME.

        Args:
            path: the file, relative to the working folder, or artifact:NAME
            offset: the first line to read, counted from 1
            limit: how many lines to read; without it, as many as one answer can hold
            column: where in the first line to start, in bytes counted from 1; only to go on in a line that was cut
        """
        if path.startswith(PREFIX):
            artifacts = context.get(Artifacts)
            found = await in_thread(artifacts.path, path)
            scope, target = artifacts.scope(), found.name
        else:
            scope, target = context.get(Scope), path
        part = await in_thread(
            read_range, scope, target, offset, limit, max_output, column=column, check=give_up_if_cancelled
        )
        if path.startswith(PREFIX):
            # An artifact is no file of the user's: it is not offered again as one that the agent works on.
            return as_read(replace(part, name=PREFIX + target), "read_file").model_copy(update={"reads": None})
        return as_read(part, "read_file")

    return read_file
