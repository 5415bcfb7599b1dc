"""Every prefix of what a whole pod did to its files, with all that was not synced dropped: the pod opens, and goes on right."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crash.crash_check import Left, check_end
from crash.crash_job import NAME, Outside, run
from crash.crash_shards import VARIANTS, digest, workplace
from crash.crash_share import WHOLE, share

from pod.errors import PodNotFound
from pod.log.inbox import waiting
from pod.log.lines import Line
from pod.session import Session
from pod.testing import Op, RecordingFiles, replay_prefixes
from pod.testing.recording import Lost

pytestmark = pytest.mark.slow

SEED = 4711
SAMPLE = 16 if WHOLE else 5


@dataclass
class Recorded(Outside):
    """A world whose witnesses are marks in the record of operations."""

    def acknowledge(self, segment: str, lines: list[Line]) -> None:
        """A mark for each entry."""
        for line in lines:
            self.files.point(f"ack {segment} {line.seq} {line.id} {line.offset}")


@dataclass
class Restored(Outside):
    """A world as it was after some operations."""

    done_by_then: list[Op] = field(default_factory=list[Op])

    def acked(self) -> list[tuple[str, int, str, int]]:
        """What was acknowledged by then."""
        rows = [op.name.split()[1:] for op in self.done_by_then if op.name.startswith("ack ")]
        return [(segment, int(seq), label, int(offset)) for segment, seq, label, offset in rows]


def record(folder: Path, variant: dict[str, Any]) -> RecordingFiles:
    outside = Recorded(folder)
    outside.make()
    files = outside.files = RecordingFiles(outside.home)
    check_end(outside, run(outside, **variant))
    return files


def restore(state: Path, root: Path, done: list[Op], effects: list[str]) -> Restored:
    """A world of its own with this home."""
    shutil.rmtree(root, ignore_errors=True)
    outside = Restored(root, done_by_then=done)
    root.mkdir()
    shutil.copytree(state, outside.home)
    outside.make()
    outside.effects.write_text("".join(f"{name}\n" for name in effects))
    return outside


def did(ops: list[Op]) -> list[str]:
    return [op.name.removeprefix("did:") for op in ops if op.name.startswith("did:")]


def posted(ops: list[Op]) -> bool:
    """Whether the sender of the message was told that it is durable."""
    renamed = next((n for n, op in enumerate(ops) if op.target.endswith("steer-1.json")), len(ops))
    return any(op.kind == "sync_folder" and op.path.endswith("inbox") for op in ops[renamed:])


def opens(outside: Restored) -> str:
    """The pod opens at an active segment that replays, with all that was acknowledged; the segment."""
    left = Left.by(outside)
    try:
        session = Session.open(outside.home, NAME)
    except PodNotFound:
        assert not left.acked
        return ""
    if posted(outside.done_by_then):
        known = {command.id for _, command in waiting(outside.folder) if command} | set(session.state.inbox)
        assert known == {"steer-1"}, "the message is in the inbox or in the log"
    assert session.state.compaction is None and session.state.start.segment == session.pointer.segment
    session.close()
    left.kept(outside)
    Left.by(outside)
    return session.pointer.segment


SIDES: list[Lost] = [True, "data", False]
"""What may be lost. The suite takes each prefix near a switch of segments from one of these sides, and the same of the other source."""


def interesting(ops: list[Op], rng: random.Random, side: int) -> set[int]:
    """Prefixes that are run to their end: around each switch of segments, and a sample of the others."""
    pointers = [at for at, op in enumerate(ops, 1) if op.kind == "rename" and op.target.endswith("pod.json")]
    near = [n for at in pointers[1:] for n in range(at - 13, at + 6)]
    return {*share(near, len(SIDES), first=side), *rng.sample(range(len(ops) + 1), SAMPLE)}


@pytest.mark.parametrize("lost", SIDES, ids=["power cut", "power cut, names kept", "killed"])
@pytest.mark.parametrize("variant", VARIANTS, ids=["overview", "prefix"])
def test_every_prefix_opens_with_all_that_was_acknowledged_and_goes_on_to_the_right_end(
    tmp_path: Path, lost: Lost, variant: dict[str, Any]
) -> None:
    """I4: the pointer names a replayable segment at every instant; each effect is had once, whatever a power cut took."""
    with workplace(tmp_path) as folder:
        files = record(folder / "recorded", variant)
        chosen = interesting(files.ops, random.Random(SEED), SIDES.index(lost))
        segments: list[str] = []
        met = set[bytes]()
        for number, state in enumerate(replay_prefixes(files, folder / "states", lost=lost)):
            ops = files.ops[:number]
            segments.append(opens(restore(state, folder / "opened", ops, did(ops))))
            if number not in chosen:
                continue
            for effects in worlds(files.ops, number):
                # A sync, say, leaves another promise behind and the same files: how a pod goes on from these is known then.
                if (found := digest(state, effects)) in met:
                    continue
                met.add(found)
                outside = restore(state, folder / "resumed", ops, effects)
                print("prefix", number, "of", len(files.ops), "with effects", effects)
                check_end(outside, run(outside, **variant))
        assert len(segments) == len(files.ops) + 1 > 300
        assert len(set(segments)) == 4, "before the pod was made, and its three segments, one after the other"
        assert len(met) >= (20 if WHOLE else 7)
        changes = sum(a != b for a, b in pairwise(segments))
        assert changes == 3, "the pointer never goes back"


def worlds(ops: list[Op], number: int) -> list[list[str]]:
    """What may have happened outside by then: an effect has happened before its mark."""
    before = did(ops[:number])
    if number < len(ops) and ops[number].name.startswith("did:"):
        return [before, did(ops[: number + 1])]
    return [before]
