"""What one call of `session_history` reads, looks at and gives at most, and that the end of a bound is not taken for an end."""

from __future__ import annotations

import itertools
import os
import string
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log.history_rig import ask, cursor, every, is_page, page, pages, reader_of, refused, rows, switch, values, whole
from log.logs import batch, create, reply, say

import pod.log.bounded
import pod.reading
from pod.log.files import open_file
from pod.reading import SessionReader, Step
from pod.session import Session
from pod.tools import history_scan
from pod.tools.history_cursor import Passed, Place
from pod.tools.history_rows import Row
from pod.tools.history_scan import Bounds, Scan
from worker.items import UserItem
from worker.records import Admitted, Input
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio
QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class Meter:
    """Counts what is read of logs; a file can be read in no way that is not counted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        pread = os.pread

        def counted(fd: int, length: int, offset: int) -> bytes:
            data = pread(fd, length, offset)
            self.bytes += len(data)
            return data

        class Opened:
            def __init__(self, path: Path) -> None:
                self._file = open_file(path)
                self.fileno = self._file.fileno

            def __enter__(self) -> Opened:
                return self

            def __exit__(self, *_: object) -> None:
                self._file.close()

        patch.setattr(os, "pread", counted)
        for module in (pod.reading, pod.log.bounded, history_scan):
            patch.setattr(module, "open_log", Opened)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(monkeypatch)


async def test_a_call_reads_two_mebibytes_at_most_whatever_the_size_of_the_session(
    tmp_path: Path, meter: Meter
) -> None:
    """B157, B072: rows, beginnings of windows and the search for a time among them."""
    session = create(tmp_path, durability="os")
    items: list[str] = []
    for window in range(4):
        items += [batch(session, f"c{window}-{n}", "x" * 60_000)[1] for n in range(40)]
        await switch(session, items=(UserItem(text="y" * 900_000),))
    questions: list[dict[str, Any]] = [
        {"action": "search", "query": "nowhere"}, {"action": "list_items", "tool": "none"}, {"action": "list_windows"},
        {"action": "list_items", "window": session.state.start.lineage.segment}, {"action": "read_item", "item": items[0]},
        {"action": "read_item", "item": "not-an-id"},
    ]  # fmt: skip
    for arguments in questions:
        reader, at, seen = reader_of(session), dict[str, Any](), 0
        for _ in range(20):
            meter.bytes = 0
            try:
                output = await ask(session, reader=reader, **arguments, **at)
            except ToolFault:
                break
            finally:
                seen += meter.bytes
                assert 0 < meter.bytes <= history_scan.SCAN_BYTES, arguments
            if (following := cursor(output)) is None or is_page(output):
                break
            at = {"cursor": following}
        else:
            raise AssertionError("no end")
        assert seen < 30 << 20, "what was looked at once is not read for ever again"
    session.close()


async def test_a_bound_that_ends_a_search_is_said_and_the_rest_is_reached(tmp_path: Path) -> None:
    session = create(tmp_path, durability="os")
    for n in range(80):
        batch(session, f"c{n}", "x" * 60_000)
    batch(session, "last", "the needle")
    found, answers = await every(session, action="search", query="needle")
    assert [r["text"][:30] for r in found] == ["read last\nthe needle"]
    assert len(answers) == 3 and "2 MiB" in answers[0].summary and answers[0].content is not None
    for n in range(600):
        say(session, f"short {n}")
    _, answers = await every(session, action="search", query="nowhere")
    assert sum("500 rows" in a.summary for a in answers) >= 2 and "everything was looked at" in answers[-1].summary
    session.close()


async def test_a_call_looks_at_five_hundred_rows_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries count, whatever they hold, and so do the items of one entry."""
    session = create(tmp_path, durability="os")
    for n in range(700):
        say(session, f"queued {n}", admit=False)
    looked = 0
    parse = history_scan.parse

    def counting(*args: Any) -> Any:
        nonlocal looked
        looked += 1
        return parse(*args)

    monkeypatch.setattr(history_scan, "parse", counting)
    output = await ask(session, action="list_items")
    assert 450 < looked <= 500 and "500 rows" in output.summary and output.content is not None
    many = [UserItem(text=f"first {n}") for n in range(700)]
    await switch(session, "forked_from", items=many, pending_inputs=())
    found, answers = await every(session, action="search", query="first", limit=25)
    assert [r["text"] for r in found] == [i.text for i in many] and len(answers) == 28
    assert "500 rows" in (await ask(session, action="search", query="nowhere")).summary
    session.close()


async def test_rows_over_a_mebibyte_are_passed_over_and_counted(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "before")
    huge = say(session, "x" * 5_000_000 + " needle")
    say(session, "after needle")
    found, answers = await every(session, action="search", query="needle")
    assert [r["text"] for r in found] == ["after needle"]
    summaries = " ".join(a.summary for a in answers)
    assert "1 rows over 1 MiB" in answers[-1].summary and "everything was looked at" not in summaries
    assert "2 rows over" not in summaries
    fault = await refused(session, action="read_item", item=huge)
    assert "cannot be read: its text is over 1 MiB" in fault
    session.close()


async def test_a_window_with_a_beginning_of_more_than_two_mebibytes_hides_nothing_before_it(
    tmp_path: Path, meter: Meter
) -> None:
    """What was read of a beginning counts for the next call; its row is passed over and counted."""
    session = create(tmp_path)
    first = say(session, "the oldest needle")
    await switch(session, items=(UserItem(text="z" * 5_000_000),))
    say(session, "the newest needle")
    found, answers = await every(session, action="search", query="needle")
    assert [r["text"] for r in found] == ["the newest needle", "the oldest needle"]
    assert "1 rows over 1 MiB" in answers[-1].summary
    assert await whole(session, first) == "the oldest needle"
    assert [w["how"] for o in await pages(session, action="list_windows") for w in values(o) if "how" in w] == [
        "compacted_from", "fresh",
    ]  # fmt: skip
    session.close()


async def test_inputs_that_wait_when_a_bound_ends_a_call_are_shown_by_the_next(tmp_path: Path, meter: Meter) -> None:
    """Also where their texts together are more than a call may read: each call comes further."""
    session = create(tmp_path)
    queued = [UserItem(text=f"queued {n} " + "q" * 900_000) for n in range(5)]
    for item in queued:
        session.put(Input(item=item))
    for n in range(500):
        reply(session, f"between {n}")
    session.put(Admitted(ids=tuple(item.id for item in queued)))
    found, answers = await every(session, action="list_items", type="user")
    assert [r["text"] for r in found] == [item.text[:160] for item in queued] and len(answers) > 3
    assert (await every(session, action="list_items", type="user", limit=1))[0] == found
    session.close()


async def test_an_answer_ends_at_its_size_and_the_rest_follows(tmp_path: Path) -> None:
    session = create(tmp_path)
    for n in range(100):
        say(session, f"{n} " + '"📦"\n' * 200)
    found, answers = await every(session, action="list_items", limit=100)
    assert [r["text"].split()[0] for r in found] == [str(n) for n in range(100)]
    assert len(answers) > 4 and "the size of an answer" in answers[0].summary
    session.close()


ODD = st.text(st.one_of(st.sampled_from('"\\\n\x00ä📦\u2028'), st.sampled_from(string.ascii_letters)), max_size=400)


@QUICK
@given(texts=st.lists(st.tuples(ODD, st.integers(1, 60)), min_size=1, max_size=40), limit=st.integers(1, 100))
async def test_whatever_items_hold_an_answer_keeps_its_size_and_pages_join(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, int]], limit: int
) -> None:
    """`ask` holds every answer against 16 KiB."""
    session = create(tmp_path_factory.mktemp("pods"), durability="os")
    said = {say(session, text * times): text * times for text, times in texts}
    listed, _ = await every(session, action="list_items", limit=limit)
    assert [(r["id"], r["text"], r["characters"]) for r in listed] == [(i, t[:160], len(t)) for i, t in said.items()]
    item, text = next(iter(said.items()))
    assert await whole(session, item, limit=limit * 200) == text
    session.close()


@pytest.mark.parametrize("limit", [None, 1, 7_999, 10**9])
async def test_an_item_is_read_in_pages_that_meet(tmp_path: Path, limit: int | None) -> None:
    session = create(tmp_path)
    content = "".join(f'{n} "ä📦"\n' for n in range(30 if limit == 1 else 9_000))
    _, item = batch(session, "c1", content)
    given = await pages(session, action="read_item", item=item, limit=limit, most=1_000)
    assert "".join(page(o) for o in given) == "read c1\n" + content
    assert max(len(page(o)) for o in given) <= min(limit or 8_000, 16_000)
    places = [row for o in given for row in rows(o)]
    assert all(a["to"] == b["from"] for a, b in itertools.pairwise(places))
    assert "behind its end" in await refused(session, action="read_item", item=item, offset=10**9)
    session.close()


async def test_a_page_has_eight_thousand_characters_unless_asked_otherwise(tmp_path: Path) -> None:
    session = create(tmp_path)
    item = batch(session, "c1", "z" * 40_000)[1]
    usual, most = (
        await ask(session, action="read_item", item=item),
        await ask(session, action="read_item", item=item, limit=10**6),
    )
    assert len(page(usual)) == 8_000 and 15_000 < len(page(most)) <= 16_000
    session.close()


async def test_pages_join_without_loss_or_repetition_also_within_one_entry(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    batch(session, "c1")
    await switch(session)
    queued = [say(session, f"late {n}", admit=False) for n in range(20)]
    reply(session, "in between")
    session.put(Admitted(ids=tuple(queued)))
    every_row, _ = await every(session, action="list_items", limit=100)
    assert len(every_row) == 1 + 1 + 20 + 1 + 1 + 1 + 1
    for limit in (1, 2, 3, 7):
        paged, _ = await every(session, action="list_items", limit=limit)
        assert paged == every_row
    session.close()


async def test_more_waiting_inputs_than_a_cursor_remembers_are_marked_and_not_lost(tmp_path: Path) -> None:
    session = create(tmp_path)
    queued = [say(session, f"late {n}", admit=False) for n in range(40)]
    reply(session, "in between")
    session.put(Admitted(ids=tuple(queued)))
    found, _ = await every(session, action="list_items", type="user", limit=1)
    assert [r["id"] for r in found] == queued
    assert [r["text"] for r in found if "stands much earlier" not in r["text"]][-32:] == [
        f"late {n}" for n in range(8, 40)
    ]
    assert await whole(session, queued[1]) == "late 1"
    session.close()


# -- any session, any bound ---------------------------------------------------------------------------------------

LONGEST = 3_000
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 5_000)),
        st.tuples(st.just("queue"), st.integers(0, 2_500)),
        st.tuples(st.just("admit"), st.just(0)),
        st.tuples(st.just("work"), st.integers(0, 5_000)),
        st.tuples(st.just("switch"), st.integers(0, 20_000)),
    ),
    min_size=1,
    max_size=25,
)


def played(home: Path, events: list[tuple[str, int]]) -> Session:
    session = create(home, durability="os")
    for number, (what, size) in enumerate(events):
        match what:
            case "say":
                say(session, f"{number} " + "s" * size)
            case "queue":
                say(session, f"{number} " + "q" * size, admit=False)
            case "admit" if session.state.queued:
                session.put(Admitted(ids=tuple(item.id for item in session.state.queued)))
            case "work":
                batch(session, f"c{number}", "w" * size)
            case "switch":
                anyio.run(switch, session, "compacted_from")
                reply(session, "x" * size)
            case _:
                pass
    session.close()
    return session


@QUICK
@given(events=EVENTS, most_bytes=st.integers(8_000, 40_000), most_rows=st.integers(2, 30))
def test_however_small_the_bounds_all_rows_are_met_once_within_them(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]], most_bytes: int, most_rows: int
) -> None:
    """Each call goes on where the last one ended, reads and looks at no more than it may, and comes further."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_scan, "LINE_BYTES", LONGEST)
        patch.setattr(history_scan, "_CHUNK", 1_024)
        meter = Meter(patch)
        session = played(tmp_path_factory.mktemp("pods"), events)
        top = Place(Step(session.pointer.segment))

        def scan(bounds: Bounds, place: Place, reader: SessionReader) -> tuple[list[Row], Place]:
            looked = Scan(reader, session.pointer.session, bounds, place)
            return [row for row, _ in looked.rows()], looked.place

        unbounded = Bounds(10**9, 10**9)
        at_once, _ = scan(unbounded, top, reader_of(session))
        found, place, passed, reader = list[Row](), top, Passed(), reader_of(session)
        for _ in range(2_000):
            bounds = Bounds(most_bytes, most_rows, *passed)
            meter.bytes = 0
            some, place = scan(bounds, place, reader)
            found, passed = found + some, bounds.passed
            assert meter.bytes <= most_bytes and len(some) <= most_rows
            if not bounds.ended_by:
                break
        else:
            raise AssertionError("no end")
        assert found == at_once and passed == unbounded.passed
