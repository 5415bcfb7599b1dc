"""A session goes on where a text that it was kept with is lost: what can be made anew is, on record; the rest is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pod import Pod
from pod import operations as op
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.doctor import examine, repair
from pod.stored import kept, stored_manifest
from pod.transfer import export_pod, import_pod
from tests.pod.pod_rig import Agent, Rig, manifest, users
from worker.records import ToolsChanged, Warned
from worker.testing import say

pytestmark = pytest.mark.anyio


def agent() -> Agent:
    return Agent(lambda request, number: say("done"))


async def _lose(rig: Rig, use: str, name: str = "p") -> str:
    """A pod with one run, of which a text is lost; its hash."""
    async with rig.open(agent(), name=name) as pod:
        await pod.run("one")
    label = rig.starts(name)[0].blobs[use]
    (rig.folder(name).path / "blobs" / label).unlink()
    return label


async def test_a_lost_prompt_is_rendered_anew_and_put_on_record_where_it_differs(rig: Rig) -> None:
    label = await _lose(rig, "system")
    (finding,) = examine(rig.home, "p").pods[0].findings
    assert finding.severity == "warning" and "makes it anew" in finding.text
    (rig.cwd / "AGENTS.md").write_text("Be brief.")
    again = agent()
    async with Pod.reopen("p", home=rig.home, model=again) as pod:
        await pod.run("two")
    (restored,) = rig.of(e.TextsRestored)
    assert restored.lost == {"system": label} and list(restored.blobs) == ["system"]
    assert [w.code for w in rig.of(Warned)].count("texts_restored") == 1
    assert [c.system for c in rig.of(ToolsChanged)] == [restored.blobs["system"]]
    assert "Be brief." in again.requests[0].system and users(again.requests[0]) == ["one", "two"]
    assert examine(rig.home, "p").ok
    async with Pod.reopen("p", home=rig.home, model=agent()) as pod:
        await pod.run("three")
    assert len(rig.of(e.TextsRestored)) == 1


async def test_lost_texts_that_are_made_the_same_leave_the_log_as_it_would_be(rig: Rig) -> None:
    for use in ("system", "schemas"):
        label = await _lose(rig, use, use)
        async with Pod.reopen(use, home=rig.home, model=agent()) as pod:
            await pod.run("two")
        assert rig.folder(use).holds(label) and rig.of(e.TextsRestored, use) == []


@pytest.mark.parametrize(("use", "flag"), [("manifest", "--manifest FILE"), ("cwd", "-C DIR")])
async def test_what_cannot_be_made_anew_is_said_once_with_the_way_out(rig: Rig, use: str, flag: str) -> None:
    await _lose(rig, use)
    looks: list[Callable[[], object]] = [
        lambda: Pod.reopen("p", home=rig.home),
        lambda: stored_manifest(rig.folder()),
        lambda: export_pod(rig.home, "p", rig.home / "out.tar"),
    ]
    for look in looks:
        with pytest.raises(UsageProblem, match=f"pod resume p {flag}"):
            look()
    done = repair(rig.home, "p")
    assert not done.after.ok and [flag in f.text for f in done.after.findings] == [True]
    op.fork(rig.home, "p", "fork")
    assert use in kept(rig.folder("fork")).problems


async def test_another_manifest_and_folder_take_the_place_of_lost_ones(rig: Rig, tmp_path: Path) -> None:
    label = await _lose(rig, "manifest")
    (rig.folder().path / "blobs" / rig.starts()[0].blobs["cwd"]).unlink()
    rig.cwd = tmp_path / "elsewhere"
    rig.cwd.mkdir()
    async with rig.open(agent(), manifest(worker={"max_requests": 7})) as pod:
        await pod.run("two")
    (restored,) = rig.of(e.TextsRestored)
    assert restored.lost["manifest"] == label and set(restored.blobs) == {"manifest", "cwd"}
    found, cwd = stored_manifest(rig.folder())
    assert (found.worker.max_requests, cwd) == (7, str(rig.cwd))
    export_pod(rig.home, "p", rig.home / "out.tar")
    assert import_pod(rig.home / "out.tar", rig.home, "copy").cwd == str(rig.cwd)
    assert stored_manifest(rig.folder("copy"))[0] == found
