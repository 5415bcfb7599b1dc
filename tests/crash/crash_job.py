"""A short job for whole pods that crash, and what must hold of it afterwards.

The model decides from the request in front of it alone, so it goes on right after any crash. The job has reads (one batch of
them parallel), calls with an effect outside, an idempotent call that sends the pod a message through its inbox, tasks, a pin, at
least one prune, a compaction by the compact worker and a rollover. Its answer holds a receipt of every step: none can be made up.

Two witnesses stand outside the pod. `effects` gets a line, synced, from each call with an effect. `acks` gets a line for each entry
once a sync that covers it has returned.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio

from pod import Manifest, Pod, RunResult
from pod.log.files import Files
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.log.lines import Line
from worker.errors import BadRequest
from worker.items import (
    AssistantItem,
    ContextItem,
    Item,
    OrderItem,
    ToolCallItem,
    ToolOutput,
    ToolResultItem,
    UserItem,
    make_call,
)
from worker.models.base import Capabilities, Emit, Reply, Request
from worker.records import Record
from worker.testing import FunctionModel, check_request, make_reply
from worker.tools import Tool, ToolContext, tool

NAME = "job"
TASK = "Collect the receipts of all steps and report them."
STEER = "One more thing: record zulu too, before you report."
EFFECTS = ("echo", "india", "juliett", "zulu")
"""What has an effect outside, each exactly once in the end."""

READS = (
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "golf",
    "hotel",
    "kilo",
    "lima",
    "mike",
    "oscar",
    "papa",
    "quebec",
    "romeo",
)
STEPS: tuple[tuple[str, ...], ...] = (
    ("alpha",), ("bravo", "charlie", "delta"), ("echo",), ("steer",), ("pin",), ("golf",), ("lima",), ("mike",), ("hotel",),
    ("india", "juliett", "kilo"), ("oscar",), ("papa",), ("quebec",), ("romeo",), ("zulu",),
)  # fmt: skip
"""The calls of each reply, in order."""

_RECEIPT = re.compile(r"receipt-([a-z]+)-([0-9a-f]{8})")


def receipt(name: str) -> str:
    """What only the step itself gives."""
    return f"receipt-{name}-{sha256(b'salt ' + name.encode()).hexdigest()[:8]}"


EXPECTED = "All receipts: " + " ".join(sorted(receipt(n) for n in (*EFFECTS, *READS, "steer")))


@dataclass
class Outside:
    """The world outside of the pod: where it lies, its file layer, both witnesses."""

    root: Path
    files: Files = field(default_factory=Files)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def cwd(self) -> Path:
        return self.root / "work"

    @property
    def effects(self) -> Path:
        return self.root / "effects"

    @property
    def acks(self) -> Path:
        return self.root / "acks"

    @property
    def folder(self) -> PodFolder:
        return PodFolder(self.home, NAME, self.files)

    def make(self) -> None:
        """The folders that are there before the pod is."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.cwd.mkdir(exist_ok=True)

    def effect(self, name: str) -> None:
        """Has an effect, seen by the witness."""
        append(self.effects, f"{name}\n")
        self.files.point(f"did:{name}")

    def done(self) -> list[str]:
        """The effects so far."""
        return self.effects.read_text().split() if self.effects.exists() else []

    def acknowledge(self, segment: str, lines: list[Line]) -> None:
        """A sync returned: these entries are durable from now on."""
        append(self.acks, "".join(f"{segment} {line.seq} {line.id} {line.offset}\n" for line in lines))

    def acked(self) -> list[tuple[str, int, str, int]]:
        """Segment, number, id and offset of each acknowledged entry."""
        if not self.acks.exists():
            return []
        rows = [row.split() for row in self.acks.read_text().splitlines()]
        return [(segment, int(seq), label, int(offset)) for segment, seq, label, offset in rows]


def append(path: Path, text: str) -> None:
    """Appends a line in one durable write."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, text.encode())
        os.fdatasync(fd)
    finally:
        os.close(fd)


# -- tools ---------------------------------------------------------------------------------------------------------


def _page(name: str, lines: int) -> ToolOutput:
    body = "\n".join(f"{name} line {n} says that nothing of note happened here" for n in range(lines))
    return ToolOutput(summary=f"page {name}: {receipt(name)}", content=body)


@tool(effect="read")
async def read(name: str) -> ToolOutput:
    """Reads a page."""
    return _page(name, 60)


@tool(effect="read", prunable=False)
async def study(name: str) -> ToolOutput:
    """Reads a page that stays."""
    return _page(name, 84)


@tool(effect="write")
async def record(name: str, deps: Outside) -> str:
    """Has an effect outside."""
    deps.effect(name)
    return f"recorded: {receipt(name)}"


@tool(effect="read")
async def look(name: str, deps: Outside) -> str:
    """Looks whether an effect took place."""
    return f"it was recorded: {receipt(name)}" if name in deps.done() else f"absent-{name}"


@tool(effect="process", idempotent=True)
async def steer(deps: Outside, context: ToolContext) -> str:
    """Sends the pod a message, as another process would."""
    post(PodFolder(deps.home, NAME, deps.files), Command(id="steer-1", kind="send", args={"text": STEER}))
    return f"sent: {receipt('steer')}"


TOOLS: tuple[Tool, ...] = (read, study, record, look, steer)

# -- models --------------------------------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    window=60_000, window_source="table", max_output=2_000, max_output_source="table", family="o200k"
)


class Checked(FunctionModel):
    """A model that holds each request to what a strict provider and the user may expect."""

    async def send(self, request: Request, emit: Emit) -> Reply:
        check_request(request, self.encoder)
        check_words(request.items)
        return await super().send(request, emit)


def text_of(item: Item) -> str:
    """What an item says; a call says nothing."""
    if isinstance(item, ToolCallItem):
        return ""
    return item.text() if isinstance(item, ToolResultItem) else str(getattr(item, "text", ""))


def said(items: tuple[Item, ...] | list[Item]) -> list[str]:
    """The user's messages in a view, those that crossed a boundary among them."""
    return [
        text_of(item) for item in items
        if isinstance(item, UserItem) or (isinstance(item, ContextItem) and item.kind == "user_words" and item.source != "count")
    ]  # fmt: skip


def check_words(items: Any) -> None:
    """Each message of the user stands there once."""
    words = said(items)
    assert words.count(TASK) == 1, f"the task stands in a request {words.count(TASK)} times"
    due = any(receipt("steer") in text_of(item) for item in items)
    assert words.count(STEER) <= 1 and (STEER in words or not due), (
        f"the message that was sent: {words.count(STEER)} times"
    )


def receipts(items: Any) -> dict[str, str]:
    """The receipts that a request holds, by step."""
    return {match[1]: match[0] for item in items for match in _RECEIPT.finditer(text_of(item))}


def decide(request: Request) -> Reply:
    """The next reply of the agent, from the request alone."""
    items = request.items
    last_lead_in = _last(items, lambda i: isinstance(i, ContextItem) and i.kind == "lead_in")
    searched = _last(
        items, lambda i: isinstance(i, ToolResultItem) and i.name == "session_history" and i.status == "ok"
    )
    if last_lead_in > searched:
        return make_reply(call_of("session_history", {"action": "search", "query": "receipt-", "limit": 25}))
    texts = [text_of(item) for item in items if isinstance(item, ToolResultItem | ContextItem)]
    if not any("collect all" in text for text in texts):
        return make_reply(call_of("tasks", {"add": ["collect all receipts", "report them"]}))
    seen = receipts(items)
    for step in STEPS:
        calls = [c for name in step if name not in seen and (c := _call(name, items)) is not None]
        if calls:
            # What a search gave may be pruned later, so it is said once more.
            known = f" Known: {' '.join(sorted(seen.values()))}." if 0 <= searched == len(items) - 1 else ""
            return make_reply(AssistantItem(text=f"Next: {', '.join(step)}.{known}"), *calls)
    if not any(re.search(r"tasks: .*2 done|\[done\] t2|t2 \[done\]", text) for text in texts):
        return make_reply(
            call_of("tasks", {"update": [{"id": "t1", "status": "done"}, {"id": "t2", "status": "done"}]})
        )
    pinned = [i for i in items if isinstance(i, ContextItem) and i.kind == "pin" and receipt("echo") in i.text]
    if len(pinned) != 1 or STEER not in said(items):
        return make_reply(AssistantItem(text=f"lost: {len(pinned)} pins, words {said(items)}"))
    return make_reply(AssistantItem(text="All receipts: " + " ".join(sorted(seen.values()))))


def call_of(name: str, arguments: dict[str, Any]) -> ToolCallItem:
    """A call; the worker makes its id unique."""
    return make_call("", name, json.dumps(arguments))


def _call(name: str, items: Any) -> ToolCallItem | None:
    if name == "pin":
        if any("is pinned (" in text_of(i) or (isinstance(i, ContextItem) and i.kind == "pin") for i in items):
            return None
        target = next(i for i in items if isinstance(i, ToolResultItem) and receipt("echo") in i.text())
        return call_of("context", {"action": "pin", "item": target.id})
    if name == "steer":
        return call_of("steer", {})
    if name in EFFECTS:
        unknown = _last(items, lambda i: _unknown(i, name, items))
        absent = _last(items, lambda i: isinstance(i, ToolResultItem) and f"absent-{name}" in i.text())
        return call_of("look" if unknown > absent else "record", {"name": name})
    return call_of(
        "study" if name in {"lima", "mike", "hotel", "oscar", "papa", "quebec", "romeo"} else "read", {"name": name}
    )


def _unknown(item: Item, name: str, items: Any) -> bool:
    if not isinstance(item, ToolResultItem) or item.status != "interrupted" or "unknown" not in item.summary:
        return False
    call = next(i for i in items if isinstance(i, ToolCallItem) and i.call_id == item.call_id)
    return call.name == "record" and (call.parsed or {}).get("name") == name


def _last(items: Any, wanted: Any) -> int:
    return max((n for n, item in enumerate(items) if wanted(item)), default=-1)


def summarise(request: Request) -> Reply:
    """The compact worker: one good summary; asked for a second one, it refuses, so that the pod rolls over."""
    items = request.items
    order = _last(items, lambda i: isinstance(i, OrderItem) and "write_summary" in i.text)
    if any(isinstance(i, ToolResultItem) and i.name == "write_summary" and i.status == "ok" for i in items[order:]):
        return make_reply(AssistantItem(text="written"))
    found = {match[1]: match[0] for item in items for match in _RECEIPT.finditer(text_of(item))}
    if "kilo" in found:
        raise BadRequest("this summary is refused", status=400)
    findings = "\n".join(f"- {text} — source: step {name}" for name, text in sorted(found.items()))
    text = (
        "## Completed Tasks\n### [T1] First steps\n- Each finished step gave the receipt that stands in the findings\n\n"
        "## Active Task\n### [T2] The other steps\n- Goal: a receipt of each step\n- Next: the first step without one\n\n"
        "## Key Decisions\n- One step at a time, because the order is given\n\n## User Directives\n\n"
        f"## Findings\n{findings}\n\n## Current Work\nCollecting receipts, one step after the other."
    )
    return make_reply(call_of("write_summary", {"text": text}))


# -- the pod -------------------------------------------------------------------------------------------------------


def manifest(source: str = "overview") -> Manifest:
    """The job's manifest: everything in it is small, so that the job is short."""
    return Manifest.model_validate({
        "tools": {"enable": ["tasks", "context"]},
        "permissions": {"profile": "workspace-write", "rules": [{"tool": "*", "action": "allow"}]},
        "prune": {"enabled": True, "protected_tokens": 600, "min_savings": 2_000, "min_savings_floor": 2_000},
        "scope": {"read": ["."], "write": ["."]},
        "model": {"max_output_tokens": 1_000},
        "context": {"buffer_tokens": 1_000, "ladder": ["compact", "rollover"]},
        "compaction": {
            "source": source, "request_threshold": 6_350, "retained_tokens": 600, "retained_floor_tokens": 100,
            "finish_warning_remaining_tokens": 2_000, "final_reserve_tokens": 1_000,
        },
        "retry": {"max_attempts": 1},
    })  # fmt: skip


def open_pod(outside: Outside, source: str, **more: Any) -> Pod:
    """The job's pod, new or as it was left."""
    return Pod.open(
        manifest(source), name=NAME, home=outside.home, cwd=outside.cwd, tools=TOOLS, deps=outside, files=outside.files,
        model=Checked("offline:agent", decide, capabilities=_CAPABILITIES),
        compact_model=FunctionModel("offline:summary", summarise, capabilities=_CAPABILITIES), **more,
    )  # fmt: skip


def witness(pod: Pod, outside: Outside) -> None:
    """Acknowledgements go to the witness: each entry once a sync that covers it has returned."""
    session = pod.running.session
    pending: list[Line] = []
    segment = session.pointer.segment
    outside.acknowledge(segment, list(session.lines()))

    def listen(line: Line, record: Record) -> None:
        pending.append(line)

    real = session.sync

    async def sync() -> None:
        covered, where = len(pending), session.pointer.segment
        await real()
        if where == session.pointer.segment:
            outside.acknowledge(where, pending[:covered])
        del pending[:covered]

    session.listeners.append(listen)
    session.sync = sync  # type: ignore[method-assign]


async def go(outside: Outside, source: str) -> RunResult | str:
    """Runs the job to its end, from wherever it stands. The answer, where an earlier process had ended it already."""
    async with open_pod(outside, source) as pod:
        witness(pod, outside)
        state = pod.state
        if state.first_input is None:
            return await pod.run(TASK)
        if state.unanswered:
            return await pod.resume()
        return str(state.ended.result["text"])


def run(outside: Outside, backend: str, source: str) -> str:
    """`go`, in this process; the answer."""
    outside.make()
    result = anyio.run(go, outside, source, backend=backend)
    return result if isinstance(result, str) else f"{result.raise_for_status().text}"


def main(arguments: list[str]) -> None:
    """`crash_job.py FOLDER BACKEND SOURCE`: the job in a process of its own."""
    folder, backend, source = arguments
    print("started", flush=True)
    print(json.dumps(run(Outside(Path(folder)), backend, source)), flush=True)


def logs(outside: Outside) -> Iterator[Path]:
    """The logs of the segments, not those of compact workers."""
    yield from sorted(p for p in outside.folder.path.glob("*.jsonl") if ".compact-" not in p.name)


if __name__ == "__main__":
    main(sys.argv[1:])
