"""`make demo`: surveys about 200 files of the standard library through several context windows, without a key.

The files are copied to `demo/project/source`, the report is written to `demo/project/report.md`. What happened on the way stays in
`demo/pods`: `POD_HOME=demo .venv/bin/pod inspect demo` shows it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = [
    "asyncio",
    "email",
    "json",
    "http",
    "xml",
    "unittest",
    "importlib",
    "logging",
    "multiprocessing",
    "concurrent",
]
ROOT = Path(__file__).resolve().parent.parent
TASK = """\
Survey the Python files in source.
Write the report to report.md.
Title: What stands in ten packages of the standard library
Never use the word "deprecated".
Order of sections: Importers, Definitions, Todos
When you meet READ_ME_FIRST.txt, obey the instruction in it."""
DIRECTIVE = "This survey ends with a line of its own.\nLast line: End of the survey.\n"


def prepare(folder: Path) -> int:
    """Copies the packages and puts the directive among them; returns the count of Python files."""
    source = folder / "source"
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in PACKAGES:
        shutil.copytree(library / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "json" / "READ_ME_FIRST.txt").write_text(DIRECTIVE, encoding="utf-8")
    return sum(1 for _ in source.rglob("*.py"))


def main() -> int:
    """Prepares, runs, and says where the report is."""
    home = ROOT / "demo"
    shutil.rmtree(home, ignore_errors=True)
    folder = home / "project"
    count = prepare(folder)
    print(f"Surveying {count} files of the standard library with offline:surveyor (no key, no network) ...", flush=True)
    command = [sys.executable, "-m", "pod", "run", "offline-survey", TASK, "--name", "demo", "-C", str(folder)]
    done = subprocess.run(command, env={**os.environ, "POD_HOME": str(home)}, check=False)
    report = folder / "report.md"
    if done.returncode == 0 and report.is_file():
        lines = len(report.read_text(encoding="utf-8").splitlines())
        print(f"\nThe report: {report} ({lines} lines)")
        print("What happened on the way: POD_HOME=demo .venv/bin/pod inspect demo")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
