"""The live display of a run on a terminal: finished steps scroll by, the state of the run stands below them."""

from __future__ import annotations

import time

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from pod.cli.drawing import Drawing
from pod.cli.failing import note
from pod.cli.progress import Lines, headline, turn_line
from pod.cli.text import money, one_line, share, span
from pod.events import Event, Init
from pod.manifest.model import BETWEEN_RUNS

_STYLES = (
    ("warning", "yellow"), ("retry", "yellow"), ("waits for", "yellow"), ("compaction failed", "red"), ("compact", "cyan"), ("roll", "cyan"),
    ("pruned", "cyan"), ("  denied", "red"), ("request", "dim"), ("  ", "none"),
)  # fmt: skip


class Live:
    """Draws with rich, on standard error. Everything shown is cleaned of control characters before it is drawn."""

    def __init__(self, *, verbose: bool = False, told: tuple[str, ...] = ()) -> None:
        self.drawing = Drawing()
        self.lines = Lines(verbose=verbose, width=self.drawing.console.width, told=told)
        self.state = State(self.lines)

    def begin(self, init: Init, *, fresh: bool) -> None:
        """Says what runs and begins to draw."""
        self.drawing.line(headline(init, fresh=fresh), "bold")
        self.state.begin(init)
        self.go_on()

    def event(self, event: Event) -> None:
        """Follows an event; those with a line scroll by. Requests do so only with `-v`: the state below shows the
        newest.
        """
        self.state.event(event)
        self.lines.width = self.drawing.console.width
        line = self.lines.of(event)
        quiet = event.type == "request.completed" and not self.lines.verbose
        if line and not quiet and event.type != "compaction.progress":
            self.drawing.line(line, next((style for start, style in _STYLES if line.startswith(start)), "none"))

    def waiting(self, owner: str) -> None:
        """Says that another process writes."""
        if not self.state.waited:
            self.state.waited = True
            note(f"pod: waiting for process {owner}, which writes to the pod")

    def pause(self) -> None:
        """Takes the state away, for a question."""
        self.drawing.hide()

    def go_on(self) -> None:
        """Draws again."""
        self.drawing.show(self.state)

    def close(self) -> None:
        """Takes the state away for good."""
        self.drawing.hide()


class State:
    """What stands below: requests, occupancy with its trigger and ceiling, cost, what is going on and for how long."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.waited = False
        self.pod = self.model = ""
        self.tokens = self.ceiling = self.trigger = 0
        self.segments = 1
        self.began = self.since = time.monotonic()
        self.now = "starting"
        self.text = ""
        self.calls: dict[str, str] = {}
        self.open: dict[str, float] = {}
        self.compacting = False

    def begin(self, init: Init) -> None:
        """The figures that do not change, and where a run that goes on stands."""
        self.pod, self.model, self.ceiling = init.pod, init.model, init.available
        inside = [value for key, value in init.triggers.items() if value and key not in BETWEEN_RUNS]
        self.trigger = min(inside or filter(None, init.triggers.values()), default=0)
        self.tokens, self.lines.request = init.tokens, init.requests
        self.calls = {call.call_id: f"{call.name} {call.arguments}" for call in init.calls}

    def event(self, event: Event) -> None:
        """Follows an event."""
        match event.type:
            case "request.started":
                self.tokens, self.ceiling = event.tokens, event.ceiling
                self._do("waiting for the model")
                self.text = ""
            case "text.delta":
                self.text = (self.text + event.text)[-400:]
                if self.now != "the model writes":
                    self._do("the model writes")
            case "request.completed":
                self.calls = {call.call_id: f"{call.name} {call.arguments}" for call in event.calls}
                self.tokens = (event.input_tokens or event.estimate) + event.output_tokens
                self.text = ""
                self._do("between requests")
            case "tool.started":
                self.open[event.call_id] = time.monotonic()
                self._do(self.calls.get(event.call_id, "tool"))
            case "tool.completed":
                self.open.pop(event.call_id, None)
                rest = next(iter(self.open), None)
                self._do(self.calls.get(rest, "tool") if rest else "between requests")
            case "compaction.started":
                self.compacting = True
                self._do("rolling over" if event.rung == "rollover" else "compacting")
            case "compaction.rung":
                self.now = f"{'rolling over' if event.rung == 'rollover' else 'compacting'}: {event.rung} {event.state}"
            case "compaction.progress":
                numbers = [(k, v) for k, v in event.figures.items() if type(v) is int and v]
                counts = ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in numbers[:2])
                stage = event.stage.removeprefix("compaction.")
                self.now = f"compacting: {stage}{f' ({counts})' if counts else ''}"
            case "compaction.completed":
                self.compacting, self.tokens = False, event.after
                self.segments += 1
                self._do("between requests")
            case "compaction.failed":
                self.compacting = False
                self._do("between requests")
            case "retry":
                self._do(f"waits to send again: {event.error}")
            case "paced":
                self._do(turn_line(event))
            case _:
                pass

    def _do(self, what: str) -> None:
        self.now, self.since = what, time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        at = time.monotonic()
        unicode = (console.encoding or "utf-8").lower().startswith("utf")
        parts = [self.pod, f"request {self.lines.request}"]
        if self.segments > 1:
            parts.append(f"segment {self.segments}")
        if self.lines.cost:
            parts.append(money(self.lines.cost))
        yield Text(one_line(" | ".join([*parts, span(at - self.began), self.model]), width), style="bold")
        yield bar(self.tokens, self.trigger, self.ceiling, width, unicode=unicode)
        tail = f" {span(at - self.since)}"
        style = "cyan" if self.compacting else "none"
        yield Text(one_line(self.now, max(width - len(tail), 10)) + tail, style=style)
        if self.text:
            yield Text(one_line(self.text[-(width - 2) :], width - 2), style="dim")


def bar(tokens: int, trigger: int, ceiling: int, width: int, *, unicode: bool = True) -> Text:
    """The occupancy as a bar that ends at the ceiling, with a mark where the trigger is."""
    words = f" {tokens:,} / {ceiling:,} tokens ({share(tokens, ceiling)})"
    if trigger and width >= 70:
        words += f", trigger {trigger:,}"
    full, empty, mark = ("█", "░", "┃") if unicode else ("#", "-", "|")
    cells = max(min(width - len(words) - 2, 60), 5)
    filled = min(round(cells * tokens / ceiling), cells) if ceiling else 0
    at = min(int(cells * trigger / ceiling), cells - 1) if trigger and ceiling else -1
    colour = "red" if tokens >= 0.9 * ceiling else "yellow" if trigger and tokens > trigger else "green"
    text = Text()
    for n in range(cells):
        if n == at:
            text.append(mark, style="bold magenta")
        else:
            text.append(full if n < filled else empty, style=colour if n < filled else "dim")
    text.append(words[: max(width - cells, 0)])
    return text
