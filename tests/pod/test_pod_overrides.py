"""Overrides count whatever the manifest is given as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod import Manifest, Pod
from pod.manifest import ManifestError, load_manifest
from tests.pod.pod_rig import Agent, Rig, caller, manifest
from worker.testing import say

pytestmark = pytest.mark.anyio


def given_as(form: str, folder: Path) -> Any:
    path = folder / "agent.toml"
    path.write_text('version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = []\n')
    forms = {
        "path": lambda: path,
        "loaded": lambda: load_manifest(path, env={}, cwd=folder),
        "manifest": lambda: Manifest.model_validate({"model": {"name": "offline:surveyor"}, "tools": {"enable": []}}),
    }
    return forms[form]()


@pytest.mark.parametrize("form", ["path", "loaded", "manifest"])
def test_overrides_count_for_every_form_of_a_manifest(rig: Rig, form: str) -> None:
    given = given_as(form, rig.cwd)
    pod = Pod.open(
        given, name="p", home=rig.home, cwd=rig.cwd, overrides=["worker.max_requests=3", "scope.write=['out']"]
    )
    assert pod.manifest.worker.max_requests == 3
    assert pod.manifest.scope.write == (str(rig.cwd / "out"),)
    assert pod.manifest.model.name == "offline:surveyor" and pod.manifest.tools.enable == ()


@pytest.mark.parametrize("form", ["path", "loaded", "manifest"])
@pytest.mark.parametrize("wrong", ["worker.max_request=3", "worker", "compaction.target=1"])
def test_a_wrong_override_is_named_for_every_form(rig: Rig, form: str, wrong: str) -> None:
    with pytest.raises(ManifestError) as raised:
        Pod.open(given_as(form, rig.cwd), name="p", home=rig.home, cwd=rig.cwd, overrides=[wrong])
    assert wrong.partition("=")[0] in str(raised.value)


@pytest.mark.parametrize("form", ["path", "loaded", "manifest"])
def test_a_contradiction_by_an_override_is_refused_for_every_form(rig: Rig, form: str) -> None:
    given = given_as(form, rig.cwd)
    window = ["model.context_window=10000", "model.max_output_tokens=20000"]
    with pytest.raises(ManifestError, match="max_output_tokens"):
        Pod.open(given, name="p", home=rig.home, cwd=rig.cwd, overrides=window)


async def test_a_pod_that_exists_is_opened_again_with_an_override(rig: Rig) -> None:
    agent = Agent(lambda request, n: say("done"))
    async with rig.open(agent, manifest()) as pod:
        await pod.run("hello")
    looping = Agent(caller(5, "tasks"))
    async with Pod.reopen("p", home=rig.home, model=looping, overrides=["worker.max_requests=1"]) as pod:
        result = await pod.run("again")
    assert (result.status, result.details["limit"]) == ("limit", 1)
