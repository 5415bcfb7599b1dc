"""What the request in front of a surveyor shows: the user's words, listings, pages, facts, and the files it writes
itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worker.items import ContextItem, Item, ToolCallItem, ToolResultItem
from worker.offline.survey_facts import Fact, Instruction, read_fact
from worker.offline.survey_listing import Listing, Place
from worker.offline.survey_task import Directives, Task, read_directives, read_task

PRUNED = "[pruned: "
"""Begins an argument that is not in view any more."""

FINDING = "FINDING "
"""Begins a line of an assistant's text that states a fact."""

_RANGE = re.compile(r": lines? (\d+)(?:-(\d+))?(?: from column \d+)?(?: of (\d+))?, ")
_PAST_END = re.compile(r" has (\d+) lines?: offset")
_STOPPED = "more may exist"
_EMPTY = "the file is empty"
_AUTO_READ = re.compile(r"\[Auto-read file: (.+):(\d+)-(\d+)\]")
_DROPPED = re.compile(r"\b(\d+) older facts did not fit")
_CUT_LINE = re.compile(r"; line (\d+) is cut")
_LEFT_OUT = re.compile(r"\n?\[\.\.\. \d+ bytes left out; [^\n]*\.\.\.\]\n")


@dataclass(frozen=True, slots=True)
class Page:
    """Lines of a file as a result shows them."""

    path: str
    first: int
    last: int
    total: int
    lines: tuple[str, ...]


@dataclass(slots=True)
class OwnFile:
    """What is known of a file that the surveyor writes: `total` lines (None: unknown), and the lines in view by
    number."""

    total: int | None = None
    lines: dict[int, str] = field(default_factory=dict[int, str])
    failures: int = 0

    def add(self, text: str, *, fresh: bool) -> None:
        """Takes over what was written; `fresh` says that it replaced the file."""
        if fresh:
            self.total, self.lines = 0, {}
        if self.total is None:
            return
        if text.startswith(PRUNED):
            self.total = None
            return
        for line in text.removesuffix("\n").split("\n"):
            self.total += 1
            self.lines[self.total] = line


@dataclass(slots=True)
class View:
    """Everything that a surveyor decides from. `torn` has the pages that did not come whole, with the lines that were
    asked for."""

    task: Task
    texts: list[str]
    fresh: bool = True
    listings: dict[Place, Listing] = field(default_factory=dict[Place, Listing])
    pages: dict[tuple[str, int], Page] = field(default_factory=dict[tuple[str, int], Page])
    torn: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    facts: dict[str, dict[int, Fact]] = field(default_factory=dict[str, dict[int, Fact]])
    instructions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    totals: dict[str, int] = field(default_factory=dict[str, int])
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    ended: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    notes: OwnFile = field(default_factory=OwnFile)
    report: OwnFile = field(default_factory=OwnFile)
    last_error: str = ""
    denied: str = ""
    dropped: int = 0
    asked: list[tuple[str, int, int | None]] = field(default_factory=list[tuple[str, int, int | None]])

    def directives(self) -> Directives:
        """The directives in force: the user's, then what was met in the named file."""
        met = [text for _, texts in sorted(self.instructions.items()) for text in texts]
        return read_directives([*self.texts, *met])

    def page(self, path: str, line: int) -> Page | None:
        """The page of a file that begins with a line, or what follows from there in a page that has it."""
        found = self.pages.get((path, line))
        if found is not None:
            return found
        for (name, _), page in self.pages.items():
            if name == path and page.first < line <= page.last:
                return replace(page, first=line, lines=page.lines[line - page.first :])
        return None

    def complete(self, path: str) -> list[Fact] | None:
        """The facts of a file in order, when they cover all of it; else None."""
        found = self.facts.get(path, {})
        chain: list[Fact] = []
        line = 1
        while line in found:
            fact = found[line]
            chain.append(fact)
            if fact.final:
                return chain
            line = fact.last + 1
        return None

    def known(self, path: str) -> list[Fact]:
        """The facts of a file from its first line on, as far as they follow each other."""
        found = self.facts.get(path, {})
        chain: list[Fact] = []
        line = 1
        while line in found and found[line].last >= line:
            chain.append(found[line])
            line = found[line].last + 1
        return chain

    def progress(self, path: str) -> tuple[int, str]:
        """The next line of a file to be read, and what is open before it."""
        chain = self.known(path)
        return (chain[-1].last + 1, chain[-1].carry) if chain else (1, "")

    def learn(self, line: str) -> None:
        """Takes over the fact or instruction in a line, if there is one."""
        found = read_fact(line)
        if isinstance(found, Fact):
            known = self.facts.setdefault(found.path, {})
            if found.first not in known or found.last >= known[found.first].last:
                known[found.first] = found
        elif isinstance(found, Instruction):
            texts = self.instructions.setdefault(found.source, [])
            texts += [text for text in found.texts if text not in texts]


def look(items: Sequence[Item]) -> View | None:
    """What the items of a request show; None where no survey is asked for."""
    texts = [text for item in items if (text := _user_text(item)) is not None]
    task = read_task(texts)
    if task is None:
        return None
    view = View(task, texts)
    calls: dict[str, ToolCallItem] = {}
    reply = ""
    for item in items:
        match item.type:
            case "assistant":
                view.fresh = False
                for line in item.text.split("\n"):
                    if line.startswith(FINDING):
                        view.learn(line)
            case "tool_call":
                view.fresh = False
                calls[item.call_id] = item
                reply = _asked(view, item, reply)
            case "tool_result":
                call = calls.get(item.call_id)
                if call is not None and call.parsed is not None:
                    _result(view, call.name, call.parsed, item)
            case "context":
                _context(view, item)
            case _:
                pass
    return view


def _asked(view: View, call: ToolCallItem, reply: str) -> str:
    """Keeps the pages that the newest reading reply asked for; gives the reply that they are of."""
    arguments = call.parsed or {}
    path = str(arguments.get("path", ""))
    if call.name != "read_file" or path in (view.task.notes, view.task.report):
        return reply
    if call.reply != reply or not call.reply:
        view.asked.clear()
    view.asked.append((path, int(arguments.get("offset") or 1), arguments.get("limit")))
    return call.reply


def _user_text(item: Item) -> str | None:
    if item.type == "user" or (item.type == "context" and item.kind == "user_words" and item.trust == "user"):
        return item.text
    return None


def _context(view: View, item: ContextItem) -> None:
    if item.kind in ("summary", "lead_in", "auto_read"):
        view.fresh = False
    if item.kind == "summary" and view.task.notes is None:
        for line in item.text.split("\n"):
            view.learn(line)
        dropped = _DROPPED.search(item.text)
        view.dropped = int(dropped.group(1)) if dropped else 0
    found = _AUTO_READ.match(item.text)
    if item.kind == "auto_read" and found and found.group(1) == view.task.notes and not item.pruned:
        _, _, body = item.text.partition("\n")
        lines = body.removesuffix("\n").split("\n")
        if len(lines) != int(found.group(3)) - int(found.group(2)) + 1:
            return
        for number, line in enumerate(lines, int(found.group(2))):
            view.notes.lines[number] = line
            view.learn(line)


def _result(view: View, name: str, arguments: dict[str, Any], result: ToolResultItem) -> None:
    path = str(arguments.get("path", ""))
    own = view.notes if path == view.task.notes else view.report if path == view.task.report else None
    if name in ("write_file", "append_file") and own is not None:
        if result.status == "interrupted":
            # It may have been written or not: the file itself tells.
            own.total = None
            return
        if result.status != "ok":
            own.failures += 1
            view.last_error = result.summary
            return
        own.failures = 0
        text = str(arguments.get("content", ""))
        own.add(text, fresh=name == "write_file")
        if own is view.notes:
            for line in text.split("\n"):
                view.learn(line)
    elif name == "read_file":
        _read(view, path, own, arguments, result)
    elif name == "find_files":
        _listed(view, path, arguments, result)


def _read(view: View, path: str, own: OwnFile | None, arguments: dict[str, Any], result: ToolResultItem) -> None:
    if result.status == "interrupted":
        return
    first = int(arguments.get("offset") or 1)
    page = _page(path, result)
    past_end = _PAST_END.search(result.text()) if result.status == "error" else None
    if own is not None:
        if page is not None:
            # Pages may have been read just before something was appended in the same reply.
            own.total = max(page.total, own.total or 0)
            for number, line in enumerate(page.lines, page.first):
                own.lines[number] = line
                if own is view.notes:
                    view.learn(line)
        elif result.status == "error" and (past_end or not result.pruned):
            own.total = int(past_end.group(1)) if past_end else 0
        elif found := _RANGE.search(result.summary):
            own.total = max(int(found.group(3) or 0), own.total or 0)
            if result.content is not None:
                view.torn[path, first] = int(arguments.get("limit") or 1)
    elif page is not None:
        view.pages[path, page.first] = page
        view.totals[path] = page.total
    elif past_end is not None:
        view.ended.add((path, first))
    elif result.status in ("error", "denied") and not result.pruned:
        view.unreadable[path] = result.summary
    elif result.status == "ok" and result.content is not None:
        limit = int(arguments.get("limit") or 1)
        view.torn[path, first] = limit
        cut = _CUT_LINE.search(result.summary)
        if limit == 1 or (cut and int(cut.group(1)) == first):
            view.unreadable[path] = f"line {first} is longer than one answer shows"
    elif result.status == "ok" and not result.pruned and not _RANGE.search(result.summary):
        view.unreadable[path] = result.summary


def _page(path: str, result: ToolResultItem) -> Page | None:
    """The page in a result; None where it was pruned, torn in the middle, or is no page."""
    if result.status != "ok" or result.pruned:
        return None
    if _EMPTY in result.summary:
        return Page(path, 1, 0, 0, ())
    found = _RANGE.search(result.summary)
    if found is None or result.content is None:
        return None
    first = int(found.group(1))
    last = int(found.group(2) or first)
    lines = result.content.removesuffix("\n").split("\n")
    if len(lines) != last - first + 1 or _CUT_LINE.search(result.summary):
        return None
    return Page(path, first, last, int(found.group(3) or last), tuple(lines))


def _listed(view: View, path: str, arguments: dict[str, Any], result: ToolResultItem) -> None:
    key = Place(path, str(arguments.get("pattern", "")), str(arguments.get("after", "")))
    view.listings.pop(key, None)
    if result.status == "interrupted" or result.pruned:
        return
    if result.status == "denied":
        view.denied = result.summary
    elif result.status != "ok":
        view.listings[key] = Listing((), problem=result.summary)
    if result.status != "ok":
        return
    head, *cut = _LEFT_OUT.split(result.content or "", maxsplit=1)
    lines = [line for line in head.split("\n") if line]
    # A long listing may stand here only with its head and its tail: it ends where the head ends.
    paths = tuple(lines[:-1] if cut else lines)
    if paths or not cut:
        whole = not cut and len(paths) < int(arguments.get("limit") or 0)
        view.listings[key] = Listing(paths, whole, bool(cut), result.summary if _STOPPED in result.summary else "")
