"""Long fault runs: collected only where they are asked for (`make soak`)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Passes over this folder unless it was named."""
    return None if any("soak" in argument for argument in config.args) else True
