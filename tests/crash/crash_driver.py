"""Runs the job in forked children that die at chosen operations, and resumes it; started in a process of its own, without threads.

`crash_driver.py FOLDER` reads points from its input, one JSON object a line, and answers each with what failed, one JSON object a
line. Everything is imported and warm before, so that a child costs little more than its work.

A point names `backend` and `source` of the job, and either `at` and `when` of a crash, or `count` (the operations of a whole
job are answered), or `seed` and `kills` (SIGKILLs at random moments), or `part`, `of` and `odd` (see `Snapshots`). With `every`,
the first resume crashes too, at each of its operations up to that number (`then` says on which side), each from the same state; and
it is resumed once from each state that this leaves.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio
from crash.crash_check import Left, check_end
from crash.crash_job import Outside, run
from crash.crash_shards import digest

from pod.log import segment
from pod.log.files import Files
from pod.testing import CRASHED, CrashingFiles

LIMIT = 60.0
"""Seconds that a child may take."""


class Failure(Exception):
    """What a child said before it failed."""


def in_child(errors: Path, work: Callable[[], object], limit: float | None = None) -> int:
    """Runs `work` in a fork and gives its exit code, negative for a signal. After `limit` seconds it is killed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            fd = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(fd, 2)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    # The pipe ends with the child; nothing is written to it.
    if not select.select([read_end], [], [], LIMIT if limit is None else limit)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 1:
        raise Failure(errors.read_text()[-3000:])
    return code


def crash(root: Path, at: int | str, when: Any, backend: str, source: str) -> bool:
    """Runs the job, new or as it stands in `root`, until it dies at a point; False where it ended before."""
    files = CrashingFiles(at, when)
    code = in_child(root.with_suffix(".errors"), lambda: run(Outside(root, files), backend, source))
    assert code in {0, CRASHED}, f"the child ended with {code}"
    return code == CRASHED


def finish(root: Path, backend: str, source: str, left: list[Left]) -> None:
    """Resumes the job in a child, as `resume` does."""
    assert in_child(root.with_suffix(".errors"), lambda: resume(root, backend, source, left)) == 0


def resume(root: Path, backend: str, source: str, left: list[Left]) -> None:
    """Resumes the job with ordinary files to its end, and checks everything."""
    outside = Outside(root)
    text = run(outside, backend, source)
    check_end(outside, text)
    for each in left:
        each.kept(outside)
    Left.by(outside)


def serve(folder: Path, point: dict[str, Any]) -> dict[str, Any]:
    """One point, from an empty folder to the end of the job; how many crashes there were."""
    root = folder / "job"
    clear(root)
    if "count" in point:
        return {"log": counted(root, point["backend"], point["source"])}
    if "seed" in point:
        return {"crashes": killed(root, point)}
    if "part" in point:
        return snapshots(folder, point)
    backend, source = point["backend"], point["source"]
    assert crash(root, point["at"], point["when"], backend, source), "the job did not die at this point"
    left = [Left.by(Outside(root))]
    if "every" not in point:
        finish(root, backend, source, left)
        return {"crashes": 1}
    base = folder / "base"
    shutil.rmtree(base, ignore_errors=True)
    root.rename(base)
    met = set[bytes]()
    for number in range(1, point["every"] + 1):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(base, root)
        if not crash(root, number, point["then"], backend, source):
            return {"crashes": number}
        now = Left.by(Outside(root))
        if (found := digest(Outside(root).home, Outside(root).done())) not in met:
            met.add(found)
            finish(root, backend, source, [*left, now])
    return {"crashes": point["every"] + 1}


class Snapshots(CrashingFiles):
    """Keeps what a process would leave that died at an operation: a copy of the world before it, or in the middle of it.

    The bytes of a killed process's files are those of a copy, so the job need not be run anew up to each operation. Of `of`
    operations in a row it takes the `part`-th; `odd` (0 or 1) says before which of these it looks: in the middle of the others,
    where they are writes. Two jobs with either look at all sides. What is the same as before is kept once, with the
    acknowledgements that it had last: a sync changes no file. No operation takes place while a copy is made.
    """

    def __init__(self, outside: Outside, into: Path, part: int, of: int, odd: int) -> None:
        super().__init__(0)
        self.outside, self.into, self.part, self.of, self.odd = outside, into, part, of, odd
        self.lock = threading.RLock()
        self.kept: dict[bytes, Path] = {}

    def write(self, fd: int, data: bytes) -> None:
        """Writes half, looks, and writes all."""

        def half() -> None:
            write(fd, data[: len(data) // 2])

        def back() -> None:
            os.ftruncate(fd, size)
            os.lseek(fd, at, os.SEEK_SET)

        write = Files().write
        with self.lock:
            size, at = os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_CUR)
            self._do("write", lambda: (back(), write(fd, data))[1], half)

    def _do(self, name: str, operation: Any, half: Any = None) -> Any:
        with self.lock:
            self.count += 1
            self.log.append(name)
            if self.count % self.of == self.part:
                if self.count // self.of % 2 == self.odd:
                    self.keep("before", name)
                elif half is not None:
                    half()
                    self.keep("during", name)
            return operation()

    def keep(self, when: str, name: str) -> None:
        """Keeps the world as it is."""
        outside = self.outside
        acked = outside.acks.read_bytes() if outside.acks.exists() else b""
        paths = [path for path in sorted(outside.home.rglob("*")) if path.is_file()] if outside.home.exists() else []
        parts = [outside.effects.read_bytes() if outside.effects.exists() else b""]
        for path in paths:
            parts += [str(path).encode(), path.read_bytes()]
        digest = sha256(b"".join(b"%d %b" % (len(part), part) for part in parts)).digest()
        if digest not in self.kept:
            copy = self.kept[digest] = self.into / f"{self.count:04d} {when} {name}"
            shutil.copytree(outside.root, copy)
        (self.kept[digest] / "acks").write_bytes(acked)


def snapshots(folder: Path, point: dict[str, Any]) -> dict[str, Any]:
    """Runs the job once, and resumes it from each state that it was in: one child for the job, one for all that follows."""
    root, states = folder / "job", folder / "states"
    clear(states)
    backend, source = point["backend"], point["source"]

    def work() -> None:
        outside = Outside(root)
        outside.files = Snapshots(outside, states, point["part"], point["of"], point["odd"])
        check_end(outside, run(outside, backend, source))

    def rest() -> None:
        for state in found:
            shutil.rmtree(root)
            shutil.copytree(state, root)
            try:
                resume(root, backend, source, [Left.by(Outside(root))])
            except BaseException as error:
                raise Failure(f"from {state.name}: {error}") from error

    assert in_child(root.with_suffix(".errors"), work) == 0
    found = sorted(states.iterdir())
    assert in_child(root.with_suffix(".errors"), rest, LIMIT + len(found)) == 0, "the time was up"
    return {"states": len(found)}


def clear(root: Path) -> None:
    """An empty folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)


def counted(root: Path, backend: str, source: str) -> list[str]:
    """The operations of the job when nothing happens to it."""

    def work() -> None:
        files = CrashingFiles(0)
        check_end(Outside(root), run(Outside(root, files), backend, source))
        (root / "log").write_text("\n".join(files.log))

    in_child(root.with_suffix(".errors"), work)
    return (root / "log").read_text().splitlines()


def killed(root: Path, point: dict[str, Any]) -> int:
    """SIGKILLs at random moments of real time; each process goes on where the one before was killed, and job follows on job.

    A job that was killed five times is finished in peace, so that every part of it is met.
    """
    rng = random.Random(point["seed"])
    left: list[Left] = []
    kills = 0
    while kills < point["kills"]:
        delay = rng.uniform(0.0, point["within"])
        code = in_child(
            root.with_suffix(".errors"), lambda: run(Outside(root), point["backend"], point["source"]), delay
        )
        assert code in {0, -signal.SIGKILL}, code
        if code:
            kills += 1
            left.append(Left.by(Outside(root)))
        if code == 0 or len(left) == 5:
            finish(root, point["backend"], point["source"], left)
            clear(root)
            left = []
    finish(root, point["backend"], point["source"], left)
    return kills


def warm_up(root: Path) -> None:
    """Runs the job once on each backend, so that children need not build what is built once; then all threads are ended."""
    trio._core._thread_cache.IDLE_TIMEOUT = 0.01
    for backend, source in (("asyncio", "overview"), ("trio", "prefix")):
        shutil.rmtree(root, ignore_errors=True)
        run(Outside(root, Files()), backend, source)
    segment._SYNCER.shutdown()
    segment._SYNCER = ThreadPoolExecutor(max_workers=4)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(LIMIT)
    assert threading.active_count() == 1, "a fork needs a process without other threads"
    gc.collect()
    gc.freeze()


def main(folder: Path) -> None:
    """Answers points until the input ends."""
    warm_up(folder / "warm")
    for line in sys.stdin:
        point = json.loads(line)
        started = time.monotonic()
        try:
            answer = serve(folder, point)
        except (Failure, AssertionError) as error:
            answer = {"failed": str(error) or traceback.format_exc()}
        print(json.dumps({**answer, "point": point, "seconds": round(time.monotonic() - started, 3)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
