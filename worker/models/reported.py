"""A usage at the wire's edge: what a provider wrote becomes figures that do not contradict each other.

Every report goes through here, whatever the wire or the model. A figure that can't be true is replaced, and named in
`Usage.faults`; what takes its place is stated in `checked`.
"""

from __future__ import annotations

import math

from worker.models.base import Usage
from worker.text import clipped

ABSURD = 10**9
"""Tokens above which no figure of one request can be true."""

OVERRUN = 1.1
"""How many times the limit that was asked for an output may be: servers count their own ends of a reply in or out."""

SHOWN = 10**15
"""The largest number that a message shows: one of thousands of digits can't be written."""

LONGEST = 40
"""Characters of a figure that is no number which are shown."""


class Reading:
    """Reads the figures of one report, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.faults: dict[str, None] = {}

    def tokens(self, name: str, value: object) -> int | None:
        """A figure; None where there is none, or none that can be true."""
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            text = str(value) if isinstance(value, str | float | bool) else type(value).__name__
            self.faults[f"{name} is no whole number ({clipped(text, LONGEST)})"] = None
            return None
        if not 0 <= value <= ABSURD:
            self.faults[f"{name} is {shown(value)}"] = None
            return None
        return value

    def usage(
        self, *, read: int | None, cached: int | None, written: int | None, output: int | None, reasoning: int | None
    ) -> Usage:
        """The usage of these figures, with the faults so far. `read` is the whole input."""
        return Usage(
            input_tokens=read,
            cached_tokens=cached or 0,
            cache_write_tokens=written or 0,
            output_tokens=output or 0,
            reasoning_tokens=reasoning or 0,
            faults=tuple(self.faults) or None,
        )


def checked(usage: Usage, most_output: int = 0) -> Usage:
    """The usage without what can't be true, each such figure named. `most_output` is the output limit that was asked for,
    in tokens (0: not known).

    An input that can't be true is none; an output above its limit counts as the limit; more reasoning than output counts
    as the output; where more was read from or written to the cache than there was input, nothing was. What was checked
    before passes as it is.
    """
    reading = Reading()
    reading.faults.update(dict.fromkeys(usage.faults or ()))
    read, cached, written, output, reasoning = (
        reading.tokens(name, getattr(usage, name))
        for name in ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
    )
    cached, written, output, reasoning = cached or 0, written or 0, output or 0, reasoning or 0
    if most_output and output > int(most_output * OVERRUN):
        reading.faults[f"output_tokens is {output:,}, and at most {most_output:,} were asked for"] = None
        output = most_output
    if reasoning > output:
        reading.faults[f"reasoning_tokens is {reasoning:,}, more than output_tokens"] = None
        reasoning = output
    if cached + written > (read or 0):
        if read is not None:
            reading.faults[f"cached_tokens is {cached + written:,} (read and written), more than input_tokens"] = None
        cached = written = 0
    return reading.usage(read=read, cached=cached, written=written, output=output, reasoning=reasoning)


def recordable(usage: Usage) -> Usage:
    """A report with figures that can be written down, however large they are."""
    figures = usage.model_dump(exclude_none=True, exclude={"faults"})
    return Usage(**{name: max(min(value, SHOWN), -SHOWN) for name, value in figures.items()}, faults=usage.faults)


def shown(tokens: int) -> str:
    """A number of tokens, cut to what can be written."""
    return f"{max(min(tokens, SHOWN), -SHOWN):,}"
