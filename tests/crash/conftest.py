"""A place in memory for each test, and a pod in it that has had its first run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.crash_boundary import first
from crash.crash_shards import workplace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with workplace(tmp_path) as folder:
        yield folder


@pytest.fixture
def base(place: Path, policy: str) -> Path:
    """A pod that has had its first run under this policy."""
    return first(place / "base", policy)
