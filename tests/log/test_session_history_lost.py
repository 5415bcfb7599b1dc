"""What `session_history` says over logs that are cut, gone, damaged or repaired: never that all was looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log.history_rig import SUMMARY, asked, every, pages, reader_of, refused, switch, values, whole
from log.logs import batch, create, reply, say

from pod.log.doctor import repair
from pod.session import Session
from pod.tools import history_scan

pytestmark = pytest.mark.anyio
QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

LOST = re.compile(r"(\d+) entries missing in the logs")


async def three_windows(home: Path, **more: Any) -> tuple[Session, list[Path]]:
    """A session of three windows, and their logs, oldest first."""
    session = create(home, durability="os")
    logs = [session.writer.path]
    for number in range(3):
        say(session, f"words {number}")
        batch(session, f"c{number}", f"content {number}")
        reply(session, f"answer {number}")
        if number < 2:
            await switch(session, **more)
            logs.append(session.writer.path)
    session.writer.sync_now()
    return session, logs


def without(path: Path, *numbers: int) -> None:
    """Takes whole lines out of a log, by their place."""
    lines = path.read_bytes().splitlines(keepends=True)
    gone = {number % len(lines) for number in numbers}
    path.write_bytes(b"".join(line for at, line in enumerate(lines) if at not in gone))


def end(path: Path) -> None:
    without(path, -1, -2)


def middle(path: Path) -> None:
    without(path, 3, 4)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def broken(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"words 1", b"w0rds 1"))


CUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "its last entries": (end, "2 entries missing in the logs"),
    "entries in its middle": (middle, "2 entries missing in the logs"),
    "half of its last entry": (torn, "1 damaged rows"),
    "the bytes of an entry": (broken, "1 damaged rows"),
}

LOOKS: list[dict[str, Any]] = [
    {"action": "search", "query": "nowhere"}, {"action": "list_items"}, {"action": "list_items", "limit": 1},
]  # fmt: skip


@pytest.mark.parametrize("how", CUTS)
async def test_a_log_that_lacks_something_is_never_said_to_be_looked_at_whole(tmp_path: Path, how: str) -> None:
    session, logs = await three_windows(tmp_path)
    cut, said = CUTS[how]
    for arguments in LOOKS:
        assert "everything was looked at" in (await pages(session, **arguments))[-1].summary
    cut(logs[1])
    for arguments in [*LOOKS, {"action": "list_items", "window": logs[1].stem}]:
        answers = await pages(session, **arguments)
        assert said in answers[-1].summary and "not everything could be looked at" in answers[-1].summary
        assert said == "1 damaged rows" or any(f"of window {logs[1].stem}" in a.summary for a in answers)
    fault = await refused(session, action="read_item", item="no-such-item")
    assert said in fault and "the session begins there" in fault
    for other in (logs[0], logs[2]):
        answers = await pages(session, action="list_items", window=other.stem)
        assert "the window was looked at to its end" in answers[-1].summary
    session.close()


async def test_the_list_of_windows_names_what_is_missing_at_the_end_of_one(tmp_path: Path) -> None:
    session, logs = await three_windows(tmp_path)
    first = {row["window"]: row["first_seq"] for row in values(await asked(reader_of(session), action="list_windows"))}
    end(logs[1])
    for limit in (50, 1):
        answers = await pages(session, action="list_windows", limit=limit)
        cut = {r["window"]: r["missing_at_its_end"] for a in answers for r in values(a) if "missing_at_its_end" in r}
        after = first[logs[2].stem]
        assert cut == {logs[1].stem: {"first_seq": after - 2, "entries": 2}}
        assert "2 entries missing in the logs" in answers[-1].summary
    session.close()


@pytest.mark.parametrize("how", ["gone", "emptied"])
async def test_a_window_that_is_gone_is_no_end_of_the_session(tmp_path: Path, how: str) -> None:
    session, logs = await three_windows(tmp_path)
    if how == "gone":
        logs[1].unlink()
    else:
        logs[1].write_bytes(b"")
    for arguments in LOOKS:
        last = (await pages(session, **arguments))[-1].summary
        assert "everything was looked at" not in last and "not everything could be looked at" in last
    windows = (await pages(session, action="list_windows"))[-1].summary
    fault = await refused(session, action="read_item", item="no-such-item")
    word = "an older log is gone" if how == "gone" else "an older log does not read"
    assert word in windows and word in fault
    session.close()


async def test_what_was_lost_with_the_end_of_a_log_is_found_where_it_was_kept(tmp_path: Path) -> None:
    """The next window began with it; a stub there is not given for a result that still stands whole in the cut log."""
    session = create(tmp_path)
    path = session.writer.path
    _, old = batch(session, "c1", "the whole text")
    _, new = batch(session, "c2", "the newest text")
    kept = session.state.history.view
    stub = next(i for i in kept if i.id == old).model_copy(update={"content": None, "pruned": True})
    await switch(session, items=(*SUMMARY, stub, *kept[-2:]))
    assert [r["id"] for r in (await every(session, action="search", query="newest text"))[0]] == [new]
    without(path, -1)
    assert [r["id"] for r in (await every(session, action="search", query="newest text"))[0]] == [new]
    assert "the newest text" in await whole(session, new) and "the whole text" in await whole(session, old)
    session.close()


async def test_what_a_repair_put_aside_is_still_said_to_be_missing(tmp_path: Path) -> None:
    session, logs = await three_windows(tmp_path)
    session.close()
    middle(logs[1])
    torn(logs[0])
    assert repair(tmp_path, "a").after.whole
    for arguments in LOOKS:
        answers = await pages(session, **arguments)
        assert "3 entries missing in the logs" in answers[-1].summary
        assert any("put aside by a repair" in answer.summary for answer in answers)


async def test_an_active_log_whose_last_line_is_being_written_lacks_nothing(tmp_path: Path) -> None:
    session, logs = await three_windows(tmp_path)
    session.close()
    torn(logs[2])
    assert "everything was looked at" in (await asked(reader_of(session), action="search", query="nowhere")).summary
    Session.open(tmp_path, "a").close()  # cuts it off, and says so in the log
    assert "everything was looked at" in (await asked(reader_of(session), action="search", query="nowhere")).summary


async def test_a_row_that_is_too_long_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_scan, "LINE_BYTES", 4_000)
    session = create(tmp_path)
    path = session.writer.path
    say(session, "before")
    say(session, "x" * 9_000, admit=False)
    say(session, "y" * 5_000, admit=False)
    await switch(session)
    say(session, "after")
    answers = await pages(session, action="search", query="nowhere")
    assert "3 rows over" in answers[-1].summary and "missing" not in answers[-1].summary
    assert "missing" not in (await pages(session, action="list_windows"))[-1].summary
    without(path, -2)
    answers = await pages(session, action="search", query="nowhere")
    assert "2 rows over" in answers[-1].summary and "1 entries missing" in answers[-1].summary
    session.close()


@QUICK
@given(
    gone=st.tuples(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6))),
    limit=st.integers(1, 40),
    chunk=st.sampled_from([64, 700, 1 << 16]),
)
async def test_however_the_answers_are_parted_each_missing_entry_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory, gone: tuple[set[int], set[int]], limit: int, chunk: int
) -> None:
    session, logs = await three_windows(tmp_path_factory.mktemp("pods"))
    for path, numbers in zip(logs, gone, strict=False):
        without(path, *numbers)
    missing = sum(map(len, gone))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_scan, "_CHUNK", chunk)
        patch.setattr(history_scan, "SCAN_ROWS", 6)
        patch.setattr(history_scan.Bounds, "__init__", _few_rows(history_scan.Bounds.__init__))
        for arguments in ({"action": "list_items", "limit": limit}, {"action": "search", "query": "e", "limit": limit}):
            last = (await pages(session, **arguments))[-1].summary
            found = LOST.search(last)
            assert (int(found[1]) if found else 0) == missing, last
    session.close()


def _few_rows(init: Callable[..., None]) -> Callable[..., None]:
    def few(self: Any, *args: Any, **more: Any) -> None:
        init(self, *args, **{"rows": 6, **more})

    return few
