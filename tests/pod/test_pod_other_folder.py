"""A pod that goes on in another working folder, from Python."""

from __future__ import annotations

import pytest

from pod import Pod
from pod.log import entries as e
from pod.stored import stored_manifest
from tests.pod.pod_rig import Agent, Rig, manifest
from worker.records import ContextAdded
from worker.testing import say

pytestmark = pytest.mark.anyio


async def test_only_the_roots_in_the_folder_before_move_and_the_model_is_told_once(rig: Rig) -> None:
    inside, outside = str(rig.cwd / "data"), str(rig.home.parent / "elsewhere")
    made = manifest(scope={"read": [str(rig.cwd), inside, outside]})
    async with rig.open(Agent(lambda request, number: say("done")), made, name="p") as pod:
        await pod.run("one")
    other = rig.home.parent / "other"
    other.mkdir()
    for cwd in (other, None):
        async with Pod.reopen("p", home=rig.home, cwd=cwd, model=Agent(lambda request, number: say("done"))) as pod:
            assert pod.cwd == other
            assert pod.manifest.scope.read == (str(other), str(other / "data"), outside)
            await pod.run("two")
    kept, folder = stored_manifest(rig.folder())
    assert (kept.scope.read, folder) == (pod.manifest.scope.read, str(other))
    assert [bool(record.cwd) for record in rig.of(e.ManifestChanged)] == [True]
    assert [record.items[0].text for record in rig.of(ContextAdded) if record.by == "folder"] == [
        f"The working folder is another one from now on: {other}"
    ]
