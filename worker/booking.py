"""A model's report as it goes on record: what of it is believed, and what the request is booked at.

The rule where a figure is not believed: the input counts as the larger of the estimate and the report (as far as that fits
the window), nothing of it as read from the cache; the output as the larger of the estimate and what is left of the report.
A figure that is believed counts as reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from worker.believing import Band, Verdict, band, judge
from worker.estimate import estimate_item
from worker.history import History, cleared_tokens
from worker.items import ReplyItem
from worker.models.base import Family, Usage
from worker.models.reported import checked, recordable, shown

DoubtKind: TypeAlias = Literal["figures", "size"]
"""Figures that can't be true by themselves, or a size that can't be that of the request."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The request that a report is of: its model, its `estimate` and the raw estimate of all of it (`whole`), in tokens;
    `most_output` is the output that was asked for, `window` the most that the model can have read and written."""

    model: str
    family: Family
    estimate: int
    whole: int
    most_output: int
    window: int


@dataclass(frozen=True, slots=True)
class Booking:
    """What goes on record of a report: `usage` are the figures that are believed, `booked` those that totals and cost are
    reckoned by where that is not all of them, `doubted` the report as it came, `why` what is wrong with it. `whole` is
    the raw estimate of a request whose report begins, goes on with or ends a row of those that are not believed."""

    usage: Usage
    booked: Usage | None = None
    doubted: Usage | None = None
    why: str | None = None
    kind: DoubtKind = "figures"
    whole: int | None = None


def book(
    reported: Usage,
    items: Sequence[ReplyItem],
    transformations: Sequence[Mapping[str, Any]],
    history: History,
    sent: Sent,
) -> Booking:
    """What is believed of a report, before the reply is folded. Its cost does not grow with the history."""
    usage = checked(reported, sent.most_output)
    reasons = list(usage.faults or ())
    verdict, usage, expected = _judged(usage, cleared_tokens(transformations), history, sent)
    if verdict.believed and not reasons:
        return Booking(usage, whole=None if verdict.steady is None else sent.whole)
    believed = usage if verdict.believed else _without_input(usage)
    kind: DoubtKind = "figures"
    if not verdict.believed:
        kind = "size"
        reasons.append(
            f"input_tokens is {shown(usage.input_tokens or 0)} for a request estimated at {sent.estimate:,} "
            f"(believed: {max(expected.low, 0):,} to {expected.high:,})"
        )
    said = sum(estimate_item(item, sent.family) for item in items)
    going_on = verdict.trail is not None or verdict.steady is not None
    return Booking(
        usage=believed.model_copy(update={"faults": None}),
        booked=conservative(usage, believed=verdict.believed, estimate=sent.estimate, said=said, window=sent.window),
        doubted=recordable(reported.model_copy(update={"faults": None})),
        why="; ".join(reasons),
        kind=kind,
        whole=sent.whole if going_on else None,
    )


def conservative(usage: Usage, *, believed: bool, estimate: int, said: int, window: int) -> Usage:
    """What a request is booked at whose report is not believed as it is; see the module. `usage` was checked."""
    read, output = usage.input_tokens, usage.output_tokens
    if any(fault.startswith(_OUTPUTS) for fault in usage.faults or ()):
        output = max(output, said)
    if believed and read is not None:
        return usage.model_copy(update={"output_tokens": output, "faults": None})
    told = read if read is not None and read <= window else 0
    return Usage(input_tokens=max(estimate, told), output_tokens=output, reasoning_tokens=usage.reasoning_tokens)


def _judged(usage: Usage, cleared: int, history: History, sent: Sent) -> tuple[Verdict, Usage, Band]:
    """What is thought of the input, and the reading of the report that fits: some servers leave out what was cached."""
    expected = band(
        sent.whole,
        unsure=history.unsure,
        factor=history.calibration.factor(sent.model),
        known=history.known(sent.model),
    )
    # Some servers report zeros where they count nothing.
    if not usage.input_tokens:
        return Verdict(True), usage, expected
    if not expected.holds(usage.input_tokens + cleared):
        beside = usage.with_cached(always=True)
        if beside.input_tokens != usage.input_tokens and expected.holds((beside.input_tokens or 0) + cleared):
            return Verdict(True), beside, expected
    trail = history.trails.get(sent.model)
    return judge(usage.input_tokens + cleared, sent.whole, expected, trail, sent.window), usage, expected


_OUTPUTS = ("output_tokens", "completion_tokens")
"""How the wires name the output."""


def _without_input(usage: Usage) -> Usage:
    return Usage(output_tokens=usage.output_tokens, reasoning_tokens=usage.reasoning_tokens)
