"""What opening a session costs when it has 50 sealed segments, to one that has none: the active segments are alike.

python resume_cost.py REPS      prints a JSON row
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import anyio

from pod.log import entries as e
from pod.session import Session
from worker import records as w
from worker.ids import uuid7
from worker.items import AssistantItem, UserItem


def talk(session: Session, turns: int) -> None:
    """Some messages and replies."""
    for n in range(turns):
        item = UserItem(text=f"question {n} " + "about things " * 20)
        session.put(w.Input(item=item))
        session.put(w.Admitted(ids=(item.id,)))
        session.put(w.ReplyRecord(items=(AssistantItem(text=f"answer {n} " + "of words " * 40),), model="bench"))


async def grow(session: Session, segments: int) -> None:
    """Seals so many segments."""
    for _ in range(segments):
        talk(session, 100)
        state = session.state
        lineage = e.Lineage(kind="compacted_from", segment=state.start.segment, seq=state.last_seq)
        start = e.SegmentStarted(
            session=state.start.session,
            segment=uuid7(),
            lineage=lineage,
            blobs=state.start.blobs,
            carry=state.carry(),
            tag=state.start.tag,
        )
        await session.switch(start)
    talk(session, 100)
    await session.sync()


def opening(home: Path, name: str, reps: int) -> float:
    """The smallest CPU seconds of opening for writing."""
    times: list[float] = []
    for _ in range(reps):
        before = time.process_time()
        session = Session.open(home, name)
        times.append(time.process_time() - before)
        session.close()
    return min(times)


def main() -> None:
    reps = 5 * int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, segments in (("none", 0), ("many", 50)):
            session = Session.create(home, name, blobs={"system": "x"}, manifest="", durability="os")
            anyio.run(grow, session, segments)
            session.close()
        opening(home, "none", 2)
        none = opening(home, "none", reps)
        many = opening(home, "many", reps)
        again = opening(home, "none", reps)
    none = min(none, again)
    print(json.dumps({"ratio": many / none, "many_ms": many * 1000, "none_ms": none * 1000}))


if __name__ == "__main__":
    main()
