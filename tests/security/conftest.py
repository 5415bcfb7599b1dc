"""The rigs of the command line and of whole pods as fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig as Shell

from tests.pod.pod_rig import Rig
from tests.security.redteam_rig import KEY, World


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs `python -m pod` in an interpreter of its own, as a stranger's folder or a look into `/proc` would meet it."""
    made = Shell(tmp_path, fresh=True)
    made.work.mkdir()
    return made


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Opens pods in this process."""
    return Rig(tmp_path)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine to attack; the runtime holds the provider's key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("POD_HOME", str(tmp_path / "home"))
    return World(tmp_path)
