"""Three times forty kills at random moments, with seeds of the day; and some of interpreters that have just started."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash.crash_check import Left, check_end
from crash.crash_job import Outside, run
from crash.crash_shards import VARIANTS, Drivers, drivers, python, workplace

JOB = Path(__file__).parents[1] / "crash" / "crash_job.py"
TODAY = int(time.time())


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with drivers(tmp_path_factory.mktemp("drivers")) as made:
        yield made


@pytest.mark.parametrize("repeat", range(3))
def test_forty_kills_at_random_moments(drive: Drivers, repeat: int) -> None:
    points = [{"seed": TODAY + 100 * repeat + n, "kills": 10, "within": 0.15, **VARIANTS[n % 2]} for n in range(4)]
    print("seeds", [point["seed"] for point in points])
    assert sum(answer["crashes"] for answer in drive(points)) == 40


@pytest.mark.parametrize("variant", VARIANTS, ids=["overview", "prefix"])
def test_kills_of_interpreters_of_their_own(tmp_path: Path, variant: dict[str, str]) -> None:
    print("seed", TODAY)
    rng, kills = random.Random(TODAY), 0
    while kills < 20:
        with workplace(tmp_path) as folder:
            kills += killed_to_its_end(folder, variant, rng, 20 - kills)


def killed_to_its_end(folder: Path, variant: dict[str, str], rng: random.Random, most: int) -> int:
    """One job, killed at random moments until it is over, or has been `most` times; how often that was."""
    outside, left = Outside(folder), list[Left]()
    outside.make()
    while len(left) < most:
        child = python(JOB, folder, *variant.values(), stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == "started\n"
        try:
            code = child.wait(rng.uniform(0.0, 0.8))
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        child.stdout.close()
        assert code in {0, -signal.SIGKILL}
        if code == 0:
            break
        left.append(Left.by(outside))
    check_end(outside, run(outside, **variant))
    for each in left:
        each.kept(outside)
    return len(left)


def test_a_pod_that_dies_at_each_of_its_operations_does_everything_once(drive: Drivers) -> None:
    """Every point with a real death; the suite itself takes most of them from copies of what a dead process leaves."""
    answers = drive([{"count": True, **variant} for variant in VARIANTS])
    logs = [next(a["log"] for a in answers if a["point"]["backend"] == v["backend"]) for v in VARIANTS]
    points: list[dict[str, Any]] = []
    for parity, (when, variant, log) in enumerate(zip(("before", "after"), VARIANTS, logs, strict=True)):
        for at, name in enumerate(log, 1):
            points.append({"at": at, "when": when, **variant})
            if name == "write" and at % 2 == parity:
                points.append({"at": at, "when": "during", **variant})
    assert sum(answer["crashes"] for answer in drive(points)) == len(points) > 600
