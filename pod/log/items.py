"""The items that entries hold, as they were made, whatever became of them in the view."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.lines import parse
from pod.log.segment import Damage, open_log, scan
from worker import records as w
from worker.items import Item
from worker.memory import read_by_others
from worker.records import Record
from worker.stand_ins import LOST, LOST_BEFORE, stand_in

ITEM_KINDS = frozenset({"segment_started", "input", "reply", "tool_result", "context_added"})
"""Kinds of entries that hold items as they were made."""


def items_of(record: Record) -> tuple[Item, ...]:
    """The items that an entry brings, as they were made; projections (`pruned`, `edited`) bring none."""
    match record:
        case e.SegmentStarted():
            return (*record.items, *record.pending_inputs)
        case w.Input() | w.ToolResult() | e.NativeMade():
            return (record.item,)
        case w.ReplyRecord() | w.ContextAdded():
            return tuple(record.items)
        case _:
            return ()


_ARTIFACT = re.compile(rb'artifact(?:":"|:)([A-Za-z0-9_][A-Za-z0-9._-]*)')


def named_artifacts(body: bytes) -> set[str]:
    """Names that may be those of artifacts, in an item or entry as JSON: as a result's own, or as `artifact:NAME`."""
    found = {match[1].decode() for match in _ARTIFACT.finditer(body)}
    return found | {name.rstrip(".") for name in found}  # at the end of a sentence


class SegmentItems:
    """The first items of a segment's view, as its log holds them: whole, whatever was pruned since, a provider's memory
    by its text.

    `ids` are the view's, in its order. The log is read once, when an item is first asked for, and only the place of
    each item is kept.
    """

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path = path
        self._ids = tuple(ids)
        self._places: dict[str, tuple[int, int]] | None = None

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self._ids)

    def read(self, start: int, stop: int) -> list[Item]:
        """Items from `start` (0-based) up to before `stop`.

        Blocks. Raises `UsageProblem` for an item that the log does not hold.
        """
        if self._places is None:
            self._places = self._index()
        found: list[Item] = []
        at, held = -1, dict[str, Item]()
        with open_log(self.path) as file:
            for label in self._ids[max(start, 0) : max(stop, 0)]:
                place = self._places.get(_needed(label))
                if place is None:
                    raise UsageProblem(f"{self.path}: the log holds no item {label}; `pod doctor` looks into it")
                offset, length = place
                if offset != at:
                    file.seek(offset)
                    line = parse(file.read(length).rstrip(b"\n"), offset, 0)
                    record = e.record_of(line, self.path)
                    at, held = offset, _by_id(() if record is None else items_of(record))
                item = held[_needed(label)]
                found.append(read_by_others(item) if item.id == label else stand_in(label, item))
        return found

    def _index(self) -> dict[str, tuple[int, int]]:
        wanted = {_needed(label) for label in self._ids}
        places: dict[str, tuple[int, int]] = {}
        for line in scan(self.path):
            if isinstance(line, Damage) or line.kind not in ITEM_KINDS:
                continue
            record = e.record_of(line, self.path)
            for item in () if record is None else items_of(record):
                if item.id in wanted:
                    places.setdefault(item.id, (line.offset, line.length))
            if len(places) == len(wanted):
                break
        return places


def _needed(label: str) -> str:
    """The id to look for: that of the item itself, or of the one that a stand-in was made for."""
    return label.removeprefix(LOST).removeprefix(LOST_BEFORE)


def _by_id(items: Iterable[Item]) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item.id, item)
    return found
