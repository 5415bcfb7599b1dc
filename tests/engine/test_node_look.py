"""What a node does to learn that a human answered: it reads what changed, and lists what came lately."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod.engine import node
from pod.engine.memory import MemoryEngine
from pod.engine.port import Activation

pytestmark = pytest.mark.anyio


class Counting(MemoryEngine):
    """Notes from when on delayed activations were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.since: list[float | None] = []

    def list(self, **options: Any) -> Any:
        self.since.append(options.get("since"))
        return super().list(**options)


async def test_a_look_reads_only_what_changed_and_lists_only_what_came_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answered: set[str] = set()

    def is_answered(folder: Any) -> bool:
        asked.append(folder.name)
        return folder.name in answered

    monkeypatch.setattr(node, "_answered", is_answered)
    engine = Counting()
    names = [f"p{n}" for n in range(5)]
    for name in names:
        folder = tmp_path / "pods" / name
        (folder / "inbox").mkdir(parents=True)
        (folder / "pod.json").write_text('{"segment": "s"}')
        (folder / "s.jsonl").write_text("x\n")
    await engine.submit([Activation(name, 2, "parked") for name in names], queue="work", delay=1000.0)
    await engine.submit([Activation("busy", 2, "busy")], queue="work", delay=1000.0)
    work = node.NodeWork(engine, tmp_path, [], [])
    await work._wake_answered()
    assert sorted(asked) == names and engine.since == [None]
    await work._wake_answered()
    assert len(asked) == 5 and engine.since[1] is not None, "nothing changed: nothing is read, not all is listed"
    answered.add("p3")
    (tmp_path / "pods" / "p3" / "inbox" / "c.json").write_text("{}")
    await work._wake_answered()
    assert asked[5:] == ["p3"]
    assert [status.activation.session async for status in engine.list(phases=["queued"])] == ["p3"]
    await engine.submit([Activation("p0", 3, "parked")], queue="work", delay=1000.0)
    await work._wake_answered()
    assert asked[6:] == ["p0"], "one that came since is found without a list of all"


async def test_all_that_is_delayed_is_listed_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "WHOLE", 0.0)
    engine = Counting()
    work = node.NodeWork(engine, tmp_path, [], [])
    for _ in range(2):
        await work._wake_answered()
    assert engine.since == [None, None]
