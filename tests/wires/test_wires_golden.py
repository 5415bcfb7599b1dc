"""Whole bodies, as they leave for each wire, held against the files in `golden/`.

A difference is shown as a diff. Where a change is meant, write the files anew and read the diff of git:

    POD_WIRES_GOLDEN=write python -m pytest tests/wires/test_wires_golden.py
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wires.test_wires_long_task import changes, delivered
from wires.wires_rig import Agent, Ran, Sent, manifest, run_pod

from worker.testing.provider_server import Answer, Call, ProviderServer
from worker.testing.provider_wires import WireName

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("POD_WIRES_GOLDEN") == "write"

FIRST = "first-request"
NAMES = (FIRST, "after-an-error-result", "after-a-prune", "compaction-from-the-prefix", "first-of-a-new-segment")

FULL = {"openai-chat": 9_300, "openai": 8_000, "anthropic": 9_300}
"""Tokens that the last request of each wire is above, and the others are below."""

TASK = "Read the three files – a, b and c.\n"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_SEAL = re.compile(r"seal-[0-9a-f]{32}")


def prepare(folder: Path) -> None:
    (folder / "work").mkdir()
    for name, count in (("a", 220), ("b", 400), ("c", 90)):
        lines = [f"{name}{n} = {n * 17 % 101}  # value {n} of {name}" for n in range(count)]
        (folder / "work" / f"{name}.py").write_text("\n".join(lines) + "\n")


def steps() -> list[Answer]:
    return [
        Answer(
            "Two at once.",
            reasoning="First a look at both.",
            calls=[Call("read_file", {"path": "a.py", "limit": 3}), Call("read_file", {"path": "missing – é.py"})],
        ),
        Answer(reasoning="Now a.", calls=[Call("read_file", {"path": "a.py"})]),
        Answer("b is next.", reasoning="Now b.", calls=[Call("read_file", {"path": "b.py"})]),
        Answer("c is last.", reasoning="Now c.", calls=[Call("read_file", {"path": "c.py"})]),
        Answer("Read.", reasoning="Done."),
    ]


async def pruned(wire: WireName, folder: Path) -> Ran:
    """A run without compaction whose third file does not fit: old output is pruned at the ceiling."""
    prepare(folder)
    agent = Agent(wire, steps())
    with ProviderServer(agent, wire=wire, strict=True, bind_reasoning=wire != "openai-chat") as server:
        made = manifest(
            server,
            model={"context_window": FULL[wire] + 2_000},
            tools={"enable": ("read_file",)},
            prune={"protected_tokens": 500, "min_savings": 20_000, "min_savings_floor": 20_000},
        )
        return await run_pod(server, agent, made, folder, TASK)


async def compacted(wire: WireName, folder: Path) -> Ran:
    """A run that is compacted from its prefix before its last request."""
    prepare(folder)
    agent = Agent(wire, steps(), directive="Read the three files", reread="a.py")
    with ProviderServer(agent, wire=wire, strict=True, bind_reasoning=wire != "openai-chat") as server:
        made = manifest(
            server,
            tools={"enable": ("read_file",)},
            prune={"enabled": False},
            compaction={
                "request_threshold": FULL[wire], "source": "prefix", "retained_tokens": 1_000, "worker_context_max_tokens": 9_000,
                "auto_read_budget_tokens": 500, "retained_floor_tokens": 0,
            },
        )  # fmt: skip
        return await run_pod(server, agent, made, folder, TASK)


def bodies(one: Ran, other: Ran) -> Iterator[tuple[str, Sent, Ran]]:
    """The bodies by name, with the run that each is of."""
    requests, between = delivered(other), changes(other)
    yield FIRST, requests[0], other
    yield NAMES[1], requests[1], other
    yield NAMES[2], delivered(one)[next(n for n, found in enumerate(changes(one)) if "context.pruned" in found)], one
    yield NAMES[3], other.agent.of("compaction")[0].sent, other
    yield NAMES[4], requests[next(n for n, found in enumerate(between) if "segment.started" in found)], other


def rendered(sent: Sent, ran: Ran, first: dict[str, Any] | None) -> str:
    """A body to read: one field in a line, what differs from run to run under a name of its own.

    System prompt and tools that are those of the first request are not written again.
    """
    body = sent.json
    for key in ("system", "instructions", "tools"):
        if first is not None and key in body and body[key] == first.get(key):
            body[key] = f"as in {FIRST}"
    if first is not None and sent.wire == "openai-chat" and body["messages"][0] == first["messages"][0]:
        body["messages"][0] = f"as in {FIRST}"
    headers = {k: v for k, v in sent.headers.items() if k in ("content-type", "anthropic-beta", "anthropic-version")}
    text = json.dumps({"headers": headers, "body": body}, ensure_ascii=False, indent=1)
    tag = ran.records[0][0]["tag"]
    text = text.replace(ran.result.session, "SESSION").replace(tag, "TAG")
    text = _SEAL.sub("SEAL", _UUID.sub("UUID", text.replace(str(ran.folder), "WORK")))
    return text + "\n"


async def test_bodies_are_as_in_the_golden_files(wire: WireName, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = await pruned(wire, tmp_path / "one"), await compacted(wire, tmp_path / "other")
    assert (one.result.status, other.result.status) == ("finished", "finished"), (one.result, other.result)
    assert one.server.rejected == other.server.rejected == []
    wrong: list[str] = []
    for name, sent, ran in bodies(one, other):
        first = None if name == FIRST else delivered(ran)[0].json
        text = rendered(sent, ran, first)
        path = GOLDEN / f"{wire}.{name}.json"
        if WRITE:
            path.write_text(text)
            continue
        golden = path.read_text() if path.exists() else ""
        diff = difflib.unified_diff(golden.splitlines(), text.splitlines(), path.name, "this run", lineterm="", n=2)
        wrong += list(diff)
    if wrong:
        pytest.fail("\n".join(["bodies differ (POD_WIRES_GOLDEN=write takes them over)", *wrong]), pytrace=False)


def test_there_is_a_golden_file_for_each_name_and_no_other(wire: WireName) -> None:
    assert {path.name for path in GOLDEN.glob(f"{wire}.*")} == {f"{wire}.{name}.json" for name in NAMES}
