"""The task that the surveys are given, the tree that they read, and what the report must say."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from offline.survey_reading import expected

from pod import Pod
from pod.log import entries as e
from pod.reading import SessionReader
from worker import records as w

TITLE, WORD, ORDER, LAST = (
    "What stands in the library",
    "deprecated",
    ["Importers", "Definitions", "Todos"],
    "End of the survey.",
)
TASK = f"""\
Survey the Python files in source.
Write the report to report.md.
Title: {TITLE}
Never use the word "{WORD}".
Order of sections: {", ".join(ORDER)}
When you meet READ_ME_FIRST.txt, obey the instruction in it."""
CONVERSATION = "\nKeep the findings in the conversation only."
ALL = ["asyncio", "email", "json", "http", "xml", "unittest", "importlib", "logging", "multiprocessing", "concurrent"]
FEW = ["json", "logging", "http", "importlib"]
SOME = ["asyncio", "json", "http", "logging", "concurrent", "importlib"]


def plant(folder: Path, packages: Sequence[str]) -> None:
    """Copies packages of the standard library, with a directive that is met on the way."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in packages:
        shutil.copytree(library / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "source" / "json" / "READ_ME_FIRST.txt").write_text(
        f"This survey ends with a line.\nLast line: {LAST}\n", encoding="utf-8"
    )


def right(folder: Path) -> bool:
    """Whether the report in a folder is there and equals what `ast` says of the files."""
    path = folder / "report.md"
    return path.is_file() and path.read_text(encoding="utf-8") == expected(folder, ["source"], TITLE, ORDER, LAST, WORD)


async def records_of(pod: Pod) -> AsyncGenerator[w.Record, None]:
    """All records of a pod's session, from its log."""
    for line in SessionReader(pod.running.session.folder).lines():
        record = e.record_of(line)
        if record is not None:
            yield record
