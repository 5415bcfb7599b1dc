from __future__ import annotations

from pathlib import Path

import pytest

from tests.otel.otel_rig import Traces
from tests.pod.pod_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def traces() -> Traces:
    return Traces()
