"""Hostile text, and how one sees that none of it acts."""

from __future__ import annotations

import re
import unicodedata

SCREEN = "\x1b[2J\x1b[3A\x1b[8m\x1b]0;title\x07\x1b]52;c;QUJD\x07\x1b]8;;http://evil.example/\x1b\\link\x1bP1$r\x1b\\\x9b2J\x9d0;t\x9c"
"""Erases the screen, goes up, hides, sets title and clipboard, links; in seven bits and in eight."""

LINE = "harmless\rrm -rf /\x08\x08\x7f\x0b\x0c\x00\x85\u2028end"
"""Covers the beginning of its own line."""

UNSEEN = "\u202eecho\u202c \u2066a\u2069 \u200bz\u200e \u200dj\ufeff \u2060w\xad \u115fh \u3164f \U000e0041t \ufff9i"
"""Turns its direction, and holds what has no width."""

MARKUP = "[bold]loud[/bold] [link=http://evil.example]here[/link] [/] :warning:"
"""What rich would take for its own."""

ALL = f"{SCREEN} {LINE} {UNSEEN} {MARKUP}"

OWN = re.compile(r"\x1b\[(?:\?25[lh]|[0-9;]*m|2K|1A|[0-9]*[ABG])|\r")
"""What the live display writes itself: the cursor hidden and shown, colours, a line erased, the cursor moved in it."""

NEVER_SENT = ("\x1b[2J", "\x1b[3A", "\x1b[8m")
"""Sequences of `SCREEN` that look like the display's own."""


def followed(seen: str, *, own: bool = False) -> set[str]:
    """The characters in a terminal's output that steer it or that nobody sees; with `own`, beside the display's sequences.

    It does not use the runtime's own list: the categories of Unicode say what steers.
    """
    seen = seen.replace("\r\n", "\n")
    if own:
        seen = OWN.sub("", seen)
    fillers = "\u115f\u1160\u3164\uffa0"
    return {
        c
        for c in seen
        if c not in "\n\t" and (unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or c in fillers)
    }
