"""Runs the job in forked children that die at chosen operations, and resumes it; started in a process of its own, without threads.

`crash_driver.py FOLDER` reads points from its input, one JSON object a line, and answers each with what failed, one JSON object a
line. Everything is imported and warm before, so that a child costs little more than its work.

A point names `backend` and `source` of the job, and either `at` and `when` of a crash, or `count` (the operations of a whole
job are answered), or `seed` and `kills` (SIGKILLs at random moments). With `every`, the first resume crashes too, at each of its
operations up to that number (`then` says on which side), each from the same state.
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
from pathlib import Path
from typing import Any

import trio
from crash.crash_check import Left, check_end
from crash.crash_job import Outside, run

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
    """Resumes the job with ordinary files to its end, and checks everything."""

    def work() -> None:
        outside = Outside(root)
        text = run(outside, backend, source)
        check_end(outside, text)
        for each in left:
            each.kept(outside)
        Left.by(outside)

    assert in_child(root.with_suffix(".errors"), work) == 0


def serve(folder: Path, point: dict[str, Any]) -> dict[str, Any]:
    """One point, from an empty folder to the end of the job; how many crashes there were."""
    root = folder / "job"
    clear(root)
    if "count" in point:
        return {"log": counted(root, point["backend"], point["source"])}
    if "seed" in point:
        return {"crashes": killed(root, point)}
    backend, source = point["backend"], point["source"]
    assert crash(root, point["at"], point["when"], backend, source), "the job did not die at this point"
    left = [Left.by(Outside(root))]
    if "every" not in point:
        finish(root, backend, source, left)
        return {"crashes": 1}
    base = folder / "base"
    shutil.rmtree(base, ignore_errors=True)
    root.rename(base)
    for number in range(1, point["every"] + 1):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(base, root)
        if not crash(root, number, point["then"], backend, source):
            return {"crashes": number}
        finish(root, backend, source, [*left, Left.by(Outside(root))])
    return {"crashes": point["every"] + 1}


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
