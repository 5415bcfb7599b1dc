"""A service whose home is a database that other machines write to as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from service.service_rig import Rig
from store.conftest import database as database
from store.conftest import postgres as postgres

from pod.log.folder import default_home

pytestmark = pytest.mark.anyio


async def test_what_another_machine_does_with_a_pod_is_seen_at_the_next_look(
    rig: Rig, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers that are remembered are those of a pod as it stands now, whoever wrote to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    monkeypatch.setenv("POD_HOME", database)
    home: Any = await anyio.to_thread.run_sync(default_home)
    async with rig.up(home=home) as up:
        await up.make(task=None)
        before = (await up.get("/v1/pods/p")).json()
        assert before["totals"]["requests"] == 0
        assert (await up.get("/v1/pods/p/timeline")).json()["steps"]
        for turn in (1, 2):
            done = await anyio.to_thread.run_sync(elsewhere, database, tmp_path / "elsewhere", f"message {turn}")
            assert done.returncode == 0, done.stderr.decode()
            facts = (await up.get("/v1/pods/p")).json()
            assert facts["totals"]["requests"] == turn and facts["status"] == "finished"
            assert (await up.get("/v1/pods")).json()["pods"][0]["requests"] == turn
            assert (await up.get("/v1/pods/p/context")).json()["items"] == 2 * turn
            steps = (await up.get("/v1/pods/p/timeline")).json()["steps"]
            assert [s["text"] for s in steps if s["type"] == "input.received"][-1] == f"message {turn}"


def elsewhere(database: str, state: Path, text: str) -> subprocess.CompletedProcess[bytes]:
    """`pod resume` as another machine would."""
    import os

    environment = {**os.environ, "POD_HOME": database, "XDG_STATE_HOME": str(state)}
    words = [sys.executable, "-m", "pod", "resume", "p", text, "-q"]
    return subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
