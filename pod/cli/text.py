"""Text for people: nothing from outside that a terminal might follow, short lines, figures as one reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from unicodedata import category, east_asian_width

from worker.text import visible

SHORT_ID = 8
"""Characters by which a made id is named in a command to copy: its random end."""

SHOWN = 200
"""Lines of a question that a human is shown."""

_MADE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def hidden(text: str) -> str:
    """`text` without values of this environment's secrets: what is looked at may be of an earlier version, another place, or
    an error of somebody else's.
    """
    from worker.masking import Masker, secrets_in

    return Masker(secrets_in(os.environ)).mask(text)[0]


def one_line(text: str, width: int = 160) -> str:
    """`text` on one line, at most `width` characters."""
    short = " ".join(visible(text[: width * 8]).split())
    return short if len(short) <= width else short[: max(width - 3, 0)] + "..."


def money(value: float | None) -> str:
    """US dollars: `$0.0123`, or `unknown`."""
    if value is None:
        return "unknown"
    return f"${value:.4f}" if value < 1 else f"${value:.2f}"


def balance(value: float | None) -> str:
    """`saved $0.0123`, `lost $0.0123`, or that it is unknown."""
    if value is None:
        return "what they saved is unknown (no price)"
    return f"{'lost' if value < 0 else 'saved'} {money(abs(value))}"


def count(number: int, what: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def span(seconds: float) -> str:
    """A time span: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def age(at: str, now: float | None = None) -> str:
    """How long ago an entry's time was; times carry UTC, so the local zone does not matter (case B143)."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return "-"
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    then = now if now is not None else datetime.now(UTC).timestamp()
    return span(max(then - moment.timestamp(), 0)) + " ago"


def share(part: int, whole: int) -> str:
    """A share in percent."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def told(tool: str, summary: str, mark: str = "") -> str:
    """A tool with what its summary says, its name once: `read_file [error]: no such file`."""
    said = summary.removeprefix(tool).lstrip(": ") if summary.startswith((f"{tool} ", f"{tool}:")) else summary
    return f"{tool}{mark}: {said}"


def diff_lines(diff: str | None, most: int) -> list[str]:
    """The first lines of a diff, each as it is, and how many are not among them: a diff hides nothing in silence."""
    lines = visible(diff or "").splitlines()
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} more lines"]


def shown_lines(asked: Any, most: int) -> list[str]:
    """What a human is shown of a question besides its summary: the other arguments (of many lines the first and the last), then
    the first lines of the diff."""
    lines = visible(asked.details or "").splitlines()
    if len(lines) > most:
        half = most // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines are left out here ...", *lines[-half:]]
    return [*lines, *diff_lines(asked.diff, most)]


def question_lines(asked: Any) -> list[str]:
    """A question as a human must see it before an answer: all of its call that it holds, nothing on a line of somebody else's making."""
    first, *rest = visible(told(asked.tool, asked.summary)).splitlines() or [""]
    return [first, *(f"  {line}" for line in (*rest, *shown_lines(asked, SHOWN)))]


def ways_out(name: str, which: str, open_ids: Collection[str] = (), *, width: int = 76) -> list[str]:
    """The commands that answer a question, or every one with `--all`: on one line where they fit into `width` characters.

    A made id is named by its end, as long as no other one in `open_ids` is meant by that too.
    """
    short = which[-SHORT_ID:] if _MADE_ID.fullmatch(which) else which
    if sum(each.startswith(short) or each.endswith(short) for each in open_ids) > 1:
        short = which
    yes, no = f"pod approve {name} {short} --resume", f"pod deny {name} {short} --resume"
    line = f"{yes}   or: {no}"
    return [line] if len(line) <= width else [yes, f"or: {no}"]


def fitted(rows: list[tuple[str, ...]], heads: tuple[str, ...], width: int) -> list[tuple[str, ...]]:
    """Rows that fit into `width`: the last cell is cut at its front, or left out where nothing of it would be left."""
    rows = [tuple(one_line(cell, 200) for cell in row) for row in rows]
    before = sum(max(len(row[i]) for row in (heads, *rows)) + 2 for i in range(len(heads) - 1))
    room = width - before
    if room < 12:
        return [row[:-1] for row in rows]
    return [(*row[:-1], row[-1] if len(row[-1]) <= room else "..." + row[-1][3 - room :]) for row in rows]


def columns(text: str) -> int:
    """The columns of a terminal that a line takes: two for each wide character, none for one that stands on another."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in "WF" else 0 if category(c) in {"Mn", "Me", "Cf"} else 1 for c in text)


def in_columns(text: str, most: int) -> str:
    """`text` on one line, at most so many columns of a terminal."""
    short = one_line(text, most)
    while columns(short) > most:
        short = f"{short.removesuffix('...')[:-1]}..."
    return short


def shortened(name: str, most: int) -> str:
    """A name on one line, at most so many columns of a terminal, cut in its middle: those of many tasks begin alike."""
    whole = one_line(name, max(len(name), 1))
    if columns(whole) <= most:
        return whole
    kept = most - 3
    while columns(found := f"{whole[: kept - kept // 2]}...{whole[len(whole) - kept // 2 :]}") > most:
        kept -= 1
    return found


def table(rows: list[tuple[str, ...]], heads: tuple[str, ...]) -> str:
    """Rows in columns, the last one ragged."""
    clean_rows = [tuple(one_line(cell, 200) for cell in row) for row in rows]
    widths = [max(columns(row[i]) for row in (heads, *clean_rows)) for i in range(len(heads))]
    lines = [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *clean_rows)
    ]
    return "\n".join(lines)


def figures(rows: list[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name + ':':<{width + 1}}  {value}".rstrip() if name else value for name, value in rows)


def why_ended(kind: str, error: str) -> str:
    """Why a run did not finish, as the rest of a line."""
    return (f" ({kind})" if kind else "") + (f": {error}" if error else "")


def memory_line(facts: Mapping[str, Any]) -> str:
    """A provider's own memory, in one line."""
    return f"{one_line(str(facts['model']), 60)}, {facts['tokens']:,} tokens, sha256 {facts['payload_sha256'][:12]}"
