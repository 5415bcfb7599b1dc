"""Files that a compaction brings back: inside the scope, inside the budget, never twice (cases B098 to B101)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    compacting,
    contexts,
    filler,
    manifest,
    results,
    summariser,
    summary,
    texts,
)  # fmt: skip
from worker.estimate import estimate_item
from worker.items import ContextItem
from worker.models.base import Request
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio

NAMES = tuple(f"f{n}.txt" for n in range(5))


def reading(*paths: str, rest: int = 3) -> Any:
    """An agent that reads files, then fetches pages, then ends its turn."""

    def play(request: Request, n: int) -> Step:
        if n <= len(paths):
            return call("read_file", path=paths[n - 1])
        return call("fetch", n=n) if n <= len(paths) + rest else say("done")

    return play


def again(**more: Any) -> dict[str, Any]:
    """A `[compaction]` by hand only, with a tail too short for any of the files that were read before."""
    return compacting(None, retained_tokens=1_000, **more)


async def test_b101_files_read_again_keep_their_budget_and_those_left_out_are_named(rig: Rig) -> None:
    """B101: five marks of nearly 4,000 tokens each and a budget of 8,000: in the order of the marks, the rest as references."""
    for name in NAMES:
        rig.file(name, filler(3_600, name))
    opened: list[list[tuple[str, str]]] = []
    for name in ("one", "two"):
        agent = Agent(reading(*NAMES))
        marks = [call("mark_read_required", path=path) for path in NAMES]
        settings = again(auto_read_budget_tokens=8_000, result_context_max_tokens=20_000)
        made = manifest(tools={"enable": ["read_file"]}, compaction=settings)
        worker = summariser(first=marks)
        async with rig.open(agent, made, name, tools=[Counted(1_200).tool], compact_model=worker) as pod:
            await pod.run("read them")
            assert await pod.compact()
            await pod.run("and now")
        refused = [r for r in results(worker.requests[-1], "mark_read_required") if r.status == "error"]
        assert len(refused) == 3 and all("auto_read_budget_tokens=8000" in r.summary for r in refused)
        items = [i for i in rig.starts(name)[1].items if isinstance(i, ContextItem)]
        reads = [i for i in items if i.kind == "auto_read"]
        assert [i.path for i in reads] == list(NAMES[:2])
        assert 7_000 < sum(estimate_item(i, "o200k") for i in reads) <= 8_000
        (listed,) = contexts(agent.requests[-1], "references")
        assert [path in listed for path in NAMES] == [False, False, True, True, True]
        roles = [m["role"] for m in json.loads(b"[" + agent.requests[-1].messages + b"]")]
        assert "user user" not in " ".join(roles), "a provider that wants its roles to alternate takes it"
        opened.append([(i.kind, i.text) for i in items if i.kind in {"auto_read", "references"}])
    assert opened[0] == opened[1], "the same marks give the same items"


async def test_b101_a_marked_file_that_has_grown_is_left_out_and_named(rig: Rig) -> None:
    """B101: the budget holds at the moment of reading again, not only when the mark was made."""
    rig.file("small.txt", "small\n" * 10)
    rig.file("grows.txt", "grows\n" * 10)

    def write(request: Request) -> str:
        rig.file("grows.txt", filler(3_000, "grown"))
        return summary()

    marks = [call("mark_read_required", path=path) for path in ("grows.txt", "small.txt")]
    agent = Agent(reading("small.txt", "grows.txt"))
    made = manifest(tools={"enable": ["read_file"]}, compaction=again(auto_read_budget_tokens=2_000))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser(write, first=marks)) as pod:
        await pod.run("read them")
        assert await pod.compact()
        await pod.run("and now")
    last = agent.requests[-1]
    (auto,) = contexts(last, "auto_read")
    assert auto.startswith("[Auto-read file: small.txt:1-10]")
    (listed,) = contexts(last, "references")
    assert "grows.txt" in listed and "did not fit" in listed and "grown line" not in texts(last)
    assert any("grows.txt was marked" in note for note in rig.of(e.CompactionCompleted)[0].notes)


async def test_b098_a_marked_file_that_became_a_link_to_the_outside_is_dropped_with_a_note(
    rig: Rig, tmp_path: Path
) -> None:
    """B098: what lies outside is refused when it is marked or named, and checked again when it is read."""
    outside = tmp_path / "outside.txt"
    outside.write_text("OUTSIDE-SECRET\n")
    rig.file("inside.txt", "inside\n")
    (rig.cwd / "link.txt").symlink_to(outside)

    def write(request: Request) -> str:
        (rig.cwd / "inside.txt").unlink()
        (rig.cwd / "inside.txt").symlink_to(outside)
        return summary()

    first = [
        call("mark_read_required", path="link.txt"),
        call("add_reference", path="link.txt"),
        call("mark_read_required", path="inside.txt"),
    ]
    worker, agent = summariser(write, first=first), Agent(reading("inside.txt", "link.txt"))
    made = manifest(tools={"enable": ["read_file"]}, compaction=again())
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker) as pod:
        await pod.run("read them")
        assert await pod.compact()
        await pod.run("and now")
    refused = [
        r.name for r in results(worker.requests[-1]) if r.status == "error" and "outside the read scope" in r.text()
    ]
    assert refused == ["mark_read_required", "add_reference"]
    last = agent.requests[-1]
    assert not contexts(last, "auto_read")
    assert any("inside.txt could not be read again" in note for note in rig.of(e.CompactionCompleted)[0].notes)
    assert not [r for r in (*agent.requests, *worker.requests) if "OUTSIDE-SECRET" in texts(r)]


async def test_b099_a_marked_file_that_became_a_pipe_holds_no_compaction(rig: Rig) -> None:
    """B099: a pipe without a writer, marked or put in the place of a marked file, is refused by type at once."""
    os.mkfifo(rig.cwd / "pipe")
    rig.file("inside.txt", "inside\n")

    def write(request: Request) -> str:
        (rig.cwd / "inside.txt").unlink()
        os.mkfifo(rig.cwd / "inside.txt")
        return summary()

    first = [call("mark_read_required", path="pipe"), call("mark_read_required", path="inside.txt")]
    worker, agent = summariser(write, first=first), Agent(reading("inside.txt"))
    made = manifest(tools={"enable": ["read_file"]}, compaction=again())
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker) as pod:
        await pod.run("read it")
        assert await pod.compact()
    assert [r.status for r in results(worker.requests[-1], "mark_read_required")] == ["error", "ok"]
    assert "named pipe" in results(worker.requests[-1], "mark_read_required")[0].text()
    assert any("named pipe" in note for note in rig.of(e.CompactionCompleted)[0].notes)


async def test_b100_a_file_read_before_a_compaction_may_be_edited_after_it_while_unchanged(rig: Rig) -> None:
    """B100: the hashes of what was read cross the boundary; a file that changed meanwhile is not edited."""
    rig.file("same.txt", "alpha\n")
    rig.file("other.txt", "alpha\n")
    agent = Agent(reading("same.txt", "other.txt"))
    made = manifest(tools={"enable": ["read_file", "edit_file"]}, compaction=again())
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        await pod.run("read them")
        assert await pod.compact()
        rig.file("other.txt", "alpha and more\n")
        agent.served = 0
        edits = [call("edit_file", path=path, old="alpha", new="beta") for path in ("same.txt", "other.txt")]
        agent.play = lambda request, n: edits[n - 1] if n <= 2 else say("done")
        await pod.run("edit them")
    done, refused = results(agent.requests[-1], "edit_file")
    assert (done.status, refused.status) == ("ok", "error") and "changed since it was last read" in refused.text()
    assert (rig.cwd / "same.txt").read_text() == "beta\n"
    assert (rig.cwd / "other.txt").read_text() == "alpha and more\n"
