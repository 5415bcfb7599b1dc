"""`offline:surveyor`: a rule-based agent that does a real job with real tools, deciding only from the request.

It surveys Python files (the task's words: `worker.offline.survey_task`): it lists them, reads each page by page,
keeps a fact for each page in a notes file or in its own words (`FINDING ...` lines), obeys the instruction in a file
that the task names (`worker.offline.survey_reader`), and writes a report (`worker.offline.survey_report`).

It has no state of its own. Whatever the request does not show is gone for it, so it notes each page in the same reply
that asks for the next one, and after a loss of context it goes on from what stands there: its notes, its findings,
the summary.

A notes file (`worker.offline.survey_notes`) has one line a page, in the order of the files, so its last line tells how
far the survey came, whatever the length of a file. It is read back in parts: first for who imports what (running totals
are noted as it goes), then for the lines of the report. A set of files that is too large for one listing is listed
piece by piece (`worker.offline.survey_listing`), and what an import names is looked up
(`worker.offline.survey_lookup`).
"""

from __future__ import annotations

from worker.estimate import estimate_text
from worker.models.base import Reply, Request
from worker.offline.survey_facts import Instruction, joined
from worker.offline.survey_listing import Missing, TooMany
from worker.offline.survey_notes import End, Notes, Unread, Writer, is_python
from worker.offline.survey_reader import Plan, Reader
from worker.offline.survey_report import Frame, report_line
from worker.offline.survey_task import Task
from worker.offline.survey_totals import Totals, counted
from worker.offline.survey_view import View, look

CHUNK_TOKENS = 2_500
"""Tokens of one part of the report."""

INSTRUCTIONS = 12
"""Files with instructions that are kept with running totals."""

FAILURES = 3
"""Failed writes in a row after which the survey gives up."""

HEADER = '["#","survey notes: one line a page; then who imports each file most"]'
UNDER_WAY = "(survey under way)"


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
    elif view.denied:
        plan.words.append(f"I cannot survey {', '.join(view.task.folders)}: {view.denied.rstrip(' .')}.")
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


class Surveyor(Reader):
    """One decision."""

    def __init__(self, view: View, plan: Plan, max_output_tokens: int) -> None:
        super().__init__(view, plan)
        self.room = min(CHUNK_TOKENS, max(max_output_tokens // 2, 200))

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
                self.list_files()
                left = self.study()
                if not self.ask(left):
                    self._write()
        except Missing as missing:
            self.search(missing)
        except Unread as unread:
            for offset, limit in unread.parts:
                self._read_notes(offset, limit)
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
            self.list_files()
            if self.ask(self.study()):
                return
            if end.fact is None:
                return
        totals = end.totals or Totals(end.number, (end.fact.number or 0) + is_python(end.fact) if end.fact else 0)
        if totals.at >= totals.end and totals.high is not None:
            totals = totals.following()
        notes.pages = totals.end
        start = totals.at
        if start < totals.end:
            notes.count(totals)
        if totals.complete and (start == totals.end or (start == 0 and not totals.done)):
            self._write_from(notes, end, totals)
            return
        if totals.at > start:
            met = [each for each in sorted(self.view.instructions.items()) if each[1]][-INSTRUCTIONS:]
            lines = [Instruction(source, tuple(texts)).line() for source, texts in met]
            self.plan.call("append_file", path=self.task.notes, content="\n".join(totals.lines(lines)) + "\n")
        if not totals.complete:
            following = (totals.at if totals.at < totals.end else 0) + 1
            self._read_notes(following, notes.limit(following))

    def _read_notes(self, offset: int, limit: int) -> None:
        torn = self.view.torn.get((self.task.notes or "", offset))
        limit = max(torn // 4, 1) if torn and torn <= limit else limit
        self.plan.call("read_file", path=self.task.notes, offset=offset, limit=limit)

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
