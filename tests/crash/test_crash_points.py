"""A whole pod dies at each of its operations, and goes on right: nothing acknowledged is lost, nothing with an effect runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from crash.crash_shards import VARIANTS, Drivers, drivers
from crash.crash_share import WHOLE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with drivers(tmp_path_factory.mktemp("drivers")) as made:
        yield made


@pytest.fixture(scope="module")
def logs(drive: Drivers) -> list[list[str]]:
    """The operations of the job in each variant."""
    answers = drive([{"count": True, **variant} for variant in VARIANTS])
    return [next(a["log"] for a in answers if a["point"]["backend"] == v["backend"]) for v in VARIANTS]


def place(log: list[str], name: str, number: int = 1) -> int:
    """Where an operation stands, counted from 1; the last one for 0."""
    return [at for at, found in enumerate(log, 1) if found.startswith(name)][number - 1]


def test_a_pod_that_died_before_or_after_any_operation_goes_on_and_does_everything_once(
    drive: Drivers, logs: list[list[str]]
) -> None:
    """B063, B074, B078: before and after writes, syncs, renames and starts of a tool, and in the middle of writes.

    Two thirds of the operations, each third of them on the other backend (all, and on both, with `make soak`).
    """
    of, taken = (2, (0, 1)) if WHOLE else (6, (0, 3))
    parts = [{"part": n + odd * (of > 2), "of": of, "odd": odd, **v} for odd, v in enumerate(VARIANTS) for n in taken]
    # What a dead process leaves is what a copy of its files holds; that it dies is the matter of a few operations here, of
    # each one in `tests/soak`.
    step = 12 if WHOLE else 30
    dies: list[dict[str, Any]] = []
    for variant, log in zip(VARIANTS, logs, strict=True):
        for turn, at in enumerate(range(1 + len(dies) % step, len(log) + 1, step)):
            dies.append({"at": at, "when": ("before", "during", "after")[turn % 3], **variant})
    answers = drive([*parts, *dies])
    assert sum(answer.get("crashes", 0) for answer in answers) == len(dies) >= 500 // step
    assert sum(answer.get("states", 0) for answer in answers) > 500 // of


def test_a_pod_that_dies_again_while_it_recovers_still_does_everything_once(
    drive: Drivers, logs: list[list[str]]
) -> None:
    """The recovery is crashed at its first operations, from states in which it has something to do."""
    bases = [
        ("point did:india", 1, 0, "before"),
        ("point tool.record.after", 1, 1, "during"),
        ("point tool.read.before", 3, 0, "after"),
        ("rename steer-1.json", 1, 0, "after"),
        ("unlink steer-1.json", 1, 0, "before"),
        ("create", 8, 4, "during"),
        ("rename pod.json", 2, 0, "after"),
        ("write", 0, 0, "before"),
    ]
    points: list[dict[str, Any]] = []
    every = 14 if WHOLE else 6
    for n, (name, number, further, when) in enumerate(bases):
        variant = n // 2 % 2
        at = place(logs[variant], name, number) + further
        points.append(
            {"at": at, "when": when, "every": every, "then": ("before", "during")[n % 2], **VARIANTS[variant]}
        )
    assert sum(answer["crashes"] for answer in drive(points)) > len(bases) * (every - 2)


@pytest.mark.parametrize("seed", [20260131])
def test_forty_kills_at_random_moments_lose_nothing_and_repeat_nothing(drive: Drivers, seed: int) -> None:
    """The seeds of a failure stand in its report."""
    points = [{"seed": seed + n, "kills": 10, "within": 0.15, **VARIANTS[n % 2]} for n in range(4)]
    assert sum(answer["crashes"] for answer in drive(points)) == 40
