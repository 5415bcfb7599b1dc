"""The reading half of the surveyor: which files there are, which pages come next, and what the pages in view say."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from worker.items import AssistantItem, ToolCallItem, make_call
from worker.models.base import Reply
from worker.offline.survey_facts import LARGE, MARKED, NAMED, Fact, Instruction, Modules, joined, study
from worker.offline.survey_listing import Missing, Stops, TooMany
from worker.offline.survey_lookup import Lookups
from worker.offline.survey_notes import is_python
from worker.offline.survey_task import instruction_in
from worker.offline.survey_view import FINDING, Page, View
from worker.testing.function_model import make_reply

PAGE_LINES = 300
"""Lines of a file that are read at once."""

LOOKED_UP = 60
"""Names that are looked up for one page; where it needs more, a part of the page is noted first."""

REPLY_BYTES = 24_000
"""Bytes of files that one reply asks for, as far as they are known; some 6,000 tokens."""

REPLY_PAGES = 6
"""Pages that one reply asks for at most."""

LINE_BYTES = 40
"""Bytes of a line of source, as a rule."""

UNKNOWN_BYTES = 9_000
"""Bytes expected of the first page of a file whose size is not known."""


@dataclass(slots=True)
class Plan:
    """The reply in the making."""

    seed: str
    words: list[str] = field(default_factory=list[str])
    calls: list[ToolCallItem] = field(default_factory=list[ToolCallItem])

    def call(self, name: str, **arguments: Any) -> None:
        """Adds a call; its id is a function of the request, and no other request has it."""
        label = hashlib.sha256(f"{self.seed}/{len(self.calls)}".encode()).hexdigest()[:20]
        text = json.dumps({key: value for key, value in arguments.items() if value is not None}, ensure_ascii=False)
        self.calls.append(make_call(f"call_{label}", name, text))

    def reply(self) -> Reply:
        """The reply."""
        text = "\n".join(self.words)
        return make_reply(*([AssistantItem(text=text)] if text else []), *self.calls)


class Reader:
    """What one request says of the files of a survey. `latest` is the last page in the notes, `files` all files (None
    where they are too many to be in view at once)."""

    def __init__(self, view: View, plan: Plan) -> None:
        self.view = view
        self.plan = plan
        self.task = view.task
        meet = self.task.meet
        other = meet.rpartition("/")[2] if meet and not meet.endswith(".py") else None
        self.stops = Stops(view.listings, self.task.folders, other, (self.task.report, self.task.notes))
        self.files: list[str] | None = None
        self.modules = Modules(())
        self.latest: Fact | None = None
        self.missing: Missing | None = None

    def list_files(self) -> None:
        """Finds the files in the listings, if they can all be in view. Raises `Missing`."""
        if self.latest is None or not self.latest.flags & LARGE:
            self.files = self.stops.all()
        self.modules = Modules.of(tuple(self.files)) if self.files is not None else self._lookups()
        problems = self.stops.problems()
        if problems or (self.files is not None and not any(path.endswith(".py") for path in self.files)):
            problems = problems or ["there are no Python files"]
            raise TooMany("; ".join(problems).rstrip(" ."))

    def _lookups(self) -> Lookups:
        return Lookups(self.view.listings, self.stops.folders)

    def search(self, missing: Missing) -> None:
        for (folder, pattern, after), limit in missing.searches:
            self.plan.call("find_files", pattern=pattern, path=folder, after=after or None, limit=limit)
        # Pages that were read but not kept come once more beside the listing: one batch is always seen whole.
        for path, first, limit in self.view.asked if not any(c.name == "read_file" for c in self.plan.calls) else ():
            if not self._is_done(path) and first == self._progress(path)[0] and not self.view.page(path, first):
                torn = self.view.torn.get((path, first))
                self.plan.call("read_file", path=path, offset=first, limit=max(torn // 4, 1) if torn else limit)
                break

    def _open_stops(self) -> Iterator[str]:
        """The files that are not done, in order. Raises `Missing`."""
        if self.task.notes is None:
            known = sorted(self.view.facts)
            if self.files is None:
                yield from (path for path in known if not self._is_done(path))
                yield from self.stops.following(known[-1] if known else None)
            else:
                yield from (path for path in self.files if not self._is_done(path))
            return
        latest = self.latest
        if latest is not None and not latest.final:
            yield latest.path
        if self.files is None:
            yield from self.stops.following(latest.path if latest else None)
        else:
            yield from (path for path in self.files if latest is None or path > latest.path)

    def _is_met(self, path: str) -> bool:
        meet = self.task.meet
        return meet is not None and (path == meet or path.endswith("/" + meet))

    def _is_done(self, path: str) -> bool:
        if self.task.notes is None:
            return self.view.complete(path) is not None
        return self.latest is not None and (path < self.latest.path or (path == self.latest.path and self.latest.final))

    def _progress(self, path: str) -> tuple[int, str]:
        """The next line of a file to be read, and what is open before it."""
        if self.task.notes is None:
            return self.view.progress(path)
        if self.latest is not None and self.latest.path == path:
            return self.latest.last + 1, self.latest.carry
        return 1, ""

    # The survey: from pages to facts.

    def study(self) -> list[str]:
        """Turns pages in view into facts and states them; gives the next stops that are not complete, in order."""
        lines: list[str] = []
        left: list[str] = []
        try:
            for path in self._open_stops():
                # Notes stand in the order of the files, so nothing behind an open file is noted.
                if not left or self.task.notes is None:
                    lines += self._facts(path)
                elif self._needed():
                    self._look_into(path)
                left += [] if self._is_done(path) else [path]
                if len(left) >= REPLY_PAGES:
                    break
        except Missing as missing:
            self.missing = missing
        if lines and self.task.notes:
            self.plan.call("append_file", path=self.task.notes, content="\n".join(lines) + "\n")
            number = self.latest.number or 0 if self.latest else 0
            self.plan.words.append(f"Noted up to {number + 1} files.")
        elif lines:
            self.plan.words += [FINDING + line for line in lines]
        return left

    def ask(self, left: list[str]) -> bool:
        """Asks for what comes next; False where nothing does."""
        needed = self._needed()
        if needed:
            self.search(Missing(*needed))
        elif left:
            self._read(left)
        if self.missing and not needed and len(left) < REPLY_PAGES:
            self.search(self.missing)
        return bool(needed or left or self.missing or self.plan.calls)

    def _needed(self) -> list[Any]:
        return self.modules.searches() if isinstance(self.modules, Lookups) else []

    def _facts(self, path: str) -> list[str]:
        """The lines for all pages of a file that are in view and follow what is known of it."""
        lines: list[str] = []
        while not self._is_done(path):
            first, carry = self._progress(path)
            page = self.view.page(path, first)
            if page is not None:
                fact, page = self._fact(page, carry)
            elif (path, first) in self.view.ended:
                fact = Fact(path, first, first - 1, first - 1)
            elif path in self.view.unreadable:
                fact = Fact(path, first, first - 1, -1, self.view.unreadable[path][:80])
            else:
                break
            if self._needed():
                break
            # The instruction first: a line that ends its file must have nothing of its file behind it.
            if self._is_met(path):
                found = instruction_in("\n".join(page.lines)) if page else []
                if found or fact.final:
                    lines.append(Instruction(path, (*self.view.instructions.get(path, ()), *found)).line())
                    self.view.learn(lines[-1])
            if self.task.notes:
                if lines and self.latest and self.latest.path == path and lines[-1] == self.latest.line():
                    # Only the last page that is noted at once need say what all of its file imports so far.
                    lines[-1] = replace(self.latest, imports=()).line()
                fact = self.latest = self._noted(fact)
            else:
                # A summary keeps the newest fact about a file, so each one says all that is known of it.
                fact = joined([*self.view.known(path), fact])
                self.view.learn(fact.line())
            lines.append(fact.line())
        return lines if self.task.notes else list({line.partition(",")[0]: line for line in lines}.values())

    def _noted(self, fact: Fact) -> Fact:
        """A fact as it stands in the notes, behind the latest one."""
        before = self.latest
        flags = LARGE if self.files is None else 0
        if before is None or before.path != fact.path:
            number = (before.number or 0) + is_python(before) if before else 0
            return replace(fact, number=number, flags=flags)
        flags |= before.flags | (NAMED if before.definitions else 0) | (MARKED if before.todos else 0)
        imports = Counter(dict(before.imports))
        imports.update(dict(fact.imports))
        return replace(fact, number=before.number, flags=flags, imports=tuple(sorted(imports.items())))

    def _look_into(self, path: str) -> None:
        """Finds out what must be looked up for a page that is in view, and cannot be noted yet."""
        page = self.view.page(path, self._progress(path)[0])
        if page is not None:
            self._fact(page, "")

    def _fact(self, page: Page, carry: str) -> tuple[Fact, Page]:
        """What a page says, or as much of it as can be looked up at once."""
        if not page.path.endswith(".py"):
            return Fact(page.path, page.first, page.last, page.total), page
        known = self.modules.needs() if isinstance(self.modules, Lookups) else 0
        while True:
            fact = study(page.path, page.lines, page.first, page.total, carry, self.modules)
            if not isinstance(self.modules, Lookups) or self.modules.needs() - known <= LOOKED_UP:
                return fact, page
            half = len(page.lines) // 2
            if half == 0:
                return fact, page
            self.modules.forget(known)
            page = replace(page, lines=page.lines[:half], last=page.first + half - 1)

    def _read(self, left: list[str]) -> None:
        """Asks for the next pages, as many as a reply may bring: all of a file before those of the next."""
        room = REPLY_BYTES
        asked = 0
        for path in left:
            first, _ = self._progress(path)
            limit = PAGE_LINES
            torn = self.view.torn.get((path, first))
            if torn is not None:
                limit, room = max(torn // 4, 1), 0
            known = self.view.known(path)
            noted = self.latest.total if self.latest and self.latest.path == path else None
            total = self.view.totals.get(path) or (known[0].total if known else noted)
            while True:
                cost = self._expected() if total is None else min(total - first + 1, limit) * LINE_BYTES
                if asked and (cost > room or asked >= REPLY_PAGES):
                    return
                self.plan.call("read_file", path=path, offset=first, limit=limit)
                asked += 1
                room -= cost
                first += limit
                if total is None or first > total:
                    break

    def _expected(self) -> int:
        """Bytes expected of the first page of a file: of many files, those in view tell something."""
        if self.files is not None or len(self.view.pages) < REPLY_PAGES // 2:
            return UNKNOWN_BYTES
        lines = sum(len(page.lines) for page in self.view.pages.values()) // len(self.view.pages)
        return min(2 * lines * LINE_BYTES, UNKNOWN_BYTES)
