"""What is believed of a model's own figures: a report or a count that can't be true decides nothing."""

from __future__ import annotations

from worker.models.base import Usage

FAR = 3.0
"""How many times the estimate a figure may be that is larger than the window, too: that of an unknown model is a guess."""

LEAST_COUNT, MOST_COUNT = 0.6, FAR
"""The shares of the estimate between which a count is believed. The estimator is within 0.72 and 1.3 of single kinds of
text, and newer tokenizers give up to 1.9 times as many tokens (facts, providers 5.3 and 0.4)."""

SHOWN = 10**15
"""The largest number that a message shows: one of thousands of digits can't be written."""


def plausible(usage: Usage, estimate: int, window: int, output: int) -> bool:
    """Whether a report may be true of an answered request: nothing is below 0, and nothing far above both the window and
    what was estimated (`estimate`) or may be answered (`output`)."""
    read = (usage.input_tokens or 0, usage.cached_tokens, usage.cache_write_tokens)
    written = (usage.output_tokens, usage.reasoning_tokens)
    most_read = max(window, int(estimate * FAR))
    most_written = max(window, int(output * FAR))
    return all(0 <= each <= most_read for each in read) and all(0 <= each <= most_written for each in written)


def recordable(usage: Usage) -> Usage:
    """A report with figures that can be written down, however large they are."""
    figures = usage.model_dump(exclude_none=True)
    return Usage(**{name: max(min(value, SHOWN), -SHOWN) for name, value in figures.items()})


def described(usage: Usage) -> str:
    """The figures of a report, as a message shows them."""
    return ", ".join(
        f"{name.removesuffix('_tokens')} {shown(value)}"
        for name, value in usage.model_dump(exclude_none=True).items()
        if value
    )


def shown(tokens: int) -> str:
    """A number of tokens, cut to what can be written."""
    return f"{max(min(tokens, SHOWN), -SHOWN):,}"


def doubt_of_count(tokens: int, estimate: int, plain: int) -> str:
    """Why a provider's count is not believed beside the estimate, or nothing. `plain` is the estimate without what was
    learned, where that is lower."""
    if int(min(estimate, plain) * LEAST_COUNT) <= tokens <= int(estimate * MOST_COUNT):
        return ""
    return f"it said {shown(tokens)} tokens, which can't be true beside an estimate of {estimate:,}"
