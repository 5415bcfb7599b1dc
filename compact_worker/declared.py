"""The one tool of the compact worker that a pod declares among its own.

Apart from the others, since a pod that compacts nothing needs none of what they do: what a summary is checked by takes longer to load.
"""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from compact_worker import prompt
from worker.items import ToolOutput
from worker.tools import Tool, ToolFault, tool

WRITE_SUMMARY = "write_summary"
"""The tool whose last valid text is the summary."""


class Reread(BaseModel):
    """Lines of a file to read again: `offset` is the first (from 1), `limit` how many; without it, to the end."""

    model_config = ConfigDict(extra="forbid")

    path: str
    offset: int = Field(default=1, ge=1)
    limit: int | None = Field(default=None, ge=1)


class Named(BaseModel):
    """A file that it is enough to name, with the reason."""

    model_config = ConfigDict(extra="forbid")

    path: str
    reason: str = ""


@cache
def declared_write_summary() -> Tool:
    """The tool that a pod declares among its own, so that a compaction can continue its prefix byte for byte.

    Outside a compaction it answers with an error and records nothing.
    """

    @tool(name=WRITE_SUMMARY, effect="read", prunable=False, resource="text")
    def write_summary(
        text: str, reread: list[Reread] | None = None, references: list[Named] | None = None
    ) -> ToolOutput:
        """Hands over the summary that an order of the runtime asks for. At any other time it does nothing.

        Args:
            text: the summary, with the sections that the order names
            reread: lines of files to be put into the context again, as {path, offset, limit}
            references: files that it is enough to name, as {path, reason}
        """
        raise ToolFault(prompt.OUTSIDE)

    return write_summary
