"""A sandbox that is asked for and can't be had, at the command line: on a machine whose bubblewrap is hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_rig import Ran, Rig

from worker.builtin.sandbox import Sandbox
from worker.testing.provider_server import Answer, ProviderServer

_MADE = Sandbox("read-only", Path("/"))
_WHY = _MADE.trouble()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")

WORKSPACE = '[sandbox]\nmode = "workspace"'


def without_bubblewrap(rig: Rig, *args: object) -> Ran:
    """The command on this machine, as if bubblewrap were not installed."""
    assert _MADE.program is not None
    hidden = [_MADE.program, "--dev-bind", "/", "/", "--ro-bind", "/dev/null", os.path.realpath(_MADE.program)]
    command = [*hidden, sys.executable, "-m", "pod", *map(str, args)]
    done = subprocess.run(command, cwd=rig.work, env=rig.env(), capture_output=True, timeout=60, check=False)
    return Ran(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.parametrize("command", ["run", "manifest check"])
def test_a_sandbox_that_can_not_be_had_is_a_users_mistake_with_its_line_and_nothing_is_made(
    rig: Rig, command: str
) -> None:
    path = rig.manifest(None, tools=["shell"], more=WORKSPACE)
    task = ["task"] if command == "run" else []
    ran = without_bubblewrap(rig, *command.split(), path, *task)
    assert ran.code == 2 and "Traceback" not in ran.err
    line = path.read_text().splitlines().index('mode = "workspace"') + 1
    assert f"{path.name}:{line}" in ran.err and "[sandbox] mode" in ran.err
    assert "bubblewrap is not installed" in ran.err and 'mode = "off"' in ran.err
    assert not rig.home.exists()


def test_a_pod_that_was_made_with_a_sandbox_does_not_go_on_without_and_doctor_says_so(rig: Rig) -> None:
    with ProviderServer([Answer("hello")]) as server:
        assert rig.pod("run", rig.manifest(server, tools=["shell"], more=WORKSPACE), "hello", "--name", "p").code == 0
    assert "sandbox" not in rig.pod("doctor").err
    told = without_bubblewrap(rig, "doctor")
    assert "pod p can't go on here" in told.err and "bubblewrap is not installed" in told.err
    ran = without_bubblewrap(rig, "resume", "p", "go on")
    assert ran.code == 2 and "bubblewrap is not installed" in ran.err and "Traceback" not in ran.err
