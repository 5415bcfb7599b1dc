"""A guard against the same call again and again: reminders first, then a hard stop."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from worker.interceptor import CONTINUE, Append, Decision, Interceptor, RequestContext, Stop
from worker.items import OrderItem, ToolCallItem, ToolResultItem
from worker.records import ContextAdded, Record, ReplyRecord, ToolResult
from worker.results import LimitReached
from worker.text import sha256

PERIODS = (1, 2, 3)
"""Lengths of cycles that are seen: A A A, A B A B, A B C A B C (cases B118, B119)."""

SHOWN = 160
"""Characters of a call that an error or a reminder shows."""


class Streak(NamedTuple):
    """How often the newest `period` steps stand at the end one after the other."""

    times: int
    period: int


def signature(call: ToolCallItem) -> str:
    """A call as name and canonical arguments: the order of keys does not count; damaged arguments count as they are."""
    values = call.parsed
    if values is None:
        return f"{call.name} {call.arguments}"
    return f"{call.name} {json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(',', ':'))}"


def digest(item: ToolResultItem) -> str:
    """A hash of what a call gave. The name of an artifact, which is another one for each call, makes no difference."""
    text = item.text()
    return sha256(text.replace(item.artifact, "") if item.artifact else text)


def step_of(signatures: Collection[str]) -> str:
    """A hash of a reply's calls as a set: their order, and one call twice in a reply, make no difference."""
    return sha256("\0".join(sorted(set(signatures))))[:16]


def streak(steps: Sequence[str]) -> Streak:
    """The strongest repetition at the end of the steps; of equal ones the shortest cycle."""
    best = Streak(min(len(steps), 1), 1)
    for period in PERIODS:
        block = list(steps[-period:])
        if len(block) < period or (period > 1 and len(set(block)) == 1):
            continue
        count = 1
        while list(steps[-(count + 1) * period : -count * period]) == block:
            count += 1
        if count > best.times:
            best = Streak(count, period)
    return best


def changing(results: Sequence[str], found: Streak) -> bool:
    """Whether the newest call of a streak gave something else each time, as when something is being waited for.

    `results` has a hash of what each step gave, empty while it runs.
    """
    results = [result for result in results[:: -found.period][: found.times] if result]
    return len(results) > 1 and all(a != b for a, b in pairwise(results))


def reminder(found: Streak, calls: str, changes: bool, stop: int) -> str:
    """What the model is told about its repetition."""
    what = "the same call" if found.period == 1 else f"the same {found.period} steps"
    text = f"You have made {what} {found.times} times in a row: {calls}. "
    if changes:
        text += (
            "The result was different each time. If you are waiting for something, wait longer between calls or do "
            "other work meanwhile; the count goes on. "
        )
    else:
        text += "Use the results you have, try something else, or end your turn and say what is in the way. "
    return f"{text}At {stop} the run is stopped."


@dataclass(eq=False)
class RepeatGuard(Interceptor):
    """Counts identical steps in a row over a run, through restarts and segments.

    At each count of `remind` an order is put before the model, at `stop` the run ends with
    `LimitReached("repeat_call")`. No answer switches it off (case B120). Denied and failed calls count like others
    (case B122).
    """

    remind: Sequence[int] = (3, 5, 8)
    stop: int = 12
    _calls: list[str] = field(default_factory=list[str], init=False, repr=False)
    _results: list[str] = field(default_factory=list[str], init=False, repr=False)
    _found: Streak = field(default=Streak(0, 1), init=False, repr=False)
    _open: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False)
    _shown: str = field(default="", init=False, repr=False)
    _reminded: int = field(default=0, init=False, repr=False)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """A `Stop`, a reminder to append, or nothing. Never waits."""
        found = self._found
        if found.times >= self.stop:
            what = "the same call" if found.period == 1 else f"the same {found.period} steps"
            said = f"{what} came {found.times} times in a row: {self._shown}; the limit repeat_call.stop is {self.stop}"
            figures = {"used": found.times, "limit": self.stop, "period": found.period}
            return Stop(LimitReached("repeat_call", said, figures))
        due = max((count for count in self.remind if count <= found.times), default=0)
        if due <= self._reminded:
            return CONTINUE
        text = reminder(found, self._shown, changing(self._results, found), self.stop)
        return Append((OrderItem(text=text, tag=ctx.tag),))

    def observe(self, record: Record) -> None:
        """Follows the calls, what they gave, and which reminders were given."""
        if isinstance(record, ReplyRecord):
            self._reply([item for item in record.items if isinstance(item, ToolCallItem)])
        elif isinstance(record, ToolResult) and record.item.call_id in self._open:
            self._open[record.item.call_id] = digest(record.item)
            self._results[-1] = sha256("".join(sorted(self._open.values())))[:16]
        elif isinstance(record, ContextAdded) and record.by == self.name:
            self._reminded = self._found.times

    def _reply(self, calls: Sequence[ToolCallItem]) -> None:
        if not calls:
            return
        signatures = dict.fromkeys(signature(call) for call in calls)
        self._calls.append(step_of(signatures))
        self._results.append("")
        kept = self.stop * max(PERIODS) + 1
        del self._calls[:-kept], self._results[:-kept]
        self._found = streak(self._calls)
        self._open = {call.call_id: "" for call in calls}
        text = ", ".join(signatures)
        self._shown = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
        if self._found.times < self._reminded:
            self._reminded = 0

    def carry(self) -> dict[str, Any] | None:
        """The steps so far, and what was reminded of."""
        steps = [list(step) for step in zip(self._calls, self._results, strict=True)]
        return {"steps": steps, "shown": self._shown, "reminded": self._reminded}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave."""
        steps = state.get("steps", ())
        self._calls = [str(calls) for calls, _ in steps]
        self._results = [str(results) for _, results in steps]
        self._found = streak(self._calls)
        self._shown = str(state.get("shown", ""))
        self._reminded = int(state.get("reminded", 0))
        self._open = {}

    def begin_run(self) -> None:
        """Nothing was repeated yet."""
        self._calls = []
        self._results = []
        self._found = streak(())
        self._open = {}
        self._shown = ""
        self._reminded = 0
