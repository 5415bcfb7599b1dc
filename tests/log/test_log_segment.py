"""One writer, one log: torn tails, damage, full disks, lost acknowledgements."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from log.logs import batch, call, create, kinds, lines_of, reopen, reply, say

from pod.errors import LogDamaged, StoreError
from pod.log import entries as e
from pod.log.files import Files
from pod.log.lines import Line
from pod.log.segment import Damage, SegmentWriter, check, entries, scan
from pod.session import Session
from pod.testing import FailingFiles
from worker.calling import Caller
from worker.items import UserItem
from worker.records import Abandoned, ToolStarted
from worker.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


def texts(session: Session) -> list[str]:
    return [i.text for i in session.state.history.view if isinstance(i, UserItem)]


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """The log of a closed pod with one message."""
    session = create(tmp_path)
    say(session, "first")
    session.close()
    yield session.writer.path


@pytest.mark.parametrize(
    "tail", [b'{"type":"mess', b'{"type":"mess\n', b'{"type":"mess\n\n', b"\0" * 4096, b"\n\n", b"   "]
)
def test_a_torn_tail_is_cut_recorded_and_never_glued_to(closed: Path, tmp_path: Path, tail: bytes) -> None:
    """B065, B068: a torn line, also one followed by empty lines."""
    before = closed.read_bytes()
    for turn in ("second", "third"):
        closed.write_bytes(closed.read_bytes() + tail)
        session = reopen(tmp_path)
        say(session, turn)
        session.close()
        assert closed.read_bytes().startswith(before)
        repaired = [e.record_of(line) for line in lines_of(closed) if line.kind == "repaired"][-1]
        assert isinstance(repaired, e.Repaired)
        assert repaired.length == len(tail) and repaired.text == tail[:400].decode()
    assert texts(reopen(tmp_path)) == ["first", "second", "third"]


def test_a_whole_last_entry_without_its_newline_is_kept(closed: Path, tmp_path: Path) -> None:
    """B066"""
    whole = closed.read_bytes()
    closed.write_bytes(whole[:-1])
    session = reopen(tmp_path)
    say(session, "second")
    session.close()
    assert closed.read_bytes().startswith(whole)
    assert "repaired" not in kinds(closed)
    assert texts(reopen(tmp_path)) == ["first", "second"]


def test_damage_before_a_valid_entry_refuses_a_run_and_changes_nothing(closed: Path, tmp_path: Path) -> None:
    """B067: garbage between good entries, and an entry whose bytes went bad: never an old state as the newest."""
    lines = closed.read_bytes().splitlines(keepends=True)
    bad = lines[2].replace(b"first", b"fIrst")
    for damaged in ([*lines[:2], b"garbage\n", *lines[2:]], [*lines[:2], bad, *lines[3:]]):
        closed.write_bytes(b"".join(damaged))
        with pytest.raises(LogDamaged) as caught:
            reopen(tmp_path)
        assert (caught.value.line, caught.value.offset) == (3, len(b"".join(lines[:2])))
        assert closed.read_bytes() == b"".join(damaged)
        assert [f.seq for f in scan(closed) if isinstance(f, Line)][-1] == len(lines)


def test_entries_behind_a_missing_one_still_count(closed: Path) -> None:
    lines = closed.read_bytes().splitlines(keepends=True)
    closed.write_bytes(b"".join([*lines[:1], *lines[3:]]))
    found = list(scan(closed))
    assert [f.seq for f in found if isinstance(f, Line)] == [1, 4]
    (gap,) = [f for f in found if isinstance(f, Damage)]
    assert (gap.length, gap.first, gap.numbers) == (0, 2, 2) and "entries 2 to 3" in gap.reason
    checked = check(closed)
    assert checked.torn is None and checked.damage == (gap,) and checked.next_seq == 5


def test_an_entry_written_twice_is_damage_and_what_follows_counts(closed: Path) -> None:
    lines = closed.read_bytes().splitlines(keepends=True)
    closed.write_bytes(b"".join([*lines[:3], lines[1], *lines[3:]]))
    found = list(scan(closed))
    assert [f.seq for f in found if isinstance(f, Line)] == [1, 2, 3, 4]
    assert [f.reason for f in found if isinstance(f, Damage)] == ["entry 2 stands where 4 should be"]
    with pytest.raises(LogDamaged):
        list(entries(closed))


def test_blank_lines_between_entries_are_no_damage(closed: Path, tmp_path: Path) -> None:
    closed.write_bytes(closed.read_bytes().replace(b"\n", b"\n\n", 2))
    session = reopen(tmp_path)
    assert texts(session) == ["first"]
    session.close()


async def test_an_entry_longer_than_any_buffer_is_whole(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "ä" * 3_000_000)
    await session.sync()
    session.close()
    assert texts(reopen(tmp_path)) == ["ä" * 3_000_000]


# -- disks that fail ------------------------------------------------------------------------------------------------


async def test_a_full_disk_stops_the_run_before_the_call(tmp_path: Path) -> None:
    """B071: the write of `tool_started` fails: the tool does not run, the error says so, no later write is taken."""
    ran: list[str] = []

    @tool
    def touch(context: ToolContext) -> str:
        """Touches."""
        ran.append(context.call_id)
        return "touched"

    files = FailingFiles(1 << 30)
    session = create(tmp_path, files=files)
    say(session, "go")
    reply(session, "I touch.", call("c1", "touch"))
    await session.sync()
    before = session.writer.path.read_bytes()
    caller = Caller(session.ledger, {"touch": touch}, (), tmp_path, tag="t")
    files.at = files.count + 1
    with pytest.raises(StoreError, match=r"write failed: No space left on device.*resume") as caught:
        await caller.run()
    assert not ran
    assert caught.value.exit_code != 0 and caught.value.cause.errno == errno.ENOSPC
    assert session.writer.path.read_bytes() == before
    (open_call,) = session.state.history.unresolved
    assert not open_call.started, "memory must not run ahead of the log"
    with pytest.raises(StoreError):
        session.put(ToolStarted(call_id="c1"))
    with pytest.raises(StoreError):
        await session.sync()
    session.close()
    files.healed = True
    session = reopen(tmp_path, files=files)
    await Caller(session.ledger, {"touch": touch}, (), tmp_path, tag="t").run()
    assert ran == ["c1"]
    session.close()


@pytest.mark.parametrize("k", range(1, 12))
async def test_whichever_write_a_full_disk_refuses_the_log_stays_whole(tmp_path: Path, k: int) -> None:
    """B071: every write in turn; what was acknowledged before is there after the cause is gone, and nothing else."""
    files = FailingFiles(1 << 30)
    session = create(tmp_path, files=files)
    files.at = files.count + k
    acknowledged: list[str] = []
    failed = False
    for n in range(8):
        try:
            say(session, f"message {n}")
            await session.sync()
            acknowledged.append(f"message {n}")
        except StoreError:
            failed = True
    assert failed
    files.healed = True
    session.close()
    lines_of(session.writer.path)
    again = reopen(tmp_path)
    whole = [f"message {n}" for n in range(len(acknowledged) + 1)]
    seen = texts(again) + [i.text for i in again.state.queued]
    assert acknowledged == whole[:-1] and seen in (acknowledged, whole)
    again.close()


@pytest.mark.parametrize("threaded", [True, False], ids=["in a thread", "in the loop"])
async def test_a_sync_that_fails_after_the_write_neither_doubles_nor_repeats(tmp_path: Path, threaded: bool) -> None:
    """B079: the bytes are there, the acknowledgement failed: explicit error, no second copy, the tool does not run."""
    ran: list[str] = []

    def touched(context: ToolContext) -> str:
        """Touches."""
        ran.append(context.call_id)
        return "touched"

    async def touched_in_the_loop(context: ToolContext) -> str:
        """Touches."""
        return touched(context)

    touch = tool(name="touch")(touched if threaded else touched_in_the_loop)
    files = FailingFiles(1 << 30, "sync", error=errno.EIO, done=True)
    session = create(tmp_path, files=files)
    say(session, "go")
    reply(session, "I touch.", call("c1", "touch"))
    await session.sync()
    files.at = files.count + 1
    with pytest.raises(StoreError, match="sync failed"):
        await Caller(session.ledger, {"touch": touch}, (), tmp_path, tag="t").run()
    assert not ran
    with pytest.raises(StoreError):
        session.put(ToolStarted(call_id="c1"))
    session.close()
    files.healed = True
    again = reopen(tmp_path)
    assert kinds(session.writer.path).count("tool_started") == 1
    (open_call,) = again.state.history.unresolved
    assert open_call.started, "found again: the outcome is unknown, and nobody runs it by itself"
    again.close()


class HeldSync(Files):
    """A sync that, once `held`, blocks its thread until it is let go, and may then fail. `synced` counts those that ended."""

    def __init__(self) -> None:
        self.held, self.entered, self.go = False, threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.synced = 0

    def sync(self, fd: int) -> None:
        if self.held:
            self.entered.set()
            assert self.go.wait(30)
            if self.error is not None:
                raise self.error
        super().sync(fd)
        self.synced += 1


async def test_b063_a_tool_in_a_thread_begins_when_its_start_is_durable(tmp_path: Path) -> None:
    files, seen = HeldSync(), list[tuple[int, bool]]()

    @tool
    def touch() -> str:
        """Touches."""
        seen.append((files.synced, session.writer.dirty))
        return "touched"

    session = create(tmp_path, files=files)
    say(session, "go")
    reply(session, "I touch.", call("c1", "touch"))
    await session.sync()
    before = files.synced
    assert await Caller(session.ledger, {"touch": touch}, (), tmp_path, tag="t").run() is None
    assert seen == [(before + 1, True)], "the sync had ended; that it had is noted once the tool is back"
    assert kinds(session.writer.path)[-2:] == ["tool_started", "tool_result"]
    session.close()


async def test_b063_the_start_is_durable_too_where_a_tool_has_a_timeout_or_another_way_to_be_called(
    tmp_path: Path,
) -> None:
    """The wait for the disk takes nothing of a tool's own time, and a wrapped tool is not trusted to wait for it."""
    files, seen = HeldSync(), list[bool]()

    @tool(timeout=30)
    def timed() -> str:
        """Takes its time."""
        seen.append(session.writer.dirty)
        return "done"

    async def other(values: dict[str, Any], context: ToolContext) -> str:
        seen.append(session.writer.dirty)
        return "done"

    wrapped = replace(tool(name="wrapped")(timed.call.function), call=other)
    session = create(tmp_path, files=files)
    say(session, "go")
    reply(session, "I work.", call("c1", "timed"), call("c2", "wrapped"))
    tools = {"timed": replace(timed, effect="write"), "wrapped": replace(wrapped, effect="write")}
    assert not wrapped.threaded
    assert await Caller(session.ledger, tools, (), tmp_path, tag="t").run() is None
    assert seen == [False, False]
    session.close()


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
async def test_b063_what_nobody_waits_for_does_not_begin_behind_a_late_sync(fails: bool, tmp_path: Path) -> None:
    """Left while its thread waits for the disk, and an error of that sync is not forgotten."""
    files = HeldSync()
    files.error = OSError(errno.EIO, "no disk") if fails else None
    writer = _writer(tmp_path, files)
    writer.write("warning", b"{}")
    syncing, raised = writer.syncing(), list[BaseException]()
    assert syncing is not None
    files.held = True

    def tool_thread() -> None:
        try:
            syncing.wait()
        except (Abandoned, OSError) as error:
            raised.append(error)

    thread = threading.Thread(target=tool_thread)
    thread.start()
    assert files.entered.wait(30)
    syncing.leave()
    files.go.set()
    thread.join(30)
    files.held = False
    if fails:
        assert raised == [files.error]
        with pytest.raises(StoreError, match="sync failed"):
            await writer.sync()
    else:
        assert isinstance(raised[0], Abandoned)
        await writer.sync()
        assert not writer.dirty
        assert writer.syncing() is None, "nothing is left to wait for"
    writer.close()


async def test_a_cancelled_call_in_a_thread_leaves_its_start_on_record(tmp_path: Path) -> None:
    files = HeldSync()

    @tool
    def touch() -> str:
        """Touches."""
        raise AssertionError("nobody waits for it any more")

    session = create(tmp_path, files=files)
    say(session, "go")
    reply(session, "I touch.", call("c1", "touch"))
    await session.sync()
    files.held = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Caller(session.ledger, {"touch": touch}, (), tmp_path, tag="t").run)
        await anyio.to_thread.run_sync(files.entered.wait, 30)
        tasks.cancel_scope.cancel()
    (open_call,) = session.state.history.unresolved
    assert open_call.started
    files.held = False
    files.go.set()
    await session.sync()
    session.close()


class SlowSync(Files):
    """A sync that waits until it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = anyio.Event(), False
        self.calls = 0

    def sync(self, fd: int) -> None:
        self.calls += 1
        if self.calls > 3:
            anyio.from_thread.run_sync(self.entered.set)
            anyio.from_thread.run(self._wait)
        super().sync(fd)

    async def _wait(self) -> None:
        while not self.go:
            await anyio.lowlevel.checkpoint()


async def test_a_log_is_dirty_until_the_sync_has_ended(tmp_path: Path) -> None:
    """Who looks whether something waits for the disk must not go ahead while a sync is still on its way."""
    files = SlowSync()
    writer = _writer(tmp_path, files)
    writer.write("warning", b"{}")
    files.calls = 3
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.sync)
        await files.entered.wait()
        assert writer.dirty
        writer.write("warning", b"{}")
        files.go = True
    assert writer.dirty, "what came during the sync is not covered by it"
    await writer.sync()
    assert not writer.dirty
    writer.close()


async def test_a_sync_is_shielded_from_cancellation(tmp_path: Path) -> None:
    files = SlowSync()
    writer = _writer(tmp_path, files)
    writer.write("warning", b"{}")
    files.calls = 3
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_let_go, files, scope)
            await writer.sync()
    assert scope.cancel_called and not writer.dirty
    writer.close()


async def _let_go(files: SlowSync, scope: anyio.CancelScope) -> None:
    await files.entered.wait()
    scope.cancel()
    files.go = True


def _writer(folder: Path, files: Files) -> SegmentWriter:
    path = folder / "x.jsonl"
    path.touch()
    writer, _, _ = SegmentWriter.open(path, files)
    return writer


def test_a_log_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    before = session.writer.path.read_bytes()
    with pytest.raises(StoreError, match="closed"):
        say(session, "late")
    assert session.writer.path.read_bytes() == before


def test_a_text_kept_by_its_hash_comes_back_byte_for_byte(tmp_path: Path) -> None:
    session = create(tmp_path)
    assert session.folder.blob(session.state.start.blobs["system"]) == "Be exact.\r\nAnd brief."
    session.close()


def test_results_of_one_reply_enter_the_view_in_the_order_of_its_calls(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "go")
    batch(session, "c1")
    again = [i.type for i in session.state.history.view]
    session.close()
    assert again == ["user", "assistant", "tool_call", "tool_result"]
    assert [i.type for i in reopen(tmp_path).state.history.view] == again
