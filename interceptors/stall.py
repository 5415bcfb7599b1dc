"""A guard against a run that does the same between every two compactions: reminders, warnings, then a stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from interceptors.repeat import digest, signature
from worker.interceptor import CONTINUE, Append, Decision, Interceptor, Note, RequestContext, Stop
from worker.items import OrderItem, ToolCallItem
from worker.records import ContextAdded, Record, ReplyRecord, ToolResult, Warned
from worker.results import LimitReached
from worker.text import sha256

CODE = "no_progress"
"""The code of the warning, and the name of the limit."""

LEAST_CALLS = 5
"""Calls that a stretch has at least. A segment with fewer says too little: it is judged together with the next."""

SHARE = 0.8
"""Share of a stretch's distinct calls with their results that must have been in the stretch before."""

MOST_PAIRS = 5_000
"""Distinct calls of one stretch that are remembered, the newest."""


class Judged(NamedTuple):
    """A stretch beside the one before: its distinct calls with their results, and how many of them came again."""

    distinct: int = 0
    again: int = 0

    @property
    def same(self) -> bool:
        """Whether it is the stretch before once more."""
        return self.distinct > 0 and self.again >= SHARE * self.distinct


def judge(pairs: Iterable[str], before: Collection[str]) -> Judged:
    """What a stretch has in common with the one before. How often a pair came in either makes no difference."""
    distinct, known = set(pairs), set(before)
    return Judged(len(distinct), len(distinct & known))


@dataclass(eq=False)
class StallGuard(Interceptor):
    """Notices a run that loses its progress at each compaction and begins again, through restarts and segments.

    A stretch is a segment, or several in a row that have `LEAST_CALLS` calls together. Where at least `SHARE` of a
    stretch's distinct calls, with what they gave, were in the stretch before too, a count grows; else it is 0. From
    `remind` on each new segment gets an order and a warning, at `stop` the run ends with `LimitReached("no_progress")`.
    Failed and denied calls count like others.
    """

    remind: int = 3
    stop: int = 8
    _streak: int = field(default=0, init=False, repr=False)
    _last: Judged = field(default=Judged(), init=False, repr=False)
    _before: dict[str, None] = field(default_factory=dict[str, None], init=False, repr=False)
    _pairs: dict[str, None] = field(default_factory=dict[str, None], init=False, repr=False)
    _calls: int = field(default=0, init=False, repr=False)
    _open: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False)
    _ordered: bool = field(default=False, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Stop`, an order to append, a warning to note, or nothing. Never waits."""
        if self._streak >= self.stop:
            message = f"the run makes no progress: {self._told()}; the limit stall.stop is {self.stop}"
            return Stop(LimitReached(CODE, message, self._figures()))
        if self._streak < self.remind:
            return CONTINUE
        if not self._ordered:
            return Append((OrderItem(text=self._reminder(), tag=ctx.tag),))
        if not self._warned:
            message = f"the run may make no progress: {self._told()}. At {self.stop} it is stopped (stall.stop)"
            return Note(Warned(code=CODE, message=message, figures=self._figures()))
        return CONTINUE

    def _told(self) -> str:
        return (
            f"{self._streak} times in a row it did after a compaction what it had done before it "
            f"({self._last.again} of its last {self._last.distinct} distinct calls gave the same again)"
        )

    def _figures(self) -> dict[str, Any]:
        return {"used": self._streak, "limit": self.stop, "distinct": self._last.distinct, "again": self._last.again}

    def _reminder(self) -> str:
        return (
            f"{self._streak} times in a row you have done after a compaction of this conversation what you had done "
            f"before it: {self._last.again} of your last {self._last.distinct} distinct calls gave the same result "
            "again. Do not begin anew. Put down what you have found so far, in a file or in your own words, then do "
            "the next thing that is not done yet; or end your turn and say what is in the way. "
            f"At {self.stop} the run is stopped."
        )

    def observe(self, record: Record) -> None:
        """Follows the calls, what they gave, and what was said about it in this segment."""
        if isinstance(record, ReplyRecord):
            calls = [item for item in record.items if isinstance(item, ToolCallItem)]
            if calls:
                self._open = {call.call_id: signature(call) for call in calls}
        elif isinstance(record, ToolResult) and record.item.call_id in self._open:
            self._calls += 1
            pair = sha256(f"{self._open.pop(record.item.call_id)}\0{digest(record.item)}")[:12]
            self._pairs.pop(pair, None)
            self._pairs[pair] = None
            if len(self._pairs) > MOST_PAIRS:
                del self._pairs[next(iter(self._pairs))]
        elif isinstance(record, ContextAdded) and record.by == self.name:
            self._ordered = True
        elif isinstance(record, Warned) and record.code == CODE:
            self._warned = True

    def carry(self) -> dict[str, Any] | None:
        """The state with which a new segment begins: the stretch that ends here is judged, one that is too short goes
        on."""
        if self._calls < LEAST_CALLS:
            return _state(self._streak, self._last, self._before, self._pairs, self._calls)
        judged = judge(self._pairs, self._before)
        return _state(self._streak + 1 if judged.same else 0, judged, self._pairs, (), 0)

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave. Nothing was said in the new segment yet."""
        self.begin_run()
        self._streak = int(state.get("streak", 0))
        self._last = Judged(*(int(number) for number in state.get("last", ())))
        self._before = dict.fromkeys(str(pair) for pair in state.get("before", ()))
        self._pairs = dict.fromkeys(str(pair) for pair in state.get("pairs", ()))
        self._calls = int(state.get("calls", 0))

    def begin_run(self) -> None:
        """Nothing was done yet."""
        self._streak, self._last, self._calls = 0, Judged(), 0
        self._before, self._pairs, self._open = {}, {}, {}
        self._ordered = self._warned = False


def _state(streak: int, last: Judged, before: Iterable[str], pairs: Iterable[str], calls: int) -> dict[str, Any]:
    return {"streak": streak, "last": list(last), "before": list(before), "pairs": list(pairs), "calls": calls}
