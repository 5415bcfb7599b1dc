"""What was asked of a pod and acknowledged is still done after its process has died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crash.crash_job import call_of, manifest

from pod import Pod
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.inbox import Command
from pod.reading import SessionReader
from pod.session import Session
from worker.errors import BadRequest
from worker.items import AssistantItem, ToolResultItem
from worker.models.base import Reply, Request
from worker.testing import FunctionModel, make_reply
from worker.tools import tool

pytestmark = pytest.mark.anyio


@tool(effect="read")
async def page(n: int) -> str:
    """Gives a page."""
    return "\n".join(f"page {n}, line {line}, of which nothing is to be said" for line in range(40))


def decide(request: Request) -> Reply:
    seen = sum(isinstance(item, ToolResultItem) for item in request.items)
    return make_reply(call_of("page", {"n": seen}) if seen < 4 else AssistantItem(text="done"))


def refuse(request: Request) -> Reply:
    raise BadRequest("no summary", status=400)


def open_pod(root: Path) -> Pod:
    root.mkdir(exist_ok=True)
    more: dict[str, Any] = {
        "model": FunctionModel("offline:a", decide),
        "compact_model": FunctionModel("offline:b", refuse),
    }
    return Pod.open(manifest(), name="p", home=root / "home", cwd=root, tools=[page], **more)


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "interrupted"])
async def test_a_compaction_that_was_ordered_is_made_after_a_crash_and_once(tmp_path: Path, begun: bool) -> None:
    """The order was taken from the inbox; then the process died, before the compaction or in the middle of it."""
    async with open_pod(tmp_path) as pod:
        (await pod.run("Read four pages.")).raise_for_status()
    session = Session.open(tmp_path / "home", "p")
    command = Command(kind="compact", args={"focus": "the pages"})
    session.put(e.Commanded(id=command.id, command="compact", args=command.args))
    if begun:
        session.put(e.CompactionStarted(compaction="k", trigger="hand", tokens=1))
    session.close()
    for _ in range(2):
        async with open_pod(tmp_path) as pod:
            (await pod.run("And now?")).raise_for_status()
    lines = SessionReader(PodFolder(tmp_path / "home", "p")).lines()
    found = [r for line in lines if isinstance(r := e.record_of(line), e.CompactionStarted) and r.compaction != "k"]
    assert [(record.trigger, record.focus) for record in found] == [("hand", "the pages")]
