"""A service for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from service.service_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
