"""Calls of `session_history` as a model makes them; what holds for every answer is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log.logs import started

from pod.log import entries as e
from pod.reading import SessionReader
from pod.session import Session
from pod.tools.session_history import ANSWER_BYTES, LABEL, session_history
from worker.items import ContextItem, ToolOutput
from worker.tool_output import serialised_size
from worker.tools import ToolContext, ToolFault

SUMMARY = (ContextItem(kind="summary", text="the story so far"),)


def reader_of(session: Session) -> SessionReader:
    return SessionReader(session.folder, taken_back=lambda: session.state.taken_back)


async def ask(session: Session, *, reader: SessionReader | None = None, **arguments: Any) -> ToolOutput:
    session.writer.sync_now()
    return await asked(reader or reader_of(session), **arguments)


async def asked(reader: SessionReader, **arguments: Any) -> ToolOutput:
    context = ToolContext("c", "session_history", Path(), services={SessionReader: reader})
    complaint = session_history.check(arguments)
    assert complaint is None, complaint
    output = await session_history.run(arguments, context)
    assert serialised_size(f"{output.summary}\n{output.content or ''}") <= ANSWER_BYTES
    assert output.content is None or output.content.startswith(LABEL)
    assert len(output.summary) <= 400
    return output


def values(output: ToolOutput) -> list[dict[str, Any]]:
    """The lines of an answer behind its label; of an item that is read, only the one about the page."""
    lines = (output.content or LABEL).split("\n")[1:]
    return [json.loads(line) for line in (lines[:1] if is_page(output) else lines)]


def is_page(output: ToolOutput) -> bool:
    return output.summary.startswith("session_history item ")


def rows(output: ToolOutput) -> list[dict[str, Any]]:
    return [row for row in values(output) if "id" in row]


def page(output: ToolOutput) -> str:
    """The characters of an item that an answer gives."""
    assert is_page(output)
    return (output.content or "").split("\n", 2)[2]


def cursor(output: ToolOutput) -> str | None:
    return next((row["cursor"] for row in values(output) if "cursor" in row), None)


async def pages(session: Session, most: int = 200, **arguments: Any) -> list[ToolOutput]:
    """All answers to one question, the cursor of each given with the next; none but the last is the end."""
    found: list[ToolOutput] = []
    reader, at = reader_of(session), dict[str, Any]()
    while True:
        output = await ask(session, reader=reader, **arguments, **at)
        found.append(output)
        following = cursor(output)
        if following is None:
            assert "bound" not in output.summary
            return found
        if not is_page(output):
            assert "ended by a bound" in output.summary and "everything" not in output.summary
        at = {"cursor": following}
        assert len(found) < most


async def every(session: Session, **arguments: Any) -> tuple[list[dict[str, Any]], list[ToolOutput]]:
    answers = await pages(session, **arguments)
    return [row for output in answers for row in rows(output)], answers


async def whole(session: Session, item: str, **more: Any) -> str:
    """An item from all its pages."""
    return "".join(page(o) for o in await pages(session, action="read_item", item=item, **more) if is_page(o))


async def refused(session: Session, **arguments: Any) -> str:
    """The refusal at the end of all pages."""
    with pytest.raises(ToolFault) as caught:
        await pages(session, **arguments)
    return str(caught.value)


async def switch(session: Session, kind: e.LineageKind = "compacted_from", **more: Any) -> None:
    await session.switch(started(session, kind, **{"items": SUMMARY, **more}))
