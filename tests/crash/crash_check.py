"""What must hold of the job's pod after a crash, and after it was resumed to its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from crash.crash_job import EFFECTS, EXPECTED, STEER, TASK, Outside, logs

from pod.log import entries as e
from pod.log.inbox import waiting
from pod.log.lines import Line
from pod.log.segment import Damage, scan
from pod.reading import SessionReader
from pod.session import load
from worker import records as w
from worker.items import ToolCallItem, UserItem
from worker.records import Record


@dataclass(frozen=True)
class Left:
    """What a crash left: each log's bytes and the end of its whole entries, the acknowledgements, and whether the pod was
    made by then: one that was not is made anew, and what its making left is taken away.
    """

    logs: dict[str, tuple[bytes, int]]
    acked: tuple[tuple[str, int, str, int], ...]
    made: bool

    @classmethod
    def by(cls, outside: Outside) -> Left:
        """Looks at the files, and holds that every acknowledged entry is there under its id and number."""
        found: dict[str, tuple[bytes, int]] = {}
        entries: dict[tuple[str, int], Line] = {}
        for path in logs(outside):
            lines = list(takewhile(lambda f: isinstance(f, Line), scan(path)))
            whole = [line for line in lines if isinstance(line, Line)]
            found[path.name] = (path.read_bytes(), whole[-1].offset + whole[-1].length if whole else 0)
            entries |= {(path.stem, line.offset): line for line in whole}
        acked = tuple(outside.acked())
        for segment, seq, label, offset in acked:
            line = entries.get((segment, offset))
            assert line is not None and (line.seq, line.id) == (seq, label), (
                f"the acknowledged entry {seq} is lost: {line}"
            )
        made = outside.folder.exists()
        assert made or not acked, "something was acknowledged of a pod that was never made"
        return cls(found, acked, made)

    def kept(self, outside: Outside) -> None:
        """No entry of then has changed since; a torn tail was cut only with a record of it."""
        for name, (data, end) in self.logs.items():
            path = outside.folder.path / name
            if not self.made and not path.exists():
                continue
            now = path.read_bytes()
            assert now[:end] == data[:end], f"entries of {name} were changed"
            if end < len(data) and not now.startswith(data):
                lines = [found for found in scan(path, end) if isinstance(found, Line)]
                repaired = [e.record_of(line) for line in lines if line.kind == "repaired"]
                newline = data[end:] and now[: len(data) + 1] == data + b"\n"
                assert newline or not lines or any(
                    isinstance(r, e.Repaired) and r.offset == end and r.length >= len(data) - end for r in repaired
                ), f"{name} was cut without a record"  # fmt: skip


def check_end(outside: Outside, text: str, *, effects: bool = True) -> None:
    """The job is finished and right, everything happened once, and the log says so."""
    assert text == EXPECTED, text
    if effects:
        assert sorted(outside.done()) == sorted(EFFECTS), f"effects outside: {outside.done()}"
    # A power cut may bring back a command that was taken: it is known, and unlinked when it is next met.
    assert {command.id for _, command in waiting(outside.folder) if command} <= {"steer-1"}
    records: list[Record] = []
    for found in SessionReader(outside.folder).lines():
        record = e.record_of(found)
        assert record is not None
        records.append(record)
    for path in logs(outside):
        assert not [f for f in scan(path) if isinstance(f, Damage)], path
    check_records(records)
    check_figures(outside, records)


def check_records(records: list[Record]) -> None:
    """The record of one whole session."""

    def of(kind: type[Record]) -> list[Record]:
        return [record for record in records if isinstance(record, kind)]

    assert len(of(e.RunStarted)) == 1
    assert [r.status for r in of(e.RunEndedEntry)] == ["finished"]  # type: ignore[attr-defined]
    texts = [item.text for r in of(w.Input) if isinstance(item := r.item, UserItem)]  # type: ignore[attr-defined]
    assert texts == [TASK, STEER], texts
    calls = [i for r in of(w.ReplyRecord) for i in r.items if isinstance(i, ToolCallItem)]  # type: ignore[attr-defined]
    names = {call.call_id: call.name for call in calls}
    assert len(names) == len(calls), "a call id occurs twice"
    started = Counter(r.call_id for r in of(w.ToolStarted))  # type: ignore[attr-defined]
    assert all(times == 1 or names[label] == "steer" for label, times in started.items()), "a call was started twice"
    results = Counter(r.item.call_id for r in of(w.ToolResult))  # type: ignore[attr-defined]
    assert results == Counter(list(names)), "each call has one result"
    for result in of(w.ToolResult):
        item = result.item  # type: ignore[attr-defined]
        unknown = "unknown" in item.summary and item.status == "interrupted"
        assert item.status != "interrupted" or unknown == (item.call_id in started), (
            f"{item.summary}: started {started}"
        )
    begun = [r.compaction for r in of(e.CompactionStarted)]  # type: ignore[attr-defined]
    over = [
        r.compaction for kind in (e.CompactionCompleted, e.CompactionFailed, e.CompactionInterrupted) for r in of(kind)
    ]  # type: ignore[attr-defined]
    assert Counter(begun) == Counter(over), f"compactions begun {begun}, over {over}"
    generations = [r.generation for r in of(e.Lease)]  # type: ignore[attr-defined]
    assert generations == sorted(generations), generations


def check_figures(outside: Outside, records: list[Record]) -> None:
    """Figures of session and run agree with what is on record, whatever crashed in between."""
    pointer = outside.folder.pointer()
    state = load(outside.folder.segment_path(pointer.segment))
    counters, totals = state.history.counters, state.totals
    replies = [r for r in records if isinstance(r, w.ReplyRecord)]
    worker = sum(
        int(r.figures.get("requests", 0) or 0)
        for r in records
        if isinstance(r, e.CompactionRung) and r.state in {"done", "failed"}
    )
    segments = sum(isinstance(r, e.SegmentStarted) for r in records)
    done = sum(isinstance(r, e.CompactionCompleted) for r in records)
    prunes = sum(isinstance(r, w.Pruned) for r in records)
    assert (counters.requests, totals.requests) == (len(replies), len(replies) + worker)
    assert (counters.segments, totals.segments) == (segments, segments)
    assert (counters.compactions, totals.compactions) == (done, done) and done == segments - 1 == 2
    assert (counters.prunes, totals.prunes) == (prunes, prunes) and prunes >= 1
    assert counters.worker_requests == worker
    assert [t["status"] for t in state.tool_state["tasks"]] == ["done", "done"]
    assert len(state.pins) == 1 and list(state.inbox) == ["steer-1"]
