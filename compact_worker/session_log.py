"""Looking things up in the summarised range: search and reading, both bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from compact_worker.clip import clip
from compact_worker.material import PrefixItems
from compact_worker.overview import MESSAGE_CHARS, cut, label_of, one_line
from worker.estimate import estimate_text
from worker.items import Item, ToolOutput
from worker.models.base import Family

HITS = 20
"""Hits that a search answers with unless asked for more."""

MAX_HITS = 50
"""Hits that a search answers with at most."""

MAX_ITEMS = 80
"""Items that one reading gives at most."""

MAX_BYTES = 49_152
"""Bytes of one answer."""

MAX_TOKENS = 12_000
"""Tokens of one answer."""

PAGE = 200
"""Items that are fetched at a time."""

BEFORE, AFTER = 100, 160
"""Characters of a hit's surroundings."""

Mode: TypeAlias = Literal["brief", "full"]


def search(log: PrefixItems, query: str, offset: int = 0, limit: int = HITS, family: Family = "unknown") -> ToolOutput:
    """Items whose text holds `query`, literally and whatever the case; the hits from `offset` on. Blocks.

    Reasoning and opaque items are not searched. Everything is scanned, so the number of hits is exact.
    """
    if not query.strip():
        return ToolOutput(summary="an empty query finds nothing; give a word or phrase", is_error=True)
    pattern = re.compile(re.escape(query), re.IGNORECASE)
    limit, offset = min(max(limit, 1), MAX_HITS), max(offset, 0)
    shown: list[str] = []
    found = 0
    for number, item in numbered(log):
        text = searchable(item)
        match = pattern.search(text)
        if match is None:
            continue
        found += 1
        if offset < found <= offset + limit:
            around = one_line(text[max(match.start() - BEFORE, 0) : match.end() + AFTER])
            shown.append(f"item {number} ({label_of(item)}): {around}")
    if not shown:
        where = f"no hit at or after number {offset}" if found else "no hit"
        return ToolOutput(summary=f"{where} for {query[:80]!r}: {found} hits in {log.count} items")
    content = clip("\n".join(shown), tokens=MAX_TOKENS, size=MAX_BYTES, family=family)
    more = f"; go on with offset={offset + len(shown)}" if found > offset + len(shown) else ""
    summary = f"hits {offset + 1}-{offset + len(shown)} of {found} for {query[:80]!r} in {log.count} items{more}"
    return ToolOutput(summary=summary, content=content)


def read_items(
    log: PrefixItems, offset: int = 1, limit: int = 20, mode: Mode = "brief", family: Family = "unknown"
) -> ToolOutput:
    """Items from number `offset` on (1-based): messages and summaries (`brief`), or tool content too (`full`). Blocks.

    An answer has at most 80 items, 48 KiB and 12,000 tokens; where a bound ended it, it says with which item to go on.
    An item that is larger than that alone is cut, with a mark.
    """
    offset = max(offset, 1)
    if offset > log.count:
        return ToolOutput(summary=f"there is no item {offset}: the range has {log.count} items", is_error=True)
    limit = min(max(limit, 1), MAX_ITEMS)
    parts: list[str] = []
    tokens = size = 0
    last = offset - 1
    for number, item in enumerate(log.read(offset - 1, min(offset - 1 + limit, log.count)), offset):
        text = f"[item {number}, {label_of(item)}]\n{shown_text(item, mode)}"
        cost, length = estimate_text(text, family) + 2, len(text.encode()) + 2
        if tokens + cost > MAX_TOKENS or size + length > MAX_BYTES:
            if parts:
                break
            text = clip(text, tokens=MAX_TOKENS - 60, size=MAX_BYTES - 200, family=family)
            text += "\n[cut here: search_session_log finds text in the rest]"
            cost, length = MAX_TOKENS, MAX_BYTES
        parts.append(text)
        tokens, size, last = tokens + cost, size + length, number
    more = f"; go on with offset={last + 1}" if last < log.count else ""
    return ToolOutput(summary=f"items {offset}-{last} of {log.count}, {mode}{more}", content="\n\n".join(parts))


def numbered(log: PrefixItems) -> Iterator[tuple[int, Item]]:
    """Every item with its number from 1, fetched page by page."""
    for start in range(0, log.count, PAGE):
        yield from enumerate(log.read(start, min(start + PAGE, log.count)), start + 1)


def searchable(item: Item) -> str:
    """The text of an item that may be looked up."""
    match item.type:
        case "user" | "assistant" | "context" | "order":
            return item.text
        case "tool_call":
            return f"{item.name} {item.arguments}"
        case "tool_result":
            return item.text()
        case "reasoning" | "opaque":
            return ""


def shown_text(item: Item, mode: Mode) -> str:
    """An item as a reading shows it."""
    match item.type:
        case "reasoning" | "opaque":
            return "(not shown)"
        case "tool_call":
            return item.arguments if mode == "full" else "(arguments: mode full)"
        case "tool_result":
            if mode == "full" or item.content is None:
                return item.text()
            return f"{item.summary}\n({len(item.content):,} characters of content: mode full)"
        case "user" | "assistant" | "context" | "order":
            return item.text if mode == "full" else cut(item.text, MESSAGE_CHARS)
