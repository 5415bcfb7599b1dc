"""What a human is shown of a write before it runs. For reading only: nothing is decided from it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Container
from typing import Any

from worker.errors import told
from worker.text import decode, size
from worker.tools import Tool, ToolFault

SHOWN_BYTES = 200_000
"""Bytes up to which a file is read to show what a write changes in it."""

DIFF_CHARS = 8_000
"""Characters of a diff that a question holds, and of its details; more is cut, and says so."""

_PAIRS = (("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"))
_CONTENTS = (("content",), ("text",))


def write_preview(tool: Tool, arguments: dict[str, Any], current: bytes | None) -> str | None:
    """What a write changes, as a unified diff of its file; of the arguments alone where the file can't be foretold.

    `current` is what the file holds (empty where there is none), None where that is not known. None where the
    arguments tell nothing.
    """
    if tool.preview is None:
        return _of_arguments(arguments)
    if current is None:
        return _of_arguments(
            arguments, f"[the file is not read here, or above {size(SHOWN_BYTES)}: its lines are left out]"
        )
    try:
        values = tool.validate(dict(arguments)) if tool.validate else arguments
        after = tool.preview(values, current)
    except ToolFault as fault:
        return _of_arguments(arguments, f"[as the file is now, the call will be refused: {fault}]")
    except Exception as error:
        return _of_arguments(arguments, f"[no preview: {type(error).__name__}: {told(error)}]")
    if after == current:
        return "(no change)" if after else "(an empty file)"
    return _cut(diff(decode(current)[0], decode(after)[0]) or "(bytes change that are no text)")


def details(tool: Tool, arguments: dict[str, Any], shown: Container[str]) -> str | None:
    """The arguments of a call that are not `shown` elsewhere, one behind the other; None where there are none.

    What is too long for a question is cut in its middle: an end that nobody sees is where one would hide something.
    """
    mine = _keys_of_given(arguments) if tool.effect == "write" else ()
    left = {key: value for key, value in arguments.items() if key not in shown and key not in mine}
    text = "\n".join(f"{key}: {_as_text(value)}" for key, value in left.items())
    if len(text) <= DIFF_CHARS:
        return text or None
    half = DIFF_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out here …]\n{text[-half:]}"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def diff(before: str, after: str) -> str:
    """A unified diff that gives `after` when it is applied to `before`; empty where they are the same.

    A line ends with LF alone, as in `diff`: a CR before it belongs to the line. Names of line ends stand in the head
    where they change.
    """
    old, new = _line_ends(before), _line_ends(after)
    heads = (f"before ({old})", f"after ({new})") if old and new and old != new else ("before", "after")
    lines = difflib.unified_diff(_lines(before), _lines(after), *heads)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their LF; other separators are part of a line."""
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def _line_ends(text: str) -> str:
    crlf = text.count("\r\n")
    lf = text.count("\n") - crlf
    return "CR LF and LF" if crlf and lf else "CR LF" if crlf else "LF" if lf else ""


def _of_arguments(arguments: dict[str, Any], why: str = "") -> str | None:
    """The piece that is replaced, or the text that is handed over, without a claim on what the file will hold."""
    found = _given(arguments)
    return _cut("\n".join(part for part in (why, found) if part)) or None


def _given(arguments: dict[str, Any]) -> str:
    match _keys_of_given(arguments):
        case (old, new):
            return diff(arguments[old], arguments[new])
        case (key,):
            return f"{key}:\n{arguments[key]}"
        case _:
            return ""


def _keys_of_given(arguments: dict[str, Any]) -> tuple[str, ...]:
    """The arguments that such a preview shows."""
    for keys in (*_PAIRS, *_CONTENTS):
        if all(isinstance(arguments.get(key), str) for key in keys):
            return keys
    return ()


def _cut(text: str) -> str:
    text = text.removesuffix("\n")
    if len(text) <= DIFF_CHARS:
        return text
    return f"{text[:DIFF_CHARS]}\n[… {len(text) - DIFF_CHARS:,} more characters]"
