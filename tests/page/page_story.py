"""A session made of records, its page, and what hostile tools and models may have left in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from interceptors.ceiling import Overhead
from pod.log import entries as e
from pod.log.lines import parse, render
from pod.page import Page
from pod.timeline import Bounds, Step, Timeline
from worker import records as w
from worker.budget import LearnedWindow
from worker.items import AssistantItem, ReasoningItem, ToolResultItem, UserItem, make_call
from worker.masking import Masker
from worker.models.base import Family, Usage
from worker.records import Record

HOSTILE = (
    "</script><script>document.title='PWNED'</script><img src=x onerror=\"document.title='PWNED'\">"
    "<!--<script>{{data}}</style>\x1b[31mred\x1b]0;title\x07 \u2028\u2029\u202eevil \x00 &lt;b&gt; javascript:alert(1)"
)
"""Everything that has ever run or hidden something where a log was shown."""


class Plain:
    """A setting without a pod: ten thousand tokens, one trigger, a small overhead."""

    def family(self, manifest: str) -> Family:
        return "o200k"

    def overhead(self, system: str, schemas: str, family: Family) -> Overhead:
        return Overhead(instructions=100, schemas=50)

    def bounds(self, manifest: str, model: str, learned: LearnedWindow | None) -> Bounds | None:
        window = learned.limit if learned else 10_000
        return Bounds(window, window - 1_000, 1_000, {"request_threshold": 6_000})


@dataclass
class Story:
    """Records as a log holds them, told to a timeline and to a page."""

    timeline: Timeline = field(default_factory=lambda: Timeline(Plain()))
    page: Page = field(default_factory=lambda: Page(lambda step: str(step)))
    steps: list[Step] = field(default_factory=list[Step])
    seq: int = 0

    def tell(self, *records: Record) -> None:
        for record in records:
            self.tell_raw(record.kind, e.body_of(record))

    def tell_raw(self, kind: str, body: bytes) -> None:
        self.seq += 1
        _, data = render(self.seq, kind, body, "2026-01-31T12:00:00.000000Z")
        line = parse(data[:-1], 0, self.seq)
        record = e.record_of(line)
        assert record is not None
        step = self.timeline.add(line, record)
        if step is not None:
            self.steps.append(step)
            self.page.add(step, line, record)

    @property
    def requests(self) -> list[Step]:
        return [step for step in self.steps if step["type"] == "request.completed"]

    def html(self, name: str = "a") -> str:
        return self.page.html(name, {"status": "finished"}, self.timeline.segments)


def begin(segment: str = "s1") -> e.SegmentStarted:
    return e.SegmentStarted(session="s", segment=segment, lineage=e.Lineage(), tag="secret-tag")


def ask(text: str) -> tuple[Record, ...]:
    item = UserItem(text=text)
    return w.Input(item=item), w.Admitted(ids=(item.id,))


def reply(
    tokens: int | None, *items: Any, cached: int = 0, estimate: int = 0, cost: float | None = 0.5
) -> w.ReplyRecord:
    usage = Usage(input_tokens=tokens, cached_tokens=cached, output_tokens=10)
    return w.ReplyRecord(items=items, usage=usage, model="offline:x", estimate=estimate or tokens or 0, cost_usd=cost)


def read(label: str, content: str, summary: str = "read") -> tuple[Record, ...]:
    """A call of a tool, with its result."""
    call = make_call(label, "read_file", json.dumps({"path": label}))
    item = ToolResultItem(call_id=label, name="read_file", status="ok", summary=summary, content=content)
    return reply(2_000, call), w.ToolResult(item=item)


def hostile_story(secret: str = "") -> Story:
    """A session in which everybody who could wrote something hostile."""
    story = Story(
        page=Page(lambda s: str(s.get("text") or s.get("summary") or s.get("reason") or s["type"]), masker(secret))
    )
    story.tell(begin(), *ask(HOSTILE), e.RunStarted(run="r"))
    story.tell(*read(HOSTILE, HOSTILE * 3, HOSTILE))
    story.tell(w.Pruned(items=(), tokens_saved=100, tokens_before=2_000, reason=HOSTILE))
    story.tell(w.WindowLearned(model="offline:x", window=9_000, source="stated"))
    thought = ReasoningItem(provider="p", model="m", payload="sealed " * 50, text=HOSTILE)
    story.tell(reply(3_000, thought, AssistantItem(text=HOSTILE + secret)))
    story.tell(e.RunEndedEntry(run="r", status="failed", result={"kind": HOSTILE, "message": HOSTILE}))
    return story


def masker(secret: str) -> Masker:
    return Masker({"API_TOKEN": secret} if secret else {})


class Markup(HTMLParser):
    """The elements of a page, their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.tags and (tag := self.tags[-1]) in self.raw and self.cdata_elem == tag:
            self.raw[tag][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.raw["script"][0])

    @property
    def policy(self) -> str:
        return next(value or "" for name, value in self.attributes if name == "content" and "src" in (value or ""))


def outside(text: str) -> list[str]:
    """Addresses in a page that a browser might follow."""
    return re.findall(r"""(?:src|href|url|action)\s*[=(]\s*["']?(?!#)[a-z]+:|@import|//[a-z]+\.[a-z]+""", text)
