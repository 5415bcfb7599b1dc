"""The rigs of the command line and of whole pods as fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig as Shell

from tests.pod.pod_rig import Rig


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs `python -m pod`."""
    made = Shell(tmp_path)
    made.work.mkdir()
    return made


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Opens pods in this process."""
    return Rig(tmp_path)
