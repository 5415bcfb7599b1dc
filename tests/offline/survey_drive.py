"""A small local loop for offline models: real built-in tools on real files, context losses at will."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from worker.builtin.artifacts import Artifacts
from worker.builtin.registry import builtin_tool
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.errors import ContextOverflow
from worker.items import AssistantItem, ContextItem, Item, OrderItem, ToolCallItem, ToolOutput, ToolResultItem, UserItem
from worker.models.base import Model, ModelSettings, Reply, Request, ToolSpec
from worker.offline import create
from worker.testing import PlainEncoder, check_items, encode_items
from worker.tools import ToolContext, ToolFault

NAMES = ("find_files", "list_files", "read_file", "write_file", "append_file")

Interrupted: TypeAlias = Literal["not run", "unknown"]
"""What a killed runtime leaves of a call: it was never run, or it was run and nobody saw how it ended."""

SUMMARY_TOOL = ToolSpec(
    "write_summary",
    "Hands over the summary.",
    {"type": "object", "properties": {"text": {"type": "string"}, "reread": {"type": "array"}, "references": {}}},
)


@dataclass
class Drive:
    """Runs a model to the end of its turn in a folder. `lose` says before each request whether the context is lost."""

    cwd: Path
    model: Model
    window: int = 32_000
    lose: Callable[[Drive], bool] = lambda _: False
    summary_max: int = 3_000
    retained: int = 0
    items: list[Item] = field(default_factory=list)
    requests: int = 0
    losses: int = 0
    largest: int = 0
    fail: Callable[[ToolCallItem], ToolOutput | None] = lambda _: None
    interrupt: Callable[[ToolCallItem], Interrupted | None] = lambda _: None

    def __post_init__(self) -> None:
        self.tools = {name: builtin_tool(name) for name in NAMES}
        self.seen = SeenFiles()
        self.services = {
            Scope: Scope(self.cwd, read=(".",), write=(".",)),
            SeenFiles: self.seen,
            Artifacts: Artifacts(self.cwd.parent / f"{self.cwd.name}.artifacts"),
        }
        self.summarizer = create("summarizer", ModelSettings())

    def request(self, items: Sequence[Item]) -> Request:
        check_items(items)
        specs = tuple(tool.spec for tool in self.tools.values())
        encoder = self.model.encoder
        assert isinstance(encoder, PlainEncoder)
        return Request("You survey files.", (*specs, SUMMARY_TOOL), tuple(items), encode_items(encoder, items), 4_096)

    async def run(self, task: str, limit: int = 2_000) -> str:
        self.items.append(UserItem(text=task))
        while self.requests < limit:
            if self.lose(self):
                await self.compact()
            self.requests += 1
            try:
                reply = await self.model.send(self.request(self.items), lambda _: None)
            except ContextOverflow:
                await self.compact()
                continue
            self.largest = max(self.largest, reply.usage.input_tokens or 0)
            self.items.extend(reply.items)
            calls = [item for item in reply.items if isinstance(item, ToolCallItem)]
            if not calls:
                return "".join(item.text for item in reply.items if isinstance(item, AssistantItem))
            for call in calls:
                self.items.append(await self.execute(call))
        raise AssertionError(f"no end after {limit} requests")

    async def execute(self, call: ToolCallItem) -> ToolResultItem:
        arguments = call.parsed
        assert arguments is not None, call.error
        tool = self.tools[call.name]
        context = ToolContext(call.call_id, call.name, self.cwd, services=self.services)
        cut = self.interrupt(call)
        if cut == "not run":
            return _interrupted(call, "interrupted: not run. The runtime stopped before it was started.")
        output = self.fail(call)
        if output is None:
            assert tool.check(arguments) is None, tool.check(arguments)
            try:
                output = await tool.run(arguments, context)
            except ToolFault as e:
                output = ToolOutput(summary=str(e), is_error=True)
        for seen in (output.reads, output.writes):
            if seen is not None:
                self.seen.note(seen)
        if cut == "unknown":
            return _interrupted(
                call, f"interrupted: outcome unknown. The runtime stopped while {call.name} was running."
            )
        return ToolResultItem(
            call_id=call.call_id,
            name=call.name,
            status="error" if output.is_error else "ok",
            summary=output.summary,
            content=output.content,
        )

    async def compact(self) -> None:
        """Replaces the context by the user's words, a summary that the real summarizer makes of it, and a tail."""
        self.losses += 1
        order = OrderItem(text=f"Write the summary. summary_max_tokens={self.summary_max}", tag="t")
        asked: list[Item] = [*self.items, order]
        for _ in range(4):
            reply = await self.summarizer.send(self.request(asked), lambda _: None)
            call = next(item for item in reply.items if isinstance(item, ToolCallItem))
            if call.name == "write_summary":
                break
            asked += [*reply.items, await self.execute(call)]
        arguments = call.parsed
        assert arguments is not None
        opening: list[Item] = []
        for item in self.items:
            if isinstance(item, UserItem):
                opening.append(ContextItem(kind="user_words", text=item.text, trust="user"))
            elif isinstance(item, ContextItem) and item.kind == "user_words":
                opening.append(item)
        opening.append(ContextItem(kind="summary", text=arguments["text"]))
        for mark in arguments["reread"]:
            lines = (self.cwd / mark["path"]).read_text().removesuffix("\n").split("\n")
            first = mark["offset"]
            text = "\n".join([f"[Auto-read file: {mark['path']}:{first}-{len(lines)}]", *lines[first - 1 :]])
            opening.append(ContextItem(kind="auto_read", text=text, path=mark["path"]))
        self.items = [*opening, *self.tail()]

    def tail(self) -> list[Item]:
        """The last replies with their results, at most `retained` items, never a result without its call."""
        start = max(len(self.items) - self.retained, 0)
        while start < len(self.items) and self.items[start].type in ("tool_result", "user", "context"):
            start += 1
        tail = self.items[start:]
        while tail and tail[0].type == "tool_call":
            reply = tail[0].reply
            known = {item.call_id for item in tail if item.type == "tool_call"}
            if all(item.call_id in known for item in tail if item.type == "tool_result"):
                break
            tail = [item for item in tail if getattr(item, "reply", None) != reply]
        known = {item.call_id for item in tail if item.type == "tool_call"}
        return [item for item in tail if item.type != "tool_result" or item.call_id in known]


def _interrupted(call: ToolCallItem, summary: str) -> ToolResultItem:
    return ToolResultItem(call_id=call.call_id, name=call.name, status="interrupted", summary=summary, prunable=False)


def answers(reply: Reply) -> list[str]:
    """The names of the calls of a reply."""
    return [item.name for item in reply.items if isinstance(item, ToolCallItem)]


def randomly(seed: int, share: float) -> Callable[[Drive], bool]:
    """Loses the context before a share of the requests."""
    source = random.Random(seed)
    return lambda drive: len(drive.items) > 3 and source.random() < share


def above(tokens: int) -> Callable[[Drive], bool]:
    """Loses the context when what would be sent is above a number of tokens."""
    from worker.estimate import estimate_items

    return lambda drive: estimate_items(drive.items, "o200k") > tokens
