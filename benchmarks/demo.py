"""`make demo`: surveys about 200 files of the standard library through several context windows, without a key.

The files are copied to `demo/project/source`, the report is written to `demo/project/report.md`. What happened on the way stays in
`demo/pods`: `POD_HOME=demo .venv/bin/pod inspect demo` shows it.
"""

from __future__ import annotations

import os
import re
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
FORBIDDEN = "deprecated"
SECTIONS = ["Importers", "Definitions", "Todos"]
TASK = f"""\
Survey the Python files in source.
Write the report to report.md.
Title: What stands in ten packages of the standard library
Never use the word "{FORBIDDEN}".
Order of sections: {", ".join(SECTIONS)}
When you meet READ_ME_FIRST.txt, obey the instruction in it."""
LAST_LINE = "End of the survey."
DIRECTIVE = f"This survey ends with a line of its own.\nLast line: {LAST_LINE}\n"


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
    print(f"Surveying {count} files of the standard library with offline:surveyor (no key, no network).", flush=True)
    print(
        "Its context holds 30,720 tokens, and the files are many times that: old output is pruned, and again and again the work goes\n"
        "on in a new segment behind a summary. What was asked at the beginning, and once on the way, must be kept to the end.\n",
        flush=True,
    )
    command = [sys.executable, "-m", "pod", "run", "offline-survey", TASK, "--name", "demo", "-C", str(folder)]
    done = subprocess.run(command, env={**os.environ, "POD_HOME": str(home)}, check=False)
    report = folder / "report.md"
    if done.returncode == 0 and report.is_file():
        text = report.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        print()
        kept = checked(text, folder)
        for what, holds in kept:
            print(f"{'kept' if holds else 'LOST'}: {what}")
        print(f"\nThe report: {report} ({lines} lines)")
        print("What happened on the way: POD_HOME=demo .venv/bin/pod inspect demo | less")
        print("The same as a page with charts: POD_HOME=demo .venv/bin/pod inspect demo --html demo.html")
        print("Go on with it in a browser: POD_HOME=demo .venv/bin/pod serve --shipped offline-survey -C demo/project")
        return 0 if all(holds for _, holds in kept) else 1
    return done.returncode


def checked(report: str, folder: Path) -> list[tuple[str, bool]]:
    """What the task asked for, each with whether the report keeps it."""
    files = {path.relative_to(folder).as_posix() for path in (folder / "source").rglob("*.py")}
    missing = sorted(name for name in files if f"`{name}`" not in report)
    heads = [line[3:] for line in report.splitlines() if line.startswith("## ")]
    return [
        (f"all {len(files)} files are in the report" + (f"; not {missing[0]}" if missing else ""), not missing),
        (f"its sections stand in the order asked for: {', '.join(heads)}", heads == SECTIONS),
        (
            f"the word {FORBIDDEN!r}, forbidden at the beginning, is nowhere in it",
            re.search(rf"\b{FORBIDDEN}\b", report, re.IGNORECASE) is None,
        ),
        (
            f"its last line is the one that a file on the way ordered: {LAST_LINE!r}",
            report.rstrip().splitlines()[-1] == LAST_LINE,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
