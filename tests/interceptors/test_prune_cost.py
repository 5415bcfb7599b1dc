"""What pruning costs in whole sessions: the simulation of benchmarks/prune_cost.py, short."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "prune_cost.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prune_cost", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prune_cost"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "runs", "trigger", "more", "saves"),
    [
        ("short", (8,), None, {}, False),
        ("long", (50,), None, {}, True),
        ("long, compacted", (70,), 60_000, {}, False),
        ("cheap to read", (50,), None, {"prices": (0.025, 1.25)}, False),
        ("markers", (50,), None, {"markers": True}, True),
        ("cold chat", (3,) * 12, None, {"idle": 3_600.0}, True),
    ],
)
async def test_auto_never_costs_more_than_not_pruning(
    bench: ModuleType, name: str, runs: tuple[int, ...], trigger: int | None, more: dict[str, object], saves: bool
) -> None:
    scenario = bench.Scenario(name, runs, trigger, **more)
    off, auto = [await bench.play(scenario, setting) for setting in ("off", "auto")]
    assert off.prunes == 0 and auto.cost <= off.cost
    assert (auto.cost < 0.9 * off.cost and auto.prunes > 0) or not saves


async def test_the_edge_moves_rarely_with_auto_too(bench: ModuleType) -> None:
    """B161 with `auto`: at most one break of the prefix in ten requests, where a fixed number near the floor has many."""
    scenario = bench.Scenario("long", (60,))
    auto, fixed = [await bench.play(scenario, setting) for setting in ("auto", 1_000)]
    assert 0 < auto.prunes <= 6 and fixed.prunes > 30
    assert auto.cost < fixed.cost


async def test_a_fixed_number_can_cost_more_than_not_pruning(bench: ModuleType) -> None:
    """The simulation tells them apart."""
    scenario = bench.Scenario("compacted", (70,), 60_000)
    off, fixed = [await bench.play(scenario, setting) for setting in ("off", 8_000)]
    assert fixed.cost > off.cost
