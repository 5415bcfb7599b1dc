"""What another process left for a pod is on record, durably, before its file goes (cases B027, B073)."""

from __future__ import annotations

import pytest

from pod.log import inbox
from pod.log.folder import PodFolder
from pod.testing import RecordingFiles
from tests.pod.pod_rig import Agent, Rig, manifest, users
from worker.testing import say

pytestmark = pytest.mark.anyio


async def test_a_message_from_the_inbox_is_durable_in_the_log_before_its_file_is_removed(rig: Rig) -> None:
    """B027: a power cut at any moment leaves it in the inbox or in the log; taken twice, it counts once."""
    made, agent = manifest(log={"durability": "fsync"}), Agent(lambda request, n: say("ok"))
    async with rig.open(agent, made) as pod:
        (await pod.run("first")).raise_for_status()
    files = RecordingFiles(rig.home)
    inbox.post(PodFolder(rig.home, "p"), inbox.Command(id="m1", kind="send", args={"text": "from outside"}))
    async with rig.open(agent, made, files=files) as pod:
        (await pod.run("second")).raise_for_status()
    assert sorted(users(agent.requests[-1])) == ["first", "from outside", "second"]
    places = [n for n, op in enumerate(files.ops) if op.kind == "write" and b"from outside" in op.data]
    (gone,) = [n for n, op in enumerate(files.ops) if op.kind == "unlink" and op.path.endswith("m1.json")]
    written = files.ops[places[0]]
    assert any(op.kind == "sync" and op.path == written.path for op in files.ops[places[0] : gone])
    assert len(places) == 1 and places[0] < gone
