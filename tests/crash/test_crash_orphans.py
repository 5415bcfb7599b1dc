"""A tool's child outlives a killed runtime: resume ends it, says so, and only then closes the call."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from crash.crash_job import call_of
from crash.crash_shards import python

from pod import Manifest, Pod
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder
from pod.reading import SessionReader
from pod.testing import CRASHED
from worker.builtin.process_table import in_group, look_at
from worker.items import AssistantItem, ToolResultItem
from worker.models.base import Reply, Request
from worker.records import Record, ToolResult
from worker.testing import FunctionModel, check_request, make_reply

COMMAND = "sleep 300 & (setsid sleep 300 & echo $! >> pids) ; echo $$ >> pids; wait"
"""A shell, a child in its group, and one that left the group: all carry the mark of the call."""


def decide(request: Request) -> Reply:
    results = [item for item in request.items if isinstance(item, ToolResultItem)]
    if not results:
        return make_reply(call_of("shell", {"command": COMMAND, "timeout": 200}))
    return make_reply(AssistantItem(text=f"{results[0].status}: {results[0].summary}"))


class Strict(FunctionModel):
    async def send(self, request: Request, emit: Any) -> Reply:
        check_request(request, self.encoder)
        return await super().send(request, emit)


def open_pod(root: Path, files: Files | None = None) -> Pod:
    made = Manifest.model_validate({
        "tools": {"enable": ["shell"]}, "permissions": {"rules": [{"tool": "*", "action": "allow"}]}, "scope": {"read": ["."], "write": ["."]},
    })  # fmt: skip
    (root / "work").mkdir(exist_ok=True)
    return Pod.open(
        made, name="p", home=root / "home", cwd=root / "work", model=Strict("offline:agent", decide), files=files
    )


async def begin(root: Path) -> None:
    async with open_pod(root) as pod:
        await pod.run("Start it.")


async def resume(root: Path, files: Files | None = None) -> str:
    async with open_pod(root, files) as pod:
        return (await pod.resume()).raise_for_status().text


def pids(root: Path) -> list[int]:
    path = root / "work" / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The folder of a pod whose runtime was killed while a command ran, which still runs."""
    code = "import sys, anyio\nfrom pathlib import Path\nfrom crash.test_crash_orphans import begin\nanyio.run(begin, Path(sys.argv[1]))"
    child = python("-c", code, tmp_path, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while len(pids(tmp_path)) < 2 and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.02)
                raise AssertionError(child.stderr.read() if child.stderr else "")
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert len(pids(tmp_path)) == 2 and all(look_at(pid) for pid in pids(tmp_path)), "they outlive the runtime"
        yield tmp_path
    finally:
        if child.stderr is not None:
            child.stderr.close()
        for pid in pids(tmp_path):
            for living in in_group(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(living, signal.SIGKILL)


def records(root: Path) -> list[Record]:
    found = [e.record_of(line) for line in SessionReader(PodFolder(root / "home", "p")).lines()]
    return [record for record in found if record is not None]


@pytest.mark.anyio
async def test_survivors_are_ended_and_put_on_record_before_their_call_is_closed(killed: Path) -> None:
    """B063, B086, PROC: by the mark in their environment, those that left the group too."""
    survivors, closed = pids(killed), list[list[int]]()
    async with open_pod(killed) as pod:
        pod.running.session.listeners.append(
            lambda line, record: (
                closed.append([p for p in survivors if look_at(p)]) if isinstance(record, ToolResult) else None
            )
        )
        result = (await pod.resume()).raise_for_status()
    assert closed == [[]], "nothing of the call runs any more when its result is put on record"
    assert "outcome unknown" in result.text
    found = records(killed)
    ended = [n for n, record in enumerate(found) if isinstance(record, e.OrphanKilled)]
    results = [n for n, record in enumerate(found) if isinstance(record, ToolResult)]
    assert len(ended) == len(results) == 1 and ended[0] < results[0]
    orphan, item = found[ended[0]], found[results[0]]
    assert isinstance(orphan, e.OrphanKilled) and isinstance(item, ToolResult)
    assert set(survivors) <= set(orphan.pids) and orphan.call_id == item.item.call_id
    assert pids(killed) == survivors, "the command did not run again"


def test_a_recovery_that_dies_in_between_ends_the_survivors_and_closes_the_call_once(killed: Path) -> None:
    """Crashed at each of its operations until the call is closed, then resumed."""
    survivors, ends = pids(killed), list[bool]()
    base = killed / "base"
    shutil.copytree(killed / "home", base)
    for at in range(1, 30):
        shutil.rmtree(killed / "home")
        shutil.copytree(base, killed / "home")
        code = (
            "import sys, anyio\nfrom pathlib import Path\nfrom crash.test_crash_orphans import resume\nfrom pod.testing import CrashingFiles\n"
            "anyio.run(resume, Path(sys.argv[1]), CrashingFiles(int(sys.argv[2])))"
        )
        child = python("-c", code, killed, at)
        assert child.wait(timeout=60) in {0, CRASHED}
        alive = [pid for pid in survivors if look_at(pid)]
        closed = [record for record in records(killed) if isinstance(record, ToolResult)]
        assert not (alive and closed), "closed while it ran"
        ends.append(bool(closed))
        text = anyio.run(resume, killed) if child.returncode else ""
        assert child.returncode == 0 or "outcome unknown" in text
        assert sum(isinstance(record, ToolResult) for record in records(killed)) == 1
        assert not [pid for pid in survivors if look_at(pid)] and pids(killed) == survivors
        if child.returncode == 0 or closed:
            break
    assert ends[0] is False and ends[-1] is True
