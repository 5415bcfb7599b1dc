"""The long task, run once for each wire and source of the summary; the tests look at what it left."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from wires.wires_rig import WIRES, Ran
from wires.wires_task import long_task

from worker.testing.provider_wires import WireName

LongRuns = Callable[[WireName, str], Ran]
SOURCES = ("prefix", "overview")
BACKENDS = {
    (wire, source): ("asyncio", "trio")[(n + m) % 2] for n, wire in enumerate(WIRES) for m, source in enumerate(SOURCES)
}
"""Each wire and each source runs on both backends."""


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param


@pytest.fixture(scope="session")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> LongRuns:
    """Runs the task at the first use."""
    kept: dict[tuple[str, str], Ran] = {}

    def run(wire: WireName, source: str) -> Ran:
        key = (wire, source)
        if key not in kept:
            kept[key] = anyio.run(long_task, wire, source, tmp_path_factory.mktemp("task"), backend=BACKENDS[key])
        return kept[key]

    return run


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ran(long_runs: LongRuns, wire: WireName, source: str) -> Ran:
    return long_runs(wire, source)
