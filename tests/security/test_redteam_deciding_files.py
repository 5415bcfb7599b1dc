"""Files that decide what runs and what may be done: not there yet, or on a list that is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod import Pod
from pod.errors import UsageProblem
from pod.log.folder import PodFolder
from tests.pod.pod_rig import Agent, Rig, manifest, results
from worker.testing import call, say

pytestmark = pytest.mark.anyio

HOOKS: list[dict[str, Any]] = [
    {"event": "PostToolUse", "command": ["./check"]},
    {"event": "PostToolUse", "command": ["python3", "scripts/audit.py", "--rules=own.rules"]},
    {"event": "PostToolUse", "command": ["make", "build"]},
    {"event": "PostToolUse", "command": ["python3", "-c", "print('no file')\n" * 100]},
]

PATHS = {
    "check": False,
    "scripts/audit.py": False,
    "own.rules": False,
    "scripts/other.py": True,
    "build/made.txt": True,
}


def writer(path: str) -> Agent:
    return Agent(
        lambda request, n: (
            say("done") if results(request) else call("write_file", path=path, content="#!/bin/sh\ntouch ran\n")
        )
    )


@pytest.mark.parametrize("path", list(PATHS))
async def test_no_tool_makes_the_program_that_a_hook_names_and_that_is_not_there(path: str, rig: Rig) -> None:
    made = manifest(hooks=HOOKS, tools={"enable": ["write_file"]})
    async with rig.open(writer(path), made) as pod:
        result = await pod.run("go")
    assert (rig.cwd / path).exists() is PATHS[path] and result.denials == (0 if PATHS[path] else 1)


async def test_no_tool_makes_the_program_of_a_server_that_is_not_there(rig: Rig) -> None:
    made = manifest(mcp=[{"name": "s", "command": ["./serve"]}], tools={"enable": ["write_file"]})
    async with rig.open(writer("serve"), made) as pod:
        await pod.run("go")
    assert not (rig.cwd / "serve").exists()


def lost_list(rig: Rig) -> Path:
    """The list of the files of a pod's manifest, as a text of its own."""
    folder = PodFolder(rig.home, "p")
    [blob] = [
        path
        for path in (folder.path / "blobs").iterdir()
        if path.read_text().startswith('["') and "agent.toml" in path.read_text()
    ]
    return blob


async def test_without_the_list_of_its_manifests_files_a_pod_does_not_go_on_until_it_is_given_them(rig: Rig) -> None:
    """Nothing would keep the agent's tools from the file that says what it may do."""
    text = 'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = ["write_file"]\n[scope]\nwrite = ["."]\n'
    rig.file("agent.toml", text + '[permissions]\nprofile = "workspace-write"\n')
    options: dict[str, Any] = {"name": "p", "home": rig.home, "cwd": rig.cwd}
    async with Pod.open(rig.cwd / "agent.toml", model=Agent(lambda r, n: say("hello")), **options) as pod:
        await pod.run("hello")
    lost_list(rig).unlink()
    before = rig.kinds()
    with pytest.raises(UsageProblem, match=r"list of the manifest's files is lost .*pod resume p --manifest FILE"):
        Pod.reopen("p", home=rig.home)
    with pytest.raises(UsageProblem, match=r"list of the manifest's files is lost"):
        async with Pod.open(pod.manifest, model=writer("agent.toml"), **options):
            pass
    assert [kind for kind in rig.kinds()[len(before) :] if kind != "lease"] == []
    async with Pod.open(rig.cwd / "agent.toml", model=writer("agent.toml"), **options) as again:
        result = await again.run("go")
    assert result.denials == 1 and (rig.cwd / "agent.toml").read_text().startswith(text)
    assert lost_list(rig).exists()
