"""`offline:surveyor`: a rule-based agent that does a real job with real tools, deciding only from the request.

It surveys Python files (the task's words: `worker.offline.survey_task`): it lists them, reads each page by page,
keeps a fact for each page in a notes file or in its own words (`FINDING ...` lines), obeys the instruction in a file
that the task names, and writes a report (`worker.offline.survey_report`).

It has no state of its own. Whatever the request does not show is gone for it, so it notes each page in the same reply
that asks for the next one, and after a loss of context it goes on from what stands there: its notes, its findings,
the summary.

A notes file (`worker.offline.survey_notes`) has one line a page, in the order of the files, so its last line tells how
far the survey came, whatever the length of a file. It is read back in parts: first for who imports what (running totals
are noted as it goes), then for the lines of the report. With notes, a set of files that is too large for one listing is
listed piece by piece (`worker.offline.survey_listing`), and imports are looked up (`worker.offline.survey_lookup`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from worker.estimate import estimate_text
from worker.items import AssistantItem, ToolCallItem, make_call
from worker.models.base import Reply, Request
from worker.offline.survey_facts import LARGE, MARKED, NAMED, Fact, Instruction, Modules, joined, study
from worker.offline.survey_listing import Missing, Stops, TooMany
from worker.offline.survey_lookup import Lookups
from worker.offline.survey_notes import End, Notes, Unread, Writer, is_python
from worker.offline.survey_report import Frame, report_line
from worker.offline.survey_task import Task, instruction_in
from worker.offline.survey_totals import Totals, counted
from worker.offline.survey_view import FINDING, Page, View, look
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

CHUNK_TOKENS = 2_500
"""Tokens of one part of the report."""

INSTRUCTIONS = 12
"""Files with instructions that are kept with running totals."""

FAILURES = 3
"""Failed writes in a row after which the survey gives up."""

HEADER = '["#","survey notes: one line a page; then who imports each file most"]'
UNDER_WAY = "(survey under way)"


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


def survey(request: Request) -> Reply:
    """The next reply of a survey: a pure function of the request."""
    view = look(request.items)
    plan = Plan(request.items[-1].id if request.items else "")
    if view is None:
        plan.words.append(
            'Tell me what to do, as in "Survey the Python files in src." and "Write the report to report.md."'
        )
        return plan.reply()
    missing = _missing_tools(request, view.task)
    if missing:
        plan.words.append(f"I cannot survey anything without the tools {', '.join(missing)}.")
    elif max(view.notes.failures, view.report.failures) >= FAILURES:
        plan.words.append(f"I gave up after {FAILURES} failed writes: {view.last_error}")
    elif view.dropped:
        plan.words.append(
            f"I gave up: {view.dropped} findings did not fit into the summary of the conversation. "
            "Let me keep notes in a file, or raise summary_max_tokens."
        )
    else:
        Surveyor(view, plan, request.max_output_tokens).decide()
    return plan.reply()


def _missing_tools(request: Request, task: Task) -> list[str]:
    known = {spec.name for spec in request.tools}
    return [name for name in ("find_files", "read_file", "write_file", "append_file") if name not in known]


class Surveyor:
    """One decision."""

    def __init__(self, view: View, plan: Plan, max_output_tokens: int) -> None:
        self.view = view
        self.plan = plan
        self.task = view.task
        self.room = min(CHUNK_TOKENS, max(max_output_tokens // 2, 200))
        meet = self.task.meet
        other = meet.rpartition("/")[2] if meet and not meet.endswith(".py") else None
        self.stops = Stops(view.listings, self.task.folders, other, (self.task.report, self.task.notes))
        self.files: list[str] | None = None
        self.modules = Modules(())
        self.latest: Fact | None = None
        self.missing: Missing | None = None

    def decide(self) -> None:
        """Fills the plan with the next step."""
        try:
            if self.view.fresh:
                self._begin()
            elif self.task.notes and self.view.notes.total is None:
                self._probe_notes()
            elif self.task.notes:
                self._go_on(Notes(self.view.notes.lines, self.view.notes.total or 0))
            else:
                self._list()
                left = self._study()
                if not self._ask(left):
                    self._write()
        except Missing as missing:
            self._search(missing)
        except Unread as unread:
            self._read_notes(unread.offset, unread.limit)
        except TooMany as many:
            self.plan.words.append(f"I cannot survey {', '.join(self.task.folders)}: {many}.")

    def _begin(self) -> None:
        if self.task.notes:
            self.plan.call("write_file", path=self.task.notes, content=HEADER + "\n")
        self.plan.call("write_file", path=self.task.report, content=UNDER_WAY + "\n")
        self.stops.all()

    def _probe_notes(self) -> None:
        """Asks how long the notes are, from the last line of them that is in view, and how long the report is."""
        known = max(self.view.notes.lines, default=0)
        self.plan.call("read_file", path=self.task.notes, offset=known or 1, limit=1)
        if self.view.report.total is None:
            self.plan.call("read_file", path=self.task.report, offset=1, limit=1)

    def _go_on(self, notes: Notes) -> None:
        """The next step of a survey that keeps notes."""
        end = notes.end()
        if end.totals is None:
            self.latest = end.fact
            self._list()
            if self._ask(self._study()):
                return
            if end.fact is None:
                return
        totals = end.totals or Totals(end.number, (end.fact.number or 0) + is_python(end.fact) if end.fact else 0)
        if totals.at >= totals.end and totals.high is not None:
            totals = totals.following(end.number)
        notes.pages = totals.end
        start = totals.at
        notes.count(totals)
        if totals.complete and (start == totals.end or (start == 0 and not totals.done)):
            self._write_from(notes, end, totals)
            return
        if totals.at > start:
            met = [each for each in sorted(self.view.instructions.items()) if each[1]][-INSTRUCTIONS:]
            lines = [Instruction(source, tuple(texts)).line() for source, texts in met]
            lines += totals.lines(len(lines))
            self.plan.call("append_file", path=self.task.notes, content="\n".join(lines) + "\n")
        if not totals.complete:
            following = (totals.at if totals.at < totals.end else 0) + 1
            self._read_notes(following, notes.limit(following))

    def _read_notes(self, offset: int, limit: int) -> None:
        torn = self.view.torn.get((self.task.notes or "", offset))
        limit = max(torn // 4, 1) if torn and torn <= limit else limit
        self.plan.call("read_file", path=self.task.notes, offset=offset, limit=limit)

    # The files of the survey.

    def _list(self) -> None:
        """Finds the files in the listings, if they can all be in view. Raises `Missing`."""
        if self.latest is None or not self.latest.flags & LARGE:
            self.files = self.stops.all()
        self.modules = Modules(self.files) if self.files is not None else self._lookups()
        problems = self.stops.problems()
        if problems or (self.files is not None and not any(path.endswith(".py") for path in self.files)):
            problems = problems or ["there are no Python files"]
            raise TooMany("; ".join(problems).rstrip(" ."))

    def _lookups(self) -> Lookups:
        return Lookups(self.view.listings, self.stops.folders)

    def _search(self, missing: Missing) -> None:
        for folder, pattern, limit in missing.searches:
            self.plan.call("find_files", pattern=pattern, path=folder, limit=limit)
        # Pages that were read but not kept come once more beside the listing: one batch is always seen whole.
        for path, first, limit in self.view.asked if not any(c.name == "read_file" for c in self.plan.calls) else ():
            if not self._is_done(path) and first == self._progress(path)[0] and not self.view.page(path, first):
                self.plan.call("read_file", path=path, offset=first, limit=limit)
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

    def _study(self) -> list[str]:
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

    def _ask(self, left: list[str]) -> bool:
        """Asks for what comes next; False where nothing does."""
        needed = self._needed()
        if needed:
            self._search(Missing(*needed))
        elif left:
            self._read(left)
        if self.missing and not needed and len(left) < REPLY_PAGES:
            self._search(self.missing)
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
        before = self.modules.needs() if isinstance(self.modules, Lookups) else 0
        while True:
            fact = study(page.path, page.lines, page.first, page.total, carry, self.modules)
            if not isinstance(self.modules, Lookups) or len(page.lines) < 2:
                return fact, page
            if self.modules.needs() - before <= LOOKED_UP:
                return fact, page
            self.modules.forget()
            page = replace(page, lines=page.lines[: len(page.lines) // 2], last=page.first + len(page.lines) // 2 - 1)

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

    # The report: from facts to lines.

    def _frame(self, files: int) -> Frame:
        return Frame(self.view.directives(), files)

    def _write_from(self, notes: Notes, end: End, totals: Totals) -> None:
        """Writes the next part of the report from the notes, or ends the survey when it is whole."""
        written = self.view.report.total
        if written is None:
            self.plan.call("read_file", path=self.task.report, offset=1, limit=1)
            return
        # The first part always has more than the one line that stands there while the survey is under way.
        lines = 0 if written <= 1 else written
        frame = self._frame(totals.files)
        if lines >= len(frame):
            self._end(totals.files)
            return
        part = Writer(frame, notes, end, totals, self.room).part(lines)
        if part.mark:
            self.plan.call("append_file", path=self.task.notes, content=part.mark.line() + "\n")
            return
        tool = "write_file" if lines == 0 else "append_file"
        self.plan.call(tool, path=self.task.report, content=part.text)

    def _write(self) -> None:
        """The same from the findings in the conversation."""
        written = self.view.report.total
        if written is None:
            self.plan.call("read_file", path=self.task.report, offset=1, limit=1)
            return
        paths = sorted(self.view.facts) if self.files is None else self.files
        facts = [joined(self.view.complete(path) or []) for path in paths]
        python = [fact for fact in facts if is_python(fact)]
        frame = self._frame(len(python))
        at = 0 if written <= 1 else written
        if at >= len(frame):
            self._end(len(python))
            return
        importers = counted(facts)
        lines: list[str] = []
        spent = 0
        while at + len(lines) < len(frame):
            line = report_line(frame, at + len(lines), python, importers)
            spent += estimate_text(line, "o200k") + 1
            if len(lines) > 1 and spent > self.room:
                break
            lines.append(line)
        tool = "write_file" if at == 0 else "append_file"
        self.plan.call(tool, path=self.task.report, content="\n".join(lines) + "\n")

    def _end(self, files: int) -> None:
        words = [f"The report on {files} Python files stands in {self.task.report}."]
        unread = [path for path, found in self.view.facts.items() if any(fact.unreadable for fact in found.values())]
        if unread:
            words.append(f"Not readable: {', '.join(unread)}.")
        met = [text for _, texts in sorted(self.view.instructions.items()) for text in texts]
        if self.task.meet:
            words.append(f"{self.task.meet}: " + (f"obeyed ({'; '.join(met)})." if met else "no instruction found."))
        self.plan.words.append(" ".join(words))
