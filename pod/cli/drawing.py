"""Drawing on a terminal's standard error: lines that scroll by, and below them what is drawn again and again."""

from __future__ import annotations

import sys

from rich.console import Console, ConsoleRenderable
from rich.live import Live
from rich.text import Text

from worker.text import visible

REFRESH = 5
"""How often a second it is drawn anew."""


class Drawing:
    """A terminal that goes away, or takes nothing, is no error. `print` of others is left alone: standard output is ours."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._live: Live | None = None

    def line(self, text: str, style: str = "none", *, whole: bool = False) -> None:
        """A line that stays: cut at the terminal's width, or `whole`, on as many lines as it needs."""
        drawn = Text(visible(text), style=style)
        try:
            if whole:
                self.console.print(drawn, overflow="fold")
            else:
                self.console.print(drawn, no_wrap=True, overflow="ellipsis", crop=True)
        except OSError:
            return

    def show(self, below: ConsoleRenderable) -> None:
        """Draws this below from now on, from a thread of its own."""
        if self._live is None:
            self._live = Live(
                below, console=self.console, refresh_per_second=REFRESH, transient=True, redirect_stdout=False,
                redirect_stderr=sys.stderr is sys.__stderr__, vertical_overflow="crop",
            )  # fmt: skip
            self._live.start()

    def hide(self) -> None:
        """Takes it away."""
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except OSError:
                return
