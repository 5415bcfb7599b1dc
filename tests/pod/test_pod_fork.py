"""Promises of a fork: it remembers what its origin remembers, keeps that by itself, and stays a session of its own."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod import operations as op
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.doctor import examine, repair
from pod.log.files import Files
from pod.log.folder import PodFolder
from pod.peek import glance
from pod.reading import SessionReader
from pod.session import Session, load, write_segment
from pod.transfer import export_pod, import_pod
from tests.pod.pod_rig import Agent, Counted, Play, Rig, caller, contexts, manifest, results
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio

FLOOR = "the word of before the clear"


def rolling(*, prune: bool = False) -> Any:
    return manifest(
        tools={"enable": ["session_history"]},
        context={"policy": "rollover"},
        rollover={"at": 12_000, "warn": 9_000},
        compaction={"retained_tokens": 2_000, "retained_floor_tokens": 500},
        prune={"enabled": prune, "protected_tokens": 1_000, "min_savings": 1_500},
    )


async def work(rig: Rig, play: Play, text: str = "go", name: str = "p", *, prune: bool = False) -> Agent:
    agent = Agent(play)
    async with rig.open(agent, rolling(prune=prune), name=name, tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run(text)).status == "finished"
    return agent


def looker(*questions: dict[str, Any]) -> Play:
    """A model that asks its history these questions, then ends."""
    asked = iter(questions)

    def play(request: Request, number: int) -> Step:
        question = next(asked, None)
        return say("looked") if question is None else call("session_history", **question)

    return play


async def looked_up(rig: Rig, name: str, *questions: dict[str, Any]) -> list[ToolResultItem]:
    """The answers of a pod's history, with its agent's first request read for a lead-in."""
    agent = await work(rig, looker(*questions), "look", name)
    return results(agent.requests[-1], "session_history")[-len(questions) :]


# -- it remembers -----------------------------------------------------------------------------------------------------


async def test_a_fork_finds_the_window_that_its_lead_in_names(rig: Rig) -> None:
    await work(rig, caller(14))
    op.fork(rig.home, "p", "q")
    before = rig.starts("p")[-2].segment
    agent = await work(rig, looker({"action": "list_items", "window": before}), "look", "q")
    [lead_in] = contexts(agent.requests[0], "lead_in")
    assert before in lead_in
    [answer] = results(agent.requests[-1], "session_history")
    assert answer.status == "ok" and "page 1 begins" in answer.text()


async def test_a_fork_reads_the_full_text_of_what_was_pruned_and_finds_it_by_its_words(rig: Rig) -> None:
    agent = await work(rig, caller(20), prune=True)
    pruned = next(item for item in results(agent.requests[-1], "fetch") if item.pruned)
    assert f"session_history item {pruned.id}" in pruned.text()
    op.fork(rig.home, "p", "q")
    op.remove(rig.home, "p")  # what it remembers is its own
    read, found, windows = await looked_up(
        rig, "q", {"action": "read_item", "item": pruned.id}, {"action": "search", "query": "page 2 begins"},
        {"action": "list_windows"},
    )  # fmt: skip
    assert "begins" in read.text() and "nothing of note happened here" in read.text()
    assert "1 hits" in found.text() and "the session begins there" in found.text()
    assert '"how": "fresh"' in windows.text() and '"how": "forked_from"' in windows.text()


async def test_a_fork_of_a_fork_and_what_a_rewind_left_behind(rig: Rig) -> None:
    await work(rig, caller(14))
    middle = next(line.seq for line in SessionReader(rig.folder()).lines() if line.kind == "run_ended")
    await work(rig, lambda _, __: say("a thing that is taken back"), "astray")
    await op.rewind(rig.home, "p", middle)
    await work(rig, lambda _, __: say("a thing that stands"), "after the rewind")
    op.fork(rig.home, "p", "q")
    await work(rig, lambda _, __: say("a thing of the fork"), "in q", "q")
    op.fork(rig.home, "q", "r")
    op.remove(rig.home, "p")
    op.remove(rig.home, "q")
    queries = ("a thing of the fork", "a thing that stands", "page 1 begins", "a thing that is taken back")
    answers = await looked_up(rig, "r", *({"action": "search", "query": query, "type": t} for query, t in zip(
        queries, ("assistant", "assistant", "tool_result", "assistant"), strict=True)))  # fmt: skip
    assert [answer.text().split("session_history: ")[1][:6] for answer in answers] == ["1 hits"] * 3 + ["0 hits"]
    kept = b"".join(path.read_bytes() for path in rig.folder("r").path.rglob("*.jsonl") if path.parent.name == "origin")
    assert b"a thing that is taken back" not in kept and b"a thing that stands" in kept


async def test_a_fork_from_within_takes_nothing_of_what_came_later(rig: Rig) -> None:
    await work(rig, caller(20))
    seq = load(rig.segments()[0]).last_seq
    await work(rig, lambda _, __: say("much later"), "later")
    op.fork(rig.home, "p", "q", seq)
    origin = rig.folder("q").origin
    assert [path.stem for path in origin.iterdir()] == [rig.starts()[0].segment]
    assert all(b"much later" not in path.read_bytes() for path in origin.iterdir())


async def test_a_stub_whose_full_text_is_gone_is_not_given_as_the_whole_item(rig: Rig) -> None:
    agent = await work(rig, caller(10), prune=True)
    pruned = next(item for item in results(agent.requests[-1], "fetch") if item.pruned)
    op.fork(rig.home, "p", "q")
    for path in rig.folder("q").origin.iterdir():
        path.unlink()
    [answer] = await looked_up(rig, "q", {"action": "read_item", "item": pruned.id})
    assert "this is all that is left of it" in answer.text()


# -- the floor --------------------------------------------------------------------------------------------------------


async def test_nothing_of_before_a_clear_comes_along_and_a_clear_of_the_fork_is_its_floor(rig: Rig) -> None:
    await work(rig, lambda _, __: say(FLOOR), FLOOR)
    await op.clear(rig.home, "p")
    await work(rig, lambda _, __: say("what a fork may know"), "after")
    op.fork(rig.home, "p", "q")
    held = b"".join(path.read_bytes() for path in rig.folder("q").path.rglob("*") if path.is_file())
    assert FLOOR.encode() not in held and b"what a fork may know" in held
    await op.clear(rig.home, "q")
    await work(rig, lambda _, __: say("anew"), "anew", "q")
    [answer] = await looked_up(rig, "q", {"action": "search", "query": "a fork may"})
    assert "0 hits" in answer.text() and "cleared" in answer.text()
    op.fork(rig.home, "q", "r")
    export_pod(rig.home, "q", packed := io.BytesIO())
    for data in (packed.getvalue(), *(p.read_bytes() for p in rig.folder("r").path.rglob("*.jsonl"))):
        assert b"what a fork may know" not in data
    # The fork's own past has the same floor as its own segments: not shown by anything, on disk until the pod is removed.
    assert all(not segment.origin for segment in SessionReader(rig.folder("q")).walk(origins=True))
    assert any(b"what a fork may know" in path.read_bytes() for path in rig.folder("q").origin.iterdir())
    op.remove(rig.home, "q")
    assert not rig.folder("q").path.exists()


# -- a session of its own ---------------------------------------------------------------------------------------------


async def test_a_fork_counts_its_own_requests_and_its_numbers_go_on(rig: Rig) -> None:
    await work(rig, caller(14))
    done = op.fork(rig.home, "p", "q")
    await work(rig, lambda _, __: say("one"), "one", "q")
    state = load(rig.segments("q")[-1])
    assert state.totals.requests == 1 and glance(rig.folder("q")).requests == 1
    assert rig.kinds("q").count("reply") == 1, "log and inspect tell of its own session"
    first = next(SessionReader(rig.folder("q")).lines())
    assert (first.kind, first.seq) == ("segment_started", done.point + 1)
    everything = [line.seq for line in SessionReader(rig.folder("q")).lines(origins=True)]
    assert everything == list(range(1, everything[-1] + 1))
    with pytest.raises(UsageProblem, match="forked there"):
        await op.rewind(rig.home, "q", done.point)


async def test_a_resume_of_a_fork_reads_nothing_of_its_past(rig: Rig) -> None:
    await work(rig, caller(14))
    op.fork(rig.home, "p", "q")
    for path in rig.folder("q").origin.iterdir():
        path.unlink()
        path.write_bytes(b"not a log")
    await work(rig, lambda _, __: say("fine"), "go on", "q")


async def test_sealed_logs_are_shared_and_one_that_may_grow_is_not(rig: Rig) -> None:
    await work(rig, caller(34))
    op.fork(rig.home, "p", "q")
    links = {path.stem: path.stat().st_nlink for path in rig.folder("q").origin.iterdir()}
    sealed = [path.stem for path in rig.segments("p")[:-1]]
    assert links == {**dict.fromkeys(sealed, 2), rig.segments("p")[-1].stem: 1} and len(sealed) > 1
    before = {path.name: path.read_bytes() for path in rig.folder("q").origin.iterdir()}
    await work(rig, caller(6), "more")
    assert {path.name: path.read_bytes() for path in rig.folder("q").origin.iterdir()} == before


async def test_a_fork_travels_with_its_past(rig: Rig, tmp_path: Path) -> None:
    await work(rig, caller(20))
    op.fork(rig.home, "p", "q")
    export_pod(rig.home, "q", packed := io.BytesIO())
    packed.seek(0)
    shutil.rmtree(rig.home)
    import_pod(packed, rig.home)
    assert (await looked_up(rig, "q", {"action": "search", "query": "page 2 begins"}))[0].text().count("1 hits") == 1


# -- what can go wrong ------------------------------------------------------------------------------------------------


async def test_the_doctor_looks_over_and_repairs_what_a_fork_took_along(rig: Rig) -> None:
    await work(rig, caller(20))
    op.fork(rig.home, "p", "q")
    assert examine(rig.home, "q").pods[0].findings == ()
    old = rig.folder("q").origin / rig.segments("p")[0].name
    lines = old.read_bytes().split(b"\n")
    lines[5] = b"broken"
    old.unlink()
    old.write_bytes(b"\n".join(lines))
    old.chmod(0o600)
    (report,) = examine(rig.home, "q").pods
    assert [(f.code, f.path, f.repairable) for f in report.findings] == [("damage", old, True)]
    assert report.ok and not report.whole
    assert repair(rig.home, "q").after.whole
    export_pod(rig.home, "q", io.BytesIO())
    old.unlink()
    (report,) = examine(rig.home, "q").pods
    assert [(f.code, f.path) for f in report.findings] == [("segment_missing", old)]
    [answer] = await looked_up(rig, "q", {"action": "search", "query": "page 1 begins"})
    assert "0 hits" in answer.text() and "an older log is gone" in answer.text()


class Snapshots(Files):
    """Keeps the home as it is before each operation: what a kill there would leave."""

    def __init__(self, home: Path, to: Path) -> None:
        self.home, self.to, self.count = home, to, 0

    def _keep(self) -> None:
        shutil.copytree(self.home, self.to / f"{self.count:03}", copy_function=shutil.copy)
        self.count += 1

    def open_append(self, path: Path, *, create: bool) -> int:
        self._keep()
        return super().open_append(path, create=create)

    def write(self, fd: int, data: bytes) -> None:
        self._keep()
        super().write(fd, data)

    def sync_folder(self, path: Path) -> None:
        self._keep()
        super().sync_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self._keep()
        super().rename(source, target)


async def test_a_fork_that_is_killed_is_no_pod_or_a_whole_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await work(rig, caller(14))
    await work(rig, lambda _, __: say("the last"), "more")
    seen = tmp_path / "seen"
    files = Snapshots(rig.home, seen)

    def watched(home: Path, name: str) -> PodFolder:
        return PodFolder(home, name, files if name == "q" else Files())

    monkeypatch.setattr(op, "PodFolder", watched)
    op.fork(rig.home, "p", "q")
    monkeypatch.undo()
    files.to = tmp_path / "unused"
    whole = [line.seq for line in SessionReader(rig.folder("q")).lines(origins=True)]
    ends: set[str] = set()
    for home in sorted(seen.iterdir()):
        folder = PodFolder(home, "q")
        if not folder.exists():
            ends.add("none")
            assert op.fork(home, "p", "q").items
        elif not folder.pointer_path.exists():
            ends.add("its pointer is lacking")
            assert repair(home, "q").pointed_to
        else:
            ends.add("whole")
        assert [line.seq for line in SessionReader(folder).lines(origins=True)] == whole
        Session.open(home, "q").close()
    assert ends == {"none", "its pointer is lacking", "whole"}


async def test_what_a_killed_fork_left_is_no_past_of_the_next_pod_of_its_name(rig: Rig) -> None:
    folder = rig.folder("q")
    folder.origin.mkdir(parents=True)
    (folder.path / "lock").touch()
    (folder.origin / "0190-left.jsonl").write_bytes(b"left")
    await work(rig, lambda _, __: say("fresh"), "fresh", "q")
    assert not list(folder.origin.iterdir())


def test_a_lineage_that_leads_in_a_circle_or_out_of_the_folder_ends_there(rig: Rig) -> None:
    session = Session.create(rig.home, "p", blobs={}, manifest="m")
    folder, label = session.folder, session.pointer.segment
    session.close()
    for segment in (label, "../p", ""):
        lineage = e.Lineage(kind="forked_from", segment=segment, seq=1, session=session.state.start.session)
        start = session.state.start.model_copy(update={"lineage": lineage})
        write_segment(folder, start, 1)
        folder.origin.mkdir(exist_ok=True)
        shutil.copy(folder.segment_path(label), folder.origin_path(label))
        chain = SessionReader(folder).chain(origins=True)
        assert [s.id for s in chain.segments] == [label] and chain.end == "unreadable"


@pytest.mark.parametrize("name", ["origin", "a/origin"])
def test_no_pod_can_be_named_as_the_place_of_what_a_fork_took_along(rig: Rig, name: str) -> None:
    with pytest.raises(UsageProblem, match="inside a pod's folder"):
        anyio.run(_opened, rig, name)


async def _opened(rig: Rig, name: str) -> None:
    async with rig.open(Agent(caller(1)), name=name):
        pass
