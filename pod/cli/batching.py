"""What a running batch shows: on a terminal a live display, elsewhere a line for each task that ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pod.batch.results import Row, grade_error, grade_of
from pod.batch.tasks import Task
from pod.cli.failing import note
from pod.cli.output import Output
from pod.cli.text import columns, count, money, one_line, shortened, span
from pod.events import Event
from pod.host import Hosted
from worker.pacing import PaceView, paces

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from pod.batch.batch import Batch
    from pod.batch.summary import Summary

RATE_WINDOW = 60.0
"""Seconds over which the rate of tasks is taken."""


_WORDS = {"paused": "waiting for a human", "limit": "at a limit"}


class Display(Protocol):
    """What the command needs of a display: a batch's watcher, and a little more."""

    summary: Summary | None

    @property
    def event(self) -> Callable[[Task, Event], None] | None:
        """Takes the events of the pods, where they are shown."""
        ...

    def began(self, task: Task, hosted: Hosted | None) -> None:
        """A task's pod has a place."""
        ...

    def ended(self, task: Task, row: Row) -> None:
        """A task came to an end."""
        ...

    def begin(self, batch: Batch) -> None:
        """Says what is due."""
        ...

    def say(self, text: str) -> None:
        """A line of its own."""
        ...

    def close(self) -> None:
        """Takes the display away."""
        ...


def display_of(output: Output) -> Display:
    """The display for this output."""
    tally = Tally()
    return Drawn(tally) if output.live else Lines(tally, quiet=output.quiet)


class Tally:
    """The figures of a batch under way: all its tasks, and how fast they end."""

    def __init__(self) -> None:
        self.batch = self.bound = ""
        self.tasks = self.done = self.due = 0
        self.by_status: dict[str, int] = {}
        self.cost: float | None = 0.0
        self.limit: float | None = None
        self.began = time.monotonic()
        self._times: deque[float] = deque()

    def begin(self, batch: Batch) -> None:
        """Takes in what ended before."""
        s = batch.settings
        self.batch, self.tasks, self.due, self.limit = s.folder.name, len(s.chosen), batch.due, s.max_cost_usd
        self.bound = batch.bound
        chosen = set(s.chosen)
        for index, row in batch.results.rows.items():
            if index in chosen:
                self._count(row)

    def ended(self, row: Row) -> None:
        """A task came to an end now."""
        self._count(row)
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - RATE_WINDOW:
            self._times.popleft()

    def _count(self, row: Row) -> None:
        self.done += 1
        self.by_status[row["status"]] = self.by_status.get(row["status"], 0) + 1
        cost = row.get("cost_usd")
        self.cost = None if self.cost is None or (cost is None and row.get("requests")) else self.cost + (cost or 0.0)

    @property
    def rate(self) -> float:
        """Tasks a second, over the last minute."""
        over = min(time.monotonic() - self.began, RATE_WINDOW)
        return len(self._times) / over if over > 0.5 else 0.0

    def line(self, running: int) -> str:
        """Everything in one line."""
        by = self.by_status
        parts = [f"{self.done:,} of {self.tasks:,}", f"{running} running"]
        parts += [
            f"{many:,} {'waiting for a human' if status == 'paused' else status}"
            for status, many in sorted(by.items())
            if status != "finished"
        ]
        cost = money(self.cost)
        parts.append(cost if self.limit is None else f"{cost} of {money(self.limit)}")
        rate = self.rate
        if rate:
            parts.append(f"{rate:.1f} a second" if rate >= 1 else f"{rate * 60:.1f} a minute")
            parts.append(f"{span((self.tasks - self.done) / rate)} left")
        parts.append(span(time.monotonic() - self.began))
        return " | ".join([*parts, *(paced(view) for view in paces().view() if view.waiting)])


def paced(view: PaceView) -> str:
    """An account of a provider whose requests wait for their turn."""
    held = f" for {span(view.held)}" if view.held else ""
    return f"{view.model}: {view.waiting} wait for the provider{held}, {view.in_flight} in flight"


def ended_line(task: Task, row: Row) -> str:
    """A task that ended, in one line."""
    score, ungraded = grade_of(row).get("score"), grade_error(row)
    scored = "" if score is None else f", grade {score:.3g}"
    scored += f", no grade: {one_line(ungraded, 120)}" if ungraded else ""
    failed = f": {one_line(str(row['error']), 200)}" if row.get("error") else ""
    figures = f"{count(row['requests'], 'request')}, {money(row.get('cost_usd'))}, {span(float(row.get('duration_s') or 0.0))}"
    status = "waits for a human" if row["status"] == "paused" else row["status"]
    return one_line(f"{shortened(task.id, 60)}: {status} ({figures}{scored}){failed}", 400)


class Lines:
    """A line for each task that ends, on standard error."""

    event = None

    def __init__(self, tally: Tally, *, quiet: bool) -> None:
        self.tally = tally
        self.quiet = quiet
        self.summary: Summary | None = None

    def begin(self, batch: Batch) -> None:
        """Says what is due."""
        self.tally.begin(batch)
        if not self.quiet:
            note(f"pod batch {self.tally.batch}: {opening(self.tally)}")

    def began(self, task: Task, hosted: Hosted | None) -> None:
        """Nothing is said."""

    def ended(self, task: Task, row: Row) -> None:
        """One line."""
        self.tally.ended(row)
        if not self.quiet:
            note(f"[{self.tally.done}/{self.tally.tasks}] {ended_line(task, row)}")

    def say(self, text: str) -> None:
        """A line of its own, also where it is to be quiet."""
        note(f"pod batch: {text}")

    def close(self) -> None:
        """There is nothing to take away."""


def opening(tally: Tally) -> str:
    """What a batch begins with, in words."""
    before = f", {tally.done:,} ended before" if tally.done else ""
    return f"{count(tally.tasks, 'task')}{before}, {tally.due:,} to do, {tally.bound}"


class Drawn:
    """The figures above, a line for each pod under way below; what did not finish scrolls by."""

    def __init__(self, tally: Tally) -> None:
        from pod.cli.drawing import Drawing

        self.tally = tally
        self.summary: Summary | None = None
        self.drawing = Drawing()
        self._under_way: dict[int, Seen] = {}

    @property
    def event(self) -> Callable[[Task, Event], None] | None:
        """Follows a pod's events."""
        return self._event

    def begin(self, batch: Batch) -> None:
        """Says what is due, and draws from now on."""
        self.tally.begin(batch)
        self.drawing.line(f"batch {self.tally.batch}: {opening(self.tally)}", "bold")
        self.drawing.show(self)

    def began(self, task: Task, hosted: Hosted | None) -> None:
        """A line more below."""
        self._under_way[task.index] = Seen(task, hosted)

    def ended(self, task: Task, row: Row) -> None:
        """A line less below; one that did not finish scrolls by."""
        self._under_way.pop(task.index, None)
        self.tally.ended(row)
        if row["status"] != "finished":
            self.drawing.line(ended_line(task, row), "red" if row["status"] == "failed" else "yellow", whole=True)

    def _event(self, task: Task, event: Event) -> None:
        seen = self._under_way.get(task.index)
        if seen is not None:
            seen.event(event)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.drawing.line(f"pod batch: {text}", "bold", whole=True)

    def close(self) -> None:
        """Takes what stands below away."""
        self.drawing.hide()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width, height = options.max_width, max(console.height - 4, 3)
        unicode = (console.encoding or "utf-8").lower().startswith("utf")
        yield bar(self.tally, width, unicode=unicode)
        for line in folded(self.tally.line(len(self._under_way)), width):
            yield Text(line)
        under_way = [seen for _, seen in sorted(self._under_way.items())]  # drawn from another thread
        shown = under_way if len(under_way) <= height else under_way[: height - 1]
        for seen in shown:
            yield Text(seen.line(width), style="dim")
        if len(under_way) > len(shown):
            yield Text(f"  and {len(under_way) - len(shown)} more", style="dim")


class Seen:
    """A pod under way, as its events tell."""

    def __init__(self, task: Task, hosted: Hosted | None) -> None:
        self.task, self.hosted = task, hosted
        self.requests = self.tokens = self.segments = 0
        self.now = "opening" if hosted is not None else "on a node"
        self.since = time.monotonic()

    def event(self, event: Event) -> None:
        """Follows an event."""
        match event.type:
            case "request.started":
                self.requests, self.tokens = event.request, event.tokens
                self._does("waits for the model")
            case "text.delta":
                self._does("the model writes")
            case "request.completed":
                self._does(", ".join(dict.fromkeys(call.name for call in event.calls)) or "between requests")
            case "compaction.started":
                self._does("compacting")
            case "compaction.completed":
                self.segments += 1
                self._does("between requests")
            case "retry":
                self._does("waits to send again")
            case "tool.completed":
                self._does("between requests")
            case _:
                pass

    def _does(self, what: str) -> None:
        if what != self.now:
            self.now, self.since = what, time.monotonic()

    def line(self, width: int) -> str:
        """One line of this width at most."""
        resting = self.hosted is not None and self.hosted.phase == "resting"
        now = "rests before it is started again" if resting else self.now
        figures = f"request {self.requests}, {self.tokens:,} tokens, " if self.hosted is not None else ""
        tail = f"  {figures}{now} {span(time.monotonic() - self.since)}"
        name = shortened(self.task.id, max(min(40, width - len(tail) - 2), 8))
        return f"  {name}{' ' * max(12 - columns(name), 0)}{tail}"[:width]


def bar(tally: Tally, width: int, *, unicode: bool = True) -> Text:
    """How much is done, as a bar: finished, then what ended in another way, then what is left."""
    from rich.text import Text

    full, empty = ("█", "░") if unicode else ("#", "-")
    words = f" {100 * tally.done // tally.tasks if tally.tasks else 0} %"
    cells = max(min(width - len(words), 60), 5)
    good = tally.by_status.get("finished", 0)
    filled, fine = round(cells * tally.done / max(tally.tasks, 1)), round(cells * good / max(tally.tasks, 1))
    text = Text(full * fine, style="green")
    text.append(full * max(filled - fine, 0), style="red")
    text.append(empty * (cells - max(filled, fine)), style="dim")
    text.append(words)
    return text


def folded(line: str, width: int) -> list[str]:
    """The parts of a line on as many lines as they need."""
    lines: list[str] = []
    for part in line.split(" | "):
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" | {part}"
        else:
            lines.append(part[:width])
    return lines
