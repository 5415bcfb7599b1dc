"""Promises of the agent's notes: what a window shows of them, what a clear leaves behind, and that the words about them are true."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pod import operations
from pod.context.notebook import NOTES, SLOT_BYTES, SLOT_TOKENS
from pod.operations import clear
from tests.pod.pod_rig import Agent, Counted, Rig, contexts, texts
from tests.pod.test_pod_rollover import rolling
from worker.estimate import estimate_text
from worker.items import ContextItem
from worker.testing import call, say

pytestmark = pytest.mark.anyio

OLD = "SECRETNOTE 42\nthe port is 8443\n"


def noting() -> Any:
    return rolling(tools={"enable": ["append_file", "write_file"]})


async def windows(rig: Rig, name: str = "p", first: Any = None) -> Agent:
    """Runs a task that goes through some windows; `first` is what the agent calls first."""
    agent = Agent(lambda request, n: first if n == 1 and first else call("fetch", n=n) if n < 14 else say("done"))
    async with rig.open(agent, noting(), name, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("fetch")).raise_for_status()
    assert any(s.lineage.kind_ == "rolled_over_from" for s in rig.starts(name)[-2:])
    return agent


async def cleared(rig: Rig) -> operations.Changed:
    rig.file(NOTES, OLD)
    await windows(rig)
    return await clear(rig.home, "p")


async def test_notes_of_before_a_clear_stand_in_no_later_window(rig: Rig) -> None:
    """The file stays, the windows don't show it: nothing crosses the floor, through any number of windows."""
    done = await cleared(rig)
    for _ in range(2):
        agent = await windows(rig)
        assert not any("SECRETNOTE" in texts(request) for request in agent.requests)
        assert not contexts(agent.requests[-1], "notes") and "holds nothing new" in texts(agent.requests[-1])
    assert done.notes == rig.cwd / NOTES and done.notes.read_text() == OLD


async def test_what_is_added_to_the_notes_after_a_clear_is_shown_alone(rig: Rig) -> None:
    await cleared(rig)
    agent = await windows(rig, first=call("append_file", path=NOTES, content="\nNEW: the host is db2\n"))
    assert contexts(agent.requests[-1], "notes") == ["NEW: the host is db2\n"]
    assert not any("SECRETNOTE" in texts(request) for request in agent.requests)


async def test_notes_that_were_written_anew_after_a_clear_are_shown_whole(rig: Rig) -> None:
    await cleared(rig)
    rig.file(NOTES, "All of this is new, and it is longer than what stood here before.\n")
    agent = await windows(rig)
    assert contexts(agent.requests[-1], "notes") == [(rig.cwd / NOTES).read_text()]


@pytest.mark.parametrize("then", ["fork", "rewind", "clear"])
async def test_the_floor_of_the_notes_survives(rig: Rig, then: str) -> None:
    """Fork, rewind and another clear, also one that finds no file (which then comes back)."""
    await cleared(rig)
    name = "p"
    if then == "fork":
        name = "q"
        await windows(rig)
        operations.fork(rig.home, "p", "q")
    elif then == "rewind":
        await windows(rig)
        point = rig.carry()
        assert point.notes is not None
        await operations.rewind(rig.home, "p", rig.starts()[-1].lineage.seq or 0)
    else:
        (rig.cwd / NOTES).unlink()
        assert (await clear(rig.home, "p")).notes is None
        rig.file(NOTES, OLD)
    agent = await windows(rig, name)
    assert not any("SECRETNOTE" in texts(request) for request in agent.requests)


async def test_notes_that_a_clear_could_not_read_are_not_shown_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pod.context.notebook.open_file", denied)
    await cleared(rig)
    agent = await windows(rig)
    assert not any("SECRETNOTE" in texts(request) for request in agent.requests)


ODD: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: None, f"{NOTES} does not exist."),
    ("empty", lambda path: path.write_text(""), f"{NOTES} is empty."),
    ("blank", lambda path: path.write_text(" \n\n"), f"{NOTES} is empty."),
    ("binary", lambda path: path.write_bytes(b"\xff\xfe\x00" * 1_000), f"can't be shown: {NOTES} is not text."),
    ("directory", lambda path: path.mkdir(), f"can't be shown: {NOTES} is a directory"),
    ("link", lambda path: path.symlink_to("/etc/hostname"), "can't be shown: outside the read scope"),
    ("pipe", lambda path: os.mkfifo(path), f"can't be shown: {NOTES} is a "),
]


@pytest.mark.parametrize(("make", "said"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
async def test_the_lead_in_says_what_became_of_the_notes(rig: Rig, make: Callable[[Path], object], said: str) -> None:
    make(rig.cwd / NOTES)
    agent = await windows(rig)
    [lead_in] = contexts(agent.requests[-1], "lead_in")
    assert said in lead_in and not contexts(agent.requests[-1], "notes")
    assert ("does not exist" in lead_in) == ("does not exist" in said)


@pytest.mark.parametrize(
    "text", ["line of text\n" * 2_000_000, "漢" * 20_000, "x" * 50_000, "\n\n\xe9" + "\xff" * 9_000]
)
async def test_the_mark_of_cut_notes_counts_every_byte_that_is_left_out(rig: Rig, text: str) -> None:
    """Whatever the file's size, and whatever its characters."""
    data = text.encode("latin-1") if "\xff" in text else text.encode()
    (rig.cwd / NOTES).write_bytes(data)
    agent = await windows(rig)
    [notes] = [i for i in agent.requests[-1].items if isinstance(i, ContextItem) and i.kind == "notes"]
    shown, _, mark = notes.text.rpartition("\n[... ")
    left = int(mark.split()[0])
    whole = data.decode(errors="replace").lstrip("\n")
    assert whole.startswith(shown) and estimate_text(shown) <= SLOT_TOKENS
    used = len(shown) if "\ufffd" in shown else len(shown.encode())
    assert 0 < used <= SLOT_BYTES and left == len(data.lstrip(b"\n")) - used
