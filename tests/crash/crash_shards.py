"""Hands points to two driver processes and gathers what they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
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


def digest(folder: Path, *more: object) -> bytes:
    """Of all names and bytes below a folder, and of what else is given: where it is the same, a process finds the same."""
    found = sha256(repr(more).encode())
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(folder)} {path.is_dir()} {len(data)} ".encode() + data)
    return found.digest()


def python(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    """A process of its own, with the project and these helpers to import."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, *(str(a) for a in arguments)], cwd=ROOT, env=environment, text=True, **more
    )


class Shard:
    """A driver process, which answers one point after the other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._said = folder / "said"
        with self._said.open("w") as said:
            self._process = python(
                Path(__file__).with_name("crash_driver.py"), folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )  # fmt: skip

    def answer(self, points: deque[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
        """Takes points until none is left; ends early where the process is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        while points:
            try:
                point = points.popleft()
            except IndexError:  # the other one took it
                return
            try:
                print(json.dumps(point), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                return
            line = self._process.stdout.readline()
            if not line:
                return
            answers.append(json.loads(line))

    def said(self) -> str:
        """The end of its standard error."""
        return self._said.read_text()[-3000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Drivers:
    """Two driver processes, each of which takes the next point when it is free."""

    def __init__(self, folder: Path) -> None:
        self._shards = [Shard(folder / f"shard{number}") for number in range(SHARDS)]

    def __call__(self, points: Sequence[dict[str, Any]], *, limit: float = 300.0) -> list[dict[str, Any]]:
        """The answers of all points. Raises `AssertionError` where some failed, with the point and what went wrong."""
        waiting, answers = deque(points), list[dict[str, Any]]()
        threads = [threading.Thread(target=shard.answer, args=(waiting, answers)) for shard in self._shards]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + limit
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self.kill()
        for thread in threads:
            thread.join()
        failed = [answer for answer in answers if "failed" in answer]
        for answer in failed[:20]:
            print(answer["point"], answer["failed"][-2000:], sep="\n")
        assert not failed, f"{len(failed)} of {len(points)} points failed: {[a['point'] for a in failed[:20]]}"
        assert len(answers) == len(points), "\n".join(shard.said() for shard in self._shards)
        return answers

    def kill(self) -> None:
        for shard in self._shards:
            shard.kill()


@contextmanager
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    """Ready for any number of points; their start costs more than ten of these."""
    with workplace(tmp_path) as folder:
        made = Drivers(folder)
        try:
            yield made
        finally:
            made.kill()
