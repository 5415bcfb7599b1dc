"""Where words come from that no user said: what tools and files said in the summarised range, and what the worker read
itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compact_worker.directives import fold, occurs
from compact_worker.material import PrefixItems
from compact_worker.sections import parse
from compact_worker.session_log import numbered
from worker.items import Item, ToolResultItem

_ECHOES = frozenset(
    {
        "search_session_log",
        "read_session_items",
        "mark_read_required",
        "unmark",
        "add_reference",
        "write_summary",
        "session_history",
    }
)
"""Tools whose results repeat the conversation: what they show was said by someone else."""

_FILE_KINDS = frozenset({"auto_read", "pin"})


class Evidence:
    """Looks quotes up in tool output. The range is folded once, when the first quote is looked for; blocks then."""

    def __init__(self, log: PrefixItems, own: Sequence[Item], since: int, previous_summary: str | None) -> None:
        self._log = log
        self._own = own
        self._since = since
        self._previous = previous_summary
        self._folded: list[tuple[str, str]] | None = None

    def find(self, parts: Sequence[str]) -> str | None:
        """The source in which the folded parts of a quote occur, or None."""
        if self._folded is None:
            self._folded = list(self._known())
        # The worker's own context items are the overview, which repeats the conversation too.
        results = (item for item in self._own[self._since :] if isinstance(item, ToolResultItem))
        own = ((label, fold(text)) for label, text in _tool_texts(enumerate(results), numbers=False))
        for known in (self._folded, own):
            for label, text in known:
                if occurs(parts, text):
                    return label
        return None

    def _known(self) -> Iterator[tuple[str, str]]:
        for label, text in _tool_texts(numbered(self._log), numbers=True):
            yield label, fold(text)
        findings = parse(self._previous or "").bodies.get("Findings")
        if findings:
            yield "findings of the previous summary", fold(findings)


def _tool_texts(items: Iterable[tuple[int, Item]], *, numbers: bool) -> Iterator[tuple[str, str]]:
    for number, item in items:
        where = f", item {number}" if numbers else ""
        if isinstance(item, ToolResultItem):
            if item.name not in _ECHOES:
                path = f" {item.reads.path}" if item.reads else ""
                yield f"{item.name}{path}{where}", item.text()
        elif item.type == "context" and (item.kind in _FILE_KINDS or item.trust == "tool"):
            yield f"{item.path or item.source or item.kind}{where}", item.text
