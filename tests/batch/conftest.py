"""The rig of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.work.mkdir()
    return made
