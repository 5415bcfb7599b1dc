"""The bounded overview that a compact worker starts from: pure, deterministic, the same items give the same text.

Messages are shown newest first until the target, then the last tool calls by their summaries, files, tasks, and the
previous summary. Arguments, content of tool results and files, and reasoning are never shown: the worker looks up what
it needs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.estimate import estimate_text
from worker.items import Item, ToolResultItem
from worker.models.base import Family

MESSAGE_CHARS = 2_000
"""Characters of one message in an overview."""

COARSE_CHARS = 240
"""Characters of one message in a coarse overview."""

TOOL_CALLS = 24
"""Tool calls that an overview lists, the newest ones."""

TOOL_CHARS = 240
"""Characters of a tool call's summary in an overview."""

FILES = 5
"""Recently touched files that an overview names."""

TASKS = 50
"""Tasks that an overview lists; the others are counted."""

TASK_CHARS = 200
"""Characters of one task in an overview."""

GAP_TOKENS = 48
"""Tokens kept for the line that counts what is older than the oldest message shown."""

_SHRINKING = ((TOOL_CALLS, TOOL_CHARS), (12, 120), (6, 80))
_CONTENT_KINDS = frozenset({"auto_read", "pin"})
_SPACE = re.compile(r"\s+")
_LABELS = {
    "user": "user", "assistant": "assistant", "context": "context", "tool_call": "tool", "tool_result": "tool",
    "reasoning": "reasoning", "order": "runtime", "opaque": "opaque",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overview:
    """An overview with its figures: tokens by the estimator, messages shown, items not shown."""

    text: str
    tokens: int
    shown: int
    omitted: int
    coarse: bool


@dataclass(frozen=True, slots=True)
class Extras:
    """What stands in an overview beside the items. `recent_files` newest last."""

    tasks: Sequence[Mapping[str, Any]] = ()
    recent_files: Sequence[str] = ()
    previous_summary: str | None = None


def build_overview(
    items: Sequence[Item],
    extras: Extras,
    *,
    target_tokens: int,
    coarse: bool = False,
    limit_tokens: int | None = None,
    family: Family = "unknown",
) -> Overview:
    """The overview of a range of items.

    User, assistant and context items are taken newest first while their text stays within `target_tokens`, at least
    one, and stand in their order, each cut to 2,000 characters (240 in a coarse one); what is left out is counted by
    range. With `limit_tokens` the whole text is brought below it as far as one message and the rest allow: fewer tool
    calls first, then a cut of the previous summary.
    """
    chars = COARSE_CHARS if coarse else MESSAGE_CHARS
    tail = 0 if limit_tokens is None else limit_tokens // 3
    built: Overview | None = None
    for calls, call_chars in _SHRINKING if limit_tokens is not None else _SHRINKING[:1]:
        last = (calls, call_chars) == _SHRINKING[-1]
        rest = [
            _tools(items, calls, call_chars),
            _files(extras),
            _tasks(extras),
            _previous(extras, family, tail if last else None),
        ]
        rest = [part for part in rest if part]
        room = target_tokens
        if limit_tokens is not None:
            room = min(room, limit_tokens - sum(estimate_text(part, family) + 2 for part in rest) - 16)
        messages, shown = _messages(items, chars, room, family, with_summary=extras.previous_summary is None)
        text = "\n\n".join([messages, *rest])
        built = Overview(text, estimate_text(text, family), shown, len(items) - shown, coarse)
        if limit_tokens is None or built.tokens <= limit_tokens:
            break
    assert built is not None
    return built


def cut(text: str, limit: int) -> str:
    """`text` with at most `limit` characters and, where it was longer, a mark with the number left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def one_line(text: str) -> str:
    """`text` with every run of white space as one blank."""
    return _SPACE.sub(" ", text).strip()


def label_of(item: Item) -> str:
    """What an item is called in an overview, a search hit or a reading."""
    match item.type:
        case "context":
            return f"context: {item.kind}" + (f" {item.source}" if item.source else "")
        case "tool_call":
            return f"call of {item.name}"
        case "tool_result":
            return f"result of {item.name}, {item.status}"
        case _:
            return _LABELS[item.type]


def _messages(items: Sequence[Item], chars: int, room: int, family: Family, *, with_summary: bool) -> tuple[str, int]:
    chosen: list[tuple[int, str]] = []
    spent = 0
    for number in range(len(items), 0, -1):
        body = _body(items[number - 1], with_summary)
        if not body:
            continue
        line = f"[item {number}, {label_of(items[number - 1])}]\n{cut(body, chars)}"
        newer = chosen[-1][0] if chosen else len(items) + 1
        cost = estimate_text(f"{line}\n\n[", family) + estimate_text(_gap(items, number + 1, newer - 1), family)
        if chosen and spent + cost + (GAP_TOKENS if number > 1 else 0) > room:
            break
        spent += cost
        chosen.append((number, line))
    parts: list[str] = []
    following = 1
    for number, line in reversed(chosen):
        parts += [_gap(items, following, number - 1), line]
        following = number + 1
    parts.append(_gap(items, following, len(items)))
    head = f"The part of the conversation that will be removed: {len(items)} items, numbered from 1."
    return "\n\n".join([head, *(part for part in parts if part)]), len(chosen)


def _body(item: Item, with_summary: bool) -> str:
    if item.type == "user" or item.type == "assistant":
        return item.text.strip()
    if item.type == "context" and item.kind not in _CONTENT_KINDS and (with_summary or item.kind != "summary"):
        return item.text.strip()
    return ""


def _gap(items: Sequence[Item], first: int, last: int) -> str:
    """What stands for items that are not shown, with their range (1-based, both ends) and how many there are of each
    type."""
    if last < first:
        return ""
    counts = Counter(_LABELS[item.type] for item in items[first - 1 : last])
    kinds = ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    where = f"item {first}" if first == last else f"items {first}-{last}"
    return f"[{where} not shown: {kinds}]"


def _tools(items: Sequence[Item], calls: int, chars: int) -> str:
    results = [(number, item) for number, item in enumerate(items, 1) if isinstance(item, ToolResultItem)]
    if not results:
        return ""
    lines = [
        f"- [item {number}] {item.name}, {item.status}: {cut(one_line(item.summary), chars)}"
        for number, item in results[-calls:]
    ]
    hidden = len(results) - len(lines)
    head = "Tool calls, the newest ones by their summaries"
    return "\n".join([f"{head} ({hidden} earlier ones not listed):" if hidden else f"{head}:", *lines])


def _files(extras: Extras) -> str:
    newest = list(dict.fromkeys(reversed(extras.recent_files)))[:FILES]
    lines = [f"- {cut(one_line(path), 300)}" for path in newest]
    return "\n".join(["Files touched last, newest first:", *lines]) if lines else ""


def _tasks(extras: Extras) -> str:
    if not extras.tasks:
        return ""
    lines = [f"- {cut(_task(task), TASK_CHARS)}" for task in extras.tasks[:TASKS]]
    if len(extras.tasks) > TASKS:
        lines.append(f"- and {len(extras.tasks) - TASKS} more")
    return "\n".join(["Task list as the runtime holds it; it outranks what the conversation says:", *lines])


def _task(task: Mapping[str, Any]) -> str:
    name = next((str(task[key]) for key in ("title", "text", "content", "name", "description") if task.get(key)), "")
    status, label = task.get("status"), task.get("id")
    return one_line(
        " ".join(part for part in (f"[{status}]" if status else "", f"{label}:" if label else "", name) if part)
    )


def _previous(extras: Extras, family: Family, limit: int | None) -> str:
    text = (extras.previous_summary or "").strip()
    if not text:
        return ""
    if limit is not None and (tokens := estimate_text(text, family)) > limit:
        text = cut(text, len(text) * limit // tokens)
    return f"The previous summary, to be updated:\n{text}"
