"""A session read back: items as they were made, segments by lineage, entries across segments, the floor."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from log.logs import batch, create, lines_of, reopen, reply, say, started

from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log import segment as segment_log
from pod.log.bounded import last_lines
from pod.log.items import SegmentItems
from pod.log.lines import now, parse, render
from pod.reading import SessionReader
from pod.session import Session
from worker.items import ContextItem, ReasoningItem, ToolResultItem
from worker.records import ContextAdded, Pruned

SUMMARY = (ContextItem(kind="summary", text="what was"),)


def switch(session: Session, kind: e.LineageKind = "compacted_from", **more: object) -> None:
    anyio.run(session.switch, started(session, kind, **{"items": SUMMARY, **more}))
    session.writer.sync_now()


def rewrite_first(path: Path, body: bytes) -> None:
    """Puts another body into the first entry, with a valid checksum."""
    lines = path.read_bytes().splitlines(keepends=True)
    first = parse(lines[0][:-1], 0, 1)
    _, data = render(first.seq, "segment_started", body, now())
    path.write_bytes(b"".join([data, *lines[1:]]))


# -- items ----------------------------------------------------------------------------------------------------------


def test_a_prefix_gives_the_items_as_they_were_made_whatever_was_pruned(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    batch(session, "c1", "x" * 5_000)
    reply(session, "thinking", ReasoningItem(provider="p", model="m", payload="{}"))
    session.put(ContextAdded(items=(ContextItem(kind="auto_read", text="file"),)))
    batch(session, "c2", "y" * 5_000)
    original = list(session.state.history.view)
    pruned = tuple(
        i.model_copy(update={"content": None, "pruned": True}) for i in original if isinstance(i, ToolResultItem)
    )
    session.put(Pruned(items=pruned))
    session.writer.sync_now()
    view = session.state.history.view
    assert view != original
    items = SegmentItems(session.writer.path, [i.id for i in view])
    assert items.count == len(original)
    assert items.read(0, items.count) == original
    assert items.read(3, 5) == original[3:5] and items.read(5, 99) == original[5:] and items.read(9, 3) == []
    short = SegmentItems(session.writer.path, [i.id for i in view[:4]])
    assert short.count == 4 and short.read(0, 4) == original[:4]
    session.close()


def test_the_starting_items_of_a_segment_and_carried_input_are_there(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    queued = say(session, "queued", admit=False)
    switch(session, items=(*SUMMARY, *session.state.history.view))
    from worker.records import Admitted

    session.put(Admitted(ids=(queued,)))
    session.writer.sync_now()
    view = session.state.history.view
    assert SegmentItems(session.writer.path, [i.id for i in view]).read(0, 3) == view
    session.close()


def test_an_item_that_the_log_does_not_hold_is_named(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    with pytest.raises(UsageProblem, match="no item nobody"):
        SegmentItems(session.writer.path, ["nobody"]).read(0, 1)


# -- segments -------------------------------------------------------------------------------------------------------


def three(home: Path, *kinds: e.LineageKind) -> Session:
    session = create(home)
    say(session, "segment 0")
    for number, kind in enumerate(kinds, 1):
        switch(session, kind)
        say(session, f"segment {number}")
    session.close()
    return session


def words(reader: SessionReader, after: int = 0) -> list[str]:
    return [json.loads(line.body)["item"]["text"] for line in reader.lines(after) if line.kind == "input"]


def test_a_session_is_read_across_its_segments_with_numbers_that_go_on(tmp_path: Path) -> None:
    session = three(tmp_path, "compacted_from", "rolled_over_from")
    reader = SessionReader(session.folder)
    chain = reader.chain()
    assert [s.lineage.kind_ for s in chain.segments if s.lineage] == ["rolled_over_from", "compacted_from", "fresh"]
    assert chain.end == "start" and chain.segments[0].id == session.pointer.segment
    lines = list(reader.lines())
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert words(reader) == ["segment 0", "segment 1", "segment 2"]
    for after in range(len(lines) + 1):
        assert list(reader.lines(after)) == lines[after:]
    located = list(reader.located(lines[-1].seq - 1))
    assert [(f.segment, f.line) for f in located] == [(session.pointer.segment, lines[-1])]


def test_older_segments_are_not_read_whole_for_what_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = three(tmp_path, "compacted_from", "compacted_from")
    scanned: list[str] = []
    real = segment_log.scan

    def spy(path: Path, *args: object) -> object:
        scanned.append(path.stem)
        return real(path)

    monkeypatch.setattr("pod.reading.scan", spy)
    reader = SessionReader(session.folder)
    newest = reader.chain().segments[0]
    list(reader.lines(newest.seq - 1))
    assert scanned == [newest.id]


@pytest.mark.parametrize("kind", ["cleared_from", "forked_from"])
def test_nothing_before_a_floor_is_readable(tmp_path: Path, kind: e.LineageKind) -> None:
    session = three(tmp_path, "compacted_from", kind, "compacted_from")
    reader = SessionReader(session.folder)
    chain = reader.chain()
    assert len(chain.segments) == 2 and chain.end == kind.removesuffix("_from")
    assert words(reader) == words(reader, 0) == ["segment 2", "segment 3"]


def spoil(body: bytes, how: str, session: Session) -> bytes:
    value = json.loads(body)
    lineage = json.dumps(value["lineage"]).encode()
    match how:
        case "twice":
            return body.replace(b'"lineage":', b'"lineage":{"kind":"cleared_from"},"lineage":', 1)
        case "escaped twice":
            return body.replace(b'"lineage":', b'"line\\u0061ge":{"kind":"cleared_from"},"lineage":', 1)
        case "twice inside":
            return body.replace(
                lineage.replace(b": ", b":").replace(b", ", b","), b'{"kind":"cleared_from",' + lineage[1:], 1
            )
        case "unknown kind":
            value["lineage"]["kind"] = "borrowed_from"
        case "no segment":
            value["lineage"] = {"kind": "compacted_from", "segment": None}
        case "a path":
            value["lineage"] = {"kind": "compacted_from", "segment": "../../b/secret"}
        case "itself":
            value["lineage"] = {"kind": "compacted_from", "segment": value["segment"]}
        case "not an object":
            value["lineage"] = ["compacted_from"]
        case "missing":
            del value["lineage"]
        case "another session":
            value["session"] = "other"
        case _:
            raise AssertionError(how)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "how",
    ["twice", "escaped twice", "twice inside", "unknown kind", "no segment", "a path", "itself", "not an object",
     "missing", "another session"],
)  # fmt: skip
def test_a_floor_that_does_not_read_beyond_doubt_is_a_floor(tmp_path: Path, how: str) -> None:
    session = three(tmp_path, "cleared_from", "compacted_from")
    reader = SessionReader(session.folder)
    floor = reader.chain().segments[1]
    body = lines_of(floor.path)[0].body
    assert spoil(body, how, session) != body
    rewrite_first(floor.path, spoil(body, how, session))
    chain = SessionReader(session.folder).chain()
    assert chain.end in {"unreadable", "missing"} and "segment 0" not in words(SessionReader(session.folder))


def test_a_damaged_first_entry_is_a_floor(tmp_path: Path) -> None:
    session = three(tmp_path, "cleared_from", "compacted_from")
    floor = SessionReader(session.folder).chain().segments[1]
    data = floor.path.read_bytes()
    floor.path.write_bytes(data.replace(b"cleared_from", b"compacted_fr", 1))
    reader = SessionReader(session.folder)
    assert reader.chain().end == "unreadable" and words(reader) == ["segment 1", "segment 2"]


def test_what_a_rewind_left_is_not_part_of_the_session(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "kept")
    session.writer.sync_now()
    kept = session.state.last_seq
    say(session, "abandoned")
    start = started(session, "rewound_from", items=SUMMARY)
    lineage = start.lineage.model_copy(update={"seq": kept})
    anyio.run(session.switch, start.model_copy(update={"lineage": lineage}))
    say(session, "after")
    session.close()
    assert words(SessionReader(session.folder)) == ["kept", "after"]


def test_damage_is_passed_over_and_told_and_an_unfinished_line_is_not_damage(tmp_path: Path) -> None:
    session = three(tmp_path, "compacted_from")
    old = SessionReader(session.folder).chain().segments[1].path
    lines = old.read_bytes().splitlines(keepends=True)
    old.write_bytes(b"".join([*lines[:2], b"garbage\n", *lines[2:]]))
    session.writer.path.write_bytes(session.writer.path.read_bytes() + b'{"v":1,"seq"')
    told: list[tuple[str, int]] = []
    found = list(SessionReader(session.folder).lines(on_damage=lambda label, d: told.append((label, d.number))))
    assert told == [(old.stem, 3)] and words(SessionReader(session.folder)) == ["segment 0", "segment 1"]
    assert [line.seq for line in found] == list(range(1, len(found) + 1))


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    session = create(tmp_path)
    reader = SessionReader(session.folder)
    say(session, "one")
    seen = list(reader.lines())
    say(session, "two")
    switch(session)
    say(session, "three")
    assert words(reader, seen[-1].seq) == ["two", "three"]
    session.close()


def test_the_end_of_a_log_is_seen_without_its_middle(tmp_path: Path) -> None:
    session = create(tmp_path)
    for n in range(50):
        say(session, f"message {n} " + "x" * 400)
    session.close()
    everything = lines_of(session.writer.path)
    last = last_lines(session.writer.path, 4_000)
    assert 3 <= len(last) < 20
    assert [(found.seq, found.offset) for found in last] == [(x.seq, x.offset) for x in everything[-len(last) :]]
    assert len(last_lines(session.writer.path, 1 << 20)) == len(everything)


def test_a_file_that_is_gone_ends_the_session_there(tmp_path: Path) -> None:
    session = three(tmp_path, "compacted_from")
    reader = SessionReader(session.folder)
    old = reader.chain().segments[1]
    old.path.unlink()
    assert SessionReader(session.folder).chain().end == "missing"
    assert words(SessionReader(session.folder)) == ["segment 1"]
    reopen(tmp_path).close()
