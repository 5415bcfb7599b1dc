"""The items that a new segment begins with: made by code from what was kept, and fitted by code into what may stand there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compact_worker import Mark, Reference
from pod.context.cut import group_starts
from worker.estimate import estimate_item
from worker.items import ContextItem, Item, OpaqueItem, ReasoningItem, ToolResultItem, UserItem
from worker.models.base import Family
from worker.text import byte_prefix, byte_suffix

_BREAKS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")

SPILL_FLOOR = 600
"""Bytes of a mandatory result that stay when it is spilled: half from its head, half from its tail."""

ReadRange = Callable[[str, int, int | None], tuple[str, int, int, str]]
"""Reads lines of a file in scope: path, first line, count -> text, first, last, SHA-256 of the file. Raises `ToolFault`."""


@dataclass(frozen=True, slots=True)
class Words:
    """What the user said, as it crosses a boundary: whole and verbatim, oldest first; `omitted` older ones are only counted."""

    items: tuple[ContextItem, ...]
    omitted: int = 0


def user_words(
    summarised: Sequence[Item],
    *,
    whole: Collection[str],
    budget: int,
    family: Family,
    omitted: int = 0,
) -> Words:
    """The user's words in the summarised range, words of earlier segments included.

    Those of `whole` are kept; others newest first up to `budget` tokens. Each keeps its id.
    """
    found = words_in(summarised)
    kept: set[str] = {item.id for item in found if item.id in whole}
    left = budget
    for item in reversed(found):
        if item.id in kept:
            continue
        size = estimate_item(item, family)
        if size > left:
            break
        left -= size
        kept.add(item.id)
    return Words(tuple(i for i in found if i.id in kept), omitted + len(found) - len(kept))


def words_in(items: Sequence[Item]) -> list[ContextItem]:
    """What the user says in some items, oldest first: words of earlier segments come before any message of this one."""
    earlier: list[ContextItem] = []
    said: list[ContextItem] = []
    for item in items:
        if isinstance(item, UserItem):
            text = item.text + ("\n[an image was attached]" * len(item.images))
            said.append(ContextItem(id=item.id, kind="user_words", text=text, source="user message", trust="user"))
        elif isinstance(item, ContextItem) and item.kind == "user_words" and item.source != "count":
            earlier.append(item)
    return [*earlier, *said]


@dataclass(frozen=True, slots=True)
class Opening:
    """The parts of a new segment, in the order in which they stand. `notes` says what was shrunk or dropped, for the log.

    A provider's memory (`native`) stands first. Where it ends just before the tail (`continued`), the tail follows it
    directly, so that reasoning in it which is bound to what the memory stands for stays valid.
    """

    words: Words
    summary: ContextItem | None
    reads: tuple[ContextItem, ...]
    references: tuple[Reference, ...]
    pins: tuple[ContextItem, ...]
    tail: tuple[Item, ...]
    state: ContextItem | None
    lead_in: ContextItem | None = None
    notebook: ContextItem | None = None
    notes: tuple[str, ...] = field(default=())
    native: OpaqueItem | None = None
    continued: bool = False

    def items(self) -> tuple[Item, ...]:
        """The items, in order."""
        parts: list[Item] = [self.native] if self.native else []
        parts += self.tail if self.continued else ()
        parts += self.words.items
        if self.words.omitted:
            text = f"{self.words.omitted} earlier user messages are not shown here; session_history has them."
            parts.append(ContextItem(kind="user_words", text=text, source="count"))
        parts += [item for item in (self.lead_in, self.notebook) if item is not None]
        parts += [self.summary] if self.summary else []
        parts += self.reads
        parts += [reference_list(self.references)] if self.references else []
        parts += self.pins
        parts += () if self.continued else self.tail
        parts += [self.state] if self.state else []
        return tuple(parts)

    def tokens(self, family: Family) -> int:
        """The raw estimate of all items."""
        return sum(estimate_item(item, family) for item in self.items())


def reference_list(references: Sequence[Reference]) -> ContextItem:
    """One item that names the files which were read before, without their contents."""
    lines = ["- " + _in_line(r.path + (f" ({r.reason})" if r.reason else "")) for r in references]
    text = "\n".join(
        [
            "[Referenced files - read before compaction, contents not included]",
            *lines,
            "Use read_file for the current contents where they are needed.",
        ]
    )
    return ContextItem(kind="references", text=text, source="runtime")


def auto_reads(
    marks: Sequence[Mark], read: ReadRange, seen: Mapping[str, str], budget: int, family: Family
) -> tuple[tuple[ContextItem, ...], tuple[Reference, ...], tuple[str, ...]]:
    """Reads the marked files again, at this moment: items inside the budget, references for what did not fit or can't be read, notes.

    Each path is checked again (a link may have been swapped since, case B098), hashed, and marked where it changed since it was seen.
    """
    from worker.tools import ToolFault

    items: list[ContextItem] = []
    left_out: list[Reference] = []
    notes: list[str] = []
    left = budget
    for mark in marks:
        try:
            text, first, last, digest = read(mark.path, mark.offset, mark.limit)
        except (ToolFault, OSError) as e:
            left_out.append(Reference(mark.path, f"could not be read again: {e}"))
            notes.append(f"{mark.path} could not be read again: {e}")
            continue
        changed = mark.path in seen and seen[mark.path] != digest
        header = f"[Auto-read file: {_in_line(mark.path)}:{first}-{last}]" + (
            " (changed since it was last read)" if changed else ""
        )
        item = ContextItem(
            kind="auto_read", text=f"{header}\n{text}", source=f"{mark.path}:{first}-{last}", trust="tool",
            path=mark.path, sha256=digest,
        )  # fmt: skip
        size = estimate_item(item, family)
        if size > left:
            left_out.append(Reference(mark.path, f"lines {first}-{last} did not fit"))
            notes.append(f"{mark.path} was marked, but its lines {first}-{last} did not fit any more")
            continue
        left -= size
        items.append(item)
    return tuple(items), tuple(left_out), tuple(notes)


def without_bound_reasoning(tail: Sequence[Item], free: frozenset[str]) -> tuple[Item, ...]:
    """The tail without reasoning that is bound to the prefix it was made with: text and calls stay (case B020).

    `free` names the models (`provider:model`) that do not bind theirs: it stays, since they may want an open tool loop to begin with it.
    """
    return tuple(i for i in tail if not isinstance(i, ReasoningItem) or f"{i.provider}:{i.model}" in free)


def spill(item: ToolResultItem, artifact: str | None) -> ToolResultItem:
    """A mandatory result that is too large for the new segment: head, tail and where the whole is."""
    content = item.content or ""
    size = len(content.encode())
    where = (
        f"; the whole output is artifact:{artifact} (read_file reads it)"
        if artifact
        else "; session_history has the whole"
    )
    middle = f"\n[... {size - SPILL_FLOOR} bytes left out{where} ...]\n"
    short = byte_prefix(content, SPILL_FLOOR // 2) + middle + byte_suffix(content, SPILL_FLOOR // 2)
    return item.model_copy(update={"content": short, "artifact": artifact or item.artifact})


def fit(
    opening: Opening, limit: int, family: Family, *, floor: int, mandatory: int, protected: frozenset[str]
) -> Opening:
    """Shrinks an opening to `limit` raw tokens: auto-reads, then the tail down to `floor` tokens, then user words.

    What the user said in the part of the tail that is left out joins the other words.

    `mandatory` counts the items at the end of the tail that must stay (the current request, an unanswered batch), `protected` the ids
    of user words that stay whole. What must stay may still be above the limit: the caller looks at `tokens`.
    """
    notes = list(opening.notes)
    reads, references = list(opening.reads), list(opening.references)
    while reads and opening.tokens(family) > limit:
        dropped = reads.pop()
        path = dropped.path or dropped.source
        references.append(Reference(path, "read before; its text did not fit here"))
        notes.append(f"the auto-read of {path} was left out to fit")
        opening = replace(opening, reads=tuple(reads), references=tuple(references))
    tail, words = opening.tail, list(opening.words.items)
    while opening.tokens(family) > limit:
        starts = [s for s in group_starts(tail)[1:] if s <= len(tail) - mandatory]
        if not starts or sum(estimate_item(i, family) for i in tail[starts[0] :]) < floor:
            break
        notes.append(f"{starts[0]} items at the start of the tail were left out to fit")
        words += words_in(tail[: starts[0]])
        tail = tail[starts[0] :]
        opening = replace(opening, tail=tail, words=Words(tuple(words), opening.words.omitted))
    omitted = opening.words.omitted
    while opening.tokens(family) > limit:
        at = next((n for n, item in enumerate(words) if item.id not in protected), None)
        if at is None:
            break
        words.pop(at)
        omitted += 1
        opening = replace(opening, words=Words(tuple(words), omitted))
    return replace(opening, notes=tuple(notes))


def state_item(state: Mapping[str, Any], queued: int, note: str = "") -> ContextItem | None:
    """Tasks, background processes and the count of queued input, as code knows them; authoritative over any summary (B034)."""
    lines: list[str] = []
    tasks = rows(state.get("tasks"))
    if tasks:
        lines.append("Task list (kept by the runtime; where the summary says otherwise, this list is right):")
        lines += ["- " + describe_task(task) for task in tasks]
    processes = rows(state.get("processes"))
    if processes:
        lines.append("Background processes (ids are unchanged; the jobs tool reads and stops them):")
        lines += [
            _in_line(f"- {p.get('id')}: {p.get('command')} (pid {p.get('pid')}, {p.get('status', 'running')})")
            for p in processes
        ]
    if queued:
        lines.append(f"Queued user messages that follow: {queued}.")
    if note:
        lines.append(note)
    return ContextItem(kind="state", text="\n".join(lines), source="runtime") if lines else None


def describe_task(task: Mapping[str, Any]) -> str:
    """One task in a line: status, text, origin and age marks (case B042)."""
    extra = ", ".join(f"{key} {task[key]}" for key in ("origin", "created", "updated") if task.get(key))
    text = f"[{task.get('status', 'pending')}] {task.get('id', '')} {task.get('text') or task.get('title') or ''}"
    return _in_line(text + (f" ({extra})" if extra else ""))


def _in_line(text: str) -> str:
    """One line of a list that the runtime vouches for: what stands in it can't begin another one."""
    return _BREAKS.sub(" ", text)


def rows(value: Any) -> list[dict[str, Any]]:
    """A tool's list of rows, as it stands in the state; anything else is no rows."""
    found: list[Any] = list(value) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]
    return [dict(row) for row in found if isinstance(row, Mapping)]  # pyright: ignore[reportUnknownArgumentType]
