"""Hands points to two driver processes and gathers what they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ({"backend": "asyncio", "source": "overview"}, {"backend": "trio", "source": "prefix"})
"""Both backends, both sources of the compact worker."""

SHARDS = 2
MEMORY = Path("/dev/shm")


@contextmanager
def workplace(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of syncs would else wait for the disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="pod-crash-", dir=MEMORY) as folder:
        yield Path(folder)


def python(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    """A process of its own, with the project and these helpers to import."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, *(str(a) for a in arguments)], cwd=ROOT, env=environment, text=True, **more
    )


def drive(points: Sequence[dict[str, Any]], tmp_path: Path, *, limit: float = 300.0) -> list[dict[str, Any]]:
    """The answers of all points. Raises `AssertionError` where some failed, with the point and what went wrong."""
    driver = Path(__file__).with_name("crash_driver.py")
    answers: list[dict[str, Any]] = []
    with workplace(tmp_path) as folder:
        shards: list[subprocess.Popen[str]] = []
        for number in range(min(SHARDS, len(points))):
            own = folder / f"shard{number}"
            own.mkdir()
            (own / "points").write_text("\n".join(json.dumps(point) for point in points[number::SHARDS]))
            with (
                (own / "points").open() as given,
                (own / "answers").open("w") as out,
                (own / "errors").open("w") as errors,
            ):
                shards.append(python(driver, own, stdin=given, stdout=out, stderr=errors))
        try:
            for number, shard in enumerate(shards):
                code = shard.wait(timeout=limit)
                assert code == 0, (folder / f"shard{number}" / "errors").read_text()[-3000:]
        finally:
            for shard in shards:
                shard.kill()
                shard.wait()
        for number in range(len(shards)):
            answers += [json.loads(line) for line in (folder / f"shard{number}" / "answers").read_text().splitlines()]
    failed = [answer for answer in answers if "failed" in answer]
    for answer in failed[:20]:
        print(answer["point"], answer["failed"][-2000:], sep="\n")
    assert not failed, f"{len(failed)} of {len(points)} points failed: {[answer['point'] for answer in failed[:20]]}"
    assert len(answers) == len(points)
    return answers
