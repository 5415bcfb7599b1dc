"""The compact worker's tools: seven when it starts from an overview, one declared tool (`compact_worker.declared`) when it
continues the pod's prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import anyio.to_thread

from compact_worker import session_log as session
from compact_worker.clip import clip
from compact_worker.declared import WRITE_SUMMARY, Named, Reread
from compact_worker.draft import Draft
from compact_worker.files import Files
from compact_worker.material import PrefixItems
from compact_worker.summary import Summary, SummaryRefused
from worker.items import ToolOutput
from worker.models.base import Family
from worker.tools import Tool, ToolContext, ToolFault, tool

OWN_TOOLS = frozenset(
    {
        "search_session_log",
        "read_session_items",
        "read_file",
        "mark_read_required",
        "unmark",
        "add_reference",
        WRITE_SUMMARY,
    }
)
"""Names of the tools of a worker that starts from an overview."""

READ_LINES = 400
"""Lines that `read_file` gives unless asked for more."""

SHOWN_DROPPED = 3
"""Dropped directives that a result quotes."""


def live_write_summary(declared: Tool, draft: Draft) -> Tool:
    """The declared tool as it works inside a compaction: same name, description and schema."""

    async def write(values: dict[str, Any], context: ToolContext) -> ToolOutput:
        summary = await _write(draft, values["text"])
        rereads: Sequence[Reread] = values.get("reread") or ()
        references: Sequence[Named] = values.get("references") or ()
        # A call brings the whole choice of files, so a second one replaces the first.
        draft.forget_files()
        refused: list[str] = []
        for each in rereads:
            try:
                await draft.mark(each.path, each.offset, each.limit)
            except ToolFault as e:
                refused.append(str(e))
        for each in references:
            try:
                await draft.refer(each.path, each.reason)
            except ToolFault as e:
                refused.append(str(e))
        said = _recorded(summary, draft)
        if not refused:
            return ToolOutput.from_text(said)
        lines = [
            said,
            "Refused, and left out unless you call again with the whole lists mended:",
            *(f"- {line}" for line in refused),
        ]
        return ToolOutput(summary=said[:400], content="\n".join(lines))

    return replace(declared, call=write)


@dataclass(frozen=True, slots=True)
class Desk:
    """What the tools of one compaction work on."""

    log: PrefixItems
    draft: Draft
    files: Files
    family: Family


def overview_tools(log: PrefixItems, draft: Draft, files: Files, family: Family) -> tuple[Tool, ...]:
    """The seven tools of a worker that starts from an overview."""
    desk = Desk(log, draft, files, family)
    return tuple(_at(desk, each) for each in _declared())


def _at(desk: Desk, declared: Tool) -> Tool:
    """A tool as it works on this desk: same name, description and schema."""

    def call(values: dict[str, Any], context: ToolContext) -> Any:
        return declared.call(values, replace(context, deps=desk))

    return replace(declared, call=call)


@cache
def _declared() -> tuple[Tool, ...]:
    """The seven tools, made once: their schemas cost more than a short compaction. Their `deps` is a desk."""

    @tool(name="search_session_log", prunable=True)
    async def search_session_log(deps: Desk, query: str, offset: int = 0, limit: int = session.HITS) -> ToolOutput:
        """Finds items of the summarised part whose text holds a word or phrase (literal, case does not matter).

        Args:
            query: the text to look for
            offset: how many hits to pass over
            limit: how many hits to show, at most 50
        """
        return await anyio.to_thread.run_sync(session.search, deps.log, query, offset, limit, deps.family)

    @tool(name="read_session_items", prunable=True)
    async def read_session_items(deps: Desk, offset: int, limit: int = 20, mode: session.Mode = "brief") -> ToolOutput:
        """Reads items of the summarised part by number. An answer is bounded and says where to go on.

        Args:
            offset: number of the first item, from 1
            limit: how many items, at most 80
            mode: brief (messages, summaries of tool results) or full (tool content and arguments too)
        """
        return await anyio.to_thread.run_sync(session.read_items, deps.log, offset, limit, mode, deps.family)

    @tool(name="read_file", prunable=True)
    async def read_file(deps: Desk, path: str, offset: int = 1, limit: int = READ_LINES) -> ToolOutput:
        """Reads lines of a file as it is now.

        Args:
            path: the file
            offset: number of the first line, from 1
            limit: how many lines
        """
        found = await deps.files.slice(path, offset, limit)
        text = clip(found.text, tokens=session.MAX_TOKENS, size=session.MAX_BYTES, family=deps.family)
        last = found.last
        if len(text) < len(found.text):
            last = found.first + text.count("\n")
            text += f"\n[cut in line {last}: ask for fewer lines]"
        of = "" if found.total is None else f" of {found.total}"
        return ToolOutput(summary=f"read_file {found.name} lines {found.first}-{last}{of}", content=text)

    @tool(name="mark_read_required", resource="path")
    async def mark_read_required(deps: Desk, path: str, offset: int = 1, limit: int | None = None) -> ToolOutput:
        """Marks lines of a file that the agent must have in view after the compaction; charged against a budget.

        Args:
            path: the file
            offset: number of the first line, from 1
            limit: how many lines; without it, to the end of the file
        """
        name, cost = await deps.draft.mark(path, offset, limit)
        ranges = ", ".join(f"{r.first}-{r.last}" for r in deps.draft.marks[name])
        return ToolOutput(
            summary=f"marked {name} lines {ranges} ({cost:,} tokens); {deps.draft.left:,} of {deps.draft.budget:,} tokens left"
        )

    @tool(name="unmark", resource="path")
    async def unmark(deps: Desk, path: str) -> ToolOutput:
        """Takes a file out: it is neither read again nor named, also where it was touched recently.

        Args:
            path: the file
        """
        name, known = await anyio.to_thread.run_sync(deps.draft.unmark, path)
        was = "taken out" if known else "will not be named"
        return ToolOutput(summary=f"{name}: {was}; {deps.draft.left:,} of {deps.draft.budget:,} tokens left")

    @tool(name="add_reference", resource="path")
    async def add_reference(deps: Desk, path: str, reason: str = "") -> ToolOutput:
        """Names a file that the agent may want to read again, without its content.

        Args:
            path: the file
            reason: why, in a few words
        """
        name = await deps.draft.refer(path, reason)
        marked = name in deps.draft.marks
        return ToolOutput(summary=f"{name} is marked to be read already" if marked else f"{name} will be named")

    @tool(name=WRITE_SUMMARY, prunable=False, resource="text")
    async def write_summary(deps: Desk, text: str) -> ToolOutput:
        """Hands over the summary. A later call replaces it; the last valid text counts.

        Args:
            text: the summary, with the sections that the order names
        """
        return ToolOutput.from_text(_recorded(await _write(deps.draft, text), deps.draft))

    return (
        search_session_log, read_session_items, read_file, mark_read_required, unmark, add_reference, write_summary
    )  # fmt: skip


async def _write(draft: Draft, text: str) -> Summary:
    try:
        return await anyio.to_thread.run_sync(partial(draft.write, text))
    except SummaryRefused as e:
        kept = "; the summary that was recorded before still counts" if draft.summary else ""
        raise ToolFault(f"summary refused: {e}{kept}") from e


def _recorded(summary: Summary, draft: Draft) -> str:
    parts = [f"summary recorded: {summary.tokens:,} of at most {draft.rules.max_tokens:,} tokens"]
    if summary.dropped:
        shown = "; ".join(text[:60] for text in summary.dropped[:SHOWN_DROPPED])
        parts.append(
            f"dropped from User Directives, as no user message holds it word for word ({len(summary.dropped)}): {shown}"
        )
    if summary.moved:
        parts.append(f"moved to Findings, as tools or files said it and not the user: {len(summary.moved)}")
    if summary.excluded:
        parts.append(f"statements about approvals or grants, marked as unverified: {summary.excluded}")
    if summary.lost:
        parts.append(f"entries of the previous summary that are gone: {', '.join(summary.lost[:20])}")
    return ". ".join(parts)
