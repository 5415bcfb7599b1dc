"""Switches one rule of the runtime off at a time, in a copy of the tree, and looks whether the tests notice.

    python tests/mutations/run_mutations.py              every mutation of mutations.toml
    python tests/mutations/run_mutations.py B013 B065    those of these cases
    python tests/mutations/run_mutations.py --sound      the named tests with nothing changed: all must pass

The working tree is only read. Ends with 1 where a mutation was not noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIST = HERE / "mutations.toml"
COPIED = ("worker", "interceptors", "compact_worker", "pod", "manifests", "benchmarks", "tests", "pyproject.toml")
"""What the tests need of the tree."""

TIMEOUT = 90.0
"""Seconds that the tests of one mutation may take. Running into it counts as broken: a hang proves nothing."""

Verdict: TypeAlias = Literal["killed", "survived", "broken"]
"""`killed`: each named test fails. `survived`: one passes. `broken`: one could not be run to its end."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule and how it is switched off: in `file`, `old` (which stands there once) becomes `new`; then `tests` fail."""

    case: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.case}  {self.why}"

    def applied(self, text: str) -> str:
        """The text of the file with the rule off. Raises `ValueError` where `old` does not stand there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.case}: the old text stands {found} times in {self.file}, not once")
        changed = text.replace(self.old, self.new)
        if changed == text:
            raise ValueError(f"{self.case}: the new text is the old one")
        compile(changed, self.file, "exec")
        return changed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutation, in how many seconds, and what its tests printed."""

    mutation: Mutation
    verdict: Verdict
    seconds: float
    output: str


def load(path: Path = LIST) -> list[Mutation]:
    """The list, in its order. Raises `TypeError` for an entry with other keys."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutation"]
    return [Mutation(tests=tuple(entry.pop("tests")), **entry) for entry in entries]


class Copy:
    """A copy of the tree to be changed. Gone when the block ends."""

    def __init__(self, root: Path, python: Path) -> None:
        self.root = root
        self.python = python

    @classmethod
    @contextlib.contextmanager
    def of(cls, tree: Path = ROOT) -> Generator[Copy, None, None]:
        """Copies what is needed of a tree, once."""
        with tempfile.TemporaryDirectory(prefix="pod-mutations-", ignore_cleanup_errors=True) as folder:
            root = Path(folder).resolve() / "tree"
            root.mkdir()
            for name in COPIED:
                source = tree / name
                if source.is_dir():
                    shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy2(source, root / name)
            yield cls(root, _interpreter(root.with_name("venv"), root))

    @contextlib.contextmanager
    def mutated(self, mutation: Mutation) -> Generator[None, None, None]:
        """The rule is off until the block ends. Raises `ValueError` where the list does not fit the tree."""
        path = self.root / mutation.file
        before = path.read_text()
        self._write(path, mutation.applied(before))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Compiled code is told from older one by whole seconds and size, which a mutation may leave as they were.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def pytest(self, tests: Sequence[str], timeout: float = TIMEOUT) -> tuple[int | None, str]:
        """Runs tests up to the first failure: pytest's exit code, None where the time was up, and its output."""
        # Where tests work, so that what a mutation makes them leave behind is known by its place.
        work = self.root.with_name("work")
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={work}"]
        command = [str(self.python), "-m", "pytest", *options, *tests]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH", "COV_"))}
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return None, f"{output}\nthe time was up after {timeout:g} s"
            finally:
                _end_below(work)
            return process.returncode, output

    def run(self, mutation: Mutation, timeout: float = TIMEOUT) -> Outcome:
        """Switches a rule off and runs its tests, each by itself, since `-x` would stop at the first."""
        began = time.monotonic()
        verdicts: list[Verdict] = []
        outputs: list[str] = []
        try:
            with self.mutated(mutation):
                for test in mutation.tests:
                    code, output = self.pytest([test], timeout)
                    verdicts.append(_verdict(code))
                    outputs.append(output)
        except (ValueError, SyntaxError, OSError) as error:
            verdicts.append("broken")
            outputs.append(str(error))
        return Outcome(mutation, _worst(verdicts), time.monotonic() - began, "\n".join(outputs))


def _end_below(folder: Path) -> None:
    """Ends the processes that work below a folder: a rule about processes that is off leaves some. Needs /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder):
                os.kill(int(entry.name), signal.SIGKILL)


def _interpreter(folder: Path, tree: Path) -> Path:
    """An environment with the libraries of this one, in which the packages of `tree` are the installed ones.

    What this environment has installed is the working tree, and tests start processes that have nothing but what is
    installed.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    libraries = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    places = next(folder.glob("lib/python*/site-packages"))
    # Paths that a .pth file adds have no .pth files read from them: the working tree stays out.
    (places / "copy.pth").write_text("\n".join([str(tree), *libraries]) + "\n")
    return folder / "bin" / "python"


def _verdict(code: int | None) -> Verdict:
    """What an exit code of pytest says; 1 is "tests failed", others tell of wrong names, errors of import, a hang."""
    if code == 0:
        return "survived"
    return "killed" if code == 1 else "broken"


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    if "broken" in verdicts:
        return "broken"
    return "survived" if "survived" in verdicts or not verdicts else "killed"


def named_tests(mutations: Iterable[Mutation]) -> list[str]:
    """The tests of some mutations, each once."""
    return list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Switches rules off and looks whether the tests notice.")
    parser.add_argument("cases", nargs="*", help="cases as in B013; without any, all")
    parser.add_argument("--sound", action="store_true", help="run the named tests with nothing changed")
    chosen = parser.parse_args(arguments)
    mutations = [m for m in load() if not chosen.cases or m.case in chosen.cases]
    unknown = set(chosen.cases) - {m.case for m in mutations}
    if unknown or not mutations:
        parser.error(f"no mutation for {', '.join(sorted(unknown))}")
    with Copy.of() as copy:
        if chosen.sound:
            tests = named_tests(mutations)
            code, output = copy.pytest(tests, timeout=600)
            print(output if code else f"{len(tests)} tests pass with nothing changed", flush=True)
            return 0 if code == 0 else 1
        bad: list[Outcome] = []
        for mutation in mutations:
            outcome = copy.run(mutation)
            print(f"{outcome.verdict:<8}  {outcome.seconds:5.1f} s  {mutation}", flush=True)
            if outcome.verdict != "killed":
                bad.append(outcome)
                print(outcome.output[-3_000:], flush=True)
    print(f"{len(mutations) - len(bad)} of {len(mutations)} killed", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
