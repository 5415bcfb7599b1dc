"""What the tests of a whole pod share: manifests, models that play a part, and looks into the log.

Models here check every request as a strict provider would (`worker.testing.check_request`), so each test also holds
the pairing of calls and results.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import forked

from pod import Manifest, Pod
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import entries
from pod.reading import SessionReader
from pod.session import load
from worker.estimate import estimate_text
from worker.items import ContextItem, Item, OrderItem, ToolResultItem, UserItem
from worker.models.base import Capabilities, Emit, Reply, Request
from worker.records import Record
from worker.testing import ScriptedModel, call, check_request, say
from worker.testing.scripted import Recorded, Step
from worker.tools import Tool, tool

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Findings", "Current Work")


def capabilities(window: int = 200_000, output: int = 1_000, **more: Any) -> Capabilities:
    """A model of this window, known from the table."""
    return Capabilities(
        window=window, window_source="table", max_output=output, max_output_source="table", family="o200k", **more
    )


Play = Callable[[Request, int], Step]


class Agent(ScriptedModel):
    """A model that answers each request with what `play` makes of it and of its number (from 1).

    Every request is kept in `requests` and checked; a request above the window is refused.
    """

    def __init__(self, play: Play, *, window: int = 200_000, name: str = "offline:agent", **more: Any) -> None:
        self.play = play
        self.served = 0
        caps = more.pop("capabilities", None) or capabilities(window)
        super().__init__([self._step], strict=False, capabilities=caps, name=name, **more)

    async def send(self, request: Request, emit: Emit) -> Reply:
        check_request(request, self.encoder)
        return await super().send(request, emit)

    def _step(self, request: Request) -> Step:
        self.served += 1
        return self.play(request, self.served)


def caller(total: int, name: str = "fetch", done: str = "done") -> Play:
    """Calls a tool with n = 1, 2, ... `total`, then ends. What comes next is read from the request alone or, where the
    older calls stand in it no more, from how many requests were served."""

    def play(request: Request, number: int) -> Step:
        return call(name, n=number) if number <= total else say(done)

    return play


def summary(current: str = "Was fetching the next page.", **bodies: str) -> str:
    """A valid summary."""
    texts = {
        "Completed Tasks": "### [T1] Fetching\n- Fetched the first pages with `fetch`; all of them were plain text",
        "Active Task": "### [T2] The rest\n- Goal: fetch every page\n- Next: the page after the last one",
        "Key Decisions": "- One page at a time, because the server is slow",
        "User Directives": "",
        "Findings": "",
        "Current Work": current,
    }
    texts |= {key.replace("_", " "): value for key, value in bodies.items()}
    return "\n\n".join(f"## {key}\n{texts[key]}" for key in SECTIONS)


def summariser(text: str | Callable[[Request], str] | None = None, first: Sequence[Step] = (), **more: Any) -> Agent:
    """A compact worker's model: the steps of `first`, then its summary, then the end of its turn."""

    def play(request: Request, number: int) -> Step:
        order = next((at for at in range(len(request.items) - 1, -1, -1) if is_order(request.items[at])), 0)
        steps = sum(i.type == "tool_result" for i in request.items[order:])
        if steps < len(first):
            return first[steps]
        if wrote(request.items):
            return say("written")
        return call("write_summary", text=text(request) if callable(text) else text or summary())

    return Agent(play, name=more.pop("name", "offline:summariser"), **more)


def is_order(item: Item) -> bool:
    """Whether this is the order to compact."""
    return isinstance(item, OrderItem) and "write_summary" in item.text


def wrote(items: Sequence[Item]) -> bool:
    """Whether a summary was recorded behind the last order."""
    for item in reversed(items):
        if isinstance(item, ToolResultItem) and item.name == "write_summary" and item.status == "ok":
            return True
        if is_order(item):
            return False
    return False


def filler(tokens: int, mark: str = "x") -> str:
    """Plain text of about this many tokens, all lines different."""
    lines: list[str] = []
    costs: dict[int, int] = {}  # numbers of as many digits cost the same
    size = 0
    while size < tokens:
        line = f"{mark} line {len(lines)} says that nothing of note happened here"
        if len(line) not in costs:
            costs[len(line)] = estimate_text(line + "\n", "o200k")
        size += costs[len(line)]
        lines.append(line)
    return "\n".join(lines)


@dataclass
class Counted:
    """A tool `fetch(n)` that answers with `tokens` of text and remembers what it was called with."""

    tokens: int = 1_000
    name: str = "fetch"
    effect: Any = "read"
    calls: list[int] = field(default_factory=list[int])

    @property
    def tool(self) -> Tool:
        @tool(name=self.name, effect=self.effect)
        async def fetch(n: int) -> str:
            """Fetches page n."""
            self.calls.append(n)
            return f"page {n} begins\n{filler(self.tokens, f'page {n}')}"

        return fetch


def manifest(**sections: Any) -> Manifest:
    """A manifest for tests: no built-in tools, nothing asks, no prune, entries handed to the system only."""
    values: dict[str, Any] = {
        "tools": {"enable": []},
        "permissions": {"profile": "workspace-write"},
        "prune": {"enabled": False},
        "log": {"durability": "os"},
        "scope": {"read": ["."], "write": ["."]},
        "context": {"buffer_tokens": 1_000},
        "retry": {"max_attempts": 1},
    }
    for key, value in sections.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) and key in values else value
    return Manifest.model_validate(values)


def compacting(request: int | None = 12_000, **more: Any) -> dict[str, Any]:
    """A `[compaction]` whose compact worker starts from an overview."""
    values: dict[str, Any] = {"source": "overview", "retained_tokens": 2_000, "retained_floor_tokens": 500}
    if request is not None:
        values["request_threshold"] = request
    return {**values, **more}


class Rig:
    """A home and a working folder, pods in them, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        self.cwd.mkdir(exist_ok=True)

    def open(self, model: Any, made: Manifest | None = None, name: str = "p", **options: Any) -> Pod:
        """A pod of this home."""
        return Pod.open(made or manifest(), name=name, home=self.home, cwd=self.cwd, model=model, **options)

    def folder(self, name: str = "p") -> PodFolder:
        """A pod's folder."""
        return PodFolder(self.home, name)

    def file(self, name: str, text: str) -> Path:
        """Writes a file in the working folder."""
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def log(self, name: str = "p") -> list[Record]:
        """The records of the whole session, in order."""
        found = (e.record_of(line) for line in SessionReader(self.folder(name)).lines())
        return [record for record in found if record is not None]

    def kinds(self, name: str = "p") -> list[str]:
        """Their kinds."""
        return [record.kind for record in self.log(name)]

    def of(self, kind: type[Any], name: str = "p") -> list[Any]:
        """The records of one type."""
        return [record for record in self.log(name) if isinstance(record, kind)]

    def segments(self, name: str = "p") -> list[Path]:
        """The logs of the segments, oldest first."""
        return [segment.path for segment in reversed(SessionReader(self.folder(name)).chain().segments)]

    def starts(self, name: str = "p") -> list[e.SegmentStarted]:
        """The first entries of the segments, oldest first."""
        return self.of(e.SegmentStarted, name)

    def worker_logs(self, name: str = "p") -> list[Path]:
        """The compact workers' own logs, oldest first."""
        return sorted(self.folder(name).path.glob("*.compact-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)

    def worker_records(self, path: Path) -> list[Record]:
        """What stands in one of them."""
        found = (e.record_of(line) for line in entries(path))
        return [record for record in found if record is not None]

    def carry(self, name: str = "p", segment: int = -1) -> Any:
        """The carry that a segment's log gives."""
        return load(self.segments(name)[segment], "o200k").carry()

    def run_in_process(self, program: str, *args: str, check: int | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program text in a process of its own, with this home and folder in its arguments."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        arguments = ["-c", program, self.home, self.cwd, *args]
        ran = forked.run(arguments, cwd=ROOT, env=environment, timeout=120)
        done = subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())
        assert check is None or done.returncode == check, done.stderr[-4000:]
        return done


# -- looking at requests -------------------------------------------------------------------------------------------


def texts(request: Recorded | Request) -> str:
    """All that a request says, as one text."""
    return request.system + "\n" + "\n".join(text_of(item) for item in request.items)


def text_of(item: Item) -> str:
    """What an item says."""
    if isinstance(item, ToolResultItem):
        return item.text()
    return str(getattr(item, "text", "") or getattr(item, "arguments", ""))


def users(request: Recorded | Request) -> list[str]:
    """The user's own messages in a request."""
    return [item.text for item in request.items if isinstance(item, UserItem)]


def words(request: Recorded | Request) -> list[str]:
    """The user's words in a request: own messages, and those that crossed a boundary."""
    return [
        item.text
        for item in request.items
        if isinstance(item, UserItem)
        or (isinstance(item, ContextItem) and item.kind == "user_words" and item.source != "count")
    ]


def contexts(request: Recorded | Request, kind: str) -> list[str]:
    """The texts of its context items of a kind."""
    return [item.text for item in request.items if isinstance(item, ContextItem) and item.kind == kind]


def results(request: Recorded | Request, name: str | None = None) -> list[ToolResultItem]:
    """Its tool results."""
    return [i for i in request.items if isinstance(i, ToolResultItem) and name in (None, i.name)]


def size(request: Recorded | Request) -> int:
    """The tokens of a request by the estimator, without any factor."""
    spec = sum(estimate_text(json.dumps(s._asdict()), "o200k") for s in request.tools)
    return (
        spec + estimate_text(request.system, "o200k") + sum(estimate_text(text_of(i), "o200k") for i in request.items)
    )


async def until(true: Callable[[], Any]) -> None:
    """Lets other tasks run until something is true, at most 5 s: for what a task of its own does."""
    with anyio.fail_after(5):
        while not true():
            await anyio.lowlevel.checkpoint()


def types(found: Iterable[Any]) -> list[str]:
    """The types of events."""
    return [event.type for event in found]
