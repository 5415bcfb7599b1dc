"""Cursors of `session_history`: only this pod can have written one, appends leave it valid, any rewrite ends it.

And the floor that `pod clear` puts: nothing before it is listed, found, read or gone on with, whatever is done later.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import stat
import string
import zlib
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log.history_rig import ask, asked, cursor, every, rows, switch, values
from log.logs import batch, call, create, lines_of, reply, result, say

from pod import operations as op
from pod.log.doctor import repair
from pod.log.folder import PodFolder
from pod.log.lines import parse
from pod.reading import SessionReader, Step
from pod.session import Session
from pod.tools.history_cursor import CURSOR_CHARS, PENDING, Cursors, Met, Passed, Place
from pod.transfer import export_pod, import_pod
from worker.records import ToolResult
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio
SECRET = "the secret of before"
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIST, SEARCH = {"action": "list_items", "limit": 1}, {"action": "search", "query": "message", "limit": 1}


def filled(home: Path, name: str = "a", text: str = "message") -> Session:
    session = create(home, name)
    for n in range(6):
        say(session, f"{text} {n}")
        reply(session, f"answer {n}")
    return session


async def begun(session: Session, **arguments: object) -> str:
    found = cursor(await ask(session, **(arguments or LIST)))
    assert found is not None
    return found


async def stale(home: Path, name: str, at: str, **arguments: object) -> None:
    with pytest.raises(ToolFault, match=r"stale_cursor: .*leave the cursor out to begin again"):
        await asked(SessionReader(PodFolder(home, name)), cursor=at, **(arguments or LIST))


def at_payload(at: str) -> bytes:
    raw = base64.urlsafe_b64decode(at + "=" * (-len(at) % 4))
    return raw[raw.index(b"[[") :]


# -- signed -------------------------------------------------------------------------------------------------------


NUMBER = st.integers(0, 10**12)
PLACES = st.builds(
    Place,
    st.builds(Step, st.just("segment"), st.none() | NUMBER, st.none() | NUMBER),
    NUMBER, NUMBER, NUMBER, st.lists(st.tuples(NUMBER, st.just("0a1b2c3d")), max_size=PENDING).map(tuple), st.booleans(),
    st.builds(Met, NUMBER, NUMBER), st.builds(Passed, NUMBER, NUMBER, NUMBER),
)  # fmt: skip
LETTERS = string.ascii_letters + string.digits + "-_=+/. \nö"


@QUICK
@given(
    place=PLACES,
    where=st.integers(0, CURSOR_CHARS),
    letter=st.sampled_from(LETTERS),
    how=st.sampled_from(["in place of", "before", "cut"]),
)
def test_a_cursor_says_its_place_and_with_any_byte_changed_it_is_refused(
    tmp_path: Path, place: Place, where: int, letter: str, how: str
) -> None:
    folder = PodFolder(tmp_path, "a")
    folder.files.make_folder(folder.path)
    cursors = Cursors(folder, "session", "list_items", None)
    at = cursors.write(place, "newest00")
    assert len(at) <= CURSOR_CHARS and cursors.read(at) == (place, "newest00")
    where %= len(at)
    changed = at[:where] + ("" if how == "cut" else letter) + at[where + (how != "before") :]
    raw = base64.urlsafe_b64decode(at + "=" * (-len(at) % 4))
    flipped = bytearray(raw)
    flipped[where % len(raw)] ^= 1 + where % 255
    for wrong in {changed, base64.urlsafe_b64encode(flipped).decode().rstrip("=")} - {at}:
        with pytest.raises(ToolFault, match=r"^(bad|stale)_cursor: "):
            cursors.read(wrong)


async def test_a_cursor_is_for_its_own_question(tmp_path: Path) -> None:
    session = filled(tmp_path)
    item = batch(session, "c1", "z" * 20_000)[1]
    other = batch(session, "c2", "z" * 20_000)[1]
    for n in range(3):
        await switch(session)
        say(session, f"message {n}")
    questions = [
        LIST, {**LIST, "type": "user"}, {**LIST, "tool": "read_file"}, {**LIST, "status": "ok"},
        {**LIST, "window": session.pointer.segment}, SEARCH, {**SEARCH, "query": "messag"}, {**SEARCH, "type": "user"},
        {"action": "read_item", "item": item}, {"action": "read_item", "item": other},
        {"action": "list_windows", "limit": 1},
    ]  # fmt: skip
    for question in questions:
        at = cursor(await ask(session, **question))
        for wrong in questions:
            if wrong == question or at is None:
                continue
            with pytest.raises(ToolFault, match=r"bad_cursor.*another question"):
                await ask(session, cursor=at, **wrong)
        if at is not None:
            assert values(await ask(session, cursor=at, **(question | {"limit": 2})))
    for nothing in ("!!!", "AAAA", "é", "x" * 3_000):
        with pytest.raises(ToolFault, match="bad_cursor"):
            await ask(session, cursor=nothing, **LIST)
    session.close()


async def test_the_secret_of_cursors_is_the_owners_alone_and_never_leaves_the_pod(tmp_path: Path) -> None:
    session = filled(tmp_path)
    assert not session.folder.cursor_key_path.exists(), "made when it is first needed"
    at = await begun(session)
    path = session.folder.cursor_key_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_bytes()
    session.close()
    assert await begun(session) != at or path.read_bytes() == secret
    export_pod(tmp_path, "a", tmp_path / "a.tar")
    assert secret not in (tmp_path / "a.tar").read_bytes() and b"cursor.key" not in (tmp_path / "a.tar").read_bytes()
    import_pod(tmp_path / "a.tar", tmp_path, "b")
    await stale(tmp_path, "b", at)
    copied = PodFolder(tmp_path, "b")
    shutil.copy(path, copied.cursor_key_path)
    with pytest.raises(ToolFault, match=r"^(bad|stale)_cursor"):
        await asked(SessionReader(copied), cursor=at, **LIST)


async def test_cursors_made_side_by_side_are_all_good(tmp_path: Path) -> None:
    session = filled(tmp_path)
    found: list[str] = []

    async def one() -> None:
        found.append(await begun(session))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)
    for at in found:
        assert rows(await ask(session, cursor=at, **LIST))
    session.close()


# -- appends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [LIST, SEARCH], ids=["list", "search"])
async def test_a_cursor_outlives_appends_the_tools_own_among_them_and_restarts(
    tmp_path: Path, question: dict[str, object]
) -> None:
    session = filled(tmp_path)
    before = [r["text"] for r in (await every(session, **(question | {"type": "user"})))[0]]
    texts: list[str] = []
    at: dict[str, str] = {}
    for turn in range(30):
        output = await ask(session, **question, type="user", **at)
        texts += [r["text"] for r in rows(output)]
        reply(session, "I look.", call(f"h{turn}", "session_history", json.dumps(question | at)))
        answer = result(f"h{turn}", output.summary, name="session_history", content=output.content)
        session.put(ToolResult(item=answer))
        if turn == 2:
            session.close()
            session = Session.open(tmp_path, "a")
        following = cursor(output)
        if following is None:
            break
        at = {"cursor": following}
    assert texts == before and len(texts) == 6
    session.close()


@pytest.mark.parametrize("kind", ["compacted_from", "rolled_over_from"])
async def test_a_cursor_outlives_a_new_window(tmp_path: Path, kind: str) -> None:
    session = filled(tmp_path)
    at = await begun(session)
    await switch(session, kind)  # type: ignore[arg-type]
    await switch(session)
    assert [r["text"] for r in rows(await ask(session, cursor=at, **(LIST | {"limit": 2})))] == [
        "answer 0",
        "message 1",
    ]
    session.close()


# -- rewrites -----------------------------------------------------------------------------------------------------


async def test_a_cursor_ends_with_a_rewind(tmp_path: Path) -> None:
    session = filled(tmp_path)
    at, seq = await begun(session), session.state.last_seq
    say(session, "later")
    reply(session, "later")
    session.close()
    key = session.folder.cursor_key_path.read_bytes()
    await op.rewind(tmp_path, "a", seq)
    await stale(tmp_path, "a", at)
    session.folder.cursor_key_path.write_bytes(key)
    await stale(tmp_path, "a", at)


async def test_a_cursor_ends_with_a_repair(tmp_path: Path) -> None:
    session = filled(tmp_path)
    at = await begun(session)
    session.close()
    path = session.writer.path
    path.write_bytes(path.read_bytes().replace(b"message 5", b"massage 5"))
    assert repair(tmp_path, "a").quarantined
    await stale(tmp_path, "a", at)
    session = Session.open(tmp_path, "a")
    again = await begun(session)
    session.close()
    assert not repair(tmp_path, "a").quarantined
    assert rows(await asked(SessionReader(session.folder), cursor=again, **LIST)), "a repair of nothing ends nothing"


async def test_a_cursor_ends_where_its_log_was_written_anew_or_changed_before_it(tmp_path: Path) -> None:
    session = filled(tmp_path)
    at = await begun(session)
    session.close()
    path, data = session.writer.path, session.writer.path.read_bytes()
    place = json.loads(at_payload(at))[1] - 10
    path.write_bytes(data[:place] + b"X" + data[place + 1 :])
    await stale(tmp_path, "a", at)
    path.write_bytes(data)
    assert rows(await asked(SessionReader(session.folder), cursor=at, **LIST))
    copy = path.with_suffix(".new")
    copy.write_bytes(data)
    copy.replace(path)
    await stale(tmp_path, "a", at)


async def test_a_cursor_of_another_pod_is_stale(tmp_path: Path) -> None:
    """B043."""
    mine, other = filled(tmp_path, "a"), filled(tmp_path, "b")
    at = await begun(other)
    await stale(tmp_path, "a", at)
    await begun(mine)
    await stale(tmp_path, "a", at)
    mine.close(), other.close()


# -- the floor ----------------------------------------------------------------------------------------------------


Cursor = tuple[str, dict[str, object]]
"""A cursor with its question."""


async def nothing_of_before(home: Path, name: str, gone: list[str], windows: list[str], cursors: list[Cursor]) -> None:
    """No action reaches what stood before the clear: by search, list, id, window or cursor."""
    reader = SessionReader(PodFolder(home, name))
    for question in ({"action": "list_items"}, {"action": "search", "query": SECRET}, {"action": "list_windows"}):
        output = await asked(reader, **question)
        assert SECRET not in (output.content or "") and cursor(output) is None
        assert not [w for w in values(output) if w.get("window") in windows]
    for item in gone:
        with pytest.raises(ToolFault, match="no item"):
            await asked(reader, action="read_item", item=item)
    for window in windows:
        with pytest.raises(ToolFault, match="no window"):
            await asked(reader, action="list_items", window=window)
    for at, question in cursors:
        await stale(home, name, at, **question)


async def cleared(home: Path) -> tuple[list[str], list[str], list[Cursor]]:
    """A pod whose session was cleared: ids of items, windows and cursors of before."""
    session = filled(home, text=SECRET)
    windows = [session.pointer.segment]
    await switch(session)
    windows.append(session.pointer.segment)
    gone = [batch(session, "c1", SECRET)[1], say(session, SECRET)]
    reply(session, SECRET)
    questions: list[dict[str, object]] = [
        LIST, {**LIST, "window": windows[0]}, {**SEARCH, "query": "secret"}, {"action": "list_windows", "limit": 1},
        {"action": "read_item", "item": gone[0], "limit": 5},
    ]  # fmt: skip
    cursors = [(await begun(session, **question), question) for question in questions]
    key = session.folder.cursor_key_path.read_bytes()
    session.close()
    await op.clear(home, "a")
    assert not session.folder.cursor_key_path.exists()
    session.folder.cursor_key_path.write_bytes(key)  # the floor does not stand on the secret alone
    return gone, windows, cursors


async def after(home: Path) -> int:
    """Work behind the clear; the number of its last entry."""
    session = Session.open(home, "a")
    say(session, "after")
    reply(session, "after")
    await switch(session)
    say(session, "and after")
    reply(session, "and after")
    seq = session.state.last_seq
    session.close()
    return seq


@pytest.mark.parametrize("then", ["clear", "work", "fork", "rewind", "export", "repair", "second clear"])
def test_nothing_before_a_clear_is_reached_whatever_comes_then(tmp_path: Path, then: str) -> None:
    anyio.run(_clear_and, tmp_path, then)


async def _clear_and(tmp_path: Path, then: str) -> None:
    gone, windows, cursors = await cleared(tmp_path)
    name = "a"
    if then != "clear":
        await after(tmp_path)
    match then:
        case "fork":
            name = op.fork(tmp_path, "a", "b").name
        case "rewind":
            start = next(
                s
                for s in SessionReader(PodFolder(tmp_path, "a")).walk()
                if s.lineage and s.lineage.kind_ == "cleared_from"
            )
            await op.rewind(tmp_path, "a", start.seq)
        case "export":
            export_pod(tmp_path, "a", tmp_path / "a.tar")
            assert SECRET.encode() not in (tmp_path / "a.tar").read_bytes()
            name = import_pod(tmp_path / "a.tar", tmp_path, "b").name
        case "repair":
            for label in [PodFolder(tmp_path, "a").pointer().segment, *windows]:
                path = PodFolder(tmp_path, "a").segment_path(label)
                path.write_bytes(path.read_bytes().replace(b'"kind":"reply"', b'"kind":"rePly"'))
            assert len(repair(tmp_path, "a").quarantined) > 2
        case "second clear":
            await op.clear(tmp_path, "a")
        case _:
            pass
    await nothing_of_before(tmp_path, name, gone, windows, cursors)
    if then in {"work", "fork", "export"}:
        with pytest.raises(ToolFault, match=r"cleared|forked"):
            await asked(SessionReader(PodFolder(tmp_path, name)), action="read_item", item=gone[0])
        found = await asked(SessionReader(PodFolder(tmp_path, name)), action="search", query="after")
        assert len(rows(found)) == 4, "what came after the clear is there, in a fork too"


def rewrite_first(path: Path, change: object) -> None:
    """Another first entry in the place of a segment's, whose checksum is right."""
    line = lines_of(path)[0]
    body = change(line.body)  # type: ignore[operator]
    assert body != line.body
    data = path.read_bytes()
    head = data[: data.index(b'"body":')] + b'"body":' + body
    new = head + b',"crc":"%08x"}' % zlib.crc32(head)
    parse(new, 0, 1)
    path.write_bytes(new + b"\n" + data[line.length :])


FLOORS = {
    "twice": (rb'"lineage":\{"kind":"cleared_from"', b'"lineage":{"kind":"compacted_from","kind":"cleared_from"'),
    "twice, the floor first": (rb'"lineage":\{"kind":"cleared_from"', b'"lineage":{"kind":"cleared_from","kind":"compacted_from"'),
    "escaped": (rb'"lineage":\{"kind":"cleared_from"', b'"lineage":{"kind":"cleared_from","k\\u0069nd":"compacted_from"'),
    "by its other name": (rb'"kind":"cleared_from"', b'"kind":"compacted_from","kind_":"cleared_from"'),
    "no kind": (rb'"kind":"cleared_from",', b""),
    "an unknown kind": (rb'"cleared_from"', b'"Cleared_from"'),
    "two lineages": (rb'"lineage":', b'"lineage":{"kind":"compacted_from","segment":"OLD","seq":3},"lineage":'),
    "two lineages, one escaped": (rb'"lineage":', b'"line\\u0061ge":{"kind":"compacted_from","segment":"OLD","seq":3},"lineage":'),
}  # fmt: skip


@pytest.mark.parametrize("how", [*FLOORS, "damaged", "no newline", "blank", "a second beginning"])
def test_a_floor_that_is_malformed_is_a_floor(tmp_path: Path, how: str) -> None:
    anyio.run(_clear_and_spoil, tmp_path, how)


async def _clear_and_spoil(tmp_path: Path, how: str) -> None:
    gone, windows, cursors = await cleared(tmp_path)
    folder = PodFolder(tmp_path, "a")
    floor = folder.segment_path(folder.pointer().segment)
    await after(tmp_path)
    data = floor.read_bytes()
    match how:
        case "damaged":
            floor.write_bytes(data.replace(b"cleared_from", b"compacted_fr", 1))
        case "no newline":
            floor.write_bytes(data.replace(b"\n", b"", 1))
        case "blank":
            floor.write_bytes(b"\n" + data)
        case "a second beginning":
            first = folder.segment_path(windows[1]).read_bytes().split(b"\n", 1)[0]
            floor.write_bytes(data + first + b"\n")
        case _:
            pattern, instead = FLOORS[how]
            instead = instead.replace(b"OLD", windows[-1].encode())
            rewrite_first(floor, lambda body: re.sub(pattern, lambda _: instead, body, count=1))
    await nothing_of_before(tmp_path, "a", gone, windows, cursors)


async def test_a_beginning_that_cannot_be_believed_shows_none_of_what_it_brought(tmp_path: Path) -> None:
    session = filled(tmp_path, text=SECRET)
    await switch(session)
    say(session, "after")
    path = session.writer.path
    session.close()
    rewrite_first(path, lambda body: body.replace(b'"lineage":', b'"lineage":{"kind":"cleared_from"},"lineage":', 1))
    reader = SessionReader(session.folder)
    found = await asked(reader, action="list_items")
    assert [r["text"] for r in rows(found)] == ["after"] and "does not read" not in found.summary
    assert "1 damaged rows passed over" in found.summary
    assert "older log does not read" in (await asked(reader, action="list_windows")).summary
    assert "does not read" in await _refused(reader)


async def _refused(reader: SessionReader) -> str:
    with pytest.raises(ToolFault) as caught:
        await asked(reader, action="read_item", item="nothing")
    return str(caught.value)


def test_answers_of_a_fork_are_gone_on_with_across_the_fork(tmp_path: Path) -> None:
    anyio.run(_across, tmp_path)


async def _across(tmp_path: Path) -> None:
    session = create(tmp_path)
    for number in range(3):
        say(session, f"words {number}")
        reply(session, f"answer {number}")
        await switch(session)
    session.close()
    point = op.fork(tmp_path, "a", "b").point
    fork = Session.open(tmp_path, "b")
    say(fork, "words of the fork")
    reply(fork, "answer of the fork")
    one_by_one, answers = await every(fork, action="list_items", limit=1)
    at_once, _ = await every(fork, action="list_items")
    assert one_by_one == at_once and len(answers) > 8
    numbers = [row["seq"] for row in at_once if row["type"] == "user"]
    assert len(numbers) == 4 and numbers[0] > point > numbers[1], "the fork's words, then those of before it"
    place = cursor(answers[5])
    fork.close()
    await op.rewind(tmp_path, "b", point + 1)
    with pytest.raises(ToolFault, match="stale_cursor"):
        await asked(SessionReader(PodFolder(tmp_path, "b")), action="list_items", limit=1, cursor=place)
