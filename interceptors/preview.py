"""What a human is shown of a call before it runs. For reading only: nothing is decided from it."""

from __future__ import annotations

import difflib
from typing import Any

DIFF_CHARS = 8_000
"""Characters of a diff that a question holds; more is cut, and says so."""

_PAIRS = (("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"))
_CONTENTS = ("content", "text")


def write_diff(arguments: dict[str, Any], current: str | None = None) -> str | None:
    """What a write would change, as a unified diff; None where the arguments do not tell.

    `current` is what the file holds now, for a tool that writes a whole file; None where there is none.
    """
    for old, new in _PAIRS:
        before, after = arguments.get(old), arguments.get(new)
        if isinstance(before, str) and isinstance(after, str):
            return _diff(before, after)
    for key in _CONTENTS:
        after = arguments.get(key)
        if isinstance(after, str):
            return _diff(current or "", after)
    return None


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    text = "\n".join(lines) or "(no change)"
    if len(text) <= DIFF_CHARS:
        return text
    return f"{text[:DIFF_CHARS]}\n[… {len(text) - DIFF_CHARS:,} more characters]"
