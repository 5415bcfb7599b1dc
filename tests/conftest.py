"""What all tests share: both backends, and a pod home of their own."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

from worker.pacing import paces

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background so, and every process that a test starts and interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How fast a machine is says nothing of a property; what must be fast is measured by `make bench`.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def fresh_paces() -> None:
    """What a test's server said of limits is not for a later one that gets the same port."""
    paces().forget()


def pytest_xdist_auto_num_workers() -> int:
    """Three for two cores: a quarter of the time tests wait, for disks, for time limits, for processes that end."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that hold something slow come first, so that no core waits for one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param
