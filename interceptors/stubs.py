"""What stands in a view where something was pruned: pure, versioned, the same bytes for the same item every time."""

from __future__ import annotations

import json
import re
from typing import Any

from worker.items import ContextItem, ToolCallItem, ToolResultItem
from worker.text import sha256, size

RENDERER = 1
"""Version of the functions here. It stands in each `pruned` entry, so that a log tells which rule made its stubs."""

SUMMARY_KEPT = 200
"""Characters of a result's own summary that stay behind a prune."""

LINE_KEPT = 120
"""Characters of one excerpt line."""

ARGUMENT_KEPT = 200
"""Characters up to which a value of a pruned call's arguments stays (as JSON)."""

_HASH = 12
_NOISE = re.compile(r"[^\w\n]+\Z")
_BLANKS = re.compile(r"\s+")
_TROUBLE = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|ures|s)?|exception|traceback|panic\w*|fatal|assert\w*|denied|refused|cannot|undefined"
    r"|not found|warnings?)\b",
    re.IGNORECASE,
)
_DEMAND = re.compile(r"\b(?:must|never|always|do not|don't|required?|important|instructions?|note)\b", re.IGNORECASE)
_STRUCTURE = re.compile(
    r"#|(?:async )?(?:def|class|function|fn|func|export|public|interface|struct|type)\b|[\w./-]+:\d+"
)


def render_stub(item: ToolResultItem, excerpt_chars: int = SUMMARY_KEPT) -> ToolResultItem:
    """The result without its content: tool, status, size, hash, its most telling lines, and where the full text is.

    The item's own summary stays in front (its first 200 characters), then up to `excerpt_chars` characters of the
    content. Everything else of the item (id, call, files, state) is as it was.
    """
    summary = _cut(item.summary, SUMMARY_KEPT)
    content = item.content or ""
    facts = [f"{item.name} {item.status}", size(len(content.encode()))]
    if content:
        facts.append(f"sha256 {sha256(content)[:_HASH]}")
    if item.images:
        facts.append(f"{len(item.images)} image{'s' * (len(item.images) > 1)}")
    where = f"session_history item {item.id}"
    if item.artifact:
        where += f" or artifact {item.artifact}"
    parts = [summary, f"[pruned: {', '.join(facts)}; full text: {where}]", excerpt(content, excerpt_chars, summary)]
    return item.model_copy(
        update={"summary": "\n".join(part for part in parts if part), "content": None, "images": (), "pruned": True}
    )


def render_read_stub(item: ContextItem) -> ContextItem:
    """An auto-read file as one line that says how to get it back."""
    path = item.path or item.source or "a file"
    text = f"[Auto-read file: {path}] pruned, {size(len(item.text.encode()))}; read_file gives the file as it is now."
    return item.model_copy(update={"text": text, "pruned": True})


def render_arguments(item: ToolCallItem) -> ToolCallItem:
    """The call with its large argument values replaced by what they were; the arguments stay a valid JSON object.

    Rendering the outcome again changes nothing.
    """
    values = item.parsed
    if values is None:
        if len(item.arguments) <= ARGUMENT_KEPT:
            return item
        return item.model_copy(update={"arguments": _removed(item.arguments, item.id)})
    kept: dict[str, Any] = {}
    for key, value in values.items():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        kept[key] = value if len(text) <= ARGUMENT_KEPT else _removed(text, item.id)
    if kept == values:
        return item
    return item.model_copy(update={"arguments": json.dumps(kept, ensure_ascii=False, separators=(",", ":"))})


def _removed(text: str, item: str) -> str:
    data = text.encode()
    return f"[pruned: {size(len(data))}, sha256 {sha256(data)[:_HASH]}; full text: session_history item {item}]"


def excerpt(content: str, limit: int, shown: str = "") -> str:
    """The most telling lines of a text, in their order, at most `limit` characters in all.

    The rule: lines that speak of trouble, then lines that demand something, then the last line, then headings,
    definitions and places in files, then whatever comes first. Lines that `shown` holds already are passed over.
    """
    if limit <= 0 or not content:
        return ""
    ranked: list[tuple[int, int, str]] = []
    seen: set[str] = set()
    for number, raw in enumerate(content.splitlines()):
        line = _cut(_BLANKS.sub(" ", raw).strip(), LINE_KEPT)
        if not line or line in seen or line in shown or _NOISE.match(line):
            continue
        seen.add(line)
        ranked.append((_rank(line), number, line))
    if ranked and ranked[-1][0] > 2:
        ranked[-1] = (2, *ranked[-1][1:])
    chosen: list[tuple[int, str]] = []
    left = limit
    for _, number, line in sorted(ranked):
        cost = len(line) + (1 if chosen else 0)
        if cost > left and chosen:
            break
        chosen.append((number, line[:limit]))
        left -= cost
        if left <= 0:
            break
    return "\n".join(line for _, line in sorted(chosen))


def _rank(line: str) -> int:
    if _TROUBLE.search(line):
        return 0
    if _DEMAND.search(line):
        return 1
    return 3 if _STRUCTURE.match(line) else 4


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
