"""`offline:surveyor`: a rule-based agent that does a real job with real tools, deciding only from the request.

It surveys Python files (the task's words: `worker.offline.survey_task`): it lists them, reads each page by page,
keeps a fact for each page in a notes file or in its own words (`FINDING ...` lines), obeys the instruction in a file
that the task names, and writes a report (`worker.offline.survey_report`).

It has no state of its own. Whatever the request does not show is gone for it, so it notes each page in the same reply
that asks for the next one, and after a loss of context it goes on from what stands there: its notes, its findings,
the summary.

A notes file has one line a page, in the order of the files, so its end tells how far the survey came, and it is read
back in parts: first for who imports what (running totals are noted as it goes), then for the lines of the report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.estimate import estimate_text
from worker.items import AssistantItem, ToolCallItem, make_call
from worker.models.base import Reply, Request
from worker.offline import survey_totals as totals
from worker.offline.survey_facts import Fact, Instruction, Modules, joined, study
from worker.offline.survey_report import NotInView, Report
from worker.offline.survey_task import Task, instruction_in
from worker.offline.survey_view import FINDING, Page, View, look
from worker.testing.function_model import make_reply

PAGE_LINES = 300
"""Lines of a file that are read at once."""

REPLY_BYTES = 24_000
"""Bytes of files that one reply asks for, as far as they are known; some 6,000 tokens."""

REPLY_FILES = 6
"""Files that one reply asks for at most."""

LINE_BYTES = 40
"""Bytes of a line of source, as a rule."""

UNKNOWN_BYTES = 9_000
"""Bytes expected of the first page of a file whose size is not known."""

LISTED = 10_000
"""Files that one listing may show."""

NOTE_LINES = 60
"""Lines of the notes that are read back at once."""

TAIL_LINES = 8
"""Lines at the end of the notes that tell how far the survey came."""

CHUNK_TOKENS = 2_500
"""Tokens of one part of the report."""

INSTRUCTIONS = 4
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
    """One decision. `stops` are the files in the order of the survey: those of the report, and the file to be met."""

    def __init__(self, view: View, plan: Plan, max_output_tokens: int) -> None:
        self.view = view
        self.plan = plan
        self.task = view.task
        self.room = min(CHUNK_TOKENS, max(max_output_tokens // 2, 200))
        self.stops: list[str] = []
        self.files: list[str] = []
        self.modules = Modules(())

    def decide(self) -> None:
        """Fills the plan with the next step."""
        if self.view.fresh:
            if self.task.notes:
                self.plan.call("write_file", path=self.task.notes, content=HEADER + "\n")
            self.plan.call("write_file", path=self.task.report, content=UNDER_WAY + "\n")
        listed = self._listed()
        if self.plan.words:
            return
        if self.task.notes and self.view.notes.total is None and not self.view.fresh:
            self._probe_notes()
        if not listed or self.plan.calls:
            return
        start = self._notes_cursor() if self.task.notes else 0
        if start is None:
            return
        left = self._study(start)
        if left:
            self._read(left)
            return
        if self.plan.calls:
            return
        importers = self._importers()
        if importers is not None:
            self._write(importers)

    def _listed(self) -> bool:
        """Whether all listings are in view; else asks for what is missing, or says what is wrong with them."""
        meet = self.task.meet
        patterns = ["*.py", *([meet.rpartition("/")[2]] if meet and not meet.endswith(".py") else [])]
        found: set[str] = set()
        problems: list[str] = []
        for folder in self.task.folders:
            for pattern in patterns:
                listing = self.view.listings.get((folder, pattern))
                if listing is None:
                    self.plan.call("find_files", pattern=pattern, path=folder, limit=LISTED)
                    continue
                found.update(listing.paths)
                problems += [listing.problem] if listing.problem else []
        if self.plan.calls:
            # Pages that were read but not kept come once more beside the listing: one batch is always seen whole.
            for path, first, limit in self.view.asked:
                if self.view.complete(path) is None and first == self.view.progress(path)[0]:
                    self.plan.call("read_file", path=path, offset=first, limit=limit)
                    break
            return False
        own = {self.task.report, self.task.notes}
        self.stops = sorted(found - own)
        self.files = [path for path in self.stops if path.endswith(".py")]
        self.modules = Modules(self.files)
        if problems or not self.files:
            problems = problems or ["there are no Python files"]
            self.plan.words.append(
                f"I cannot survey {', '.join(self.task.folders)}: {'; '.join(problems).rstrip(' .')}."
            )
        return not problems

    def _is_met(self, path: str) -> bool:
        meet = self.task.meet
        return meet is not None and (path == meet or path.endswith("/" + meet))

    # The survey: from pages to facts.

    def _probe_notes(self) -> None:
        """Asks how long the notes are, from the last line of them that is in view, and how long the report is."""
        known = max(self.view.notes.lines, default=0)
        self.plan.call("read_file", path=self.task.notes, offset=known or 1, limit=TAIL_LINES if known else 1)
        if self.view.report.total is None:
            self.plan.call("read_file", path=self.task.report, offset=1, limit=1)

    def _notes_cursor(self) -> int | None:
        """The stop at which the notes end; None where they must be read first (and asks for it)."""
        notes = self.view.notes
        index = {path: number for number, path in enumerate(self.stops)}
        for number in range(notes.total or 0, 0, -1):
            line = notes.lines.get(number)
            if line is None:
                first = max(number - TAIL_LINES + 1, 1)
                self.plan.call("read_file", path=self.task.notes, offset=first, limit=number - first + 1)
                return None
            row = totals.row_of(line)
            if totals.is_totals(row):
                return len(self.stops) if self._whole_totals(number, row) else None
            if row and row[0] in index:
                at = index[row[0]]
                fact = self.view.facts.get(row[0], {}).get(row[1])
                return at + 1 if fact is not None and fact.last >= fact.total else at
        return 0

    def _whole_totals(self, number: int, row: list[Any]) -> bool:
        """Whether all of the totals that end here are in view, and the instructions before them; else asks for them."""
        first = max(number - row[4] - INSTRUCTIONS + 1, 1)
        if all(line in self.view.notes.lines for line in range(first, number + 1)):
            return True
        self.plan.call("read_file", path=self.task.notes, offset=first, limit=number - first + 1)
        return False

    def _study(self, start: int) -> list[str]:
        """Turns pages in view into facts and states them; gives the stops that are not complete, in order."""
        lines: list[str] = []
        left: list[str] = []
        for at, path in enumerate(self.stops[start:], start):
            if self.view.complete(path) is None:
                lines += self._facts(path)
            if self.view.complete(path) is None:
                left.append(path)
                # Notes stand in the order of the files, so nothing behind an open file is noted.
                if self.task.notes:
                    left += self.stops[at + 1 :]
                    break
        if lines and self.task.notes:
            self.plan.call("append_file", path=self.task.notes, content="\n".join(lines) + "\n")
            done = len(self.stops) - len(left)
            self.plan.words.append(f"Noted up to {done} of {len(self.stops)} files.")
        elif lines:
            self.plan.words += [FINDING + line for line in lines]
        return left

    def _instructions_known(self) -> bool:
        """Whether nothing is left to be met. Each file that is met leaves a line, also one that asks for nothing."""
        return all(path in self.view.instructions for path in self.stops if self._is_met(path))

    def _facts(self, path: str) -> list[str]:
        """The lines for all pages of a file that are in view and follow what is known of it."""
        lines: list[str] = []
        while self.view.complete(path) is None:
            first, carry = self.view.progress(path)
            page = self.view.pages.get((path, first))
            if page is not None:
                fact = self._fact(page, carry)
            elif (path, first) in self.view.ended:
                fact = Fact(path, first, first - 1, first - 1)
            elif path in self.view.unreadable:
                fact = Fact(path, first, first - 1, -1, self.view.unreadable[path][:80])
            else:
                break
            # The instruction first: a line that says "complete" must have nothing of its file behind it.
            if self._is_met(path):
                found = instruction_in("\n".join(page.lines)) if page else []
                if found or fact.last >= fact.total:
                    lines.append(Instruction(path, (*self.view.instructions.get(path, ()), *found)).line())
                    self.view.learn(lines[-1])
            if self.task.notes is None:
                # A summary keeps the newest fact about a file, so each one says all that is known of it.
                fact = joined([*self.view.known(path), fact])
            lines.append(fact.line())
            self.view.learn(lines[-1])
        return lines if self.task.notes else list({line.partition(",")[0]: line for line in lines}.values())

    def _fact(self, page: Page, carry: str) -> Fact:
        if page.path.endswith(".py"):
            return study(page.path, page.lines, page.first, page.total, carry, self.modules)
        return Fact(page.path, page.first, page.last, page.total)

    def _read(self, left: list[str]) -> None:
        """Asks for the next pages, as many as a reply may bring: all of a file before those of the next."""
        room = REPLY_BYTES
        asked = 0
        for path in left[:REPLY_FILES]:
            first, _ = self.view.progress(path)
            limit = PAGE_LINES // 4 if (path, first) in self.view.torn else PAGE_LINES
            known = self.view.facts.get(path, {}).get(1)
            total = self.view.totals.get(path) or (known.total if known else None)
            while True:
                cost = UNKNOWN_BYTES if total is None else min(total - first + 1, limit) * LINE_BYTES
                if asked and cost > room:
                    return
                self.plan.call("read_file", path=path, offset=first, limit=limit)
                asked += 1
                room -= cost
                first += limit
                if total is None or first > total:
                    break

    # The report: from facts to lines.

    def _importers(self) -> Mapping[str, tuple[str, int]] | None:
        """Who imports each file most; None where that must be worked out first (and works on it)."""
        best: totals.Importers = {}
        done = 0
        if self.task.notes and not all(self._counts(stop) for stop in self.stops):
            done, best = totals.read_totals(self.view.notes.lines.values(), self.stops)
            if done == len(self.stops) and self._instructions_known():
                return best
            if done == len(self.stops):
                done, best = 0, {}
        start = done
        while done < len(self.stops) and self._counts(self.stops[done]):
            totals.add(best, self.stops[done], self.view.complete(self.stops[done]) or [])
            done += 1
        if done == len(self.stops) and start == 0:
            return best
        if done > start:
            self._note_totals(done, best)
        if done < len(self.stops):
            self._read_notes(self.stops[done])
        return None

    def _counts(self, stop: str) -> bool:
        """Whether all that is known of a stop is in view: its facts, and what it asks for if it is to be met."""
        return self.view.complete(stop) is not None and (not self._is_met(stop) or stop in self.view.instructions)

    def _note_totals(self, done: int, best: Mapping[str, tuple[str, int]]) -> None:
        met = list(self.view.instructions.items())[-INSTRUCTIONS:]
        lines = [Instruction(source, tuple(texts)).line() for source, texts in met]
        lines += totals.lines_of(best, self.stops, done, self._end_of_facts())
        self.plan.call("append_file", path=self.task.notes, content="\n".join(lines) + "\n")

    def _end_of_facts(self) -> int:
        return totals.end_of_facts(self.view.notes.lines.values(), self.view.notes.total or 1)

    def _read_notes(self, path: str) -> None:
        """Asks for the part of the notes that holds a file's facts: behind the nearest earlier file that is in view."""
        index = {stop: number for number, stop in enumerate(self.stops)}
        goal = index[path]
        low, high = (1, -1), (self._end_of_facts() + 1, len(self.stops))
        for number, line in sorted(self.view.notes.lines.items()):
            row = totals.row_of(line)
            at = index.get(str(row[0])) if row else None
            if at is not None and at < goal:
                low = max(low, (number, at))
            elif at is not None:
                high = min(high, (number, at))
        offset = low[0] + 1
        if goal - low[1] > 1 and high[0] - low[0] > NOTE_LINES:
            guess = low[0] + (goal - low[1]) * (high[0] - low[0]) // max(high[1] - low[1], 1) - NOTE_LINES // 4
            offset = min(max(guess, low[0] + 1), high[0] - 1)
        while offset in self.view.notes.lines and offset < (self.view.notes.total or 0):
            offset += 1
        self.plan.call("read_file", path=self.task.notes, offset=offset, limit=NOTE_LINES)

    def _write(self, importers: Mapping[str, tuple[str, int]]) -> None:
        """Writes the next part of the report, or ends the survey when it is whole."""
        written = self.view.report.total
        if written is None:
            self.plan.call("read_file", path=self.task.report, offset=1, limit=1)
            return
        report = Report(self.view.directives(), self.files, self.view.complete, importers)
        # The first part always has more than the one line that stands there while the survey is under way.
        at = 0 if written <= 1 else written
        if at >= len(report):
            self._end()
            return
        lines: list[str] = []
        spent = 0
        try:
            while at + len(lines) < len(report):
                line = report.line(at + len(lines))
                spent += estimate_text(line, "o200k") + 1
                if len(lines) > 1 and spent > self.room:
                    break
                lines.append(line)
        except NotInView as needed:
            if len(lines) < 2:
                self._read_notes(needed.path)
                return
        tool = "write_file" if at == 0 else "append_file"
        self.plan.call(tool, path=self.task.report, content="\n".join(lines) + "\n")

    def _end(self) -> None:
        words = [f"The report on {len(self.files)} Python files stands in {self.task.report}."]
        unread = [path for path, found in self.view.facts.items() if any(fact.unreadable for fact in found.values())]
        if unread:
            words.append(f"Not readable: {', '.join(unread)}.")
        met = [text for texts in self.view.instructions.values() for text in texts]
        if self.task.meet:
            words.append(f"{self.task.meet}: " + (f"obeyed ({'; '.join(met)})." if met else "no instruction found."))
        self.plan.words.append(" ".join(words))
