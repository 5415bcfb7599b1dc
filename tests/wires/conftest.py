"""The long task, run once for each wire, source of the summary, and backend; the tests look at what it left."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from wires.wires_rig import WIRES, Ran
from wires.wires_task import long_task

from worker.testing.provider_wires import WireName

LongRuns = Callable[[WireName, str, str], Ran]


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param


@pytest.fixture(scope="session")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> LongRuns:
    """Runs the task at the first use."""
    kept: dict[tuple[str, str, str], Ran] = {}

    def run(wire: WireName, source: str, backend: str) -> Ran:
        key = (wire, source, backend)
        if key not in kept:
            kept[key] = anyio.run(long_task, wire, source, tmp_path_factory.mktemp("task"), backend=backend)
        return kept[key]

    return run


@pytest.fixture(params=["prefix", "overview"])
def source(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ran(long_runs: LongRuns, wire: WireName, source: str, backend: str) -> Ran:
    return long_runs(wire, source, backend)
