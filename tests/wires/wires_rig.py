"""A pod on a scripted provider: an agent that works on real files, faults in its way, and what the requests held."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pod import Pod, RunResult
from pod.log.segment import entries
from pod.manifest import Manifest
from worker.retry import RetryPolicy
from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest, Step
from worker.testing.provider_wires import WireName

WIRES: tuple[WireName, ...] = ("openai-chat", "openai", "anthropic")
MODELS: dict[str, str] = {
    "openai-chat": "openai-chat:some-model",
    "openai": "openai:gpt-6-sol",
    "anthropic": "anthropic:claude-opus-5-5",
}
"""The last two bind reasoning to what stands before it."""

NO_WAIT = RetryPolicy(chance=lambda: 0.0)

SECTIONS = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Current Work")


# -- a request, taken apart


@dataclass(frozen=True)
class Sent:
    """A recorded request as bytes: what stands before the messages, the messages without brackets, the rest."""

    wire: str
    body: bytes
    head: bytes
    messages: bytes
    tail: bytes
    headers: dict[str, str]

    @classmethod
    def of(cls, wire: str, request: RecordedRequest) -> Sent:
        key = b'"input":[' if wire == "openai" else b'"messages":['
        start = request.body.index(key) + len(key)
        # Inside a JSON string the quotes would be escaped, so this is the end of the list.
        end = request.body.rindex(b'],"max_')
        body = request.body
        return cls(wire, body, body[:start], body[start:end], body[end:], request.headers)

    @property
    def json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.body))

    @property
    def items(self) -> list[dict[str, Any]]:
        """The messages or input items."""
        return cast("list[dict[str, Any]]", self.json["input" if self.wire == "openai" else "messages"])

    @property
    def system(self) -> str:
        body = self.json
        match self.wire:
            case "openai-chat":
                return str(body["messages"][0]["content"])
            case "openai":
                return str(body["instructions"])
            case _:
                return "".join(str(block["text"]) for block in body["system"])

    @property
    def static(self) -> dict[str, Any]:
        """The body without its messages."""
        gone = "input" if self.wire == "openai" else "messages"
        return {key: value for key, value in self.json.items() if key != gone}

    def strings(self) -> list[str]:
        return list(strings(self.items))

    def starts_with(self, other: Sent) -> bool:
        """Whether all that `other` sent stands at the start of this, byte for byte.

        The last message of `other` may have grown at its end, so its closing brackets do not count.
        """
        return self.head == other.head and self.messages.startswith(other.messages.rstrip(b'"]}'))


def strings(value: object) -> Iterator[str]:
    """All strings in a JSON value, keys apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from strings(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, object]", value).values():
            yield from strings(each)


def pairs(sent: Sent) -> list[tuple[str, str]]:
    """Each call id with the text of its result, in order. Raises `AssertionError` where a call or result is alone, or
    where a result does not stand in the place that the wire asks for.
    """
    found: list[tuple[str, str]] = []
    open_calls: list[str] = []
    for item in sent.items:
        for kind, call_id, text in _marks(sent.wire, item):
            if kind == "call":
                assert call_id not in [x for x, _ in found], f"call id {call_id} occurs twice"
                open_calls.append(call_id)
            elif kind == "result":
                assert call_id in open_calls, f"result {call_id} without a call before it"
                assert call_id == open_calls[0], f"result {call_id} is out of order: {open_calls}"
                open_calls.remove(call_id)
                found.append((call_id, text))
            else:
                assert not open_calls, f"{kind} stands between calls and their results: {open_calls}"
    assert not open_calls, f"calls without results: {open_calls}"
    return found


def _marks(wire: str, item: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if wire == "openai-chat":
        if item["role"] == "tool":
            yield "result", item["tool_call_id"], item["content"]
            return
        yield item["role"], "", ""
        for call in cast("list[dict[str, Any]]", item.get("tool_calls") or []):
            yield "call", call["id"], ""
    elif wire == "openai":
        match item["type"]:
            case "function_call":
                yield "call", item["call_id"], ""
            case "function_call_output":
                yield "result", item["call_id"], item["output"]
            case "reasoning":
                return
            case _:
                yield item["type"], "", ""
    else:
        for block in item["content"]:
            match block["type"]:
                case "tool_use":
                    yield "call", block["id"], ""
                case "tool_result":
                    yield "result", block["tool_use_id"], "".join(strings(block["content"]))
                case "thinking":
                    continue
                case other:
                    yield other, "", ""


# -- the agent behind the server


def is_compaction(request: RecordedRequest) -> bool:
    """Whether a request is the compact worker's."""
    return b"mark_read_required" in request.body or b"This is an order of the runtime, not a message" in request.body


@dataclass
class Turn:
    """One request and what it got: `main` or `compaction`, the number of the step, the fault it met instead."""

    kind: str
    step: int
    fault: str | None
    sent: Sent


@dataclass
class Agent:
    """Answers a pod's requests: the steps of its work in order, and compactions as they come.

    `faults` stand in the way of a step: each is given once, by name, before the step itself. Those of `worker_faults`
    meet the first compaction. `overflow` meets the first request from `overflow_from` on that has `overflow_bytes`.
    """

    wire: WireName
    steps: Sequence[Answer]
    faults: dict[int, list[tuple[str, Step]]] = field(default_factory=dict[int, list[tuple[str, Step]]])
    worker_faults: list[tuple[str, Step]] = field(default_factory=list[tuple[str, Step]])
    overflow: Step | None = None
    overflow_from: int = 0
    overflow_bytes: int = 0
    directive: str = ""
    reread: str = ""
    turns: list[Turn] = field(default_factory=list[Turn])
    _next: int = 0
    _compaction: list[Answer] = field(default_factory=list[Answer])
    _compactions: int = 0

    def __call__(self, request: RecordedRequest) -> Step:
        kind = "compaction" if is_compaction(request) else "main"
        fault, number = None, self._next
        if kind == "main":
            waiting = self.faults.get(number, [])
            if self.overflow and number >= self.overflow_from and len(request.body) >= self.overflow_bytes:
                fault, step, self.overflow = "overflow", self.overflow, None
            elif waiting:
                fault, step = waiting.pop(0)
            else:
                self._next += 1
                step = self.steps[number]
        elif self.worker_faults:
            fault, step = self.worker_faults.pop(0)
        else:
            if not self._compaction:
                self._compaction = list(self._summarise(request))
            step = self._compaction.pop(0)
        self.turns.append(Turn(kind, number, fault, Sent.of(self.wire, request)))
        return step

    def _summarise(self, request: RecordedRequest) -> Iterator[Answer]:
        self._compactions += 1
        text = summary(self.directive, f"compaction {self._compactions}")
        reread = [{"path": self.reread, "offset": 1, "limit": 10}]
        if b"mark_read_required" not in request.body:
            arguments = {"text": text, "reread": reread, "references": [{"path": "notes.md", "reason": "the log"}]}
            yield Answer(reasoning="I sum up.", calls=[Call("write_summary", arguments)])
            yield Answer("The summary is written.")
            return
        yield Answer(
            "I look things up.",
            calls=[
                Call("search_session_log", {"query": "note"}),
                Call("read_session_items", {"offset": 1, "limit": 5}),
                Call("mark_read_required", {"path": self.reread, "offset": 1, "limit": 10}),
                Call("add_reference", {"path": "notes.md", "reason": "the log"}),
            ],
        )
        yield Answer(calls=[Call("write_summary", {"text": text})])
        yield Answer("The summary is written.")

    def of(self, kind: str, *, failed: bool = False) -> list[Turn]:
        """The turns of a kind, those that met a fault or those that did not."""
        return [turn for turn in self.turns if turn.kind == kind and (turn.fault is not None) == failed]


def summary(directive: str, done: str) -> str:
    """A valid summary."""
    bodies = {
        "Completed Tasks": f"### [T1] Reading\n- {done}: the modules up to here were read and edited",
        "Active Task": "### [T2] Notes\n- Goal: a line in notes.md for each step\n- Next: the next module",
        "Key Decisions": "- One line for each note — the user reads them in a terminal",
        "User Directives": f"- 「{directive}」" if directive else "- none",
        "Current Work": "Was about to read the next module.",
    }
    return "\n\n".join(f"## {name}\n{bodies[name]}" for name in SECTIONS)


# -- the pod


def manifest(server: ProviderServer, *, name: str | None = None, **tables: Any) -> Manifest:
    """A manifest for the model behind a server; `tables` are laid over the defaults of these tests, key by key."""
    base: dict[str, Any] = {
        "worker": {"system_prompt": "You keep notes on the modules of a project.", "instructions": ()},
        "model": {
            "name": name or MODELS[server.wire],
            "base_url": server.url,
            "context_window": 40_000,
            "max_output_tokens": 2_000,
            "idle_timeout": 20.0,
        },
        "tools": {"enable": ("read_file", "list_files", "search_text", "append_file", "edit_file", "write_file")},
        "scope": {"read": (".",), "write": (".",)},
        "permissions": {"profile": "workspace-write", "when_headless": "deny"},
        "context": {"buffer_tokens": 2_000},
        "log": {"durability": "os"},
        "limits": {"repeat_call": {"remind": (50,), "stop": 60}},
    }
    for key, table in tables.items():
        base[key] = base.get(key, {}) | table if isinstance(table, dict) else table
    return Manifest.model_validate(base)


@dataclass
class Ran:
    """A run, and everything that could be seen of it."""

    wire: WireName
    result: RunResult
    agent: Agent
    server: ProviderServer
    events: list[Any]
    folder: Path
    records: list[list[dict[str, Any]]]
    """The entries of each segment, oldest segment first."""

    def told(self, *kinds: str) -> list[Any]:
        """The events of these types, in order."""
        return [event for event in self.events if event.type in kinds]

    def flat(self, kind: str) -> list[dict[str, Any]]:
        """The entries of a kind, through all segments."""
        return [line for segment in self.records for line in segment if line["kind"] == kind]


async def run_pod(
    server: ProviderServer,
    agent: Agent,
    made: Manifest,
    folder: Path,
    task: str,
    *,
    tools: Callable[[list[Pod]], Sequence[Any]] = lambda _: (),
    **options: Any,
) -> Ran:
    """One run of a pod in `folder/work`, its home in `folder/home`. `tools` gets a list that will hold the pod."""
    work, home = folder / "work", folder / "home"
    work.mkdir(exist_ok=True)
    events: list[Any] = []
    holder: list[Pod] = []
    pod = Pod.open(made, name="p", cwd=work, home=home, tools=tools(holder), observers=[events.append], **options)
    holder.append(pod)
    async with pod:
        hurry(pod)
        result = await pod.run(task)
    return Ran(server.wire, result, agent, server, events, work, segments(pod))


def hurry(pod: Pod) -> None:
    """Retries of this pod do not wait, unless the provider says how long."""
    pod.running.retry = NO_WAIT
    pod.running.assemble()


def segments(pod: Pod) -> list[list[dict[str, Any]]]:
    """The entries of all segments of a pod, oldest segment first; side logs are no segments."""
    found: list[list[dict[str, Any]]] = []
    for path in pod.running.session.folder.path.glob("*.jsonl"):
        lines = [{"kind": line.kind, "seq": line.seq, **json.loads(line.body)} for line in entries(path)]
        if lines and lines[0]["kind"] == "segment_started":
            found.append(lines)
    return sorted(found, key=lambda lines: lines[0]["seq"])
