"""`make bench`: what the runtime costs, as ratios to a baseline measured in the same run.

The loops run in pairs, ours and right after it the floor; the median of the pairs' ratios counts, since a neighbour or a
clock that changes its speed then meets both. Each row names its bound; the exit code is 1 where one is
passed. No absolute time is a promise.

    python benchmarks/bench.py [--reps 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MB = 1_000_000


@dataclass(frozen=True)
class Row:
    """One measurement against its bound."""

    name: str
    value: float
    bound: float
    note: str

    @property
    def held(self) -> bool:
        return self.value <= self.bound


def run(script: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs one of the scripts beside this one and reads the JSON row that it prints."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, cwd=ROOT
    )
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def server(steps: int) -> Iterator[str]:
    """The scripted server for tasks of so many steps."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "echo_server.py"), str(steps)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def stats(url: str) -> dict[str, Any]:
    """What the server counted since it was last asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/stats", timeout=30) as answer:
        return json.load(answer)


@dataclass
class Cell:
    """Both loops on one task: the CPU seconds of each pair, and what else the runtime's best run showed."""

    pairs: list[tuple[float, float]]
    row: dict[str, Any]
    equal_bytes: bool
    hold_ms: float = 0.0

    @property
    def ours(self) -> float:
        """The runtime's CPU seconds, median of the runs."""
        return median(ours for ours, _ in self.pairs)

    def ratio(self, name: str, bound: float) -> Row:
        """The median ratio of the pairs against its bound, with their range."""
        ratios = sorted(ours / floor for ours, floor in self.pairs)
        floor = median(floor for _, floor in self.pairs)
        note = f"{self.ours:.2f} s to {floor:.2f} s; {len(ratios)} pairs, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        return Row(name, median(ratios), bound, note)


def measure(steps: int, size: int, reps: int, backend: str = "asyncio") -> Cell:
    """Runs both loops `reps` times, in pairs."""
    ours: list[dict[str, Any]] = []
    floor: list[float] = []
    equal = True
    with server(steps) as url, tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.json"

        def loop(script: str, name: str, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
            home = Path(folder) / name
            home.mkdir()
            row = run(script, f"{url}/v1", str(steps), str(size), str(frame), str(home), *more)
            return row, stats(url)

        for rep in range(reps):
            mine, sent = loop("pod_loop.py", f"pod-{rep}", backend)
            # The floor sends what the runtime has just sent: its system prompt names its folder.
            theirs, sent_by_floor = loop("floor_loop.py", f"floor-{rep}")
            ours.append(mine)
            floor.append(theirs["cpu"])
            equal = equal and sent == sent_by_floor
        held, _ = loop("pod_loop.py", "watched", "asyncio", "--holds")
    best = min(ours, key=lambda row: row["cpu"])
    pairs = [(row["cpu"], cpu) for row, cpu in zip(ours, floor, strict=True)]
    return Cell(pairs, best, equal, held["hold_ms"])


def cpu_of(code: str, reps: int, *, module: list[str] | None = None, env: dict[str, str] | None = None) -> float:
    """The smallest CPU seconds of a fresh interpreter that runs `code` (or a command)."""
    command = [sys.executable, *(module or ["-c", code])]
    times: list[float] = []
    for _ in range(reps + 1):
        before = children_cpu()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        times.append(children_cpu() - before)
    return min(times[1:])


def children_cpu() -> float:
    """The CPU seconds of all processes that ended so far; finer than `os.times`, whose clock ticks in hundredths."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


CLICK_SIZED = """
import argparse, sys
p = argparse.ArgumentParser(prog='x', description='an empty program')
p.add_argument('--verbose', action='store_true')
s = p.add_subparsers()
for n in range(20):
    s.add_parser(f'c{n}', help='a command').add_argument('name')
p.print_help()
"""


def loops(reps: int, quick: bool) -> list[Row]:
    """The task loops."""
    small = measure(100, 200, reps)
    big = measure(1000 if not quick else 400, 200, reps)
    large = measure(1000 if not quick else 200, 4000, reps)
    rows = [
        big.ratio("loop N=1000 T=200, CPU to the fragment floor", 2.5),
        large.ratio("loop N=1000 T=4000, CPU to the fragment floor", 2.0),
        Row("CPU N=1000 to N=100", big.ours / small.ours, 20.0, "linear is 10"),
        Row(
            "items encoded to items made",
            big.row["encoded"] / big.row["items"],
            1.0,
            f"{big.row['encoded']} of {big.row['items']}",
        ),
        Row("RSS growth, MB", big.row["grown_kb"] / 1000, 10.0, "from step 10 to the end"),
        Row("longest hold of the event loop by us, ms", big.hold_ms, 10.0, "per callback, send of bytes left out"),
        Row("stored, MB a 1,000 steps", big.row["stored"] / MB, 2.0, "segment, blobs, pointer"),
    ]
    for name, cell in (("T=200", big), ("T=4000", large)):
        rows.append(
            Row(f"bytes on the wire differ, {name}", float(not cell.equal_bytes), 0.0, "equal requests, equal SHA-256")
        )
    return rows


def starts(reps: int) -> list[Row]:
    """Imports and the command line."""
    nothing = cpu_of("pass", reps)
    pod, openai = cpu_of("import pod; pod.Pod", reps), cpu_of("import openai", reps)
    bare = cpu_of("import pod", reps)
    loaded = "import sys, pod; pod.Pod; bad = {'openai', 'anthropic', 'tiktoken', 'rich', 'genai_prices'} & set(sys.modules); sys.exit(len(bad))"
    sdks = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, check=False).returncode
    help_cpu, empty = cpu_of("", reps, module=["-m", "pod", "--help"]), cpu_of(CLICK_SIZED, reps)
    with tempfile.TemporaryDirectory() as home:
        ls = cpu_of("", reps, module=["-m", "pod", "ls"], env={"POD_HOME": home})
    libraries = cpu_of("import pydantic, anyio", reps)
    return [
        Row(
            "import pod, CPU to import openai",
            bare / openai,
            0.5,
            f"with Pod itself: {pod / openai:.2f}; bare Python: {nothing / openai:.2f}",
        ),
        Row(
            "SDKs and heavy libraries loaded by it", float(sdks), 0.0, "openai, anthropic, tiktoken, rich, genai_prices"
        ),
        Row(
            "pod --help, CPU to an empty program",
            help_cpu / empty,
            2.0,
            f"{help_cpu * 1000:.0f} ms to {empty * 1000:.0f} ms",
        ),
        Row(
            "pod ls, CPU to import pydantic and anyio",
            ls / libraries,
            4.0,
            f"{ls * 1000:.0f} ms to {libraries * 1000:.0f} ms, in an empty home",
        ),
    ]


def resumes(reps: int) -> list[Row]:
    """Opening a session with many sealed segments."""
    row = run("resume_cost.py", str(reps))
    return [
        Row(
            "resume with 50 sealed segments to one with none",
            row["ratio"],
            1.3,
            f"{row['many_ms']:.1f} ms to {row['none_ms']:.1f} ms",
        )
    ]


def appends() -> list[Row]:
    """Appending to a session of each store against the same by hand, in PostgreSQL where it is installed."""
    names = {
        "files": "append in a file to a write and a sync by hand",
        "postgres": "append in PostgreSQL to a fenced insert by hand",
    }
    rows = {name: run("store_append.py", kind, "7", "400") for kind, name in names.items()}
    return [Row(name, row["ratio"], 1.5, row["note"]) for name, row in rows.items() if row]


def engines() -> list[Row]:
    """Activations that do nothing, on the engine and on the library below it, where that is installed."""
    names = {"sqlite": "in a file", "postgres": "in PostgreSQL"}
    rows = {name: run("engine_cost.py", kind, "5", "500") for kind, name in names.items()}
    return [
        Row(f"activation on the engine {name}, CPU to a bare workflow", row["ratio"], 1.5, row["note"])
        for name, row in rows.items()
        if row
    ]


def main() -> int:
    """Measures and prints; 1 where a bound was passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="shorter tasks, for a first look")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts: list[Callable[[], list[Row]]] = [
        lambda: starts(options.reps), lambda: resumes(options.reps), appends, engines,
        lambda: loops(options.reps, options.quick)
    ]  # fmt: skip
    rows: list[Row] = []
    print(f"{'what':<52} {'measured':>9} {'bound':>7}  note")
    for part in parts:
        for row in part():
            rows.append(row)
            print(
                f"{row.name:<52} {row.value:>9.2f} {row.bound:>7.2f}  {'' if row.held else 'ABOVE ITS BOUND; '}{row.note}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([{**row.__dict__, "held": row.held} for row in rows], indent=1))
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
