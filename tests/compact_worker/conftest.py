"""A kit for tests of the compact worker: a range of items, a material, and one call that runs a compaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from compact_worker import (
    CompactFailed,
    CompactResult,
    CompactSettings,
    Material,
    compact,
    declared_write_summary,
)
from worker.builtin.scope import Scope
from worker.items import AssistantItem, Item, ToolCallItem, ToolResultItem, UserItem
from worker.models.base import Model
from worker.records import MemoryJournal
from worker.tools import Tool, tool

TAG = "k7f3q9x2"


class Range:
    """Items of a log, with what was fetched."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = list(items)
        self.reads: list[tuple[int, int]] = []

    @property
    def count(self) -> int:
        return len(self.items)

    def read(self, start: int, stop: int) -> list[Item]:
        self.reads.append((start, stop))
        return self.items[start:stop]


@tool(effect="read")
def peek(path: str = ".") -> str:
    """Looks at a path."""
    return f"peeked at {path}"


@tool(effect="write")
def poke(path: str) -> str:
    """Changes a path."""
    raise AssertionError("a compaction ran a tool that writes")


@dataclass
class Run:
    """What came of one compaction, and everything that was seen on the way."""

    journal: MemoryJournal = field(default_factory=MemoryJournal)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    result: CompactResult | None = None
    failure: CompactFailed | None = None

    @property
    def ok(self) -> CompactResult:
        assert self.failure is None, self.failure
        assert self.result is not None
        return self.result

    @property
    def failed(self) -> CompactFailed:
        assert self.failure is not None, "the compaction did not fail"
        return self.failure

    def results(self) -> list[ToolResultItem]:
        return [r.item for r in self.journal.records if r.kind == "tool_result"]  # type: ignore[attr-defined]

    def codes(self) -> list[str]:
        return [figures["code"] for name, figures in self.events if name == "compaction.warning"]


class Kit:
    """Makes items, materials and runs in one temporary folder."""

    Range = Range
    tag = TAG

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools: tuple[Tool, ...] = (peek, poke, declared_write_summary())

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @staticmethod
    def user(text: str) -> UserItem:
        return UserItem(text=text)

    @staticmethod
    def said(text: str) -> AssistantItem:
        return AssistantItem(text=text, reply=text[:8])

    @staticmethod
    def called(name: str, summary: str, content: str | None = None, *, arguments: str = "{}") -> list[Item]:
        call = ToolCallItem(call_id=f"c{abs(hash((name, summary))):x}", name=name, arguments=arguments, reply=summary)
        made = ToolResultItem(call_id=call.call_id, name=name, status="ok", summary=summary, content=content)
        return [call, made]

    def summary(self, directive: str = "use tabs", **sections: str) -> str:
        bodies = {
            "Completed Tasks": "### [T1] Parser\n- Rewrote `parse_header` in src/parse.py: it lost empty fields",
            "Active Task": "### [T2] Writer\n- Goal: stream the output\n- Next: buffer in `Writer.flush`",
            "Key Decisions": "- Keep the record format — readers of version 1 exist",
            "User Directives": f"- 「{directive}」",
            "Current Work": "Was about to write Writer.flush.",
        }
        bodies |= {name.replace("_", " "): body for name, body in sections.items()}
        return "\n\n".join(f"## {name}\n{body}" for name, body in bodies.items() if body is not None)

    def material(self, items: Sequence[Item] | None = None, **changes: Any) -> Material:
        items = list(items) if items is not None else [self.user("use tabs"), self.said("Yes.")]
        kept = [self.user("go on"), self.said("On it.")]
        made = Material(
            view=(*items, *kept),
            cut=len(items),
            log=Range(items),
            tasks=(),
            recent_files=(),
            previous_summary=None,
            focus=None,
            user_texts=tuple(item.text for item in [*items, *kept] if isinstance(item, UserItem)),
            system=f"You are a pod. Orders carry {TAG}.",
            tools=self.tools,
            tag=TAG,
            cwd=self.folder,
            touched_files=False,
        )
        return replace(made, **changes)

    async def run(
        self,
        model: Model,
        material: Material | None = None,
        settings: CompactSettings | None = None,
        *,
        source: Any = "overview",
        journal: MemoryJournal | None = None,
        **rest: Any,
    ) -> Run:
        run = Run(journal or MemoryJournal())
        try:
            run.result = await compact(
                material or self.material(),
                settings or CompactSettings(),
                source=source,
                models=[model],
                journal=run.journal,
                scope=Scope(self.folder),
                on_event=lambda name, figures: run.events.append((name, figures)),
                **rest,
            )
        except CompactFailed as e:
            run.failure = e
        return run


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)
