"""What the headers of an answer say of the limits of its account. Pure.

Headers come from outside: whatever is no plain figure within its bounds says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple, TypeAlias, get_args

Kind: TypeAlias = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What a provider limits: requests, tokens of both directions together, or tokens of one direction."""

KINDS: tuple[Kind, ...] = get_args(Kind)

MOST = 10**12
"""A figure above this is none."""

LONGEST_TEXT = 64
"""Characters of a header's value that can be a figure or a time."""

_NAMES: dict[Kind, tuple[tuple[str, str, str], ...]] = {
    "requests": (
        ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ),
    "tokens": (("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),),
    "input_tokens": (
        ("anthropic-ratelimit-input-tokens-limit", "anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ),
    "output_tokens": (
        ("anthropic-ratelimit-output-tokens-limit", "anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
    ),
}  # fmt: skip
"""Of each kind: the headers of the whole, of what remains, and of when it is whole again. Anthropic's `tokens` is the tightest of
the others, and left out."""

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|us|µs|ns|s|m|h|d)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class Reading(NamedTuple):
    """One limit as an answer told it: the whole, what remains of it, and seconds until it is whole again. None where it
    does not say."""

    kind: Kind
    remaining: int
    limit: int | None = None
    reset: float | None = None


def readings(headers: Mapping[str, str], *, wall: float) -> tuple[Reading, ...]:
    """What the headers say, at most one reading for each kind.

    Names are in lower case. `wall` is the time in seconds since the epoch; where the answer itself names its time, that
    counts, since the clock here may be wrong. A limit without what remains of it is left out.
    """
    if not headers:
        return ()
    found: list[Reading] = []
    for kind, spellings in _NAMES.items():
        for limit_name, remaining_name, reset_name in spellings:
            remaining = _whole(headers.get(remaining_name))
            if remaining is None:
                continue
            limit = _whole(headers.get(limit_name)) or None
            if limit is not None:
                remaining = min(remaining, limit)
            found.append(Reading(kind, remaining, limit, _seconds(headers.get(reset_name), headers.get("date"), wall)))
            break
    return tuple(found)


def http_date(text: str | None) -> float | None:
    """Seconds since the epoch of a date as HTTP writes it; None for all else."""
    if not text or len(text) > LONGEST_TEXT:
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _whole(text: str | None) -> int | None:
    """A whole number from 0 on, None for all else."""
    if text is None:
        return None
    value = text.strip()
    if not value.isascii() or not value.isdigit() or len(value) > LONGEST_TEXT:
        return None
    number = int(value)
    return number if number <= MOST else None


def _seconds(text: str | None, date: str | None, wall: float) -> float | None:
    """Seconds from the time of the answer: of a number, of a duration such as `6m0s` or `20ms`, or of a time as RFC 3339 has it. A time that
    has passed is 0."""
    value = (text or "").strip()
    if not value or len(value) > LONGEST_TEXT:
        return None
    if _NUMBER.fullmatch(value):
        return float(value)
    if (part := _PART.fullmatch(value)) is not None:
        return float(part[1]) * _UNITS[part[2]]
    if value.isascii() or "µ" in value:
        parts = _PART.findall(value)
        if parts and "".join(f"{number}{unit}" for number, unit in parts) == value:
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        at = datetime.fromisoformat(value)
        told = http_date(date)
        return max((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - (wall if told is None else told), 0.0)
    except (ValueError, OverflowError):
        return None
