"""From items to facts: what a checkpoint keeps of each message, call and file. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from compact_worker.granting import neutralised
from compact_worker.sections import entries, parse
from interceptors.stubs import excerpt
from pod.context.facts import Fact, FactKind
from pod.context.quoting import Quoted, Quoter, shortened, usurps
from worker.items import AssistantItem, ContextItem, FileRange, Item, ToolCallItem, ToolResultItem, UserItem
from worker.masking import Masker
from worker.text import sha256

WORDS_CHARS = 1_000
"""Characters of one user message that are kept."""

SAID_CHARS = 600
"""Characters of one text of the model."""

LINE_CHARS = 300
"""Characters of an error or of a line of an earlier summary."""

CALL_CHARS = 160
"""Characters of a call with the summary of its result, of a command, of a path."""

ARGUMENT_CHARS = 60
"""Characters of a call's arguments."""

HASH = 12
"""Characters of a file's hash that are shown."""

_ECHOES = frozenset({"session_history", "write_summary", "new_context", "context", "tasks", "jobs"})
"""Tools whose results repeat the session or the state that code carries."""

_ONCE = frozenset({"call", "said", "error"})
"""Kinds of which the same words are kept once, the newest."""

_SUMMARY_ORDER = ("Completed Tasks", "Key Decisions", "Current Work", "Active Task", "Findings", "User Directives")
"""Sections of an earlier summary, the ones that give way first in front."""


@dataclass(frozen=True, slots=True)
class Source:
    """An item of the summarised range, unpruned; `entry` is its place in the log, 0 where it came with the segment."""

    item: Item
    entry: int = 0
    run: str = ""


@dataclass(slots=True)
class Extract:
    """Turns sources into facts, in their order. `show` says how the model is told of a path."""

    quoter: Quoter
    show: Callable[[str], str] = str
    changes: int = 0
    facts: list[Fact] = field(default_factory=list[Fact])
    messages: int = 0
    excluded: int = 0
    redacted: int = 0
    calls: dict[str, ToolCallItem] = field(default_factory=dict[str, ToolCallItem])

    def take(self, source: Source) -> None:
        """Adds what one item says. Reasoning, orders and the runtime's own context items say nothing."""
        item = source.item
        self.messages += not isinstance(item, ContextItem)
        match item:
            case UserItem():
                self._words(source, item.text)
            case ContextItem(kind="user_words") if item.source != "count":
                self._words(source, item.text)
            case ContextItem(kind="summary"):
                self._summary(source, item.text)
            case AssistantItem() if item.text.strip():
                self._add("said", source, self.quoter.line(item.text, SAID_CHARS))
            case ToolCallItem():
                self.calls[item.call_id] = item
            case ToolResultItem() if item.name not in _ECHOES:
                self._result(source, item)
            case _:
                pass

    def _add(self, kind: FactKind, source: Source, quoted: Quoted, *, subject: str = "") -> None:
        self.excluded += quoted.excluded
        self.redacted += quoted.redacted
        if quoted.text:
            fact = Fact(
                kind=kind, text=quoted.text, item=source.item.id, entry=source.entry, run=source.run, subject=subject,
                changes=self.changes,
            )  # fmt: skip
            self.facts.append(fact)

    def _words(self, source: Source, text: str) -> None:
        quoted = self.quoter.user(text)
        self._add("words", source, replace(quoted, text=shortened(quoted.text, WORDS_CHARS)))

    def _summary(self, source: Source, text: str) -> None:
        bodies = parse(text).bodies
        found = [(f"{name}: ", entry) for name in _SUMMARY_ORDER for entry in entries(bodies.get(name, ""))]
        for name, line in found or [("", line) for line in text.splitlines()]:
            quoted = self.quoter.line(line, LINE_CHARS)
            self._add("summary", source, replace(quoted, text=f"{name}{quoted.text}") if quoted.text else quoted)

    def _result(self, source: Source, item: ToolResultItem) -> None:
        call = self.calls.get(item.call_id)
        arguments = (call.parsed if call else None) or {}
        command = arguments.get("command")
        if isinstance(command, str) and command.strip():
            self._command(source, item, command)
        elif item.status != "ok" or (item.reads is None and item.writes is None):
            shown = ", ".join(
                f"{key}={value}" for key, value in arguments.items() if isinstance(value, str | int | float)
            )
            said = self._telling(item, CALL_CHARS)
            parts = (self.quoter.line(item.name, ARGUMENT_CHARS), self.quoter.line(shown, ARGUMENT_CHARS), *said)
            status = "" if item.status == "ok" else f" {item.status}"
            text = f"{parts[0].text}({parts[1].text}){status}: " + "; ".join(q.text for q in said if q.text)
            self._add("call" if item.status == "ok" else "error", source, _joined(text, parts))
        for file, did in ((item.reads, "read"), (item.writes, "written")):
            if file is not None:
                self._file(source, file, did)
        self.changes += item.writes is not None

    def _telling(self, item: ToolResultItem, limit: int) -> tuple[Quoted, Quoted]:
        """The first line of a result's summary, and its most telling lines. Quoted before anything is cut, so that no
        half of a secret stays."""
        summary, content = self.quoter.masked(item.summary), self.quoter.masked(item.content or "")
        first, _, rest = summary.text.strip().partition("\n")
        telling = excerpt(f"{rest}\n{content.text}", limit, first)
        redacted = summary.redacted + content.redacted
        return replace(self.quoter.line(first, limit), redacted=redacted), self.quoter.line(telling, limit)

    def _command(self, source: Source, item: ToolResultItem, command: str) -> None:
        """The command and how it ended, as the tool's own headline says it, with the most telling lines of a failure."""
        ran = self.quoter.line(command, CALL_CHARS)
        headline, telling = self._telling(item, CALL_CHARS)
        how = headline.text.rpartition(": ")[2]
        text = f"`{ran.text or '(left out)'}` {item.status}: {how}"
        if item.status != "ok" and telling.text:
            text += f"; {telling.text}"
        self._add("command", source, _joined(text, (ran, headline, telling)))

    def _file(self, source: Source, file: FileRange, did: str) -> None:
        path = self.quoter.line(self.show(file.path), CALL_CHARS)
        known = f", sha256 {file.sha256[:HASH]}" if file.sha256 else ""
        text = f"{path.text} ({did}{known})" if path.text else ""
        self._add("file", source, Quoted(text, path.excluded, path.redacted), subject=path.text)


def _joined(text: str, parts: Iterable[Quoted]) -> Quoted:
    """One text of several, with all their figures; marked where together they claim what none does alone."""
    parts = tuple(parts)
    excluded, redacted = sum(p.excluded for p in parts), sum(p.redacted for p in parts)
    if usurps(text):
        return Quoted("", excluded + 1, redacted)
    text, claims = neutralised(text)
    return Quoted(text, excluded + claims, redacted)


def kept(facts: Iterable[Fact], limit: int) -> tuple[list[Fact], dict[FactKind, int]]:
    """The newest `limit` facts of each kind and how many of each kind were let go. The order stays.

    Of several on one file, or of the same words, the newest counts; of several of one user message the first. Keeping in steps gives the facts
    that keeping at once gives.
    """
    newest: dict[tuple[str, str], Fact] = {}
    for number, fact in enumerate(facts):
        if fact.kind == "words":
            newest.setdefault((fact.kind, fact.item), fact)
            continue
        key = (fact.kind, fact.subject or (fact.text if fact.kind in _ONCE else str(number)))
        newest.pop(key, None)
        newest[key] = fact
    counts: dict[FactKind, int] = {}
    dropped: dict[FactKind, int] = {}
    found: list[Fact] = []
    for fact in reversed(newest.values()):
        counts[fact.kind] = counts.get(fact.kind, 0) + 1
        if counts[fact.kind] <= limit:
            found.append(fact)
        else:
            dropped[fact.kind] = dropped.get(fact.kind, 0) + 1
    return found[::-1], dropped


def source_hash(base: str, items: Sequence[Item], masker: Masker) -> str:
    """The hash of a range: each item's id and redacted words, in a chain that begins with `base`."""
    link = base
    for item in items:
        words = (masker.mask(text)[0] for text in _words_of(item))
        link = sha256(json.dumps([link, item.type, item.id, *words]))
    return link


def tail_hash(items: Sequence[Item]) -> str:
    """The hash of the items behind a cut, by their ids."""
    return sha256("\n".join(item.id for item in items))


def _words_of(item: Item) -> tuple[str, ...]:
    match item:
        case ToolCallItem():
            return (item.name, item.arguments)
        case ToolResultItem():
            return (item.name, item.status, item.summary, item.content or "")
        case UserItem() | AssistantItem():
            return (item.text,)
        case ContextItem():
            return (item.kind, item.text)
        case _:
            return ()
