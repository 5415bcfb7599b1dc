"""Large sessions: what a resume, a list or a replay needs follows what it reads, never the whole record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from log.logs import batch, create, python, reopen, reply, say, started

from pod.log.folder import PodFolder
from pod.session import Session
from worker.items import ContextItem, UserItem

pytestmark = pytest.mark.slow

SUMMARY = (ContextItem(kind="summary", text="what was"),)

MEASURE = """
import json, re, sys; from pathlib import Path
home, what = Path(sys.argv[1]), sys.argv[2]
import pod.peek, pod.reading, pod.session, pod.log.doctor
from pod.log.folder import PodFolder, pod_names
from pod.session import Session
from pod.log.items import SegmentItems
from pod.reading import SessionReader

def peak():
    # Not getrusage: its peak is that of the forking parent where that was larger, also behind an exec.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

def resume():
    session = Session.open(home, "a")
    assert len(session.state.history.view) > 100
    session.close()

def listing():
    assert [g.name for g in pod.peek.glances(home)] == ["a"]

def replay():
    reader = SessionReader(PodFolder(home, "a"))
    assert sum(1 for _ in reader.lines()) > 100

def prefix():
    session = Session.open(home, "a")
    ids = [i.id for i in session.state.history.view]
    before = peak()
    items = SegmentItems(session.writer.path, ids)
    for start in range(0, len(ids), 10):
        items.read(start, start + 10)
    session.close()
    return before

def examine():
    assert pod.log.doctor.examine(home).ok

def warm():
    pass

before = peak()
before = globals()[what]() or before
print(json.dumps(peak() - before))
"""


def grow(session: Session, megabytes: int, label: str) -> None:
    for n in range(megabytes * 16):
        say(session, f"{label} {n}")
        batch(session, f"{label}-{n}", "x" * 62_000)


def build(home: Path, superseded: int) -> Path:
    session = create(home, durability="os")
    for number in range(3):
        grow(session, superseded // 3, f"old{number}")
        anyio.run(session.switch, started(session, items=SUMMARY))
    grow(session, 3, "new")
    reply(session, "done")
    session.close()
    return home


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A session of 60 MB of which 95 % are superseded, and one with the same active segment and little else."""
    large = build(tmp_path_factory.mktemp("large"), 57)
    small = build(tmp_path_factory.mktemp("small"), 0)
    total = sum(p.stat().st_size for p in (large / "pods" / "a").glob("*.jsonl"))
    active = PodFolder(large, "a")
    assert total > 55 << 20 and active.segment_path(active.pointer().segment).stat().st_size < total / 15
    yield large, small


def peak(home: Path, what: str) -> float:
    """Megabytes that the peak of a process of its own grows by."""
    child = python(MEASURE, home, what)
    out, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    return float(json.loads(out))


def test_the_memory_of_a_resume_follows_the_active_segment(homes: tuple[Path, Path]) -> None:
    """B072: 95 % of the record is in superseded segments."""
    large, small = (peak(home, "resume") for home in homes)
    assert large < small + 4, (large, small)
    assert large < 16, "the active segment has 3 MB"


@pytest.mark.parametrize(("what", "most"), [("listing", 6), ("replay", 8), ("prefix", 6), ("examine", 8)])
def test_the_memory_of_a_look_does_not_follow_the_record(homes: tuple[Path, Path], what: str, most: float) -> None:
    """B072, B157: a list, a replay of every entry, the items of a prefix, an examination."""
    assert peak(homes[0], what) < most


def test_thirty_generations_resume_with_the_items_of_the_last(tmp_path: Path) -> None:
    """B077: what counts is what is loaded."""
    session = create(tmp_path, durability="os")
    for generation in range(30):
        for n in range(40):
            say(session, f"{generation}-{n}")
        anyio.run(session.switch, started(session, items=SUMMARY))
    say(session, "now")
    session.close()
    again = reopen(tmp_path)
    assert [i.text for i in again.state.history.view if isinstance(i, UserItem)] == ["now"]
    assert again.state.last_seq > 2_400
    again.close()
